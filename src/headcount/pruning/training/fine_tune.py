"""Fine-tuning on a task, with or without gates, and training from scratch.

All methods train by one recipe on transformers' Trainer, so that comparisons are fair.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import nn
from transformers import PrinterCallback, TrainerCallback, TrainerState, TrainingArguments

from headcount.core.errors import DataError, UnsupportedModel
from headcount.core.plan import Plan
from headcount.data.checks import check_batch, check_finite_weights
from headcount.data.stream import Progress, broadcast_from_first, rank_and_world_size
from headcount.data.task import Task
from headcount.models.modules import device_of, unwrap
from headcount.models.ownership import holds_model
from headcount.models.randomness import fork_rng
from headcount.models.state import attention_type_restored
from headcount.pruning.recipe import Recipe
from headcount.pruning.training.gates import GateCallback
from headcount.pruning.training.trainer import AtomicTrainer, last_intact_checkpoint
from headcount.surgery.cut import cut


@dataclass(frozen=True, slots=True)
class TrainingSummary:
    """The result of a training: its optimiser steps, and its log entries."""

    steps: int
    history: list[dict[str, Any]]


@holds_model("training")
def fine_tune(  # noqa: PLR0913 - every argument is explicit
    model: nn.Module,
    task: Task,
    recipe: Recipe,
    *,
    seed: int = 0,
    folder: Path | None = None,
    gates: GateCallback | None = None,
    teacher: nn.Module | None = None,
    after_step: Callable[[int], None] | None = None,
    progress: Progress | None = None,
) -> TrainingSummary:
    """Trains a model in place on the calibration split of a task.

    Args:
        model: A model of transformers; its weights are changed.
        task: The task whose calibration split is read.
        recipe: How long and how fast the model is trained.
        seed: The seed of the order of examples and of dropout.
        folder: Where checkpoints go; an interrupted training continues from the last complete one, to the same bits.
        gates: Gates of heads that are trained together with the weights.
        teacher: The model whose predictions `recipe.distil` weighs.
        after_step: Called with the number of every optimiser step when it is finished.
        progress: Called with the number of examples done and of all.

    Raises:
        DataError: the task has too few examples for one batch, or a teacher is missing.
    """
    inner: Any = unwrap(model)
    check_finite_weights(inner)
    _check_training_request(task, recipe, teacher)
    with ExitStack() as stack:
        stack.enter_context(_preserve_use_cache(inner))
        checkpoint_folder = folder if folder is not None else Path(stack.enter_context(TemporaryDirectory()))
        checkpoint_folder.mkdir(parents=True, exist_ok=True)
        arguments = _training_arguments(inner, recipe, seed, checkpoint_folder, task, save=folder is not None)
        trainer = _build_trainer(inner, task, recipe, arguments, gates, teacher, progress)
        if after_step is not None:
            trainer.add_callback(_CallAfterStep(lambda state: after_step(state.global_step)))
        checkpoint = broadcast_from_first(last_intact_checkpoint(checkpoint_folder) if rank_and_world_size()[0] == 0 else None)
        return _train(inner, trainer, checkpoint, gates)


def train_from_scratch(
    model: nn.Module,
    plan: Plan,
    task: Task,
    recipe: Recipe,
    *,
    seed: int = 0,
    folder: Path | None = None,
    progress: Progress | None = None,
) -> tuple[nn.Module, TrainingSummary]:
    """Returns a model with the heads that a plan keeps, its weights drawn anew by `seed` and trained; the model given is not changed.

    The control of Voita et al. 2019: a model that never had the other heads.
    """
    small = cut(unwrap(model), plan)
    reset_weights(small, seed)
    return small, fine_tune(small, task, recipe, seed=seed, folder=folder, progress=progress)


@torch.no_grad()
def reset_weights(model: nn.Module, seed: int) -> None:
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


@contextmanager
def _preserve_use_cache(model: Any) -> Iterator[None]:
    """Restores `config.use_cache`, which the Trainer sets to False."""
    use_cache = getattr(model.config, "use_cache", None)
    try:
        yield
    finally:
        if use_cache is not None:
            model.config.use_cache = use_cache


def _check_training_request(task: Task, recipe: Recipe, teacher: nn.Module | None) -> None:
    if recipe.distil and teacher is None:
        raise DataError(f"distil={recipe.distil} needs a teacher, the model to learn from")
    if len(task.calibration) < recipe.train_batch:
        raise DataError(
            f"training takes batches of {recipe.train_batch} and task '{task.name}' has {len(task.calibration)} examples of calibration; "
            "give more data, or a smaller train_batch"
        )
    if recipe.train_batch % _passes_per_batch(recipe):
        raise DataError(
            f"a batch of {recipe.train_batch} examples cannot be shared evenly by {rank_and_world_size()[1]} processes in "
            f"{_accumulation_steps(recipe)} steps of accumulation; name a multiple of {_passes_per_batch(recipe)}"
        )


def _accumulation_steps(recipe: Recipe) -> int:
    return int((recipe.training_arguments or {}).get("gradient_accumulation_steps", 1))


def _passes_per_batch(recipe: Recipe) -> int:
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
) -> AtomicTrainer:
    def report_progress(state: TrainerState) -> None:
        if progress is not None and state.is_world_process_zero:
            progress(state.global_step * recipe.train_batch, state.max_steps * recipe.train_batch)

    callbacks: list[TrainerCallback] = [*([gates] if gates else []), _CallAfterStep(report_progress)]
    trainer = AtomicTrainer(
        model=model,
        args=arguments,
        train_dataset=_NumberedExamples(task.calibration),  # pyright: ignore[reportArgumentType]
        data_collator=_CheckedCollator(model, task),
        callbacks=callbacks,
        loss=task.loss,
        teacher=teacher if recipe.distil else None,
        mix=recipe.distil,
    )
    trainer.remove_callback(PrinterCallback)
    return trainer


def _train(model: Any, trainer: AtomicTrainer, checkpoint: Path | None, gates: GateCallback | None) -> TrainingSummary:
    """Trains, from a checkpoint if there is one, and leaves the model in evaluation mode without gates."""
    try:
        with attention_type_restored(model):
            trainer.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)
    finally:
        if gates is not None:
            gates.close()
        model.eval()
    check_finite_weights(model)
    history = [dict(sorted(entry.items())) for entry in trainer.state.log_history if "loss" in entry]  # a checkpoint sorts its keys
    return TrainingSummary(trainer.state.global_step, history)


@dataclass(frozen=True, slots=True)
class _NumberedExamples:
    """Examples with their numbers."""

    examples: Any

    def __len__(self) -> int:
        return len(self.examples)

    def __getitem__(self, number: int) -> tuple[int, Any]:
        return number, self.examples[number]


class _CheckedCollator:
    """Makes batches of a task; every example is checked the first time it comes."""

    def __init__(self, model: nn.Module, task: Task) -> None:
        self.model, self.task = model, task
        self._checked: set[int] = set()

    def __call__(self, rows: list[tuple[int, Any]]) -> dict[str, Any]:
        numbers = [number for number, _ in rows]
        batch = dict(self.task.collate([example for _, example in rows]))
        if not self._checked.issuperset(numbers):
            check_batch(self.model, batch, numbers)
            self._checked.update(numbers)
        return batch


def _training_arguments(model: nn.Module, recipe: Recipe, seed: int, folder: Path, task: Task, *, save: bool) -> TrainingArguments:
    overrides = recipe.training_arguments or {}
    steps = int(overrides.get("max_steps") or recipe.n_steps(len(task.calibration)))
    logging_steps = max(1, steps // 20)
    save_every = recipe.save_every or max(10, steps // 10)
    settings: dict[str, Any] = {
        "output_dir": str(folder),
        "max_steps": steps,
        "per_device_train_batch_size": recipe.train_batch // _passes_per_batch(recipe),
        "learning_rate": recipe.rate,
        "warmup_steps": round(recipe.warmup * steps),
        "lr_scheduler_type": "linear",
        "weight_decay": recipe.decay,
        "seed": seed,
        "data_seed": seed,
        "save_strategy": "steps" if save else "no",
        # a multiple of logging_steps: a mean that is logged across an interruption would be another one
        "save_steps": -(-save_every // logging_steps) * logging_steps,
        "save_total_limit": 2,
        "logging_steps": logging_steps,
        "report_to": [],
        "remove_unused_columns": False,
        "disable_tqdm": True,
        "use_cpu": device_of(model).type == "cpu",
        "dataloader_pin_memory": device_of(model).type == "cuda",
    }
    return TrainingArguments(**{**settings, **overrides})


class _CallAfterStep(TrainerCallback):
    """Calls a function with the state of the training after every step."""

    def __init__(self, function: Callable[[TrainerState], None]) -> None:
        self.function = function

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Calls the function."""
        self.function(state)
