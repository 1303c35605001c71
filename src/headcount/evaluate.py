"""Evaluation: the loss and the metric of a model, as it is or under gates, example by example, so that two of them can be compared in pairs."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import sqrt
from typing import Any

import numpy as np
from torch import Tensor, nn

from headcount.archs.modules import unwrap
from headcount.checks import check_batch
from headcount.data import Data, Split, Task
from headcount.losses import ExampleLosses, finite_losses
from headcount.metrics import Batch, Metric
from headcount.observe import evaluating, on_device
from headcount.stream import Progress, Reading, stream


@dataclass(frozen=True, slots=True)
class Evaluation:
    """What a model scored on one split: `value` of the `metric`, mean `loss`, and per example its losses and what it adds to the metric."""

    task: str
    split: str
    n_examples: int
    losses: np.ndarray = field(repr=False)
    metric: str = ""
    higher_is_better: bool = True
    value: float | None = None
    parts: np.ndarray | None = field(default=None, repr=False)
    data: str = ""

    @property
    def loss(self) -> float:
        """The mean loss of an example."""
        return float(np.mean(self.losses))

    @property
    def loss_stderr(self) -> float:
        """The standard error of the mean loss."""
        return float(np.std(self.losses, ddof=1) / sqrt(self.n_examples)) if self.n_examples > 1 else float("nan")


class _Examiner:
    """Per-example losses and metric parts of a batch."""

    def __init__(self, model: nn.Module, losses: ExampleLosses, metric: Metric | None) -> None:
        self.model, self.losses, self.metric = model, losses, metric

    def __call__(self, batch: Batch, numbers: list[int]) -> dict[str, Tensor]:
        batch = on_device(batch, self.model)
        check_batch(self.model, batch, numbers)
        with evaluating(self.model):
            output = self.model(**batch)
            found: dict[str, Tensor] = {"losses": finite_losses(self.losses(output, batch), numbers)}
            if self.metric is not None:
                found["parts"] = self.metric.parts(self.model, output, batch)
        return found


def evaluate(
    model: nn.Module,
    data: Data,
    *,
    split: Split = "report",
    limit: int | None = None,
    batch_size: int | None = None,
    progress: Progress | None = None,
) -> Evaluation:
    """The loss and the task's metric of a model on one split of the data; open gates around it to evaluate a masked model."""
    inner: Any = unwrap(model)
    task = data if isinstance(data, Task) else None
    metric = task.metric if task else None
    pad = getattr(inner.config, "pad_token_id", None)
    reading = Reading(data, split, limit, batch_size, pad if isinstance(pad, int) else 0, progress)
    blocks = list(stream(reading, _Examiner(inner, ExampleLosses(inner, task.loss if task else None), metric)))
    parts = np.concatenate([block["parts"] for block in blocks]) if metric is not None else None
    return Evaluation(
        task=task.name if task else "",
        split=split if task else "",
        n_examples=reading.examples,
        losses=np.concatenate([block["losses"] for block in blocks]),
        metric=metric.name if metric else "",
        higher_is_better=metric.higher_is_better if metric else True,
        value=float(metric.total(parts.sum(0))) if metric is not None and parts is not None else None,
        parts=parts,
        data=reading.fingerprint,
    )
