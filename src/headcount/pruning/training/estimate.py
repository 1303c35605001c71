"""How long a training will take, from one step that is measured before it starts."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from headcount.data.losses import ExampleLosses, OneByOne
from headcount.data.task import Task
from headcount.models.modules import unwrap
from headcount.models.observe import evaluating, on_device
from headcount.pruning.recipe import Recipe
from headcount.pruning.spec import PruneSpec

ROUNDS = 2
"""Steps that are timed after one that warms up."""


def estimate_training_seconds(model: nn.Module, task: Task, specs: Sequence[PruneSpec]) -> float:
    """Returns the seconds that some requests train; of every size of batch one step is timed."""
    steps_by_batch: dict[int, int] = {}
    for spec in specs:
        steps_by_batch[spec.recipe.train_batch] = steps_by_batch.get(spec.recipe.train_batch, 0) + spec.n_steps(len(task.calibration))
    return sum(
        n_steps * estimate_step_seconds(model, task, Recipe(train_batch=batch)) for batch, n_steps in steps_by_batch.items() if n_steps
    )


def estimate_step_seconds(model: nn.Module, task: Task, recipe: Recipe) -> float:
    """Returns the seconds of one optimiser step, forward and backward, on a batch of the task; the model stays as it is.

    Gradients are computed in evaluation mode, so that no statistic of the model moves. The optimiser, the gates and a teacher are not counted.
    """
    inner: Any = unwrap(model)
    trainable = [parameter for parameter in inner.parameters() if parameter.requires_grad]
    examples = [task.calibration[number] for number in range(min(recipe.train_batch, len(task.calibration)))]
    batch = on_device(dict(task.collate(examples)), inner)
    losses = ExampleLosses(inner, task.loss)
    seconds = []
    with evaluating(inner), torch.enable_grad():
        for _ in range(1 + ROUNDS):
            start = time.perf_counter()
            output = inner(**batch)
            try:
                loss = losses(output, batch).mean()
            except OneByOne:
                loss = output.loss
            if trainable:
                torch.autograd.grad(loss, trainable, allow_unused=True)
            seconds.append(time.perf_counter() - start)
    return min(seconds[1:])
