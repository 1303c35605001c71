"""HeadMap: finds the attention heads of a live model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from headcount.core.heads import HeadIndex
from headcount.models.modules import Batch

if TYPE_CHECKING:
    from torch import nn


@dataclass(frozen=True, slots=True)
class HeadMap(HeadIndex):
    """The attention blocks of a live model in order, and with them the flat order of heads, a sequence of `Head`.

    Example:
        >>> heads = hc.HeadMap.of(model)
        >>> len(heads), str(heads[0]), heads.position("L1H0"), heads.describe()
    """

    @classmethod
    def of(cls, model: nn.Module) -> HeadMap:
        """Finds the attention heads of a transformers model, plain or wrapped (peft, DDP, torch.compile).

        Raises:
            UnsupportedModel: `model` is no transformers model, or no head was found in it; names the modules and the reasons.
        """
        from headcount.models.archs.detect import detect_heads

        return detect_heads(model)

    def verify(self, model: nn.Module, inputs: Batch | None = None) -> None:
        """Proves that the gate of every head changes the model's output.

        Args:
            model: The model that the heads were found in.
            inputs: The keyword arguments of a forward pass; None for a batch that is made for the model.

        Raises:
            VerificationError: gating some heads changes nothing; names them.
        """
        from headcount.models.gates import verify_gates

        verify_gates(model, self, inputs)
