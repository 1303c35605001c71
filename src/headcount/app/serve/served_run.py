"""A served run with its model and task, which are opened as the run records them when they are first needed."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from headcount.core.errors import ArtifactError, DataError, HeadcountError
from headcount.core.evaluation import Evaluation
from headcount.core.files import model_path_or_name
from headcount.data.open_task import default_task, open_task
from headcount.data.readers.processor import tokenizer_or_image_processor
from headcount.data.task import Task
from headcount.data.task_builder import TaskBuilder
from headcount.models.provenance import weight_hash
from headcount.runs.store import Run
from headcount.surgery.source import local_folder


class LocalModel(NamedTuple):
    """The folder of a model on this machine, or None and the reason why there is none."""

    folder: Path | None
    why_not: str


class ServedRun:
    """A run with its model and task, opened when they are first needed."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.record = run.record()
        self.heads = [head for block in run.heads().blocks for head in block.heads]
        self.opening: Mapping[str, Any] | None = self.record.config.get("opened")
        self.folder, self.why_not = _find_local_model(model_path_or_name(self.record.model.name, self.record.config))
        self._model: Any = None
        self._task: Task | None = None
        self._tokenizer: Any = None
        self.dense_evaluations: dict[int, Evaluation] = {}
        self._lock = threading.RLock()

    def model(self) -> Any:
        """Returns the model of the run; raises ArtifactError if its weights are not those of the run."""
        with self._lock:
            if self._model is None:
                self._model = self._open_model()
            return self._model

    def _open_model(self) -> Any:
        from transformers.utils import logging

        from headcount.surgery.load import load  # imports transformers, which the pages of a run do without

        logging.disable_progress_bar()
        if self.folder is None:
            raise ArtifactError(self.why_not)
        opening = self.opening or {}
        model = load(self.folder, auto=opening.get("auto"), dtype=opening.get("dtype", "auto")).eval()
        if weight_hash(model) != self.record.model.weights:
            raise ArtifactError(
                f"the model {self.record.model.name} has other weights than when this run was computed; restore them, or run the command again"
            )
        return model

    def tokenizer(self) -> Any:
        """Returns the tokenizer or processor of the model, None if its folder has none."""
        with self._lock:
            if self._tokenizer is None and self.folder is not None:
                self._tokenizer = tokenizer_or_image_processor(self.model(), self.folder)
            return self._tokenizer

    def task(self) -> Task:
        """Returns the task of the run; raises DataError if the run does not record how to open it."""
        with self._lock:
            if self._task is None:
                self._task = self._open_task()
            return self._task

    def _open_task(self) -> Task:
        opening = self.opening
        if opening is None or opening.get("own_task"):
            raise DataError(
                "run.json does not record how to open the task, because the task was made in Python; run a headcount command with --task"
            )
        names = ("train", "eval", "max_length", "truncate", "limit", "seed", *(name for name in opening if name.endswith("_column")))
        arguments = {name: opening[name] for name in names if name in opening}
        task = opening.get("task") or self.record.task or default_task(self.model())
        builder = TaskBuilder.parse(task).with_texts(dict(pair.split("=", 1) for pair in opening.get("task_option", ())))
        return open_task(builder, self.model(), self.tokenizer(), **arguments)


def _find_local_model(name: str) -> LocalModel:
    """Looks for a model on this machine; nothing is downloaded."""
    try:
        return LocalModel(local_folder(name, local_files_only=True), "")
    except HeadcountError:
        return LocalModel(None, f"the model {name} is not on this machine, and nothing is fetched here")
