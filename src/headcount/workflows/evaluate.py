"""Evaluation as a step of a run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Unpack

from torch import nn

from headcount.core.evaluation import Evaluation
from headcount.data.evaluate import Options, evaluate, reading_of
from headcount.data.stream import fingerprint, world
from headcount.data.task import Data, task_key
from headcount.models.modules import unwrap
from headcount.models.provenance import model_key, provenance
from headcount.runs.artifacts import ArtifactKey
from headcount.runs.chunks import Chunks
from headcount.runs.results import EVALUATION, pack_evaluation, unpack_evaluation
from headcount.runs.store import Run


def evaluate_into(
    run: Run | None, name: str, model: nn.Module, data: Data, *, under: Mapping[str, Any] | None = None, **options: Unpack[Options]
) -> Evaluation:
    """Like `evaluate`, with a run that keeps it, example by example, under a name; `under` says which gates are open around it, if any."""
    if run is None or world()[1] > 1:
        return evaluate(model, data, **options)
    inner = unwrap(model)
    reading = reading_of(inner, data, options)
    parts = {**model_key(inner), **task_key(data), "under": dict(under or {}), "split": reading.split, "data": fingerprint(reading)}
    spec, made = ArtifactKey(EVALUATION, name, parts), provenance()
    artifact, memory = run.find(spec), Chunks(run, name, {"evaluation": name, **parts}, made, goal=[spec])
    if artifact is None:
        with run.log_failure(f"evaluation '{name}'"):
            artifact = run.commit(spec, *pack_evaluation(evaluate(model, data, **{**options, "memory": memory})), provenance=made)
    memory.clear()
    run.present(artifact)
    return unpack_evaluation(artifact)
