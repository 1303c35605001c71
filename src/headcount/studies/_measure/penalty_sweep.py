"""L0 gates under several penalties, without a number of heads; and a method that takes the number that each of them left."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import mean
from typing import TYPE_CHECKING

from headcount.core.errors import OptionError, PlanError
from headcount.core.evaluation import Evaluation, PairedDifference
from headcount.core.heads import AttentionBlock
from headcount.core.stats.corrected_rows import add_q_values
from headcount.core.survivors import mean_survivors_by_kind
from headcount.pruning.prune import check_request
from headcount.pruning.recipe import Recipe
from headcount.pruning.spec import PruneSpec
from headcount.runs.sweep import sweep
from headcount.studies._base import Effort, StudyContext
from headcount.studies._grid import estimate_grid_effort, evaluate_dense_reference, make_pruning, run_grid
from headcount.studies._results import describe_study_run
from headcount.studies._rows import DifferenceRow
from headcount.studies._tuning import announce_training
from headcount.workflows.grid import GridPoint
from headcount.workflows.prune import Pruning

if TYPE_CHECKING:
    from headcount.studies.penalty_sweep import PenaltySweep


@dataclass(frozen=True, slots=True)
class PenaltyRow:
    """What one λ left: the heads of every seed, and the mean over seeds of the others. Score and change are None where no seed left a head.

    The interval of the change holds for all λ together.
    """

    penalty: float
    kept: tuple[int, ...]
    kept_by_kind: Mapping[str, float]
    steps: int | None
    score: float | None
    change: PairedDifference | None
    q: float | None = None

    @property
    def mean_kept(self) -> float:
        """The mean number of heads over seeds."""
        return mean(self.kept)

    @property
    def p(self) -> float | None:
        """The p-value of no difference from the dense model; None where there is no model."""
        return None if self.change is None else self.change.p

    def to_dict(self) -> dict[str, object]:
        """Returns the row as plain data."""
        return asdict(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExactCountRow(DifferenceRow):
    """A method that takes a number of heads, at the mean number that λ left: its score, that of λ, and the first minus the second (`change`).

    The interval of `against_dense` holds for all numbers of heads together.
    """

    penalty: float
    n_kept: int
    method: str
    score: float
    against_dense: PairedDifference
    score_of_penalty: float


@dataclass(frozen=True, slots=True)
class Sweep:
    """The dense model, the number of heads with a gate, a row for every λ, and the rows of the method with an exact number."""

    dense: Evaluation
    n_free: int
    rows: list[PenaltyRow]
    exact: list[ExactCountRow]


def build_requests_by_penalty(study: PenaltySweep, first_seed: int) -> dict[float, list[PruneSpec]]:
    """Returns the requests of every λ, smallest first.

    Raises:
        OptionError: a penalty is not above 0, so that nothing would say how many heads stay.
    """
    if not study.penalties or min(study.penalties) <= 0:
        raise OptionError("penalties must be numbers above 0: λ = 0 removes nothing")
    recipe = Recipe(steps=study.steps, rate=study.rate, train_batch=study.train_batch)
    options = f"rate={study.gate_rate!r};frozen={study.frozen}"
    return {
        penalty: [
            PruneSpec.of(f"l0(penalty={penalty!r};{options})", kinds=study.kinds, recipe=recipe, seed=seed)
            for seed in range(first_seed, first_seed + study.seeds)
        ]
        for penalty in sorted(set(study.penalties))
    }


def estimate_sweep(study: PenaltySweep, context: StudyContext) -> Effort:
    """Returns the evaluations and training steps of all models, those of the method with an exact number too."""
    specs = [spec for of_penalty in build_requests_by_penalty(study, context.seed).values() for spec in of_penalty]
    effort = estimate_grid_effort(context, specs)
    if not study.exact:
        return effort
    again = effort.with_shared_work()  # the sizes are not known before λ has chosen them
    return effort + Effort(again.passes, again.steps)


def sweep_penalties(study: PenaltySweep, context: StudyContext) -> Sweep:
    """Trains the gates of every λ and seed, and then the method with an exact number of heads, if there is one."""
    requests = build_requests_by_penalty(study, context.seed)
    describe_study_run(context, context.loaded, {"study": study.name, "penalties": list(requests), "seeds": study.seeds})
    pruning = make_pruning(context)
    specs = [spec for of_penalty in requests.values() for spec in of_penalty]
    dense = evaluate_dense_reference(context, pruning, specs)
    _train_gates(context, pruning, specs)
    grid = run_grid(context, pruning, [spec for spec in specs if pruning.is_finished(spec)])
    points = {point.artifacts[0].content["spec"]["method"]["penalty"]: point for point in grid.points}
    free = [block for block in pruning.heads.blocks if not study.kinds or block.kind in study.kinds]
    rows = []
    for penalty in requests:
        point = points.get(penalty)
        if point is None:
            rows.append(PenaltyRow(penalty, (0,) * study.seeds, {block.kind: 0.0 for block in free}, None, None, None))
            continue
        counts = _count_kept_by_seed(free, point, range(context.seed, context.seed + study.seeds))
        rows.append(
            PenaltyRow(
                penalty,
                counts,
                mean_survivors_by_kind(free, point.survivors),
                point.scores.steps,
                point.mean,
                grid.point_minus_dense(point, n_sizes=len(points), seed=context.seed),
            )
        )
    exact = _prune_to_mean_counts_of_penalties(study, context, pruning, points, rows) if study.exact else []
    return Sweep(dense, sum(block.n_heads for block in free), add_q_values(rows), add_q_values(exact))


def _count_kept_by_seed(free_blocks: Sequence[AttentionBlock], point: GridPoint, seeds: Sequence[int]) -> tuple[int, ...]:
    """Returns how many heads of some blocks every seed left, in the order of seeds; none for a seed that closed all gates, which has no model."""
    totals = [sum(len(survivors.intersection(block.heads)) for block in free_blocks) for survivors in point.survivors]
    by_seed = dict(zip(point.seeds, totals, strict=True))
    return tuple(by_seed.get(seed, 0) for seed in seeds)


def _train_gates(context: StudyContext, pruning: Pruning, specs: Sequence[PruneSpec]) -> None:
    """Trains the gates of all requests into the run; a penalty that closes all gates makes no model, and is no error."""
    for spec in specs:
        check_request(spec, pruning.model, pruning.heads)
    announce_training(context, pruning, specs)
    with context.progress("penalties", "models") as advance:
        _, failed = sweep(pruning.run, [pruning.make_job(spec) for spec in specs], provenance=pruning.provenance, progress=advance)
    for error in failed.values():
        if not isinstance(error, PlanError):
            raise error


def _prune_to_mean_counts_of_penalties(
    study: PenaltySweep, context: StudyContext, pruning: Pruning, points_by_penalty: Mapping[float, GridPoint], rows: Sequence[PenaltyRow]
) -> list[ExactCountRow]:
    recipe = Recipe(steps=study.steps, rate=study.rate, train_batch=study.train_batch)
    seeds = range(context.seed, context.seed + study.seeds)
    sizes = {row.penalty: max(1, round(row.mean_kept)) for row in rows if row.change is not None}
    specs = [
        PruneSpec.of(study.exact, size, kinds=study.kinds, recipe=recipe, seed=seed)
        for size in sorted(set(sizes.values()), reverse=True)
        for seed in seeds
    ]
    grid = run_grid(context, pruning, specs)
    by_size = {point.artifacts[0].content["spec"]["budget"]["keep"]: point for point in grid.points}
    exact = []
    for penalty, size in sizes.items():
        point = by_size[size]
        change = grid.point_minus_control(point, points_by_penalty[penalty], seed=context.seed)
        exact.append(
            ExactCountRow(
                penalty=penalty,
                n_kept=size,
                method=point.method,
                score=point.mean,
                against_dense=grid.point_minus_dense(point, n_sizes=len(by_size), seed=context.seed),
                score_of_penalty=points_by_penalty[penalty].mean,
                change=change,
            )
        )
    return exact
