"""transformers' Trainer with checkpoints that are there in full or not at all, and losses of a task, of a teacher, or both."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import kl_div, log_softmax
from transformers import Trainer
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR

from headcount.errors import NonFinite
from headcount.files import PARTIAL, sync_folder
from headcount.metrics import IGNORED
from headcount.training.gates import GateCallback

Loss = Callable[[Any, Any], Tensor]
"""(output, batch) -> one loss per example."""


class WholeTrainer(Trainer):
    """A Trainer whose checkpoints take their name only when everything in them is written.

    `loss` gives one loss per example in place of the model's own; `teacher` adds the divergence from its predictions.
    """

    def __init__(self, *args: Any, loss: Loss | None = None, teacher: nn.Module | None = None, mix: float = 0.5, **options: Any) -> None:
        super().__init__(*args, **options)
        self._own_loss, self._teacher, self._mix = loss, teacher, mix
        self._aside = False

    def compute_loss(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, model: nn.Module, inputs: dict[str, Any], return_outputs: bool = False, **options: Any
    ) -> Any:
        """The loss of a batch."""
        if self._own_loss is None and self._teacher is None:
            made = super().compute_loss(model, inputs, return_outputs=return_outputs, **options)
            return _finite(made, self.state.global_step)
        output = model(**inputs)
        loss = output.loss if self._own_loss is None else self._own_loss(output, inputs).mean()
        if self._teacher is not None:
            loss = (1 - self._mix) * loss + self._mix * divergence(self._teacher, output, inputs)
        loss = _finite(loss, self.state.global_step)
        return (loss, output) if return_outputs else loss

    def _get_output_dir(self, trial: Any) -> str:
        """Where checkpoints are written: aside, while one is."""
        folder = super()._get_output_dir(trial)
        return os.path.join(folder, PARTIAL) if self._aside else folder  # noqa: PTH118 - the Trainer works with strings

    def _save_checkpoint(self, model: nn.Module, trial: Any) -> None:
        """Writes a checkpoint aside and gives it its name when all of it is there; older ones go after that."""
        folder = Path(str(self.args.output_dir))
        if self.args.should_save:
            shutil.rmtree(folder / PARTIAL, ignore_errors=True)
        self._aside = True
        try:
            super()._save_checkpoint(model, trial)
        finally:
            self._aside = False
        if self.args.should_save:
            name = f"{PREFIX_CHECKPOINT_DIR}-{self.state.global_step}"
            for callback in self.callback_handler.callbacks:
                if isinstance(callback, GateCallback):
                    callback.save(folder / PARTIAL / name)
            sync_folder(folder / PARTIAL / name)
            shutil.rmtree(folder / name, ignore_errors=True)
            (folder / PARTIAL / name).rename(folder / name)
            shutil.rmtree(folder / PARTIAL, ignore_errors=True)
            for old in checkpoints(folder)[: -(self.args.save_total_limit or 1)]:
                shutil.rmtree(old, ignore_errors=True)


def checkpoints(folder: Path) -> list[Path]:
    """The finished checkpoints of a training, oldest first."""
    found = [path for path in folder.glob(f"{PREFIX_CHECKPOINT_DIR}-*") if path.name.rpartition("-")[2].isdigit()]
    return sorted(found, key=lambda path: int(path.name.rpartition("-")[2]))


def _finite(made: Any, step: int) -> Any:
    loss = made[0] if isinstance(made, tuple) else made
    if not bool(torch.isfinite(loss.detach()).all()):
        raise NonFinite(f"the training loss is {loss.item()} at step {step}; lower the learning rate, or look at the data")
    return made


def divergence(teacher: nn.Module, output: Any, inputs: dict[str, Any]) -> Tensor:
    """The mean Kullback-Leibler divergence of a model's predictions from a teacher's, over examples or over tokens with labels."""
    with torch.no_grad():
        wanted = log_softmax(teacher(**inputs).logits.float(), dim=-1)
    given = log_softmax(output.logits.float(), dim=-1)
    labels = inputs.get("labels")
    each = kl_div(given, wanted, log_target=True, reduction="none").sum(-1)
    if each.ndim == 2 and isinstance(labels, Tensor) and labels.shape == each.shape:
        return each[labels != IGNORED].mean()
    return each.mean()
