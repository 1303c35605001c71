"""transformers' Trainer with checkpoints that are there in full or not at all, and losses of a task, of a teacher, or both."""

from __future__ import annotations

import os
import shutil
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import Sampler
from transformers import Trainer
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR

from headcount.core.errors import ArtifactError, NonFinite
from headcount.core.files import PARTIAL, read_json, sha256, sync_folder, write_json
from headcount.data.losses import kl_divergences
from headcount.data.metrics import IGNORED
from headcount.models.modules import at_least_single, shifts_labels, unwrap
from headcount.models.observe import evaluating, model_inputs
from headcount.models.state import forward
from headcount.pruning.training.gates import GateCallback

Loss = Callable[[Any, Any], Tensor]
"""(output, batch) -> one loss per example."""
SEAL, DAMAGED = "sealed.json", "damaged-"


class ByLength(Sampler[int]):
    """A random order in which examples of like length come together: sorted within stretches of 50 batches, the same for a seed and an epoch."""

    STRETCH = 50

    def __init__(self, lengths: Sequence[int], batch: int, seed: int) -> None:
        self.lengths, self.batch, self.seed, self.epoch = lengths, batch, seed, 0

    def set_epoch(self, epoch: int) -> None:
        """Every epoch has an order of its own."""
        self.epoch = epoch

    def __len__(self) -> int:
        return len(self.lengths)

    def __iter__(self) -> Iterator[int]:
        generator = torch.Generator().manual_seed(self.seed + 7919 * self.epoch)
        order: list[int] = torch.randperm(len(self), generator=generator).tolist()
        batches: list[list[int]] = []
        for start in range(0, len(order), self.STRETCH * self.batch):
            stretch = sorted(order[start : start + self.STRETCH * self.batch], key=lambda place: self.lengths[place])
            batches += [stretch[first : first + self.batch] for first in range(0, len(stretch), self.batch)]
        last = [batches.pop()] if len(batches[-1]) < self.batch else []  # the short one stays at the end
        mixed = [batches[place] for place in torch.randperm(len(batches), generator=generator).tolist()]
        return iter([place for group in mixed + last for place in group])


