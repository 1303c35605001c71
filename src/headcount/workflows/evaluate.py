"""Evaluation as a step of a run."""

from __future__ import annotations

from collections.abc import Mapping

from torch import nn

from headcount.core.evaluation import Evaluation
from headcount.data.evaluate import evaluate, fingerprint_of_examples
from headcount.data.stream import Progress, rank_and_world_size
from headcount.data.task import Data, Split, task_key
from headcount.models.modules import unwrap
from headcount.models.provenance import model_key, rounding_provenance
from headcount.runs.artifacts import ArtifactKey
from headcount.runs.chunks import Chunks
from headcount.runs.results import EVALUATION, pack_evaluation, unpack_evaluation
from headcount.runs.store import Run


def evaluate_into(  # noqa: PLR0913 - four arguments, the rest are options by name
    run: Run | None,
    artifact_name: str,
    model: nn.Module,
    data: Data,
    *,
    gate_description: Mapping[str, object] | None = None,
    split: Split = "report",
    limit: int | None = None,
    batch_size: int | None = None,
    progress: Progress | None = None,
) -> Evaluation:
    """Like `evaluate`, stored in a run under a name, example by example.

    Args:
        run: Where the evaluation is stored; None only evaluates.
        artifact_name: The name of the artifact.
        model: The model, under the gates that are open around the call.
        data: A task, a dataset of model inputs, or batches.
        gate_description: Describes the open gates, for the key of the artifact.
        split: The split of a task to read.
        limit: Reads at most that many examples.
        batch_size: Examples per batch.
        progress: Called with the number of examples done and in all.
    """
    if run is None or rank_and_world_size()[1] > 1:
        return evaluate(model, data, split=split, limit=limit, batch_size=batch_size, progress=progress or False)
    inner = unwrap(model)
    fingerprint = fingerprint_of_examples(data, split, limit=limit)
    parts = {**model_key(inner), **task_key(data), "under": dict(gate_description or {}), "split": split, "data": fingerprint}
    key, versions = ArtifactKey(EVALUATION, artifact_name, parts), rounding_provenance()
    artifact, chunk_store = run.find(key), Chunks(run, artifact_name, {"evaluation": artifact_name, **parts}, versions, goal=[key])
    if artifact is None:
        with run.log_non_finite_error(f"evaluation '{artifact_name}'"):
            evaluation = evaluate(
                model, data, split=split, limit=limit, batch_size=batch_size, progress=progress or False, chunk_store=chunk_store
            )
            artifact = run.commit(key, *pack_evaluation(evaluation), provenance=versions)
    chunk_store.clear()
    run.register_results(artifact)
    return unpack_evaluation(artifact)
