from __future__ import annotations

from dataclasses import KW_ONLY, dataclass, replace

from headcount.core.errors import PlanError
from headcount.core.normalisation import Normalise
from headcount.core.options import option
from headcount.core.plan import Plan
from headcount.core.registry import PRUNERS
from headcount.core.scores import Scores
from headcount.data.evaluate import evaluate
from headcount.data.share_above_chance import metric_on_additive_scale, score_of_best_constant_answer, why_share_is_undefined
from headcount.data.task import Task
from headcount.importance.base import Importance
from headcount.importance.score import score
from headcount.models.gates import HeadGates
from headcount.pruning.base import Choice, PruneContext, Pruner, PrunerInfo
from headcount.pruning.scope import Scope, group_limits, keep_top_by_scope
from headcount.surgery.verify import gate_values_of_plan


@dataclass(frozen=True)
class Rank(Pruner):
    """Rank and cut: the heads with the lowest scores go, at once or in steps.

    Between steps scores can be estimated again. The name of an importance stands for ranking by it: `ablation:mean(again=true)` is
    `rank(by=ablation:mean;again=true)`. `scope` ranks all heads together (global), or removes the same share of
    every block (layer) or of each kind of attention (type). With `stop`, heads go step by step as long as that
    share of the dense model's score above chance is left on the selection split (of perplexities, their
    logarithms): `stop` alone decides how many stay. Michel et al. 2019.
    """

    _: KW_ONLY
    by: str = option("gradient", "The importance to rank by")
    normalise: Normalise = option("published", "How scores are normalised; published stands for what the paper of the importance does")
    scope: Scope = option("global", "Rank all heads together, or remove the same share of every block or kind of attention")
    again: bool = option(False, "Estimate scores again after each step")
    step: float = option(0.1, "Share of all heads that goes in one step", above=0, maximum=1)
    stop: float = option(
        0.0, "Share of the dense score above chance that must be left; unless it is 0, it decides how many heads stay", minimum=0, maximum=1
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

    def count_passes(self, n_heads: int) -> float:
        """Returns the passes of the scores, of every step where they are estimated again; an ablation takes half of one for every head."""
        of_scores = n_heads / 2 if Importance.parse(self.by).info.measures_loss else 3.0
        return of_scores * (1 / self.step if self.again else 1.0)

    def choose(self, context: PruneContext) -> Choice:
        """Returns the plan, and the metric after each step where there are steps."""
        stop = _StopRule.leaving_share_of_score(context, self.stop) if self.stop else None
        key = ("scores", self.by, self.normalise, self.limit, context.seed)
        scores = context.once(key, lambda: self.measure_scores(context, self.normalise))
        if not self.again and stop is None:
            return Choice(keep_top_by_scope(context, scores, context.keep, self.scope), scores=scores)
        return self._choose_in_steps(context, scores, stop)

    def measure_scores(self, context: PruneContext, normalise: Normalise) -> Scores:
        """Returns the scores of all heads of the model."""
        return score(context.model, context.data, self.by, normalise=normalise, limit=self.limit, seed=context.seed)

    def _choose_in_steps(self, context: PruneContext, first_scores: Scores, stop: _StopRule | None) -> Choice:
        scores, history = first_scores, []
        plan = Plan.removing([], protected=context.budget.protected)
        counts = self.n_kept_after_each_step(context)
        for number in counts:
            next_plan = keep_top_by_scope(context, scores, number, self.scope)
            with HeadGates(context.model, gate_values_of_plan(context.heads, next_plan), heads=context.heads):
                gated = None if stop is None else evaluate(context.model, stop.task, split="selection")
                history.append({"heads": number, **({} if gated is None else {"loss": gated.loss, "value": gated.value})})
                if gated is not None and stop is not None and metric_on_additive_scale(stop.task, gated.value) < stop.lowest:
                    break
                if self.again and number > counts[-1]:
                    scores = self._rescore_under_present_gates(context, next_plan, label=scores.method)
            plan = next_plan
        return Choice(plan, history=history, scores=first_scores)

    def _rescore_under_present_gates(self, context: PruneContext, plan: Plan, *, label: str) -> Scores:
        """Returns scores of the heads that a plan keeps, measured under the gates that are on the model now and normalised among themselves.

        Removed heads get a score below all others.
        """
        raw, removed = self.measure_scores(context, "none"), frozenset(plan.removed)
        kept_heads = tuple(head for head in context.heads if head not in removed)
        kept_scores = Scores(kept_heads, tuple(raw[head] for head in kept_heads), raw.method, raw.higher_is_keep)
        values = kept_scores.normalise_by(Importance.parse(self.by).scaling(self.normalise)).keep_values()
        lowest = min(values.values()) - 1.0
        return context.scores([lowest if head in removed else values[head] for head in context.heads], label)

    def n_kept_after_each_step(self, context: PruneContext) -> list[int]:
        """Returns how many heads are left after each step: down to the number of the budget, or with `stop` to the fewest possible."""
        n_heads, sizes = len(context.heads), sorted({len(unit) for unit in context.heads.units()})
        unit_size = sizes[0] if len(sizes) == 1 else 1
        step = max(unit_size, round(self.step * n_heads) // unit_size * unit_size)
        last = context.keep
        if self.stop:
            last = max(unit_size, sum(group_limits(context, block.heads).min_heads for block in context.heads.blocks if block.n_heads))
        return [*range(n_heads - step, last, -step), last]


@dataclass(frozen=True, slots=True)
class _StopRule:
    """The lowest score of the selection split, on the additive scale, that leaves a share of what the dense model scores above chance."""

    task: Task
    lowest: float

    @classmethod
    def leaving_share_of_score(cls, context: PruneContext, share_above_chance: float) -> _StopRule:
        """Returns the rule that leaves this share of what the dense model scores above chance.

        Raises:
            PlanError: there is no metric whose chance is known, or the dense model is not above chance on the selection split.
        """
        if not isinstance(context.data, Task):
            raise PlanError(
                "stop needs a Task with a metric, of whose score above chance a share must be left; name how many heads stay (keep)"
            )
        task, dense = context.data, evaluate(context.model, context.data, split="selection")
        chance = score_of_best_constant_answer(context.model, task, split="selection")
        reason = why_share_is_undefined(dense, task, chance, seed=context.seed)
        if chance is None or reason:
            raise PlanError(
                f"stop={share_above_chance:g} keeps a share of the dense model's score above chance, but on the selection split {reason}. "
                "Name how many heads stay (keep) instead of stop, or give a model that was trained for the task, or more examples"
            )
        score = metric_on_additive_scale(task, dense.score)
        return cls(task, score - (1 - share_above_chance) * (score - metric_on_additive_scale(task, chance)))
