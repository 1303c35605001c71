"""The latency of the dense model and of models whose heads were cut, in rounds."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from headcount.core.plan import Plan
from headcount.models.modules import device_of, unwrap
from headcount.pruning.spec import PruneSpec
from headcount.runs.latency import unpack_latency
from headcount.studies._base import StudyContext
from headcount.studies._gated import resolve_kept_count
from headcount.studies._grid import make_pruning, run_grid
from headcount.studies._results import describe_study_run
from headcount.surgery.cut import cut
from headcount.workflows.latency import CutModel, time_models

if TYPE_CHECKING:
    from headcount.studies.speed import Speed


@dataclass(frozen=True, slots=True)
class SpeedRow:
    """A cut model at one batch size: median seconds, the speed-up over rounds with its interval, and its parameters (`size`: share of the dense)."""

    n_kept: int
    share_removed: float
    parameters: int
    size: float
    batch: int
    length: int
    dense_seconds: float
    cut_seconds: float
    speedup: float
    low: float | None
    high: float | None
    p: float | None
    n_rounds: int
    device: str

    def to_dict(self) -> dict[str, object]:
        """Returns the row as plain data."""
        return asdict(self)


def measure_speed(study: Speed, context: StudyContext) -> list[SpeedRow]:
    """Returns a row for every size and batch size; the heads that go are those of the first seed of the method."""
    heads, model = context.loaded.heads, unwrap(context.loaded.model)
    describe_study_run(context, context.loaded, {"study": study.name, "method": study.method, "batches": list(study.batches)})
    keeps = sorted({resolve_kept_count(keep, len(heads)) for keep in study.keep}, reverse=True)
    specs = [PruneSpec.of(study.method, keep, repair=False, seed=context.seed) for keep in keeps]
    grid = run_grid(context, make_pruning(context), specs)
    cut_models = []
    for point in grid.points:
        plan = Plan.removing(sorted(set(heads) - point.survivors[0]))
        cut_models.append(CutModel(point.method, plan, cut(model, plan)))
    models = {len(heads): model} | {len(heads) - len(cut_model.plan.removed): cut_model.model for cut_model in cut_models}
    parameters = {n_kept: sum(parameter.numel() for parameter in measured.parameters()) for n_kept, measured in models.items()}
    rows = []
    with context.progress("timing", "batch sizes") as advance:
        for number, batch in enumerate(study.batches, 1):
            artifact = time_models(
                context.required_run,
                f"study {study.name}",
                model,
                cut_models,
                heads=heads,
                batch=batch,
                length=study.length,
                rounds=study.rounds,
            )
            dense, *timed = unpack_latency(artifact)
            rows += [
                SpeedRow(
                    row.keep,
                    1 - row.keep / len(heads),
                    parameters[row.keep],
                    parameters[row.keep] / parameters[len(heads)],
                    batch,
                    row.length,
                    dense.seconds,
                    row.seconds,
                    row.speedup,
                    row.speedup_low,
                    row.speedup_high,
                    row.p,
                    row.rounds,
                    str(device_of(model)),
                )
                for row in timed
            ]
            advance(number, len(study.batches))
    return rows
