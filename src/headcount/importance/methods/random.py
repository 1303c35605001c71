from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from headcount.importance.base import ImportanceInfo, ScoreContext, WeightImportance


@dataclass(frozen=True)
class Random(WeightImportance):
    """Random: uniform numbers from the seed; the control that every importance must beat. Needs no data."""

    info = ImportanceInfo(needs=set(), higher_is_keep=True, cost="nothing", source="control", sees_projection=False)

    def of_model(self, context: ScoreContext) -> Float[Tensor, " heads"]:
        """Returns one number per head, the same for the same seed on every machine."""
        return torch.from_numpy(np.random.Generator(np.random.Philox(context.seed)).random(len(context.heads)))
