"""Evaluation: the loss and the metric of a model, as it is or under gates, example by example, so that two of them can be compared in pairs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypedDict, Unpack

import numpy as np
from torch import Tensor, nn

from headcount.core.evaluation import Evaluation
from headcount.data.checks import check_batch
from headcount.data.losses import ExampleLosses, finite_losses
from headcount.data.metrics import Metric
from headcount.data.nonfinite import located
from headcount.data.stream import Memory, Progress, Reading, fingerprint, stream
from headcount.data.task import Data, Split, Task
from headcount.models.head_map import HeadMap
from headcount.models.modules import Batch, pad_id, unwrap
from headcount.models.observe import evaluating, model_inputs
from headcount.models.ownership import holds, taking_turns
from headcount.models.state import forward


class _Examiner:
    """Per-example losses and metric parts of a batch."""

    def __init__(self, model: nn.Module, losses: ExampleLosses, metric: Metric | None) -> None:
        self.model, self.losses, self.metric = model, losses, metric
        with taking_turns(model):
            self.heads = HeadMap.of(model)

    def __call__(self, batch: Batch, numbers: list[int]) -> dict[str, Tensor]:
        with taking_turns(self.model):
            return self._examine(model_inputs(batch, self.model), numbers)

    def _examine(self, batch: Batch, numbers: list[int]) -> dict[str, Tensor]:
        check_batch(self.model, batch, numbers)
        with evaluating(self.model), located(self.model, self.heads, batch):
            output = forward(self.model, batch)
            found: dict[str, Tensor] = {"losses": finite_losses(self.losses(output, batch), numbers)}
            if self.metric is not None:
                found["parts"] = self.metric.parts(self.model, output, batch)
        return found


class Options(TypedDict, total=False):
    """How data are read: all keyword arguments of `evaluate`."""

    split: Split
    limit: int | None
    batch_size: int | None
    progress: Progress | None
    memory: Memory | None
    loss: Callable[[Any, Batch], Tensor] | None


@holds("an evaluation", exclusive=False)
def evaluate(model: nn.Module, data: Data, **options: Unpack[Options]) -> Evaluation:
    """The loss and the task's metric of a model on one split of the data (report); open gates around it to evaluate a masked model.

    `loss` ((output, batch) -> one number per example) takes the place of the task's and of the model's own.
    """
    inner: Any = unwrap(model)
    task = data if isinstance(data, Task) else None
    metric = task.metric if task else None
    reading = reading_of(inner, data, options)
    blocks = list(stream(reading, _Examiner(inner, ExampleLosses(inner, options.get("loss") or (task.loss if task else None)), metric)))
    parts = np.concatenate([block["parts"] for block in blocks]) if metric is not None else None
    return Evaluation(
        task=task.name if task else "",
        split=reading.split if task else "",
        n_examples=reading.examples,
        losses=np.concatenate([block["losses"] for block in blocks]),
        metric=metric.name if metric else "",
        higher_is_better=metric.higher_is_better if metric else True,
        value=float(metric.total(parts.sum(0))) if metric is not None and parts is not None else None,
        parts=parts,
        data=reading.fingerprint,
    )


def reading_of(model: nn.Module, data: Data, options: Options) -> Reading:
    """How data are read under these options."""
    return Reading(
        data,
        options.get("split", "report"),
        options.get("limit"),
        options.get("batch_size"),
        pad_id(model),
        options.get("progress"),
        memory=options.get("memory"),
    )


def fingerprint_of(model: nn.Module, data: Data, split: Split) -> str:
    """The hash of all examples of a split."""
    return fingerprint(reading_of(unwrap(model), data, {"split": split}))
