"""Fine-tuning on a task, with or without gates: one recipe for every method, so that comparisons are fair. All of it runs on transformers' Trainer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import nn
from transformers import TrainerCallback, TrainingArguments

from headcount.archs.modules import unwrap
from headcount.checks import check_weights
from headcount.data import Task
from headcount.errors import DataError
from headcount.stream import Progress
from headcount.training.gates import GateCallback
from headcount.training.trainer import WholeTrainer, checkpoints


@dataclass(frozen=True, slots=True)
class Recipe:
    """How a model is trained; `more` goes to TrainingArguments as it is (report_to, bf16, gradient_accumulation_steps, …)."""

    epochs: float = 1.0
    rate: float = 5e-5
    batch: int = 32
    seed: int = 0
    warmup: float = 0.06
    decay: float = 0.01
    distil: float = 0.0
    save_every: int | None = None
    more: Mapping[str, Any] = field(default_factory=dict)

    def told(self) -> dict[str, Any]:
        """The recipe as plain data."""
        return {name: getattr(self, name) for name in ("epochs", "rate", "batch", "seed", "warmup", "decay", "distil")} | {
            "more": dict(self.more)
        }


@dataclass(frozen=True, slots=True)
class Trained:
    """What came of a training: steps, and what was logged along the way."""

    steps: int
    history: list[dict[str, Any]]


def fine_tune(
    model: nn.Module,
    task: Task,
    recipe: Recipe,
    *,
    folder: Path | None = None,
    gates: GateCallback | None = None,
    teacher: nn.Module | None = None,
    progress: Progress | None = None,
) -> Trained:
    """Trains a model in place on the calibration split of a task.

    With a `folder`, checkpoints go there and a training that was stopped goes on from the last one. `gates` learn along; `recipe.distil` is the weight of
    the divergence from the `teacher` in the loss.
    """
    inner: Any = unwrap(model)
    check_weights(inner)
    if folder is None:
        with TemporaryDirectory() as place:
            return _train(inner, task, recipe, Path(place), gates, teacher, progress, keep=False)
    return _train(inner, task, recipe, folder, gates, teacher, progress, keep=True)


def _train(
    model: Any,
    task: Task,
    recipe: Recipe,
    folder: Path,
    gates: GateCallback | None,
    teacher: nn.Module | None,
    progress: Progress | None,
    *,
    keep: bool,
) -> Trained:
    examples: Any = task.calibration
    if len(examples) < recipe.batch:
        raise DataError(
            f"training takes batches of {recipe.batch} and task '{task.name}' has {len(examples)} examples of calibration; give more data"
        )
    steps = max(1, round(len(examples) / recipe.batch * recipe.epochs))
    callbacks: list[TrainerCallback] = [*([gates] if gates else []), *([_Progress(progress)] if progress else [])]
    teaching = teacher.eval() if teacher is not None and recipe.distil else None
    trainer = WholeTrainer(
        model=model,
        args=_arguments(recipe, folder, steps, keep=keep),
        train_dataset=examples,
        data_collator=lambda rows: dict(task.collate(rows)),
        callbacks=callbacks,
        loss=task.loss,
        teacher=teaching,
        mix=recipe.distil,
    )
    trainer.remove_callback(_printer())
    before = checkpoints(folder)
    cache = getattr(model.config, "use_cache", None)
    try:
        trainer.train(resume_from_checkpoint=str(before[-1]) if before else None)
    finally:
        if gates is not None:
            gates.close()
        if cache is not None:
            model.config.use_cache = cache  # the Trainer turns it off
        model.eval()
    history = [entry for entry in trainer.state.log_history if "loss" in entry]
    return Trained(trainer.state.global_step, gates.history if gates is not None else history)


def _arguments(recipe: Recipe, folder: Path, steps: int, *, keep: bool) -> TrainingArguments:
    every = recipe.save_every or max(10, steps // 10)
    settings: dict[str, Any] = {
        "output_dir": str(folder),
        "max_steps": steps,
        "per_device_train_batch_size": recipe.batch,
        "learning_rate": recipe.rate,
        "warmup_steps": round(recipe.warmup * steps),
        "lr_scheduler_type": "linear",
        "weight_decay": recipe.decay,
        "seed": recipe.seed,
        "data_seed": recipe.seed,
        "save_strategy": "steps" if keep else "no",
        "save_steps": every,
        "save_total_limit": 2,
        "logging_steps": max(1, steps // 20),
        "report_to": [],
        "remove_unused_columns": False,
        "disable_tqdm": True,
        "use_cpu": not torch.cuda.is_available(),
        "dataloader_pin_memory": torch.cuda.is_available(),
    }
    return TrainingArguments(**{**settings, **recipe.more})


def _printer() -> Any:
    from transformers import PrinterCallback

    return PrinterCallback


class _Progress(TrainerCallback):
    """Tells how far a training is, in examples."""

    def __init__(self, progress: Progress) -> None:
        self.progress = progress

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """One more step."""
        size = args.per_device_train_batch_size
        self.progress(state.global_step * size, state.max_steps * size)