class WholeTrainer(Trainer):
    """A Trainer whose checkpoints take their name only when everything in them is written, sealed by the hash of every file.

    `loss` gives one loss per example in place of the model's own; `teacher` adds the divergence from its predictions.
    """

    def __init__(self, *args: Any, loss: Loss | None = None, teacher: nn.Module | None = None, mix: float = 0.5, **options: Any) -> None:
        super().__init__(*args, **options)
        self._own_loss, self._teacher, self._mix = loss, teacher, mix
        self._aside = False
        self.accelerator.gradient_accumulation_steps = 1  # older Trainers let accelerate divide the loss by the parts a second time
        self._is_tried = self.args.gradient_accumulation_steps * self.args.world_size == 1  # else it makes no difference
        if not any(parameter.requires_grad for parameter in self.model.parameters()):  # pyright: ignore[reportOptionalMemberAccess]
            self.accelerator.prepare_model = lambda model, device_placement=None, evaluation_mode=False: (
                model
            )  # DDP refuses what does not learn
        if self._is_own:
            self.model_accepts_loss_kwargs = False  # a mean over the batch, which the Trainer divides by the steps of an accumulation

    @property
    def _is_own(self) -> bool:
        return self._own_loss is not None or self._teacher is not None

    def compute_loss(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, model: nn.Module, inputs: dict[str, Any], return_outputs: bool = False, **options: Any
    ) -> Any:
        """The loss of a batch."""
        inputs = model_inputs(inputs, unwrap(model))
        if not self._is_own:
            self._learn_scale(model, inputs, options.get("num_items_in_batch"))
            made = super().compute_loss(model, inputs, return_outputs=return_outputs, **options)
            return _finite(made, self.state.global_step)
        output = model(**inputs)
        loss = output.loss if self._own_loss is None else self._own_loss(output, inputs).mean()
        if self._teacher is not None:
            loss = (1 - self._mix) * loss + self._mix * divergence(self._teacher, output, inputs)
        loss = _finite(loss, self.state.global_step)
        return (loss, output) if return_outputs else loss

    def _learn_scale(self, model: nn.Module, inputs: dict[str, Any], items: Any) -> None:
        """Tries once whether the model's loss heeds the number of items of an accumulation.

        Many models take it and ignore it; the Trainer then adds up means, which are too large by as many as there are.
        """
        if self._is_tried or items is None or not self.model_accepts_loss_kwargs:
            return
        self._is_tried = True
        inner: Any = unwrap(model)
        with torch.no_grad(), evaluating(inner):
            plain, other = (float(inner(**inputs, num_items_in_batch=number).loss) for number in (1, 1000))
        self.model_accepts_loss_kwargs = plain != other

    def _get_train_sampler(self, train_dataset: Any = None) -> Any:
        """The order of the examples; by length where the arguments ask for it, which the Trainer can only do for dictionaries."""
        if self.args.train_sampling_strategy != "group_by_length":
            return super()._get_train_sampler(train_dataset)
        examples: Any = self.train_dataset if train_dataset is None else train_dataset
        lengths = [len(examples[place][1]["input_ids"]) for place in range(len(examples))]
        return ByLength(lengths, self.args.train_batch_size * self.args.world_size, self.args.data_seed or self.args.seed)

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Logs, with what the gates are, so that `report_to` shows it too."""
        for callback in self._gates():
            logs |= callback.gating.log_numbers() if "loss" in logs else {}
        super().log(logs, start_time)

    def _gates(self) -> list[GateCallback]:
        return [callback for callback in self.callback_handler.callbacks if isinstance(callback, GateCallback)]

    def _get_output_dir(self, trial: Any) -> str:
        """Where checkpoints are written: aside, while one is."""
        folder = super()._get_output_dir(trial)
        return os.path.join(folder, PARTIAL) if self._aside else folder  # noqa: PTH118 - the Trainer works with strings

    def _save_checkpoint(self, model: nn.Module, trial: Any) -> None:
        """Writes a checkpoint aside and gives it its name when all of it is there, of all processes; older ones go after that."""
        folder = Path(str(self.args.output_dir))
        if self.args.should_save:
            shutil.rmtree(folder / PARTIAL, ignore_errors=True)
        self.accelerator.wait_for_everyone()
        self._aside = True
        try:
            super()._save_checkpoint(model, trial)
        finally:
            self._aside = False
        self.accelerator.wait_for_everyone()
        if self.args.should_save:
            made = folder / PARTIAL / f"{PREFIX_CHECKPOINT_DIR}-{self.state.global_step}"
            for callback in self._gates():
                callback.save(made)
            _seal(made)
            if (folder / made.name).exists():
                _remove(folder / made.name)
            made.rename(folder / made.name)
            shutil.rmtree(folder / PARTIAL, ignore_errors=True)
            for old in checkpoints(folder)[: -(self.args.save_total_limit or 1)]:
                _remove(old)
        self.accelerator.wait_for_everyone()


def checkpoints(folder: Path) -> list[Path]:
    """The finished checkpoints of a training, oldest first."""
    found = [path for path in folder.glob(f"{PREFIX_CHECKPOINT_DIR}-*") if path.name.rpartition("-")[2].isdigit()]
    return sorted(found, key=lambda path: int(path.name.rpartition("-")[2]))


def last_whole(folder: Path) -> Path | None:
    """The newest checkpoint that is as it was written; damaged ones are set aside, with a warning."""
    for path in reversed(checkpoints(folder)):
        if (trouble := damage_of(path)) is None:
            return path
        warnings.warn(f"checkpoint {path} is damaged ({trouble}); it is set aside and not used", stacklevel=2)
        aside = path.with_name(DAMAGED + path.name)
        shutil.rmtree(aside, ignore_errors=True)
        path.rename(aside)
    return None


def _seal(folder: Path) -> None:
    files = {str(path.relative_to(folder)): sha256(path) for path in sorted(folder.rglob("*")) if path.is_file()}
    write_json(folder / SEAL, files)
    sync_folder(folder)


def damage_of(folder: Path) -> str | None:
    """What is wrong with a checkpoint by the hashes that seal it; None if it is as it was written."""
    try:
        files = read_json(folder / SEAL)
    except ArtifactError:
        return f"{SEAL} is missing or torn"
    if not isinstance(files, dict):
        return f"{SEAL} is no list of files"
    return next((name for name, wanted in files.items() if not (folder / name).is_file() or sha256(folder / name) != wanted), None)


def _remove(folder: Path) -> None:
    """Removes a checkpoint; its name goes first, so that none is ever half there."""
    gone = folder.with_name(f"{PARTIAL}-gone")
    shutil.rmtree(gone, ignore_errors=True)
    folder.rename(gone)
    shutil.rmtree(gone, ignore_errors=True)


def _finite(made: Any, step: int) -> Any:
    loss = made[0] if isinstance(made, tuple) else made
    if not bool(torch.isfinite(loss.detach()).all()):
        raise NonFinite(f"the training loss is {loss.item()} at step {step}; lower the learning rate, or look at the data")
    return made


def divergence(teacher: nn.Module, output: Any, inputs: dict[str, Any]) -> Tensor:
    """The mean divergence of a model's predictions from a teacher's, over examples or over tokens with labels."""
    with evaluating(teacher):
        wanted = at_least_single(forward(teacher, model_inputs(inputs, teacher)).logits).to(output.logits.device)
    each, labels = kl_divergences(wanted, at_least_single(output.logits)), inputs.get("labels")
    if each.ndim == 2 and isinstance(labels, Tensor) and labels.shape == each.shape:
        if shifts_labels(unwrap(teacher)):
            each, labels = each[:, :-1], labels[:, 1:]  # what a token predicts is the label of the next
        return each[labels != IGNORED].mean()
    return each.mean()
