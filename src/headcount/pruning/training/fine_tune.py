"""Fine-tuning on a task, with or without gates: one recipe for every method, so that comparisons are fair, on transformers' Trainer."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from torch import nn
from transformers import PrinterCallback, TrainerCallback, TrainingArguments

from headcount.core.errors import DataError
from headcount.data.checks import check_batch, check_weights
from headcount.data.stream import Progress, broadcast_from_first, rank_and_world_size
from headcount.data.task import Task
from headcount.models.modules import device_of, unwrap
from headcount.models.ownership import holds
from headcount.models.state import attention_type_kept
from headcount.pruning.recipe import Recipe
from headcount.pruning.training.gates import GateCallback
from headcount.pruning.training.trainer import WholeTrainer, last_whole


@dataclass(frozen=True, slots=True)
class Trained:
    """The result of a training: its optimiser steps, and its log entries."""

    steps: int
    history: list[dict[str, Any]]


@holds("training")
def fine_tune(  # noqa: PLR0913 - every argument is explicit
    model: nn.Module,
    task: Task,
    recipe: Recipe,
    *,
    seed: int = 0,
    folder: Path | None = None,
    gates: GateCallback | None = None,
    teacher: nn.Module | None = None,
    progress: Progress | None = None,
) -> Trained:
    """Trains a model in place on the calibration split of a task.

    Args:
        model: A model of transformers; its weights are changed.
        task: The task whose calibration split is read.
        recipe: How long and how fast the model is trained.
        seed: The seed of the order of examples and of dropout.
        folder: Where checkpoints go; an interrupted training continues from the last complete one, to the same bits.
        gates: Gates of heads that are trained together with the weights.
        teacher: The model whose predictions `recipe.distil` weighs.
        progress: Called with the number of examples done and of all.

    Raises:
        DataError: the task has too few examples for one batch, or a teacher is missing.
    """
    inner: Any = unwrap(model)
    check_weights(inner)
    _check_training(task, recipe, teacher)
    with ExitStack() as stack:
        stack.enter_context(_preserve_use_cache(inner))
        checkpoints = folder if folder is not None else Path(stack.enter_context(TemporaryDirectory()))
        checkpoints.mkdir(parents=True, exist_ok=True)
        arguments = _training_arguments(inner, recipe, seed, checkpoints, task, save=folder is not None)
        trainer = _build_trainer(inner, task, recipe, arguments, gates, teacher, progress)
        return _train(inner, trainer, broadcast_from_first(last_whole(checkpoints) if rank_and_world_size()[0] == 0 else None), gates)


@contextmanager
def _preserve_use_cache(model: Any) -> Iterator[None]:
    """Restores `config.use_cache`, which the Trainer sets to False."""
    before = getattr(model.config, "use_cache", None)
    try:
        yield
    finally:
        if before is not None:
            model.config.use_cache = before


def _check_training(task: Task, recipe: Recipe, teacher: nn.Module | None) -> None:
    if recipe.distil and teacher is None:
        raise DataError(f"distil={recipe.distil} needs a teacher, the model to learn from")
    if len(task.calibration) < recipe.train_batch:
        raise DataError(
            f"training takes batches of {recipe.train_batch} and task '{task.name}' has {len(task.calibration)} examples of calibration; "
            "give more data, or a smaller train_batch"
        )
    if recipe.train_batch % _n_parts(recipe):
        raise DataError(
            f"a batch of {recipe.train_batch} examples cannot be shared evenly by {rank_and_world_size()[1]} processes in "
            f"{_accumulation_steps(recipe)} steps of accumulation; name a multiple of {_n_parts(recipe)}"
        )


def _accumulation_steps(recipe: Recipe) -> int:
    return int((recipe.training_arguments or {}).get("gradient_accumulation_steps", 1))


def _n_parts(recipe: Recipe) -> int:
    """Returns the number of forward passes that one batch is divided into."""
    return rank_and_world_size()[1] * _accumulation_steps(recipe)


def _build_trainer(
    model: Any,
    task: Task,
    recipe: Recipe,
    arguments: TrainingArguments,
    gates: GateCallback | None,
    teacher: nn.Module | None,
    progress: Progress | None,
) -> WholeTrainer:
    callbacks: list[TrainerCallback] = [*([gates] if gates else []), *([_ReportProgress(progress, recipe.train_batch)] if progress else [])]
    trainer = WholeTrainer(
        model=model,
        args=arguments,
        train_dataset=_Numbered(task.calibration),  # pyright: ignore[reportArgumentType]
        data_collator=_Collate(model, task),
        callbacks=callbacks,
        loss=task.loss,
        teacher=teacher if recipe.distil else None,
        mix=recipe.distil,
    )
    trainer.remove_callback(PrinterCallback)
    return trainer


def _train(model: Any, trainer: WholeTrainer, before: Path | None, gates: GateCallback | None) -> Trained:
    try:
        with attention_type_kept(model):
            trainer.train(resume_from_checkpoint=str(before) if before else None)
    finally:
        if gates is not None:
            gates.close()
        model.eval()
    check_weights(model)
    history = [dict(sorted(entry.items())) for entry in trainer.state.log_history if "loss" in entry]  # a checkpoint sorts its keys
    return Trained(trainer.state.global_step, history)


@dataclass(frozen=True, slots=True)
class _Numbered:
    """Examples with their numbers."""

    examples: Any

    def __len__(self) -> int:
        return len(self.examples)

    def __getitem__(self, number: int) -> tuple[int, Any]:
        return number, self.examples[number]


class _Collate:
    """Batches of a task; every example is checked the first time it comes."""

    def __init__(self, model: nn.Module, task: Task) -> None:
        self.model, self.task = model, task
        self.seen: set[int] = set()

    def __call__(self, rows: list[tuple[int, Any]]) -> dict[str, Any]:
        numbers = [number for number, _ in rows]
        batch = dict(self.task.collate([example for _, example in rows]))
        if not self.seen.issuperset(numbers):
            check_batch(self.model, batch, numbers)
            self.seen.update(numbers)
        return batch


def _training_arguments(model: nn.Module, recipe: Recipe, seed: int, folder: Path, task: Task, *, save: bool) -> TrainingArguments:
    more = recipe.training_arguments or {}
    steps = int(more.get("max_steps") or recipe.n_steps(len(task.calibration)))
    log = max(1, steps // 20)
    every = recipe.save_every or max(10, steps // 10)
    settings: dict[str, Any] = {
        "output_dir": str(folder),
        "max_steps": steps,
        "per_device_train_batch_size": recipe.train_batch // _n_parts(recipe),
        "learning_rate": recipe.rate,
        "warmup_steps": round(recipe.warmup * steps),
        "lr_scheduler_type": "linear",
        "weight_decay": recipe.decay,
        "seed": seed,
        "data_seed": seed,
        "save_strategy": "steps" if save else "no",
        "save_steps": -(-every // log) * log,  # a mean that is logged over more than a stop would be another one
        "save_total_limit": 2,
        "logging_steps": log,
        "report_to": [],
        "remove_unused_columns": False,
        "disable_tqdm": True,
        "use_cpu": device_of(model).type == "cpu",
        "dataloader_pin_memory": device_of(model).type == "cuda",
    }
    return TrainingArguments(**{**settings, **more})


class _ReportProgress(TrainerCallback):
    """Reports the progress of a training in examples."""

    def __init__(self, progress: Progress, batch: int) -> None:
        self.progress, self.batch = progress, batch

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Reports one more step."""
        if state.is_world_process_zero:
            self.progress(state.global_step * self.batch, state.max_steps * self.batch)
