"""HeadMap: finds the attention heads of a live model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from headcount.core.heads import HeadIndex

if TYPE_CHECKING:
    from torch import nn


@dataclass(frozen=True, slots=True)
class HeadMap(HeadIndex):
    """The attention blocks of a live model in order, and with them the flat order of heads."""

    @classmethod
    def of(cls, model: nn.Module) -> HeadMap:
        """The head map of a transformers model, plain or wrapped (peft, DDP, torch.compile)."""
        from headcount.models.archs.detect import detect

        return detect(model)

    def verify(self, model: nn.Module, inputs: dict | None = None) -> None:
        """Proves on a probe batch that the gate of every head changes the model's output; raises VerificationError naming those that do not."""
        from headcount.models.gates import verify_gates

        verify_gates(model, self, inputs)
