from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from headcount.importance.base import ImportanceInfo, ScoreContext, WeightImportance
from headcount.models.modules import unwrap
from headcount.models.weights import PARTS, weights_of


@dataclass(frozen=True)
class Magnitude(WeightImportance):
    """Magnitude: the Frobenius norm of all weights that belong to a head. Needs no data.

        s_h = √(‖W_Q,h‖² + ‖W_K,h‖² + ‖W_V,h‖² + ‖W_O,h‖²)

    Han et al. 2015, "Learning both Weights and Connections for Efficient Neural Networks", summed over the weights of a head. A KV head counts in
    full for each of its query heads. There are no examples, so there is no standard error.
    """

    info = ImportanceInfo(
        needs={"weights"}, higher_is_keep=True, cost="reads the weights once", source="Han et al. 2015", sees_projection=False
    )

    def of_model(self, context: ScoreContext) -> Float[Tensor, " heads"]:
        """Returns the norm of every head's weights."""
        model, norms = unwrap(context.model), []
        for block in context.heads.blocks:
            squares = torch.zeros(block.n_heads, dtype=torch.float64)
            for part in PARTS:
                squares += torch.tensor(
                    [float((weight.double() ** 2).sum()) for weight in weights_of(model, block, part)], dtype=torch.float64
                )
            norms.append(squares.sqrt())
        return torch.cat(norms)
