from __future__ import annotations

from dataclasses import KW_ONLY, dataclass, replace

from headcount.core.evaluation import Evaluation
from headcount.core.normalisation import Normalise
from headcount.core.options import option
from headcount.core.plan import Plan
from headcount.core.registry import PRUNERS
from headcount.core.scores import Scores
from headcount.data.evaluate import evaluate
from headcount.importance.base import Importance
from headcount.importance.score import score
from headcount.models.gates import HeadGates
from headcount.pruning.base import Choice, PruneContext, Pruner, PrunerInfo
from headcount.pruning.scope import Scope, group_limits, keep_top_by_scope
from headcount.surgery.verify import gates_of


@dataclass(frozen=True)
class Rank(Pruner):
    """Rank and cut: the heads with the lowest scores go, at once or in steps.

    Between steps scores can be estimated again. The name of an importance stands for ranking by it: `ablation:mean(again=true)` is
    `rank(by=ablation:mean;again=true)`. `scope` ranks all heads together (global), or removes the same share of
    every block (layer) or of each kind of attention (type). With `stop`, heads go step by step as long as the
    metric on the selection split is at least that share of the dense model's: `stop` alone decides how many
    stay. Michel et al. 2019.
    """

    _: KW_ONLY
    by: str = option("gradient", "The importance to rank by")
    normalise: Normalise = option("published", "How scores are normalised; published stands for what the paper of the importance does")
    scope: Scope = option("global", "Rank all heads together, or remove the same share of every block or kind of attention")
    again: bool = option(False, "Estimate scores again after each step")
    step: float = option(0.1, "Share of all heads that goes in one step", above=0, maximum=1)
    stop: float = option(
        0.0, "Share of the dense metric that must be left; unless it is 0, it decides how many heads stay", minimum=0, maximum=1
    )
    limit: int = option(512, "Calibration examples that scores are measured on", minimum=1)
    info = PrunerInfo("Michel, Levy & Neubig 2019", size_option="stop")

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "by", str(Importance.parse(self.by)))

    def __str__(self) -> str:
        """Returns the text that makes the object: the importance, unless a pruner has that name too, with the other options."""
        if "(" in self.by or self.by.partition(":")[0] in PRUNERS.names():
            return super().__str__()
        return self.by + Pruner.__str__(replace(self, by="gradient")).removeprefix(self.name)

    def choose(self, context: PruneContext) -> Choice:
        """Returns the plan, and the metric after each step where there are steps."""
        key = ("scores", self.by, self.normalise, self.limit, context.seed)
        scores = context.once(key, lambda: self.measure(context, self.normalise))
        if not self.again and not self.stop:
            return Choice(keep_top_by_scope(context, scores, context.keep, self.scope), scores=scores)
        return self._choose_in_steps(context, scores)

    def measure(self, context: PruneContext, normalise: Normalise) -> Scores:
        """Returns the scores of all heads of the model."""
        return score(context.model, context.data, self.by, normalise=normalise, limit=self.limit, seed=context.seed)

    def _choose_in_steps(self, context: PruneContext, first_scores: Scores) -> Choice:
        scores, history = first_scores, []
        plan = Plan.removing([], protected=context.budget.protected)
        dense = evaluate(context.model, context.data, split="selection") if self.stop else None
        counts = self.kept_counts(context)
        for number in counts:
            next_plan = keep_top_by_scope(context, scores, number, self.scope)
            with HeadGates(context.model, gates_of(context.heads, next_plan), heads=context.heads):
                gated = None if dense is None else evaluate(context.model, context.data, split="selection")
                history.append({"heads": number, **({} if gated is None else {"loss": gated.loss, "value": gated.value})})
                if gated is not None and dense is not None and not _retains_share(dense, gated, self.stop):
                    break
                if self.again and number > counts[-1]:
                    scores = self._estimate_under_gates(context, scores.method, next_plan)
            plan = next_plan
        return Choice(plan, history=history, scores=first_scores)

    def _estimate_under_gates(self, context: PruneContext, name: str, plan: Plan) -> Scores:
        """Returns scores of the heads that a plan keeps, measured under the gates that are on the model now and normalised among themselves.

        Removed heads get a score below all others.
        """
        raw, removed = self.measure(context, "none"), frozenset(plan.removed)
        kept_heads = tuple(head for head in context.heads if head not in removed)
        kept_scores = Scores(kept_heads, tuple(raw[head] for head in kept_heads), raw.method, raw.higher_is_keep)
        values = kept_scores.normalise_by(Importance.parse(self.by).scaling(self.normalise)).keep_values()
        lowest = min(values.values()) - 1.0
        return context.scores([lowest if head in removed else values[head] for head in context.heads], name)

    def kept_counts(self, context: PruneContext) -> list[int]:
        """Returns how many heads are left after each step: down to the number of the budget, or with `stop` to the fewest possible."""
        n_heads, sizes = len(context.heads), sorted({len(unit) for unit in context.heads.units()})
        unit_size = sizes[0] if len(sizes) == 1 else 1
        step = max(unit_size, round(self.step * n_heads) // unit_size * unit_size)
        last = context.keep
        if self.stop:
            last = max(unit_size, sum(group_limits(context, block.heads).min_heads for block in context.heads.blocks if block.n_heads))
        return [*range(n_heads - step, last, -step), last]


def _retains_share(dense: Evaluation, gated: Evaluation, share: float) -> bool:
    """Whether the metric, or the loss where there is no metric, is at least a share of the dense model's."""
    if gated.value is None or dense.value is None:
        return gated.loss <= dense.loss / share
    return gated.value >= share * dense.value if dense.higher_is_better else gated.value <= dense.value / share
