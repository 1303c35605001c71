"""A study in Python: `headcount.study`. Imports torch."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torch import nn

from headcount.behaviour.base import Corpus
from headcount.behaviour.corpus import read_corpus
from headcount.core.arguments import check_arguments
from headcount.core.errors import OptionError
from headcount.core.files import hash_file_or_folder, is_file, model_path_entry, model_path_or_name, path_exists
from headcount.core.progress import Progress, show_progress_by_stage
from headcount.core.study_result import StudyResult
from headcount.data.draw import limit_splits_by_hash
from headcount.data.open_task import default_task, open_task, read_classes
from headcount.data.readers.processor import tokenizer_or_image_processor
from headcount.data.task import Task
from headcount.data.task_builder import TaskBuilder
from headcount.models.head_map import HeadMap
from headcount.runs.store import Run
from headcount.studies._base import LoadedModel, Study, StudyContext, load_options_of_new_head
from headcount.studies._results import run_study
from headcount.surgery.load import load
from headcount.surgery.source import local_folder


@check_arguments
def study(
    study: str | Study,
    model: nn.Module | str | Path | None = None,
    data: Task | str | None = None,
    *,
    tokenizer: Any = None,
    text: Any = None,
    out: str | Path | None = None,
    seed: int = 0,
    limit: int | None = None,
    batch_size: int | None = None,
    new_head: bool = False,
    progress: bool | Progress = True,
) -> StudyResult:
    """Runs an experiment of a paper.

    Args:
        study: A study or its text, such as `"layers(how=mean)"`; `headcount ls studies` lists them.
        model: The model, or the folder, hub id or `demo/NAME` that it is loaded from; None for studies of run folders.
        data: The task, or its name; by default the task that the head of the model is made for.
        tokenizer: The tokenizer of the model; by default that of its folder.
        text: The text that roles are measured on, as for `headcount.roles`; by default that of the task.
        out: The run folder that keeps finished work, and from which a stopped study goes on; for studies of a comparison, its folder.
        seed: The seed of everything that is drawn at random.
        limit: The most examples read of each split; None for all.
        batch_size: Examples per batch; None chooses the largest that fits.
        new_head: Gives a pre-trained model an untrained head for the classes of the task, drawn by the seed; the study trains it after pruning.
        progress: A bar on a terminal or in a notebook (True), nothing (False), or a function that is called with (done, total).

    Returns:
        Tables with intervals, the verdict in one sentence, and every measurement as plain data.

    Raises:
        UnknownName: no study of that name is registered, or it has no such option.
        OptionError: a value is out of range, or an input that the study needs is missing, or one that it does not use is given.

    Example:
        >>> result = headcount.study("layers", "demo/entailment", "demo/entailment", limit=100)
        >>> print(result.sentence)
    """
    chosen = Study.parse(study)
    _check_inputs(chosen, {"model": model, "task": data, "text": text, "run folder": out})
    if model is None and "comparison" in chosen.info.needs and out is not None:
        model = read_compared_model_name(out)
    sources = PythonSources(data, tokenizer, text, seed, limit, batch_size)
    arguments = {"text": text, "out": out, "seed": seed, "limit": limit, "batch_size": batch_size, "new_head": new_head}
    call = format_headcount_call_without_empty_values("study", [str(chosen), name_of_model(model), sources.task_name], arguments)
    with open_context(sources, model, out=out, new_head=new_head, progress=progress, call=call) as context:
        return run_study(chosen, context)


@contextmanager
def open_context(
    sources: PythonSources,
    model: nn.Module | str | Path | None,
    *,
    out: str | Path | None,
    new_head: bool,
    progress: bool | Progress,
    call: str = "",
) -> Iterator[StudyContext]:
    """Yields what a study in Python measures on; its run folder, if it has one, is locked meanwhile, and keeps the text of the call.

    Raises:
        OptionError: a new head is asked for without a named model and a named task.
    """
    if new_head and not (isinstance(sources.data, str) and isinstance(model, str | Path)):
        raise OptionError("new_head reads the classes of a named task and loads a named model; name both")
    name = name_of_model(model)
    loaded_model = LoadedModel(name, model) if isinstance(model, nn.Module) else name or None
    with show_progress_by_stage(progress) as begin, ExitStack() as stack:
        run = None if out is None else stack.enter_context(Run.lead(Path(out)))
        yield StudyContext(
            sources,
            model=loaded_model,
            run=run,
            command=call,
            seed=sources.seed,
            limit=sources.limit,
            batch_size=sources.batch_size,
            new_head=new_head,
            progress=lambda description, unit="examples": nullcontext(begin(description, unit) or (lambda n_finished, total: None)),
        )


def read_compared_model_name(folder: str | Path) -> str:
    """Returns the path or name of the model whose pruned models a run folder compares."""
    record = Run.open(folder).record()
    return model_path_or_name(record.model.name, record.config)


def name_of_model(model: nn.Module | str | Path | None) -> str:
    """Returns the name of a model: its path or id, that of its configuration or else its class; empty if there is no model."""
    if not isinstance(model, nn.Module):
        return "" if model is None else str(model)
    return str(getattr(getattr(model, "config", None), "name_or_path", "") or type(model).__name__)


def format_headcount_call_without_empty_values(
    public_name: str, positional_values: Sequence[str], keyword_values: Mapping[str, object]
) -> str:
    """Returns a call of the public API as Python text, with the arguments that are not empty; a text that is no path is left out."""
    plain = {name: str(value) if isinstance(value, Path) else value for name, value in keyword_values.items()}
    named = [f"{name}={value!r}" for name, value in plain.items() if value and isinstance(value, str | int)]
    return f"headcount.{public_name}({', '.join([*(repr(value) for value in positional_values if value), *named])})"


def _check_inputs(study: Study, inputs: Mapping[str, object]) -> None:
    """Raises OptionError for an input that a study needs and lacks, or has and does not use."""
    info = study.info
    arguments = {"model": "model", "task": "data", "text": "text", "run folder": "out"}
    reads_text = info.uses("text")
    uses = {
        "model": info.uses("model") or "comparison" in info.needs,
        "task": info.uses("task") or reads_text,
        "text": reads_text,
        "run folder": True,
    }
    needs = {
        "model": "model" in info.needs,
        "text": "text" in info.needs and inputs["task"] is None,
        "run folder": bool(info.needs & {"run", "comparison"}),
    }
    for name, value in inputs.items():
        if value is not None and not uses[name]:
            raise OptionError(f"study {study.name} uses no {name}; leave {arguments[name]} out")
        if value is None and needs.get(name):
            raise OptionError(f"study {study.name} needs a {name}; name it with {arguments[name]}")


@dataclass(frozen=True, slots=True)
class PythonSources:
    """Opens models, tasks and texts by the functions of `headcount`."""

    data: Task | str | None
    tokenizer: Any
    text: Any
    seed: int
    limit: int | None
    batch_size: int | None

    def __post_init__(self) -> None:
        if isinstance(self.data, str):
            TaskBuilder.parse(self.data)  # raises before a model is loaded

    @property
    def task_name(self) -> str:
        """The name of the task; empty if the head of the model decides."""
        return self.data.name if isinstance(self.data, Task) else self.data or ""

    @property
    def has_text_or_task(self) -> bool:
        """Whether the caller named a text, or a task whose texts can be read."""
        return self.text is not None or self.data is not None

    def load_model(self, model_name: str, *, class_from_config: bool = False, new_classes: Sequence[str] = ()) -> LoadedModel:
        """Returns the model of a folder, hub id or embedded name; its configuration chooses the class unless it gets new classes."""
        folder = local_folder(model_name)
        model = load(folder, **load_options_of_new_head(new_classes)) if new_classes else load(folder)
        return LoadedModel(model_name, model.eval(), folder)

    def read_heads(self, model_name: str) -> HeadMap:
        """Returns the heads of a model."""
        return LoadedModel(model_name, load(model_name)).heads

    def find_processor(self, loaded: LoadedModel) -> Any:
        """Returns the tokenizer of the caller, or else the tokenizer or image processor in the folder of the model."""
        if self.tokenizer is not None or loaded.folder is None:
            return self.tokenizer
        return tokenizer_or_image_processor(loaded.model, loaded.folder)

    def read_classes(self) -> tuple[str, ...]:
        """Returns the classes in the data of the caller's task."""
        if not isinstance(self.data, str):
            raise OptionError("the classes of a new head are read from the data of a task; name it")
        return read_classes(self.data)

    def open_task(
        self,
        loaded: LoadedModel,
        task_name: str | None = None,
        options: Mapping[str, str] | None = None,
        *,
        data_file: Path | None = None,
        file_is_held_out: bool = False,
    ) -> Task:
        """Returns the task of the caller, or the named one, for a model.

        A file, also one named in place of a task, is divided in three splits, since no other data are named.
        """
        if task_name and is_file(named := Path(task_name)):
            return replace(self.open_task(loaded, None, options, data_file=named), name=named.stem)
        if isinstance(self.data, Task) and task_name is None and data_file is None:
            task = limit_splits_by_hash(self.data, self.limit)
            return task if self.batch_size is None else replace(task, batch_size=self.batch_size)
        chosen = task_name or (self.data if isinstance(self.data, str) else default_task(loaded.model))
        builder = TaskBuilder.parse(chosen).with_texts(options or {})
        task = open_task(builder, loaded.model, self.find_processor(loaded), train=data_file, limit=self.limit, seed=self.seed)
        return replace(task, batch_size=self.batch_size)

    def open_corpus(self, loaded: LoadedModel, task: Task | None = None) -> Corpus | None:
        """Returns the text of the caller, or else of the task, aligned with the tokens of a model."""
        text = self.text if self.text is not None else task or (self.open_task(loaded) if self.data is not None else None)
        return None if text is None else read_corpus(loaded.model, text, self.find_processor(loaded), limit=self.limit)

    @property
    def text_fingerprint(self) -> str:
        """The hash of a file, or of the texts themselves."""
        if isinstance(self.text, str | Path) and path_exists(Path(self.text)):
            return hash_file_or_folder(Path(self.text))
        return "" if self.text is None else hashlib.sha256(repr(self.text).encode()).hexdigest()

    def record_to_reopen(self, model_name: str) -> dict[str, Any]:
        """Returns where the model of that name and the task are opened again."""
        task = {"task": self.task_name} if isinstance(self.data, str) else {}
        return {**task, **model_path_entry(model_name)}
