"""Evaluation as a step of a run."""

from __future__ import annotations

from collections.abc import Mapping

from torch import nn

from headcount.core.evaluation import Evaluation
from headcount.data.evaluate import evaluate, fingerprint_of
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
    name: str,
    model: nn.Module,
    data: Data,
    *,
    under: Mapping[str, object] | None = None,
    split: Split = "report",
    limit: int | None = None,
    batch_size: int | None = None,
    progress: Progress | None = None,
) -> Evaluation:
    """Like `evaluate`, stored in a run under a name, example by example.

    Args:
        run: Where the evaluation is stored; None only evaluates.
        name: The name of the artifact.
        model: The model, under the gates that are open around the call.
        data: A task, a dataset of model inputs, or batches.
        under: Describes the open gates, for the key of the artifact.
        split: The split of a task to read.
        limit: Reads at most that many examples.
        batch_size: Examples per batch.
        progress: Called with the number of examples done and in all.
    """
    if run is None or rank_and_world_size()[1] > 1:
        return evaluate(model, data, split=split, limit=limit, batch_size=batch_size, progress=progress or False)
    inner = unwrap(model)
    fingerprint = fingerprint_of(inner, data, split, limit=limit)
    parts = {**model_key(inner), **task_key(data), "under": dict(under or {}), "split": split, "data": fingerprint}
    key, versions = ArtifactKey(EVALUATION, name, parts), rounding_provenance()
    artifact, chunk_store = run.find(key), Chunks(run, name, {"evaluation": name, **parts}, versions, goal=[key])
    if artifact is None:
        with run.log_failure(f"evaluation '{name}'"):
            evaluation = evaluate(
                model, data, split=split, limit=limit, batch_size=batch_size, progress=progress or False, chunk_store=chunk_store
            )
            artifact = run.commit(key, *pack_evaluation(evaluation), provenance=versions)
    chunk_store.clear()
    run.present(artifact)
    return unpack_evaluation(artifact)
