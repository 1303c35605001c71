"""Fine-tuning on a task, with or without gates: one recipe for every method, so that comparisons are fair, on transformers' Trainer."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from torch import nn
from transformers import TrainerCallback, TrainingArguments

from headcount.core.errors import DataError, PlanError
from headcount.data.checks import check_batch, check_weights
from headcount.data.stream import Progress, agree, world
from headcount.data.task import Task
from headcount.models.modules import device_of, unwrap
from headcount.models.ownership import holds
from headcount.models.state import attention_type_kept
from headcount.pruning.training.gates import GateCallback
from headcount.pruning.training.trainer import WholeTrainer, last_whole

FAIR_STEPS = 300
"""Optimiser steps that a training has at least, unless its recipe says how long it is."""


@dataclass(frozen=True, slots=True)
class Recipe:
    """How a model is trained.

    It lasts for so many optimiser `steps`, or so many `epochs`; with neither, for one epoch, and at least FAIR_STEPS steps. `batch` is the number of
    examples of a step, over all processes and all parts of an accumulation. `distil` is the weight of the divergence from the teacher in the loss.
    `more` goes to TrainingArguments as it is (report_to, bf16, gradient_accumulation_steps, gradient_checkpointing, …).
    """

    epochs: float | None = None
    rate: float = 5e-5
    batch: int = 32
    seed: int = 0
    warmup: float = 0.06
    decay: float = 0.01
    distil: float = 0.0
    save_every: int | None = None
    more: Mapping[str, Any] = field(default_factory=dict)
    steps: int | None = None

    def __post_init__(self) -> None:
        if self.steps is not None and self.epochs is not None:
            raise DataError(f"a recipe lasts for steps or for epochs; got steps={self.steps} and epochs={self.epochs}, leave one out")

    def n_steps(self, n_examples: int) -> int:
        """How many optimiser steps a training on so many examples has."""
        if self.steps is not None:
            return self.steps
        one_epoch = n_examples / self.batch
        return max(1, round(one_epoch * self.epochs)) if self.epochs is not None else max(FAIR_STEPS, round(one_epoch))

    def lasting(self, length: float | str, name: str) -> Recipe:
        """Returns the recipe for another length: a number of epochs, "300steps", or "auto" for one epoch of at least FAIR_STEPS steps.

        Raises:
            PlanError: `length`, which is the option `name`, is none of these.
        """
        text = str(length).strip().removesuffix("epochs").strip()
        if text == "auto":
            return replace(self, steps=None, epochs=None)
        number, is_steps = text.removesuffix("steps").strip(), text.endswith("steps")
        try:
            value = int(number) if is_steps else float(number)
        except ValueError:
            value = 0
        if isinstance(length, bool) or not 0 < value < math.inf:
            raise PlanError(f"{name} is a number of epochs above 0, a number of steps such as 300steps, or auto; got {length!r}")
        return replace(self, **({"steps": value, "epochs": None} if is_steps else {"epochs": value, "steps": None}))

    def told(self) -> dict[str, Any]:
        """The recipe as plain data."""
        return {name: getattr(self, name) for name in ("epochs", "steps", "rate", "batch", "seed", "warmup", "decay", "distil")} | {
            "more": dict(self.more)
        }


@dataclass(frozen=True, slots=True)
class Trained:
    """What came of a training: steps, and what was logged along the way."""

    steps: int
    history: list[dict[str, Any]]


@holds("training")
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

    With a `folder`, checkpoints go there and a training that was stopped goes on from the last one that is whole, to the same bits. `gates` learn
    along; the `teacher` is the model that `recipe.distil` is about.
    """
    inner: Any = unwrap(model)
    check_weights(inner)
    _check(task, recipe, teacher)
    with ExitStack() as stack:
        stack.enter_context(_caching_as_before(inner))
        place = folder if folder is not None else Path(stack.enter_context(TemporaryDirectory()))
        place.mkdir(parents=True, exist_ok=True)
        trainer = _trainer(inner, task, recipe, _arguments(inner, recipe, place, task, save=folder is not None), gates, teacher, progress)
        return _train(inner, trainer, agree(last_whole(place) if world()[0] == 0 else None), gates)


