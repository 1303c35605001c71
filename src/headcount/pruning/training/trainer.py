"""transformers' Trainer with checkpoints that are complete or absent, and with the loss of a task, of a teacher, or both."""

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
from headcount.core.files import PARTIAL, read_json, sha256, write_json
from headcount.core.folders import set_permissions_and_sync
from headcount.data.losses import kl_or_squared_differences
from headcount.data.metrics import IGNORED
from headcount.models.modules import Batch, in_float32_or_float64, shifts_labels, unwrap
from headcount.models.observe import evaluating, model_inputs
from headcount.models.state import forward_preserving_state
from headcount.pruning.training.gates import GateCallback

Loss = Callable[[Any, Any], Tensor]
"""(output, batch) -> one loss per example."""
SEAL, DAMAGED = "sealed.json", "damaged-"
"""The file of a checkpoint that has the hashes of all others, and how the name of a damaged checkpoint begins."""


class LengthGroupedSampler(Sampler[int]):
    """A random order in which examples of like length come together: sorted within stretches of 50 batches, the same for a seed and an epoch."""

    STRETCH = 50

    def __init__(self, lengths: Sequence[int], batch_size: int, seed: int) -> None:
        self.lengths, self.batch_size, self.seed, self.epoch = lengths, batch_size, seed, 0

    def set_epoch(self, epoch: int) -> None:
        """Changes the order to that of an epoch."""
        self.epoch = epoch

    def __len__(self) -> int:
        return len(self.lengths)

    def __iter__(self) -> Iterator[int]:
        generator = torch.Generator().manual_seed(self.seed + 7919 * self.epoch)
        order: list[int] = torch.randperm(len(self), generator=generator).tolist()
        batches: list[list[int]] = []
        for start in range(0, len(order), self.STRETCH * self.batch_size):
            stretch = sorted(order[start : start + self.STRETCH * self.batch_size], key=lambda number: self.lengths[number])
            batches += [stretch[first : first + self.batch_size] for first in range(0, len(stretch), self.batch_size)]
        last = [batches.pop()] if len(batches[-1]) < self.batch_size else []  # the short one stays at the end
        shuffled = [batches[number] for number in torch.randperm(len(batches), generator=generator).tolist()]
        return iter([number for batch in shuffled + last for number in batch])


