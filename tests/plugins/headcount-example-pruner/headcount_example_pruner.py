from __future__ import annotations

from dataclasses import KW_ONLY, dataclass

from headcount.core.options import option
from headcount.pruning.base import Choice, PruneContext, Pruner, PrunerInfo


@dataclass(frozen=True)
class DeepFirst(Pruner):
    """Deep first: the heads of the last layers go first, those of the first layers stay."""

    _: KW_ONLY
    reverse: bool = option(False, "Remove the heads of the first layers first")
    info = PrunerInfo(source="an example")

    def choose(self, context: PruneContext) -> Choice:
        """Returns the plan that keeps the heads of the lowest layers."""
        sign = 1 if self.reverse else -1
        return Choice(context.plan([sign * head.layer for head in context.heads], str(self)))
