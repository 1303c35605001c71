"""The model with the same heads gated to nothing, to their mean output and to uniform attention, at several numbers of heads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

from torch import Tensor

from headcount.core.budget import Budget
from headcount.core.errors import OptionError
from headcount.core.evaluation import Evaluation, PairedDifference
from headcount.core.heads import Head
from headcount.core.stats.corrected_rows import add_q_values
from headcount.models.gates import Replacement
from headcount.pruning.base import PruneContext, Pruner
from headcount.pruning.prune import check_request
from headcount.pruning.spec import PruneSpec
from headcount.studies._base import Effort, StudyContext
from headcount.studies._gated import evaluate_without, list_kept_counts, measure_means_for_ablation
from headcount.studies._results import describe_study_run
from headcount.studies._rows import SizeRow
from headcount.workflows.grid import GridPoint, average_evaluations, curve_point_minus_dense, evaluation_minus_baseline

if TYPE_CHECKING:
    from headcount.studies.interventions import Interventions

ZERO: Replacement = "zero"
LEVELS = tuple(share / 10 for share in range(9, 0, -1))


@dataclass(frozen=True, slots=True, kw_only=True)
class InterventionRow(SizeRow):
    """One intervention at one number of heads: over seeds, against the dense model, and against the same heads gated to zero."""

    intervention: str
    share_removed: float
    against_zero: PairedDifference | None

    @property
    def p(self) -> float | None:
        """The p-value of no difference from zero; None for zero itself."""
        return None if self.against_zero is None else self.against_zero.p


def _list_kept_counts_of_study(study: Interventions, context: StudyContext) -> list[int]:
    """Returns how many heads stay at each level, most first."""
    return list_kept_counts(study.keep, context.loaded.heads, LEVELS)


def count_needed_seeds(study: Interventions) -> int:
    """Returns how many times heads are chosen: once by a method without chance."""
    return study.seeds if Pruner.parse(study.method).info.draws else 1


def estimate_effort(study: Interventions, context: StudyContext) -> Effort:
    """Returns the evaluations under all interventions."""
    n_report = min(len(context.task.report), context.limit or len(context.task.report))
    return Effort(
        passes=n_report * (1 + len(study.interventions) * count_needed_seeds(study) * len(_list_kept_counts_of_study(study, context)))
    )


def measure_interventions_by_size(study: Interventions, context: StudyContext) -> tuple[Evaluation, list[InterventionRow]]:
    """Returns the dense model, and a row for every intervention and number of heads; all gate the same heads away."""
    pruner, loaded = Pruner.parse(study.method), context.loaded
    if pruner.info.trains or pruner.sizing_option_text:
        raise OptionError(f"interventions need a method that chooses a number of heads without training; {pruner} is none of these")
    sizes = _list_kept_counts_of_study(study, context)
    for size in sizes:
        check_request(PruneSpec.of(pruner, size), loaded.model, loaded.heads)
    describe_study_run(context, loaded, {"study": study.name, "method": study.method, "seeds": study.seeds})
    seeds = range(context.seed, context.seed + count_needed_seeds(study))
    removed = _choose_removed_heads_by_size_and_seed(context, pruner, sizes, seeds)
    dense = _evaluate_without_heads(context, (), ZERO)
    points: dict[tuple[str, int], GridPoint] = {}
    total = len(study.interventions) * len(removed)
    with context.progress("gating heads", "models") as advance:
        for name in study.interventions:
            intervention = cast(Replacement, name)
            means = measure_means_for_ablation(loaded.model, context.task, intervention, context.limit)
            for size in sizes:
                evaluations = []
                for seed in seeds:
                    evaluations.append(_evaluate_without_heads(context, removed[size, seed], intervention, means))
                    advance(len(points) * len(seeds) + len(evaluations), total)
                survivors = tuple(frozenset(loaded.heads) - removed[size, seed] for seed in seeds)
                points[intervention, size] = _average_seeds_to_point(
                    context, intervention, size, tuple(seeds), evaluations, survivors, dense, len(sizes)
                )
    rows = []
    for (intervention, size), point in points.items():
        zero = points.get((ZERO, size)) if intervention != ZERO else None
        against_zero = (
            None if zero is None else evaluation_minus_baseline(zero.evaluation, point.evaluation, context.task, seed=context.seed)
        )
        rows.append(
            InterventionRow(
                intervention=intervention,
                n_kept=size,
                share_removed=1 - size / len(loaded.heads),
                scores=point.scores,
                change=point.change,
                against_zero=against_zero,
            )
        )
    return dense, add_q_values(rows)


def _choose_removed_heads_by_size_and_seed(
    context: StudyContext, pruner: Pruner, kept_counts: Sequence[int], seeds: Sequence[int]
) -> dict[tuple[int, int], frozenset[Head]]:
    """Returns the heads that go at every number of heads that stay, by each seed."""
    loaded, removed = context.loaded, {}
    for n_kept in kept_counts:
        for seed in seeds:
            choice = pruner.choose(PruneContext(loaded.model, loaded.heads, context.task, Budget(keep=n_kept), seed))
            removed[n_kept, seed] = frozenset(choice.plan.removed)
    return removed


def _evaluate_without_heads(
    context: StudyContext,
    removed: Sequence[Head] | frozenset[Head],
    intervention: Replacement,
    mean_outputs: Mapping[str, Tensor] | None = None,
) -> Evaluation:
    loaded, task = context.loaded, context.task
    name = f"{len(loaded.heads) - len(removed)} heads, others {intervention}" if removed else "dense"
    return evaluate_without(
        context.run,
        name,
        loaded.model,
        task,
        removed,
        ablation=intervention,
        means=mean_outputs,
        limit=context.limit,
        batch_size=context.batch_size,
    )


def _average_seeds_to_point(
    context: StudyContext,
    intervention: str,
    n_kept: int,
    seeds: tuple[int, ...],
    evaluations: Sequence[Evaluation],
    survivors: tuple[frozenset[Head], ...],
    dense: Evaluation,
    n_sizes: int,
) -> GridPoint:
    average = evaluations[0] if len(evaluations) == 1 else average_evaluations(evaluations, context.task)
    values = tuple(evaluation.score for evaluation in evaluations)
    change = curve_point_minus_dense(dense, average, context.task, n_sizes=n_sizes, seed=context.seed)
    return GridPoint(intervention, n_kept, seeds, values, average, survivors, change, ())
