"""The control of Voita et al. 2019: the heads that a plan keeps, in a model that never had the others."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import nn

from headcount.core.errors import UnsupportedModel
from headcount.core.plan import Plan
from headcount.data.stream import Progress
from headcount.data.task import Task
from headcount.models.modules import unwrap
from headcount.models.randomness import fork_rng
from headcount.pruning.recipe import Recipe
from headcount.pruning.training.fine_tune import Trained, fine_tune
from headcount.surgery.cut import cut


def train_from_scratch(
    model: nn.Module,
    plan: Plan,
    task: Task,
    recipe: Recipe,
    *,
    seed: int = 0,
    folder: Path | None = None,
    progress: Progress | None = None,
) -> tuple[nn.Module, Trained]:
    """Returns a model with the heads that a plan keeps, its weights drawn anew by `seed` and trained; the model given is not changed."""
    small = cut(unwrap(model), plan)
    reset(small, seed)
    return small, fine_tune(small, task, recipe, seed=seed, folder=folder, progress=progress)


@torch.no_grad()
def reset(model: nn.Module, seed: int) -> None:
    """Draws all weights of a model anew, as its class does when it is built."""
    inner: Any = unwrap(model)
    if not hasattr(inner, "initialize_weights"):
        raise UnsupportedModel(f"{type(inner).__name__} does not say how its weights are drawn; only models of transformers do")
    for part in [*inner.modules(), *inner.parameters(), *inner.buffers()]:
        if getattr(part, "_is_hf_initialized", False):
            part._is_hf_initialized = False  # what was loaded is marked, and would be left as it is
    with fork_rng():
        torch.manual_seed(seed)
        inner.initialize_weights()
    inner.tie_weights()