@contextmanager
def _caching_as_before(model: Any) -> Iterator[None]:
    """The Trainer turns the cache of a model off, and leaves it so."""
    before = getattr(model.config, "use_cache", None)
    try:
        yield
    finally:
        if before is not None:
            model.config.use_cache = before


def _check(task: Task, recipe: Recipe, teacher: nn.Module | None) -> None:
    """Refuses what cannot be trained, before anything is."""
    lasts = (recipe.epochs is None or recipe.epochs > 0) and (recipe.steps is None or recipe.steps > 0)
    if not lasts or not recipe.rate >= 0 or recipe.batch < 1:
        raise DataError(f"a recipe needs steps or epochs above 0, a rate of at least 0 and a batch of at least 1; got {recipe}")
    if not 0 <= recipe.distil <= 1:
        raise DataError(f"distil is the share of the teacher in the loss, from 0 to 1; got {recipe.distil}")
    if recipe.distil and teacher is None:
        raise DataError(f"distil={recipe.distil} needs a teacher, the model to learn from")
    if len(task.calibration) < recipe.batch:
        raise DataError(
            f"training takes batches of {recipe.batch} and task '{task.name}' has {len(task.calibration)} examples of calibration; "
            "give more data, or a smaller batch"
        )
    if recipe.batch % _parts(recipe):
        raise DataError(
            f"a batch of {recipe.batch} examples cannot be shared evenly by {world()[1]} processes in "
            f"{recipe.more.get('gradient_accumulation_steps', 1)} steps of accumulation; name a multiple of {_parts(recipe)}"
        )


def _parts(recipe: Recipe) -> int:
    """In how many passes of the model a batch is made."""
    return world()[1] * int(recipe.more.get("gradient_accumulation_steps", 1))


def _trainer(
    model: Any,
    task: Task,
    recipe: Recipe,
    arguments: TrainingArguments,
    gates: GateCallback | None,
    teacher: nn.Module | None,
    progress: Progress | None,
) -> WholeTrainer:
    callbacks: list[TrainerCallback] = [*([gates] if gates else []), *([_Progress(progress, recipe.batch)] if progress else [])]
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
    trainer.remove_callback(_printer())
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
    told = [dict(sorted(entry.items())) for entry in trainer.state.log_history if "loss" in entry]  # a checkpoint sorts what it keeps
    return Trained(trainer.state.global_step, told)


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


def _arguments(model: nn.Module, recipe: Recipe, folder: Path, task: Task, *, save: bool) -> TrainingArguments:
    steps = int(recipe.more.get("max_steps") or recipe.n_steps(len(task.calibration)))
    log = max(1, steps // 20)
    every = recipe.save_every or max(10, steps // 10)
    settings: dict[str, Any] = {
        "output_dir": str(folder),
        "max_steps": steps,
        "per_device_train_batch_size": recipe.batch // _parts(recipe),
        "learning_rate": recipe.rate,
        "warmup_steps": round(recipe.warmup * steps),
        "lr_scheduler_type": "linear",
        "weight_decay": recipe.decay,
        "seed": recipe.seed,
        "data_seed": recipe.seed,
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
    return TrainingArguments(**{**settings, **recipe.more})


def _printer() -> Any:
    from transformers import PrinterCallback

    return PrinterCallback


class _Progress(TrainerCallback):
    """Tells how far a training is, in examples."""

    def __init__(self, progress: Progress, batch: int) -> None:
        self.progress, self.batch = progress, batch

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """One more step."""
        if state.is_world_process_zero:
            self.progress(state.global_step * self.batch, state.max_steps * self.batch)
