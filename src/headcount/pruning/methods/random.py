from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from headcount.core.options import option
from headcount.pruning.base import Choice, PruneContext, Pruner, PrunerInfo
from headcount.pruning.scope import keep_top_by_scope


@dataclass(frozen=True)
class RandomPruner(Pruner):
    """Random: heads chosen by the seed alone. The control of comparisons.

    Heads are drawn over the whole model, or the same share of every kind of attention ("type"). Budhraja et al.
    2020 found that large random fractions can go with limited loss once the model is fine-tuned.
    """

    scope: Literal["global", "type"] = option("global", "Draw over the whole model, or the same share of every kind of attention")
    info = PrunerInfo("Budhraja et al. 2020", draws=True)

    def choose(self, context: PruneContext) -> Choice:
        """Returns the plan."""
        scores = context.scores(context.random().random(len(context.heads)), "random")
        return Choice(keep_top_by_scope(context, scores, context.keep, self.scope), scores=scores)
