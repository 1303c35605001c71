"""What workflows that are called from Python open: a model with its tokenizer and task, and the text for roles."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torch import nn

from headcount.behaviour.base import Corpus
from headcount.behaviour.corpus import SENTENCES, Parser, read_corpus
from headcount.core.errors import DataError, UnsupportedModel
from headcount.core.files import model_path_entry
from headcount.data.draw import limit_splits_by_hash
from headcount.data.open_task import open_task
from headcount.data.readers.processor import tokenizer_or_image_processor
from headcount.data.task import Split, Task
from headcount.data.task_builder import TaskBuilder
from headcount.models.modules import unwrap
from headcount.surgery.load import load
from headcount.surgery.source import local_folder

TextsForRoles = Any
"""A file, texts or a corpus that roles and head profiles are measured on, as `hc.roles` reads them; None for the texts of the task."""


@dataclass(frozen=True, slots=True)
class ModelWithTask:
    """A live model with its name, tokenizer and task; `folder` is where it was loaded from, and `opening` how both are opened again."""

    name: str
    model: nn.Module
    task: Task
    tokenizer: Any
    folder: Path | None
    opening: dict[str, Any]


def open_inputs(
    model: nn.Module | str | Path, data: Task | str | None, tokenizer: Any, *, seed: int, limit: int | None, batch_size: int | None
) -> ModelWithTask:
    """Opens a model, which may be live already, and its task, with at most `limit` examples a split; by default that of its head."""
    if isinstance(data, str):
        TaskBuilder.parse(data)  # raises before the model is loaded
    folder = local_folder(model) if isinstance(model, str | Path) else None
    live: Any = load(folder).eval() if folder is not None else unwrap(model)  # pyright: ignore[reportArgumentType]
    tokenizer = tokenizer_or_image_processor(live, folder) if tokenizer is None and folder is not None else tokenizer
    task = limit_splits_by_hash(data, limit) if isinstance(data, Task) else open_task(data, live, tokenizer, limit=limit, seed=seed)
    task = replace(task, batch_size=batch_size or task.batch_size)
    name = str(model) if folder is not None else getattr(live.config, "_name_or_path", "") or type(live).__name__
    return ModelWithTask(name, live, task, tokenizer, folder, _record_of_opening(model, data))


def _record_of_opening(model: Any, data: Any) -> dict[str, Any]:
    """Returns how model and task are opened again; a task that was made in Python cannot be."""
    model_path = model_path_entry(model) if isinstance(model, str | Path) else {}
    if isinstance(data, Task):
        return {"opened": {**model_path, "own_task": True}} if model_path else {}
    return {"opened": {**({"task": data} if data else {}), **model_path}}


def corpus_or_reason(
    model: nn.Module,
    task: Task,
    tokenizer: Any,
    *,
    text: TextsForRoles = None,
    split: Split = "calibration",
    limit: int | None = SENTENCES,
    parser: Parser | None = None,
) -> tuple[Corpus | None, str]:
    """Returns the corpus of roles and head profiles, of `text` or else of the task; or None and the reason why the task has none."""
    if isinstance(text, Corpus):
        return text, ""
    if text is not None:
        return read_corpus(model, text, tokenizer, limit=limit, parser=parser), ""
    try:
        return read_corpus(model, task, tokenizer, split=split, limit=limit, parser=parser), ""
    except (DataError, UnsupportedModel) as error:
        return None, str(error)
