from __future__ import annotations

from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor

from headcount.importance.base import BlockImportance, ImportanceInfo
from headcount.importance.methods.gradient import gate_gradients
from headcount.models.observe import Observation


@dataclass(frozen=True)
class Fisher(BlockImportance):
    """Fisher: the mean over examples of (∂L(x)/∂ξ_h)², the diagonal of the empirical Fisher information of the gates.

    Half of it estimates the loss that removing the head alone costs. Kwon et al. 2022, "A Fast Post-Training Pruning Framework for Transformers".
    """

    info = ImportanceInfo(
        needs={"gradient", "labels"},
        higher_is_keep=True,
        cost="one forward and one backward pass without gradients of weights",
        source="Kwon et al. 2022",
        sums_calls=True,
    )

    def of_block(self, observation: Observation) -> Float[Tensor, "batch heads"]:
        """Returns each example's gradient with respect to the gate of each head."""
        return gate_gradients(observation).sum(1)

    def per_example(self, values: Float[Tensor, "batch heads"]) -> Float[Tensor, "batch heads"]:
        """Returns the squares of the gradients."""
        return values**2
