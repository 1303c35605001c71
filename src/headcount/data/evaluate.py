"""Loss and metric of a model on a task, example by example, so that two evaluations can be compared in pairs."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor, nn

from headcount.core.arguments import check_arguments
from headcount.core.evaluation import Evaluation
from headcount.core.plan import Plan
from headcount.core.progress import Progress, show_progress
from headcount.data.checks import check_batch
from headcount.data.chunks import CHUNK
from headcount.data.losses import ExampleLosses, require_finite_losses
from headcount.data.mask import mask
from headcount.data.metrics import Metric
from headcount.data.nonfinite import explain_nonfinite
from headcount.data.stream import ChunkStore, Reading, fingerprint, stream
from headcount.data.task import Data, Split, Task, document_numbers
from headcount.models.head_map import HeadMap
from headcount.models.modules import Batch, pad_id, unwrap
from headcount.models.observe import evaluating, model_inputs
from headcount.models.ownership import holds_model, taking_turns
from headcount.models.state import forward_preserving_state


class _Measurement:
    """Per-example losses and metric parts of a batch."""

    def __init__(self, model: nn.Module, losses: ExampleLosses, metric: Metric | None) -> None:
        self.model, self.losses, self.metric = model, losses, metric
        with taking_turns(model):
            self.heads = HeadMap.of(model)

    def __call__(self, batch: Batch, numbers: list[int]) -> dict[str, Tensor]:
        with taking_turns(self.model):
            batch = model_inputs(batch, self.model)
            check_batch(self.model, batch, numbers)
            with evaluating(self.model), explain_nonfinite(self.model, self.heads, batch):
                output = forward_preserving_state(self.model, batch)
                results: dict[str, Tensor] = {"losses": require_finite_losses(self.losses(output, batch), numbers)}
                if self.metric is not None:
                    results["parts"] = self.metric.parts(self.model, output, batch)
            return results


@check_arguments
@holds_model("an evaluation", exclusive=False)
def evaluate(  # noqa: PLR0913 - two arguments, the rest are options by name
    model: nn.Module,
    data: Data,
    *,
    split: Split = "report",
    limit: int | None = None,
    batch_size: int | None = None,
    plan: Plan | str | Path | None = None,
    progress: bool | Progress = True,
    chunk_store: ChunkStore | None = None,
    loss: Callable[[Any, Batch], Tensor] | None = None,
) -> Evaluation:
    """Returns the loss and the task's metric of a model on one split of the data.

    Args:
        model: The model, as it is: gates that are open around the call apply.
        data: A task, a dataset of model inputs, or batches. Only a task has splits and a metric.
        split: The split of a task to read: "calibration", "selection" or "report".
        limit: Reads at most that many examples.
        batch_size: Examples per batch; by default the task's, else 32. It is halved when memory runs out.
        plan: A plan, or its file: evaluates with the heads that it removes gated to zero. The model is not cut.
        progress: A bar on a terminal or in a notebook (True), nothing (False), or a function that is called with (done, total).
        chunk_store: Stores the results of chunks, so that an interrupted evaluation resumes.
        loss: (output, batch) -> one number per example, in place of the task's and the model's own loss.

    Returns:
        Losses and metric parts of every example, with their mean and total.

    Raises:
        DataError: the data are empty or the model cannot take them, or `limit` or `split` is not valid.
        HeadcountError: `batch_size` is below 1.
        HeadNameError, ArtifactError: the plan names a head that the model does not have, or its file holds no plan.

    Example:
        >>> hc.evaluate(model, task, plan=hc.Plan.removing(["L0H1"])).value  # doctest: +SKIP
        0.91
    """
    inner: Any = unwrap(model)
    task = data if isinstance(data, Task) else None
    if task is not None:
        task.split(split)
    metric = task.metric if task else None
    gates = nullcontext() if plan is None else mask(inner, Plan.parse(plan).removed)
    with show_progress(progress, "evaluating") as advance, gates:
        reading = Reading(data, split, limit, batch_size, pad_id(inner), advance, CHUNK, chunk_store)
        measurement = _Measurement(inner, ExampleLosses(inner, loss or (task.loss if task else None)), metric)
        chunks = list(stream(reading, measurement))
    parts = np.concatenate([chunk["parts"] for chunk in chunks]) if metric is not None else None
    return Evaluation(
        task=task.name if task else "",
        split=reading.split if task else "",
        n_examples=reading.examples,
        losses=np.concatenate([chunk["losses"] for chunk in chunks]),
        metric=metric.name if metric else "",
        higher_is_better=metric.higher_is_better if metric else True,
        value=float(metric.total(parts.sum(0))) if metric is not None and parts is not None else None,
        parts=parts,
        data=reading.fingerprint,
        documents=document_numbers(data, split, reading.examples),
    )


def fingerprint_of_examples(data: Data, split: Split, *, limit: int | None = None) -> str:
    """Returns the hash of the examples of a split, at most `limit`."""
    return fingerprint(Reading(data, split, limit))
