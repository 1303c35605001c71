"""`headcount study`: runs a study on what a command line names, and prints its tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass, replace
from pathlib import Path
from typing import Any

import typer

from headcount.app.cli.study import Request
from headcount.app.console.corpus import open_corpus
from headcount.app.console.format import format_training
from headcount.app.console.inputs import ModelAndTaskOptions, ModelOptions
from headcount.app.console.models import check_can_get_new_head, open_model, open_named_task, read_task_classes
from headcount.app.console.session import Session
from headcount.behaviour.base import Corpus
from headcount.core.files import hash_file_or_folder, is_file, model_path_or_name
from headcount.core.study_result import Table
from headcount.data.readers.processor import tokenizer_or_image_processor
from headcount.data.task import Task
from headcount.models.head_map import HeadMap
from headcount.runs.store import Run
from headcount.studies._base import LoadedModel, Study, StudyContext, load_options_of_new_head
from headcount.studies._results import run_study as keep_study
from headcount.surgery.load import load


def resolve_model_and_task_options(request: Request) -> ModelAndTaskOptions:
    """Returns the options of model and data; for the run of a comparison, those that the run records."""
    if request.common is not None:
        return request.common
    if request.comparison is None:
        return ModelAndTaskOptions("", seed=request.seed)
    record = Run.open(request.comparison).record()
    loading = ModelOptions(device=request.device, dtype=request.dtype).fill_from_run_config(record.config)
    name = model_path_or_name(record.model.name, record.config)
    return ModelAndTaskOptions(name, task=request.task, limit=request.limit, seed=request.seed, **loading._asdict())


def make_study_context(session: Session, request: Request, run: Run | None) -> StudyContext:
    """Returns what a study works on, as a command line names it."""
    data = resolve_model_and_task_options(request)
    if request.new_head:
        check_can_get_new_head(data)
    return StudyContext(
        ConsoleSources(session, data, request),
        model=data.model or None,
        new_head=request.new_head,
        run=run,
        seed=data.seed,
        command=session.command,
        progress=session.progress,
        note=session.write_note,
        note_training=lambda estimate: session.write_note(format_training(*astuple(estimate))),
        limit=data.limit,
        batch_size=data.examples_per_batch,
    )


def run_study_command(session: Session, study: Study, request: Request, run: Run | None) -> None:
    """Runs a study on what a command line names, and prints its tables, its notes and its verdict."""
    if study.info.needs & {"run", "comparison"} and run is None:
        raise typer.BadParameter(f"study {study.name} is led by one process; start it without torchrun")
    result = keep_study(study, make_study_context(session, request, run))
    for table in result.tables:
        if table.is_printed:
            show_study_table(session, table)
    for sentence in (*result.notes, result.sentence):
        session.write_line(sentence)
    session.write_json({"study": study.name, **result.measurements, "notes": list(result.notes), "sentence": result.sentence})


@dataclass(frozen=True, slots=True)
class ConsoleSources:
    """Opens models, tasks and texts as the command line says, and notes what was opened."""

    session: Session
    data: ModelAndTaskOptions
    request: Request

    @property
    def task_name(self) -> str:
        """The name of the task; empty if the head of the model decides."""
        return self.data.task or ""

    @property
    def has_text_or_task(self) -> bool:
        """Whether a text or a task is named."""
        return self.request.has_text_or_task

    def load_model(self, model_name: str, *, class_from_config: bool = False, new_classes: Sequence[str] = ()) -> LoadedModel:
        """Returns the model of a folder, hub id or embedded name, of the class that the command line chose unless `class_from_config`."""
        loading, options = self.data.model_options, {}
        if class_from_config:
            loading = loading._replace(auto=None)
        if new_classes:
            options = load_options_of_new_head(new_classes)
            loading = loading._replace(auto=options.pop("auto"))
        model, _, folder = open_model(self.session, model_name, loading, **options)
        return LoadedModel(model_name, model, folder)

    def read_classes(self) -> tuple[str, ...]:
        """Returns the classes in the data of the command line."""
        return read_task_classes(self.data)

    def read_heads(self, model_name: str) -> HeadMap:
        """Returns the heads of a model."""
        data = self.data
        model = load(model_name, auto=data.auto, allow_pickle=data.allow_pickle, trust_remote_code=data.trust_remote_code)
        return LoadedModel(model_name, model).heads

    def find_processor(self, loaded: LoadedModel) -> Any:
        """Returns the tokenizer or image processor in the folder of a model."""
        assert loaded.folder is not None
        return tokenizer_or_image_processor(loaded.model, loaded.folder, self.data.trust_remote_code)

    def open_task(
        self,
        loaded: LoadedModel,
        task_name: str | None = None,
        options: Mapping[str, str] | None = None,
        *,
        data_file: Path | None = None,
        file_is_held_out: bool = False,
    ) -> Task:
        """Returns the task of the command line, or the named one, for a model.

        A file stands in for its data, also one named in place of a task; with `file_is_held_out` for --eval alone, if --train is named too and is
        another file.
        """
        assert loaded.folder is not None
        if task_name and is_file(named := Path(task_name)):
            return replace(self.open_task(loaded, None, options, data_file=named), name=named.stem)
        task_options = [*(self.data.task_option or []), *(f"{option}={value}" for option, value in (options or {}).items())]
        data = self.data._replace(task=task_name or self.data.task, task_option=task_options or None)
        if data_file is not None and file_is_held_out and data.train and data.eval and data.train != [data_file]:
            data = data._replace(eval=[data_file])
        elif data_file is not None:
            data = data._replace(train=[data_file], eval=None)
        return open_named_task(self.session, data, loaded.model, loaded.folder)

    def open_corpus(self, loaded: LoadedModel, task: Task | None = None) -> Corpus:
        """Returns the text of the command line, or else of the task, aligned with the tokens of a model."""
        assert loaded.folder is not None
        text, embedded, parser = self.request.text, self.request.embedded, self.request.parser
        return open_corpus(
            self.session, self.data, loaded.model, loaded.folder, task=task, text_file=text, embedded_name=embedded, parser_name=parser
        )

    @property
    def text_fingerprint(self) -> str:
        """The hash of the text file, or the name of the embedded text."""
        return hash_file_or_folder(self.request.text) if self.request.text is not None else self.request.embedded or ""

    def record_to_reopen(self, model_name: str) -> dict[str, Any]:
        """Returns what it takes to open the model of that name and the task again."""
        return self.data._replace(model=model_name).opening_record()


def show_study_table(session: Session, table: Table) -> None:
    """Prints a table; numbers without intervals stand at the right of their column."""
    formatted = table.format()
    columns = zip(formatted.headings, formatted.are_numbers, formatted.have_intervals, strict=True)
    right = [heading for heading, is_number, has_interval in columns if is_number and not has_interval]
    if table.title:
        session.write_line(table.title)
    session.write_table(formatted.headings, formatted.rows, right_aligned=right)
