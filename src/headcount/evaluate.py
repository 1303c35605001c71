"""Evaluation: the loss and the metric of a model, as it is or under gates, example by example, so that two of them can be compared in pairs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypedDict, Unpack

import numpy as np
from torch import Tensor, nn

from headcount.archs.modules import pad_id, unwrap
from headcount.archs.ownership import holds, taking_turns
from headcount.archs.state import forward
from headcount.checks import check_batch
from headcount.data import Data, Split, Task, told_of
from headcount.heads import HeadMap
from headcount.losses import ExampleLosses, finite_losses
from headcount.metrics import Batch, Metric
from headcount.nonfinite import located
from headcount.observe import evaluating, model_inputs
from headcount.runs.blocks import Blocks
from headcount.runs.cells import Spec
from headcount.runs.outcomes import EVALUATION, Evaluation, pack_evaluation, unpack_evaluation
from headcount.runs.store import Run
from headcount.runs.weights import determined_by, made_on
from headcount.stream import Memory, Progress, Reading, fingerprint, stream, world


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


def evaluate_into(
    run: Run | None, name: str, model: nn.Module, data: Data, *, under: Mapping[str, Any] | None = None, **options: Unpack[Options]
) -> Evaluation:
    """Like `evaluate`, with a run that keeps it, example by example, under a name; `under` says which gates are open around it, if any."""
    if run is None or world()[1] > 1:
        return evaluate(model, data, **options)
    inner = unwrap(model)
    reading = reading_of(inner, data, options)
    parts = {**determined_by(inner), **told_of(data), "under": dict(under or {}), "split": reading.split, "data": fingerprint(reading)}
    spec, made = Spec(EVALUATION, name, parts), made_on()
    cell, memory = run.find(spec), Blocks(run, name, {"evaluation": name, **parts}, made, goal=[spec])
    if cell is None:
        with run.noting_failure(f"evaluation '{name}'"):
            cell = run.commit(spec, *pack_evaluation(evaluate(model, data, **{**options, "memory": memory})), made=made)
    memory.clear()
    run.present(cell)
    return unpack_evaluation(cell)
