"""Latency of the dense model and of cut ones as a step of a run: interleaved rounds, measured once on a machine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from torch import nn

from headcount.core.plan import Plan
from headcount.data.checks import n_positions
from headcount.models.head_map import HeadMap
from headcount.models.modules import unwrap
from headcount.models.provenance import machine_entries, model_key, rounding_provenance
from headcount.runs.artifacts import Artifact, ArtifactKey
from headcount.runs.latency import DENSE, LATENCY
from headcount.runs.store import Run
from headcount.surgery.bench import measure_seconds_by_round


@dataclass(frozen=True, slots=True)
class CutModel:
    """A model whose heads were cut: the method that chose them, its plan, and the model."""

    method: str
    plan: Plan
    model: nn.Module


def time_models(  # noqa: PLR0913 - four arguments, the rest by name
    run: Run, artifact_name: str, model: nn.Module, cut_models: Sequence[CutModel], *, heads: HeadMap, batch: int, length: int, rounds: int
) -> Artifact:
    """Returns the seconds of a pass of the dense model and of cut ones in every round, from the run if this machine has measured them.

    A length beyond the positions of the model is replaced by their number. `headcount.runs.latency.unpack_latency` reads the artifact.
    """
    dense = unwrap(model)
    positions = n_positions(dense)
    length = length if positions is None else min(length, positions)
    models: dict[str, nn.Module] = {DENSE: dense}
    labels: dict[str, tuple[str, int]] = {DENSE: (DENSE, len(heads))}
    for number, cut_model in enumerate(cut_models):
        models[str(number)] = cut_model.model
        labels[str(number)] = (cut_model.method, len(heads) - len(cut_model.plan.removed))
    removed = [[cut_model.method, sorted(map(str, cut_model.plan.removed))] for cut_model in cut_models]
    conditions = {"batch": batch, "length": length, "rounds": rounds, "machine": machine_entries(model)}
    key = ArtifactKey(LATENCY, f"{artifact_name}, batch {batch}, length {length}", {**model_key(dense), "removed": removed, **conditions})

    def measure_seconds() -> tuple[Mapping[str, object], Mapping[str, np.ndarray]]:
        times = measure_seconds_by_round(models, batch, length, rounds)
        return {**conditions, "models": labels}, {label: np.asarray(seconds) for label, seconds in times.items()}

    return run.find_or_compute(key, measure_seconds, provenance=rounding_provenance())
