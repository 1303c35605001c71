"""The choice of an importance, its complement and random heads, each as it is, repaired and recovered by training."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

from headcount.core.budget import Budget
from headcount.core.evaluation import Evaluation
from headcount.core.stats.corrected_rows import add_q_values
from headcount.pruning.methods.plan import PlanPruner
from headcount.pruning.recipe import Recipe
from headcount.pruning.spec import PruneSpec
from headcount.studies._base import STEP_BATCH, Effort, StudyContext
from headcount.studies._gated import resolve_kept_count
from headcount.studies._grid import make_pruning, run_grid
from headcount.studies._results import describe_study_run
from headcount.studies._rows import ControlledRow
from headcount.workflows.grid import Grid, GridPoint

if TYPE_CHECKING:
    from headcount.studies.importance_or_random import ImportanceOrRandom

IMPORTANCE, COMPLEMENT, RANDOM = "importance", "complement", "random"
AS_IS, REPAIRED, RECOVERED = "as it is", "repaired", "recovered"


@dataclass(frozen=True, slots=True, kw_only=True)
class ChoiceRow(ControlledRow):
    """One way to choose heads, and what follows; the change is from the dense model, trained alike where training follows."""

    choice: str
    stage: str


class ModelKey(NamedTuple):
    """What identifies a pruned model: its number of heads, how they were chosen, and what followed."""

    n_kept: int
    choice: str
    stage: str


@dataclass(frozen=True, slots=True)
class Choices:
    """The dense model, as it is and after the same training; the heads that the importance removes by size, and all rows."""

    dense: Evaluation
    dense_recovered: Evaluation | None
    removed: dict[int, tuple[str, ...]]
    rows: list[ChoiceRow]


def list_kept_counts_of_study(study: ImportanceOrRandom, n_heads: int) -> list[int]:
    """Returns how many heads the importance keeps, most first."""
    return sorted({resolve_kept_count(keep, n_heads) for keep in study.keep}, reverse=True)


def make_request_template(study: ImportanceOrRandom, seed: int) -> PruneSpec:
    """Returns the request that all others differ from."""
    recipe = Recipe(rate=study.rate, train_batch=study.train_batch)
    return PruneSpec.of(study.by, Budget(keep=1), repair=False, recipe=recipe, seed=seed)


def estimate_effort(study: ImportanceOrRandom, context: StudyContext) -> Effort:
    """Returns the evaluations of all models and the steps of those that are trained."""
    sizes, n_train, n_report = (
        len(list_kept_counts_of_study(study, len(context.loaded.heads))),
        len(context.task.calibration),
        len(context.task.report),
    )
    steps = 0 if study.recover is None else Recipe(train_batch=study.train_batch).with_length(study.recover).n_steps(n_train)
    n_trained = 0 if study.recover is None else (4 * sizes + 1) * study.seeds
    n_models = sizes * (4 + 4 * study.seeds) + n_trained
    return Effort(
        passes=n_models * min(n_report, context.limit or n_report) + 3 * min(n_train, 512),
        steps=steps * n_trained * study.train_batch / STEP_BATCH,
    )


def prune_by_importance_and_at_random(study: ImportanceOrRandom, context: StudyContext) -> Choices:
    """Prunes the model of a study by the importance, by its complement and at random, and repairs and trains each."""
    describe_study_run(context, context.loaded, {"study": study.name, "by": study.by, "seeds": study.seeds})
    heads, seed = context.loaded.heads, context.seed
    pruning, template = make_pruning(context), make_request_template(study, seed)
    sizes = list_kept_counts_of_study(study, len(heads))
    chosen = run_grid(context, pruning, [template.resized(keep) for keep in sizes])
    removed = {keep: tuple(chosen.get_point(template.resized(keep)).artifacts[0].content["removed"]) for keep in sizes}
    stages = {AS_IS: template, REPAIRED: replace(template, repair=True)}
    if study.recover is not None:
        stages[RECOVERED] = replace(template, recover=study.recover)
    requests: dict[ModelKey, PruneSpec] = {}
    for stage, request in stages.items():
        for keep, names in removed.items():
            for choice, size in ((IMPORTANCE, keep), (COMPLEMENT, len(heads) - keep)):
                plan = PlanPruner(removed=names, complement=choice == COMPLEMENT)
                requests[ModelKey(size, choice, stage)] = replace(request, method=plan, budget=None)
                requests[ModelKey(size, RANDOM, stage)] = PruneSpec.of(
                    RANDOM, size, repair=request.repair, recover=request.recover, recipe=request.recipe, seed=seed
                )
    dense_request = None if study.recover is None else replace(requests[ModelKey(sizes[0], RANDOM, RECOVERED)]).resized(len(heads))
    specs = []
    for (_, choice, stage), request in requests.items():
        n_seeds = study.seeds if choice == RANDOM or stage == RECOVERED else 1
        specs += [replace(request, seed=seed + number) for number in range(n_seeds)]
    specs += [] if dense_request is None else [replace(dense_request, seed=seed + number) for number in range(study.seeds)]
    grid = run_grid(context, pruning, list(dict.fromkeys(specs)))
    dense_recovered = None if dense_request is None else grid.get_point(dense_request).evaluation
    rows = [
        _make_choice_row(
            grid, key, grid.get_point(requests[key]), grid.get_point(requests[key._replace(choice=RANDOM)]), dense_recovered, seed
        )
        for key in sorted(
            requests, key=lambda key: (-key.n_kept, list(stages).index(key.stage), (IMPORTANCE, RANDOM, COMPLEMENT).index(key.choice))
        )
    ]
    return Choices(grid.dense, dense_recovered, removed, add_q_values(rows))


def _make_choice_row(
    grid: Grid, key: ModelKey, point: GridPoint, random_point: GridPoint, dense_recovered: Evaluation | None, seed: int
) -> ChoiceRow:
    size, choice, stage = key
    dense = dense_recovered if stage == RECOVERED and dense_recovered is not None else grid.dense
    change = grid.point_minus_control(point, replace(point, evaluation=dense), seed=seed)
    against_random = None if choice == RANDOM else grid.point_minus_control(point, random_point, seed=seed)
    return ChoiceRow(n_kept=size, choice=choice, stage=stage, scores=point.scores, change=change, against_random=against_random)
