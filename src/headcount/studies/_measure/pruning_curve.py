"""Models pruned by several methods to several sizes, over seeds, in pairs with random heads and with each other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import TYPE_CHECKING

from headcount.core.budget import Budget
from headcount.core.evaluation import Evaluation
from headcount.data.task import Task
from headcount.models.head_map import HeadMap
from headcount.pruning.recipe import Recipe
from headcount.pruning.spec import PruneSpec
from headcount.studies._base import Effort, LoadedModel, StudyContext
from headcount.studies._gated import admit_model, count_levels
from headcount.studies._grid import Grid, GridPoint, count_by, run_grid
from headcount.studies._results import correct_rows, describe_study_run
from headcount.studies._rows import ControlledRow, DifferenceRow, estimate_requests, shift_interval
from headcount.workflows.prune import Pruning, build_grid

if TYPE_CHECKING:
    from headcount.studies._pruned_models import PrunedModels
    from headcount.studies.pruning_curve import PruningCurve

LEVELS = tuple(share / 10 for share in range(9, 0, -1))
RANDOM = "random"


@dataclass(frozen=True, slots=True, kw_only=True)
class CurveRow(ControlledRow):
    """One method at one number of heads. `band` is the score of the dense model (`dense`) plus the interval of the change from it."""

    method: str
    share_removed: float
    kept_by_kind: Mapping[str, float]
    band: tuple[float, float]
    dense: float
    task: str = ""

    @property
    def relative(self) -> tuple[float, float, float]:
        """The mean and the ends of the band as shares of the dense model's score."""
        return self.scores.mean / self.dense, self.band[0] / self.dense, self.band[1] / self.dense


@dataclass(frozen=True, slots=True, kw_only=True)
class MethodPair(DifferenceRow):
    """The difference of a method from another one at the same number of heads."""

    n_kept: int
    method: str
    other: str
    task: str = ""


@dataclass(frozen=True, slots=True)
class Curves:
    """The dense model of every task by its label, a row for every method and size, and one for every pair of methods."""

    dense: Mapping[str, Evaluation]
    rows: list[CurveRow]
    pairs: list[MethodPair]


@dataclass(frozen=True, slots=True)
class Series:
    """A model and a task that are pruned, by methods over all kinds of attention or each of them alone; `label` names them in tables."""

    label: str
    loaded: LoadedModel
    task: Task


def build_requests(study: PrunedModels, context: StudyContext) -> list[PruneSpec]:
    """Returns the requests of all models of a study."""
    return build_specs(study, context.loaded.heads, study.kinds, first_seed=context.seed)


def build_specs(study: PrunedModels, heads: HeadMap, kinds: Sequence[str], *, first_seed: int) -> list[PruneSpec]:
    """Returns the requests of all models of a study that lose heads of some kinds of attention, or of all where none is named."""
    n_free = sum(block.n_heads for block in heads.blocks if not kinds or block.kind in kinds)
    keeps = count_levels(study.keep, heads, LEVELS) if not kinds else count_kind_levels(study.keep, n_free)
    recipe = Recipe(steps=study.steps, rate=study.rate, train_batch=study.train_batch)
    template = PruneSpec.of(RANDOM, Budget(keep=1), kinds=kinds, repair=study.repair, recover=study.recover, recipe=recipe, seed=first_seed)
    return build_grid(study.methods, keeps, study.seeds, template, first_seed=first_seed)


def count_kind_levels(keeps: Sequence[int | float | str], n_heads: int) -> list[int]:
    """Returns how many heads of some kinds of attention stay at each level, most first."""
    sizes = keeps or [f"{round(100 * share)}%" for share in LEVELS]
    return sorted({max(1, Budget(keep=size).heads(n_heads)) for size in sizes}, reverse=True)


def estimate_effort(study: PrunedModels, context: StudyContext, *, n_grids: int = 1) -> Effort:
    """Returns the evaluations of all models, one gradient pass for each ranking, and the steps of those that train, of so many grids alike."""
    models = estimate_requests(build_requests(study, context), context)
    rankings = len(study.methods) * 3 * min(len(context.task.calibration), 512)
    return Effort(passes=n_grids * (models.passes + rankings), steps=n_grids * models.steps)


