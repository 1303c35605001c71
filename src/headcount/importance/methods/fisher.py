"""Fisher: the mean over examples of (∂L(x)/∂ξ_h)², the diagonal of the empirical Fisher information of the gates.

Half of it estimates the loss that removing the head alone costs. Kwon et al. 2022, "A Fast Post-Training Pruning Framework for Transformers".
"""

from __future__ import annotations

from torch import Tensor

from headcount.importance.base import About
from headcount.importance.methods.gradient import of_block as gradient_of_block
from headcount.models.observe import Observation

ABOUT = About(
    needs=frozenset({"gradient", "labels"}),
    higher_is_keep=True,
    cost="one forward and one backward pass without gradients of weights",
    source="Kwon et al. 2022",
    adds=True,
)


def of_block(seen: Observation, _variant: str) -> Tensor:
    """Each example's gradient with respect to the gate of each head."""
    return gradient_of_block(seen, "signed")


def per_example(values: Tensor, _variant: str) -> Tensor:
    """Squares."""
    return values**2
