"""Heads that were chosen on another task, used on the task of a study: beside the task's own choice and random heads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from headcount.core.budget import Budget
from headcount.core.errors import OptionError
from headcount.core.evaluation import Evaluation, PairedDifference
from headcount.core.stats.corrected_rows import add_q_values
from headcount.pruning.base import Pruner
from headcount.pruning.methods.plan import PlanPruner
from headcount.pruning.recipe import Recipe
from headcount.pruning.spec import PruneSpec
from headcount.studies._base import STEP_BATCH, Effort, StudyContext
from headcount.studies._gated import allow_other_model, resolve_kept_count
from headcount.studies._grid import make_pruning, run_grid
from headcount.studies._results import describe_study_run
from headcount.studies._rows import DifferenceRow, SizeRow
from headcount.workflows.grid import Grid, GridPoint
from headcount.workflows.prune import Pruning

if TYPE_CHECKING:
    from headcount.studies.plan_transfer import PlanTransfer

TRANSFERRED, OWN, RANDOM = "other task", "own task", "random"


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanTransferRow(SizeRow):
    """The model with the heads of one choice at one number of heads; differences are paired over examples.

    `n_shared` is how many of the removed heads the task's own choice removes too, and `n_expected` how many it would by chance.
    """

    choice: str
    n_shared: float
    n_expected: float
    against_own: PairedDifference | None
    against_random: PairedDifference | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TransferTest(DifferenceRow):
    """The heads that were chosen on the other task against another choice at one number of heads."""

    n_kept: int
    control: str


@dataclass(frozen=True, slots=True)
class PlanTransferResult:
    """The dense model on the task, the name of the other task, the heads that each choice removes by size, all rows and tests."""

    dense: Evaluation
    other_task: str
    removed: Mapping[int, Mapping[str, Sequence[str]]]
    rows: list[PlanTransferRow]
    tests: list[TransferTest]

    def to_dict(self) -> dict[str, object]:
        """Returns rows, tests and heads as plain data."""
        removed = {str(keep): {name: list(heads) for name, heads in choices.items()} for keep, choices in self.removed.items()}
        return {"rows": [row.to_dict() for row in self.rows], "tests": [test.to_dict() for test in self.tests], "removed": removed}


def make_request_template(study: PlanTransfer, seed: int) -> PruneSpec:
    """Returns the request that all others differ from."""
    recipe = Recipe(rate=study.rate, train_batch=study.train_batch)
    return PruneSpec.of(study.method, Budget(keep=1), repair=study.repair, recover=study.recover, recipe=recipe, seed=seed)


def estimate_effort(study: PlanTransfer, context: StudyContext) -> Effort:
    """Returns the evaluations on both tasks and the training steps."""
    n_train, n_report = len(context.task.calibration), len(context.task.report)
    n_trained = 0 if study.recover is None else len(study.keep) * 3 * study.seeds
    n_models = len(study.keep) * (1 + 3 * study.seeds) + 2
    steps = 0 if study.recover is None else make_request_template(study, 0).recipe.with_length(study.recover).n_steps(n_train)
    return Effort(
        passes=n_models * min(n_report, context.limit or n_report) + 6 * min(n_train, 512),
        steps=steps * n_trained * study.train_batch / STEP_BATCH,
    )


def measure_plan_transfer(study: PlanTransfer, context: StudyContext) -> PlanTransferResult:
    """Chooses heads on the other task and on the task of the study, and compares both on the latter.

    Raises:
        OptionError: the method trains or sizes itself.
        PlanError: the model of the other task has other heads.
    """
    pruner = Pruner.parse(study.method)
    if pruner.info.trains or pruner.sizing_option_text:
        raise OptionError(f"heads to transfer are chosen to a number without training; {pruner} does otherwise")
    describe_study_run(context, context.loaded, {"study": study.name, "other_task": study.other_task, "method": study.method})
    loaded = context.loaded
    model = context.sources.load_model(study.other_model, class_from_config=True) if study.other_model else loaded
    other_task = context.sources.open_task(model, study.other_task)
    template, seed = make_request_template(study, context.seed), context.seed
    sizes = sorted({resolve_kept_count(keep, len(loaded.heads)) for keep in study.keep}, reverse=True)
    allow_other_model(context.required_run, model.model)
    choosing = replace(template, repair=False, recover=None)
    other_pruning = Pruning(context.required_run, model.model, other_task, limit=context.limit, command=context.command, seed=context.seed)
    chosen = run_grid(context, other_pruning, [choosing.resized(keep) for keep in sizes])
    transferred = {keep: tuple(map(str, chosen.get_point(choosing.resized(keep)).artifacts[0].content["removed"])) for keep in sizes}
    requests: dict[tuple[int, str], PruneSpec] = {}
    for keep in sizes:
        requests[keep, TRANSFERRED] = replace(template, method=PlanPruner(removed=transferred[keep]), budget=None)
        requests[keep, OWN] = template.resized(keep)
        requests[keep, RANDOM] = replace(template, method=Pruner.parse(RANDOM)).resized(keep)
    specs = []
    for (_, choice), request in requests.items():
        n_seeds = study.seeds if choice == RANDOM or study.recover is not None else 1
        specs += [replace(request, seed=seed + number) for number in range(n_seeds)]
    grid = run_grid(context, make_pruning(context), specs)
    points = {key: grid.get_point(request) for key, request in requests.items()}
    rows = [_make_transfer_row(grid, points, keep, choice, n_sizes=len(sizes), seed=seed) for keep, choice in points]
    tests = [
        TransferTest(
            n_kept=keep, control=control, change=grid.point_minus_control(points[keep, TRANSFERRED], points[keep, control], seed=seed)
        )
        for keep in sizes
        for control in (OWN, RANDOM)
    ]
    removed = {keep: {TRANSFERRED: transferred[keep], OWN: points[keep, OWN].artifacts[0].content["removed"]} for keep in sizes}
    return PlanTransferResult(grid.dense, other_task.name, removed, rows, add_q_values(tests))


def _make_transfer_row(
    grid: Grid, points_by_size_and_choice: Mapping[tuple[int, str], GridPoint], n_kept: int, choice: str, *, n_sizes: int, seed: int
) -> PlanTransferRow:
    point, own, random = (points_by_size_and_choice[n_kept, name] for name in (choice, OWN, RANDOM))
    heads = frozenset(grid.heads)
    own_removed = heads - own.survivors[0]
    n_shared = sum(len(own_removed - survivors) for survivors in point.survivors) / len(point.survivors)
    n_removed = len(heads) - point.n_kept
    return PlanTransferRow(
        n_kept=n_kept,
        choice=choice,
        scores=point.scores,
        n_shared=n_shared,
        n_expected=n_removed * len(own_removed) / len(heads),
        change=grid.point_minus_dense(point, n_sizes=n_sizes, seed=seed),
        against_own=None if choice == OWN else grid.point_minus_control(point, own, seed=seed),
        against_random=None if choice == RANDOM else grid.point_minus_control(point, random, seed=seed),
    )
