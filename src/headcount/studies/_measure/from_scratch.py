"""Pruned models and their controls from scratch: the same heads, or gates on weights drawn anew."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from headcount.core.evaluation import Evaluation, PairedDifference
from headcount.core.stats.corrected_rows import add_q_values
from headcount.core.survivors import mean_survivors_by_kind
from headcount.data.share_above_chance import score_of_best_constant_answer
from headcount.models.head_map import HeadMap
from headcount.pruning.recipe import Recipe
from headcount.pruning.spec import PruneSpec
from headcount.studies._base import Effort, StudyContext
from headcount.studies._gated import list_kept_counts
from headcount.studies._grid import estimate_grid_effort, make_pruning, run_grid
from headcount.studies._measure.pruning_curve import list_kept_counts_of_kinds
from headcount.studies._results import describe_study_run
from headcount.studies._rows import DifferenceRow, SizeRow
from headcount.workflows.grid import GridPoint

if TYPE_CHECKING:
    from headcount.studies.from_scratch import FromScratch

PRUNED, CONFIGURATION, GATES = "pruned, from the trained model", "the same heads from scratch", "gates from scratch"


@dataclass(frozen=True, slots=True, kw_only=True)
class ControlRow(SizeRow):
    """A pruned model or a control at one number of heads. Its steps are those that the weights were trained for."""

    model: str
    kept_by_kind: Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class ControlPair(DifferenceRow):
    """The pruned model minus a control at the same number of heads."""

    n_kept: int
    control: str


@dataclass(frozen=True, slots=True)
class ScratchResult:
    """The dense model, the names of the pruned model and its controls, a row for each of them and every size, and their pairs.

    `floor` is the score of a model that has learnt nothing: that of the best constant answer, or 0 for a metric without one (BLEU); None where no
    metric is measured, or a lower one is better.
    """

    dense: Evaluation
    floor: float | None
    models: tuple[str, ...]
    rows: list[ControlRow]
    pairs: list[ControlPair]


def build_requests_by_model_and_size(study: FromScratch, heads: HeadMap, first_seed: int) -> dict[tuple[str, int], list[PruneSpec]]:
    """Returns the requests of every model and number of heads (of the kinds that lose heads), a request for every seed."""
    n_free = sum(block.n_heads for block in heads.blocks if not study.kinds or block.kind in study.kinds)
    sizes = list_kept_counts_of_kinds(study.keep, n_free) if study.kinds else list_kept_counts(study.keep, heads, ())
    recipe = Recipe(steps=study.steps, rate=study.rate, train_batch=study.train_batch)
    scratch_recipe = Recipe(rate=study.scratch_rate, train_batch=study.train_batch).with_length(study.scratch, "scratch")
    requests: dict[tuple[str, int], list[PruneSpec]] = {}
    common: Any = {"kinds": study.kinds, "repair": False, "recipe": recipe}
    for size in sizes:
        for seed in range(first_seed, first_seed + study.seeds):
            of_seed = {PRUNED: PruneSpec.of(study.method, size, recover=study.recover, seed=seed, **common)}
            if study.heads:
                of_seed[CONFIGURATION] = PruneSpec.of(
                    study.method, size, scratch=study.scratch, scratch_rate=study.scratch_rate, seed=seed, **common
                )
            if study.gates:
                of_seed[GATES] = PruneSpec.of("l0(weights=scratch)", size, seed=seed, **{**common, "recipe": scratch_recipe})
            for model, spec in of_seed.items():
                requests.setdefault((model, size), []).append(spec)
    return requests


def estimate_effort(study: FromScratch, context: StudyContext) -> Effort:
    """Returns the evaluations and training steps of all models."""
    requests = build_requests_by_model_and_size(study, context.loaded.heads, context.seed)
    return estimate_grid_effort(context, [spec for of_model in requests.values() for spec in of_model])


def measure_pruned_and_control_models(study: FromScratch, context: StudyContext) -> ScratchResult:
    """Makes the pruned models and their controls, and compares every control with its pruned model."""
    requests = build_requests_by_model_and_size(study, context.loaded.heads, context.seed)
    describe_study_run(context, context.loaded, {"study": study.name, "method": study.method, "seeds": study.seeds})
    grid = run_grid(context, make_pruning(context), [spec for of_model in requests.values() for spec in of_model])
    points = dict(zip(requests, grid.points, strict=True))
    n_sizes = Counter(model for model, _ in points)
    changes = {
        (model, size): grid.point_minus_dense(point, n_sizes=n_sizes[model], seed=context.seed) for (model, size), point in points.items()
    }
    rows = [_make_control_row(*key, point, grid.heads, changes[key]) for key, point in points.items()]
    pairs = [
        ControlPair(n_kept=size, control=model, change=grid.point_minus_control(points[PRUNED, size], point, seed=context.seed))
        for (model, size), point in points.items()
        if model != PRUNED
    ]
    is_rising = grid.dense.value is not None and grid.dense.higher_is_better
    return ScratchResult(
        grid.dense,
        (score_of_best_constant_answer(context.loaded.model, context.task, context.limit) or 0.0) if is_rising else None,
        tuple(dict.fromkeys(model for model, _ in requests)),
        add_q_values(rows),
        add_q_values(pairs),
    )


def _make_control_row(model_name: str, n_kept: int, point: GridPoint, heads: HeadMap, change: PairedDifference) -> ControlRow:
    """Returns the row of a model; the steps of a control with the same heads are those from scratch alone."""
    by_kind, steps = mean_survivors_by_kind(heads.blocks, point.survivors), point.artifacts[0].content["steps"]
    of_weights = steps["scratch"] if model_name == CONFIGURATION else sum(steps.values()) or None
    scores = replace(point.scores, steps=of_weights)
    return ControlRow(model=model_name, n_kept=n_kept, kept_by_kind=by_kind, scores=scores, change=change)
