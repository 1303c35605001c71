"""Random: uniform numbers from the seed; the control that every importance must beat. Needs no data."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from headcount.importance.base import About, Work

ABOUT = About(needs=frozenset(), higher_is_keep=True, cost="nothing", source="control", sees_projection=False)


def of_model(work: Work, _variant: str) -> Tensor:
    """One number per head, the same for the same seed on every machine."""
    return torch.from_numpy(np.random.Generator(np.random.Philox(work.seed)).random(len(work.heads)))
