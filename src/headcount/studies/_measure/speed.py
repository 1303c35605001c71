"""The latency of the dense model and of models whose heads were cut, in rounds."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from math import exp
from statistics import median
from typing import TYPE_CHECKING

import numpy as np
from torch import nn

from headcount.core.plan import Plan
from headcount.core.stats.significance import paired_t
from headcount.data.checks import n_positions
from headcount.models.modules import device_of, unwrap
from headcount.models.provenance import machine_of, model_key, provenance
from headcount.pruning.spec import PruneSpec
from headcount.runs.artifacts import Artifact, ArtifactKey
from headcount.studies._base import StudyContext
from headcount.studies._gated import count_heads
from headcount.studies._grid import make_pruning, run_grid
from headcount.studies._results import describe_study_run
from headcount.surgery.bench import time_rounds
from headcount.surgery.cut import cut

if TYPE_CHECKING:
    from headcount.studies.speed import Speed

KIND = "latency"
DENSE = "dense"


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
    low: float
    high: float
    p: float
    n_rounds: int
    device: str

    def to_dict(self) -> dict[str, object]:
        """Returns the row as plain data."""
        return asdict(self)


def measure_speed(study: Speed, context: StudyContext) -> list[SpeedRow]:
    """Returns a row for every size and batch size; the heads that go are those of the first seed of the method."""
    heads, model = context.loaded.heads, unwrap(context.loaded.model)
    describe_study_run(context, context.loaded, {"study": study.name, "method": study.method, "batches": list(study.batches)})
    keeps = sorted({count_heads(keep, len(heads)) for keep in study.keep}, reverse=True)
    specs = [PruneSpec.of(study.method, keep, repair=False, seed=context.seed) for keep in keeps]
    grid = run_grid(context, make_pruning(context), specs)
    plans = {point.n_kept: Plan.removing(sorted(set(heads) - point.survivors[0])) for point in grid.points}
    models: dict[str, nn.Module] = {DENSE: model} | {str(n_kept): cut(model, plan) for n_kept, plan in plans.items()}
    parameters = {name: sum(parameter.numel() for parameter in candidate.parameters()) for name, candidate in models.items()}
    limit = n_positions(model)
    length = study.length if limit is None else min(study.length, limit)
    rows = []
    with context.progress("timing", "batch sizes") as advance:
        for number, batch in enumerate(study.batches, 1):
            times = _time_models(context, study, models, plans, batch, length).arrays
            for n_kept in plans:
                ratios = paired_t(np.log(times[DENSE]) - np.log(times[str(n_kept)]))
                rows.append(
                    SpeedRow(
                        n_kept,
                        1 - n_kept / len(heads),
                        parameters[str(n_kept)],
                        parameters[str(n_kept)] / parameters[DENSE],
                        batch,
                        length,
                        median(times[DENSE].tolist()),
                        median(times[str(n_kept)].tolist()),
                        exp(ratios.difference),
                        exp(ratios.low),
                        exp(ratios.high),
                        ratios.p,
                        study.rounds,
                        str(device_of(model)),
                    )
                )
            advance(number, len(study.batches))
    return rows


def _time_models(
    context: StudyContext, study: Speed, models: dict[str, nn.Module], plans: dict[int, Plan], batch: int, length: int
) -> Artifact:
    """Returns the seconds of every model in every round, from the run if this machine has measured them."""
    removed = {str(n_kept): sorted(map(str, plan.removed)) for n_kept, plan in plans.items()}
    conditions = {"batch": batch, "length": length, "rounds": study.rounds, "machine": machine_of(context.loaded.model)}
    key = ArtifactKey(KIND, f"batch {batch}", {**model_key(unwrap(context.loaded.model)), "removed": removed, **conditions})

    def measure() -> tuple[dict[str, object], dict[str, np.ndarray]]:
        times = time_rounds(models, batch, length, study.rounds)
        return conditions, {name: np.asarray(seconds) for name, seconds in times.items()}

    return context.required_run.find_or_compute(key, measure, provenance=provenance())