class AtomicTrainer(Trainer):
    """A Trainer whose checkpoints take their name only when everything in them is written, sealed by the hash of every file.

    Args:
        args: Positional arguments of the Trainer.
        loss: (output, batch) -> one loss per example, in place of the model's own.
        teacher: A model; the divergence from its predictions is part of the loss.
        mix: The weight of that divergence, between 0 and 1.
        options: Other arguments of the Trainer.
    """

    def __init__(self, *args: Any, loss: Loss | None = None, teacher: nn.Module | None = None, mix: float = 0.5, **options: Any) -> None:
        super().__init__(*args, **options)
        self._own_loss, self._teacher, self._mix = loss, teacher, mix
        self._is_saving = False
        self.accelerator.gradient_accumulation_steps = 1  # older Trainers let accelerate divide the loss by the parts a second time
        # whether the loss scales with the number of items only matters where a batch is divided
        self._is_scale_known = self.args.gradient_accumulation_steps * self.args.world_size == 1
        if not any(parameter.requires_grad for parameter in self.model.parameters()):  # pyright: ignore[reportOptionalMemberAccess]
            # DDP refuses a model that does not learn
            self.accelerator.prepare_model = lambda model, device_placement=None, evaluation_mode=False: model
        if self._has_own_loss:
            self.model_accepts_loss_kwargs = False  # a mean over the batch, which the Trainer divides by the steps of an accumulation

    @property
    def _has_own_loss(self) -> bool:
        return self._own_loss is not None or self._teacher is not None

    def compute_loss(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, model: nn.Module, inputs: Batch, return_outputs: bool = False, num_items_in_batch: Tensor | int | None = None
    ) -> Any:
        """Returns the loss of a batch, with the outputs of the model if asked for.

        Raises:
            NonFinite: the loss is not a finite number.
        """
        batch = model_inputs(inputs, unwrap(model))
        if not self._has_own_loss:
            self._detect_whether_loss_heeds_item_count(model, batch, num_items_in_batch)
            result = super().compute_loss(model, batch, return_outputs=return_outputs, num_items_in_batch=num_items_in_batch)
            _check_finite(result[0] if isinstance(result, tuple) else result, self.state.global_step)
            return result
        output = model(**batch)
        loss = output.loss if self._own_loss is None else self._own_loss(output, batch).mean()
        if self._teacher is not None:
            loss = (1 - self._mix) * loss + self._mix * mean_divergence_from_teacher(self._teacher, output, batch)
        _check_finite(loss, self.state.global_step)
        return (loss, output) if return_outputs else loss

    def _detect_whether_loss_heeds_item_count(self, model: nn.Module, batch: Batch, n_items: Tensor | int | None) -> None:
        """Tries once whether the model's loss heeds the number of items of an accumulation.

        Many models take it and ignore it; the Trainer then adds up means, which are too large by as many as there are.
        """
        if self._is_scale_known or n_items is None or not self.model_accepts_loss_kwargs:
            return
        self._is_scale_known = True
        inner: Any = unwrap(model)
        with torch.no_grad(), evaluating(inner):
            few, many = (float(inner(**batch, num_items_in_batch=number).loss) for number in (1, 1000))
        self.model_accepts_loss_kwargs = few != many

    def _get_train_sampler(self, train_dataset: Any = None) -> Any:
        """Returns the order of the examples; by length where the arguments ask for it, which the Trainer can only do for dictionaries."""
        if self.args.train_sampling_strategy != "group_by_length":
            return super()._get_train_sampler(train_dataset)
        examples: Any = self.train_dataset if train_dataset is None else train_dataset
        lengths = [len(examples[number][1]["input_ids"]) for number in range(len(examples))]
        return LengthGroupedSampler(lengths, self.args.train_batch_size * self.args.world_size, self.args.data_seed or self.args.seed)

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Logs the numbers of the gates too, so that `report_to` shows them."""
        for callback in self._gate_callbacks():
            logs |= callback.log_numbers() if "loss" in logs else {}
        super().log(logs, start_time)

    def _gate_callbacks(self) -> list[GateCallback]:
        return [callback for callback in self.callback_handler.callbacks if isinstance(callback, GateCallback)]

    def _get_output_dir(self, trial: Any) -> str:
        """Returns the folder of checkpoints; while one is written, a folder aside."""
        folder = super()._get_output_dir(trial)
        return os.path.join(folder, PARTIAL) if self._is_saving else folder  # noqa: PTH118 - the Trainer works with strings

    def _save_checkpoint(self, model: nn.Module, trial: Any) -> None:
        """Writes a checkpoint aside and renames it once all processes have written all of it; older ones are removed after that."""
        folder = Path(str(self.args.output_dir))
        if self.args.should_save:
            shutil.rmtree(folder / PARTIAL, ignore_errors=True)
        self.accelerator.wait_for_everyone()
        self._is_saving = True
        try:
            super()._save_checkpoint(model, trial)
        finally:
            self._is_saving = False
        self.accelerator.wait_for_everyone()
        if self.args.should_save:
            written = folder / PARTIAL / f"{PREFIX_CHECKPOINT_DIR}-{self.state.global_step}"
            target = folder / written.name
            for callback in self._gate_callbacks():
                callback.save(written)
            _seal_checkpoint(written)
            if target.exists():
                _remove_checkpoint(target)
            written.rename(target)
            shutil.rmtree(folder / PARTIAL, ignore_errors=True)
            for old in list_finished_checkpoints(folder)[: -(self.args.save_total_limit or 1)]:
                _remove_checkpoint(old)
        self.accelerator.wait_for_everyone()


def list_finished_checkpoints(folder: Path) -> list[Path]:
    """Returns the finished checkpoints of a training, oldest first."""
    paths = [path for path in folder.glob(f"{PREFIX_CHECKPOINT_DIR}-*") if path.name.rpartition("-")[2].isdigit()]
    return sorted(paths, key=lambda path: int(path.name.rpartition("-")[2]))


def last_intact_checkpoint(folder: Path) -> Path | None:
    """Returns the newest checkpoint that is as it was written; damaged ones are set aside, with a warning."""
    for path in reversed(list_finished_checkpoints(folder)):
        if (damage := describe_checkpoint_damage(path)) is None:
            return path
        warnings.warn(f"checkpoint {path} is damaged ({damage}); it is set aside and not used", stacklevel=2)
        aside = path.with_name(DAMAGED + path.name)
        shutil.rmtree(aside, ignore_errors=True)
        path.rename(aside)
    return None


def _seal_checkpoint(folder: Path) -> None:
    """Writes the hashes of all files of a checkpoint into it."""
    files = {str(path.relative_to(folder)): sha256(path) for path in sorted(folder.rglob("*")) if path.is_file()}
    write_json(folder / SEAL, files)
    set_permissions_and_sync(folder)


def describe_checkpoint_damage(folder: Path) -> str | None:
    """Returns what is wrong with a checkpoint by the hashes that seal it; None if it is as it was written."""
    try:
        files = read_json(folder / SEAL)
    except ArtifactError:
        return f"{SEAL} is missing or torn"
    if not isinstance(files, dict):
        return f"{SEAL} is no list of files"
    return next((name for name, digest in files.items() if not (folder / name).is_file() or sha256(folder / name) != digest), None)


def _remove_checkpoint(folder: Path) -> None:
    """Removes a checkpoint; it is renamed first, so that none is ever incomplete under its name."""
    trash = folder.with_name(f"{PARTIAL}-gone")
    shutil.rmtree(trash, ignore_errors=True)
    folder.rename(trash)
    shutil.rmtree(trash, ignore_errors=True)


def _check_finite(loss: Tensor, step: int) -> None:
    if not bool(torch.isfinite(loss.detach()).all()):
        raise NonFinite(f"the training loss is {loss.item()} at step {step}; lower the learning rate, or look at the data")


def mean_divergence_from_teacher(teacher: nn.Module, output: Any, batch: Batch) -> Tensor:
    """Returns the mean divergence of a model's predictions from a teacher's, over examples or over tokens with labels."""
    with evaluating(teacher):
        teacher_logits = in_float32_or_float64(forward_preserving_state(teacher, model_inputs(batch, teacher)).logits).to(
            output.logits.device
        )
    values, labels = kl_or_squared_differences(teacher_logits, in_float32_or_float64(output.logits)), batch.get("labels")
    if values.ndim == 2 and isinstance(labels, Tensor) and labels.shape == values.shape:
        if shifts_labels(unwrap(teacher)):
            values, labels = values[:, :-1], labels[:, 1:]  # what a token predicts is the label of the next
        return values[labels != IGNORED].mean()
    return values.mean()