def list_kinds(study: PruningCurve, heads: HeadMap) -> list[tuple[str, ...]]:
    """Returns the kinds of attention that lose heads in each grid of a study."""
    if not study.each_kind:
        return [study.kinds]
    return [(kind,) for kind in dict.fromkeys(block.kind for block in heads.blocks) if not study.kinds or kind in study.kinds]


def open_series(study: PruningCurve, context: StudyContext) -> list[Series]:
    """Returns the model and task of a study, and those that `other_tasks` names as TASK or MODEL=TASK."""
    series = [Series(context.task.name, context.loaded, context.task)]
    for text in study.other_tasks:
        model, separator, task = text.partition("=")
        if not separator or "(" in model:  # an equals sign within parentheses belongs to an option of the task
            series.append(Series(text, context.loaded, context.sources.open_task(context.loaded, text)))
        else:
            loaded = context.sources.load_model(model)
            series.append(Series(f"{task} ({model})", loaded, context.sources.open_task(loaded, task)))
    return series


def measure_curves(study: PruningCurve, context: StudyContext) -> Curves:
    """Prunes the model of a study by every method to every size on every task, and compares the results."""
    all_series = open_series(study, context)
    describe_study_run(context, context.loaded, {"study": study.name, "methods": list(study.methods), "seeds": study.seeds})
    dense: dict[str, Evaluation] = {}
    rows: list[CurveRow] = []
    pairs: list[MethodPair] = []
    for series in all_series:
        admit_model(context.run, series.loaded.model)
        pruning = Pruning(context.required_run, series.loaded.model, series.task, limit=context.limit, command=context.command)
        for kinds in list_kinds(study, series.loaded.heads):
            specs = build_specs(study, series.loaded.heads, kinds, first_seed=context.seed)
            grid = run_grid(context, pruning, specs, keep_models=study.keep_models)
            dense[series.label] = grid.dense
            rows += [replace(row, task=series.label) for row in curve_rows(grid, kinds, seed=context.seed)]
            pairs += [replace(row, task=series.label) for row in compare_methods(grid, seed=context.seed)]
    return Curves(dense, correct_rows(rows), correct_rows(pairs))


def curve_rows(grid: Grid, kinds: Sequence[str] = (), *, seed: int = 0) -> list[CurveRow]:
    """Returns a row for every point of a grid, those of one method together, most heads first."""
    free = [block for block in grid.heads.blocks if not kinds or block.kind in kinds]
    controls = {_count_free(point, grid.heads, kinds): point for point in grid.points if point.method.startswith(RANDOM)}
    n_free, rows = sum(block.n_heads for block in free), []
    for method in grid.methods:
        for point in sorted((point for point in grid.points if point.method == method), key=lambda point: -point.n_kept):
            n_kept = _count_free(point, grid.heads, kinds)
            control = None if method.startswith(RANDOM) else controls.get(n_kept)
            rows.append(
                CurveRow(
                    method=method,
                    n_kept=n_kept,
                    share_removed=1 - n_kept / n_free,
                    scores=point.scores,
                    change=point.change,
                    against_random=None if control is None else grid.compare(point, control, seed=seed),
                    kept_by_kind=count_by(grid.heads.blocks, point.survivors),
                    band=shift_interval(grid.dense.score, point.change),
                    dense=grid.dense.score,
                )
            )
    return correct_rows(rows)


def _count_free(point: GridPoint, heads: HeadMap, kinds: Sequence[str]) -> int:
    """Returns how many heads of some kinds of attention (of all, if none are named) stay at a point."""
    counts = count_by(heads.blocks, point.survivors)
    return round(sum(number for kind, number in counts.items() if not kinds or kind in kinds))


def compare_methods(grid: Grid, *, seed: int = 0) -> list[MethodPair]:
    """Returns every pair of methods other than random at each number of heads that both have."""
    methods, rows = [method for method in grid.methods if not method.startswith(RANDOM)], []
    for n_kept in sorted({point.n_kept for point in grid.points}, reverse=True):
        for method, other in combinations(methods, 2):
            first, second = grid.point(method, n_kept), grid.point(other, n_kept)
            if first is not None and second is not None:
                change = grid.compare(first, second, seed=seed)
                rows.append(MethodPair(n_kept=n_kept, method=method, other=other, change=change))
    return correct_rows(rows)
