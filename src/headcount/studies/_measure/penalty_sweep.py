"""L0 gates under several penalties, and a pruner that keeps exact numbers beside them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from statistics import mean
from typing import TYPE_CHECKING

from headcount.core.evaluation import Evaluation
from headcount.core.options import format_value
from headcount.pruning.recipe import Recipe
from headcount.pruning.spec import PruneSpec
from headcount.studies._base import StudyContext
from headcount.studies._grid import GridPoint, count_by, make_pruning, run_grid
from headcount.studies._results import describe_run

if TYPE_CHECKING:
    from headcount.studies.penalty_sweep import PenaltySweep


@dataclass(frozen=True, slots=True)
class PenaltyRow:
    """A penalty, or an exact number that was asked for: the heads that stay for every seed, and the score with its paired interval."""

    method: str
    penalty: float | None
    asked: int | None
    heads: tuple[int, ...]
    by_kind: Mapping[str, float]
    steps: int | None
    score: float
    band: tuple[float, float]
    p: float

    @property
    def mean_heads(self) -> float:
        """The heads that stay, as the mean over seeds."""
        return mean(self.heads)

    def to_dict(self) -> dict[str, object]:
        """Returns the row as plain data."""
        return asdict(self)


def build_requests(study: PenaltySweep, context: StudyContext) -> list[PruneSpec]:
    """Returns the requests of every penalty, and of every size of the exact pruner."""
    recipe, kinds = Recipe(steps=study.steps, rate=study.rate, train_batch=study.train_batch), study.kinds
    further = f";{study.settings}" if study.settings else ""
    methods: list[tuple[str, int | float | str | None]] = [
        (f"l0(penalty={format_value(penalty)}{further})", None) for penalty in sorted(study.penalties)
    ]
    methods += [(study.exact, keep) for keep in study.keep] if study.exact else []
    return [
        PruneSpec.of(method, keep, kinds=kinds, repair=False, recipe=recipe, seed=seed)
        for method, keep in methods
        for seed in range(context.seed, context.seed + study.seeds)
    ]


def sweep_penalties(study: PenaltySweep, context: StudyContext) -> tuple[Evaluation, list[PenaltyRow]]:
    """Trains the model of a study under every penalty, and returns the dense model and a row for each."""
    specs = build_requests(study, context)
    describe_run(context, context.loaded, {"study": study.name, "penalties": list(study.penalties), "seeds": study.seeds})
    grid = run_grid(context, make_pruning(context), specs)
    rows = []
    for number, point in enumerate(grid.points):
        spec = specs[number * study.seeds].resolve_share(grid.heads)
        penalty = getattr(spec.method, "penalty", 0.0) or None
        asked = None if penalty is not None else spec.budget_for(grid.heads).heads(len(grid.heads))
        rows.append(_make_row(point, penalty, asked, grid.dense, count_by(grid.heads.blocks, point.survivors)))
    return grid.dense, rows


def _make_row(point: GridPoint, penalty: float | None, asked: int | None, dense: Evaluation, by_kind: Mapping[str, float]) -> PenaltyRow:
    heads, change = tuple(map(len, point.survivors)), point.change
    band = (dense.score + change.low, dense.score + change.high)
    return PenaltyRow(point.method, penalty, asked, heads, by_kind, point.steps, point.mean, band, change.p)
