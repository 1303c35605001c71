"""Opening the MODEL and the task of a command line, and describing them in a run."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import torch
import transformers
import typer
from torch import nn

from headcount.app.console.format import format_duration
from headcount.app.console.inputs import DEFAULT_LOADING, ModelAndTaskOptions, ModelOptions, parse_named_values
from headcount.app.console.session import Session
from headcount.core.plan import Plan
from headcount.data.open_task import default_task, open_task, read_classes
from headcount.data.readers.processor import tokenizer_or_image_processor
from headcount.data.task import SPLITS, Task
from headcount.data.task_builder import TaskBuilder
from headcount.models.archs import cut_record as record
from headcount.models.head_map import HeadMap
from headcount.models.provenance import machine_entries, model_record, weight_hash
from headcount.runs.describe import describe_run
from headcount.runs.store import Run
from headcount.studies._base import load_options_of_new_head
from headcount.surgery.load import load, make_cut_class
from headcount.surgery.source import build_from_config, local_folder, model_class_of, read_config
from headcount.surgery.verify import lowest_float_dtype


class OpenedModel(NamedTuple):
    """A model that was loaded, its heads, and the folder that it was loaded from."""

    model: nn.Module
    heads: HeadMap
    folder: Path


def set_library_verbosity(session: Session) -> None:
    """Sets how much transformers and the exporter of torch log, and whether they draw progress bars, on stderr."""
    log = transformers.utils.logging
    logging.getLogger("torch.onnx").setLevel(logging.INFO if session.verbose else logging.ERROR)
    if session.verbose:
        log.set_verbosity_info()
        log.enable_progress_bar()
    else:
        log.set_verbosity_error()
        log.disable_progress_bar()


def choose_device(name: str) -> torch.device:
    """Returns the device of that name; `auto` is a GPU if there is one."""
    if name == "meta":
        raise typer.BadParameter("--device meta holds no numbers, so nothing can be computed there")
    try:
        device = torch.device(("cuda" if torch.cuda.is_available() else "cpu") if name == "auto" else name)
        torch.zeros(1, device=device)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).strip().splitlines()[0]
        raise typer.BadParameter(f"--device {name} is not available here: {reason}") from error
    return device


def note_model(session: Session, model: nn.Module, heads: HeadMap) -> None:
    """Notes device, dtype, class and heads of a model in one line."""
    first = next(model.parameters())
    session.write_note_once(
        f"{first.device}, {str(lowest_float_dtype(model))[6:]}, {type(model).__name__} ({heads.model_type}), {heads.describe()}"
    )


def open_model(
    session: Session,
    name_or_folder: str,
    loading: ModelOptions = DEFAULT_LOADING,
    *,
    new_layers: bool = False,
    model_kwargs: Mapping[str, object] | None = None,
) -> OpenedModel:
    """Returns the model of a folder or hub id, its heads and its folder."""
    set_library_verbosity(session)
    device = choose_device(loading.device)
    session.begin_work(f"loading {name_or_folder}")
    folder = local_folder(name_or_folder)
    model = load(
        folder,
        auto=loading.auto,
        dtype=loading.dtype,
        allow_pickle=loading.allow_pickle,
        trust_remote_code=loading.trust_remote_code,
        new_layers=new_layers,
        model_kwargs=model_kwargs,
    )
    model = model.to(device).eval()
    heads = HeadMap.of(model)
    note_model(session, model, heads)
    return OpenedModel(model, heads, folder)


def open_task_model(
    session: Session, data: ModelAndTaskOptions, *, new_head: bool = False, new_head_seed: int | None = None
) -> OpenedModel:
    """Returns the model of a command line, its heads and its folder; with `new_head`, with an untrained head for the classes in its data.

    The new head is drawn by `new_head_seed`, by default that of the data.

    Raises:
        DataError: a file of data does not exist.
        BadParameter: a new head is asked for beside a class to load, without a task, or for a model that has a head for classes already.
    """
    data.check_data_files_exist()
    if not new_head:
        return open_model(session, data.model, data.model_options)
    check_can_get_new_head(data)
    options = load_options_of_new_head(read_task_classes(data))
    loading = data.model_options._replace(auto=options["auto"])
    torch.manual_seed(data.seed if new_head_seed is None else new_head_seed)
    return open_model(session, data.model, loading, new_layers=True, model_kwargs=options["model_kwargs"])


def check_can_get_new_head(data: ModelAndTaskOptions) -> None:
    """Raises BadParameter where the model of a command line cannot get a new head."""
    if data.auto is not None:
        raise typer.BadParameter(f"--new-head loads another class than --auto {data.auto}; leave one of them out")
    if data.task is None:
        raise typer.BadParameter("--new-head takes the classes from the data of a task; name it with --task")
    folder = local_folder(data.model)
    own_class = model_class_of(folder, read_config(folder, data.trust_remote_code)).__name__
    if "SequenceClassification" in own_class:
        raise typer.BadParameter(f"{data.model} has a head for classes already ({own_class}); leave --new-head out")


def read_task_classes(data: ModelAndTaskOptions) -> tuple[str, ...]:
    """Returns the classes in the data that a command line names."""
    builder = TaskBuilder.parse(data.task or "classification").with_texts(parse_named_values(data.task_option, "--task-option"))
    columns = {name: getattr(data, name) for name in ("text_column", "text_pair_column", "label_column")}
    return read_classes(builder, train=data.train, eval=data.eval, **columns)


def open_named_task(session: Session, data: ModelAndTaskOptions, model: nn.Module, model_folder: Path) -> Task:
    """Returns the task that a command line names, for a model and the tokenizer in its folder."""
    session.begin_work("reading the data")
    builder = TaskBuilder.parse(data.task or default_task(model)).with_texts(parse_named_values(data.task_option, "--task-option"))
    task = open_task(
        builder, model, tokenizer_or_image_processor(model, model_folder, data.trust_remote_code), **data.open_task_arguments()
    )
    task = replace(task, batch_size=data.examples_per_batch)
    sizes = ", ".join(f"{len(task.split(split))} {split}" for split in SPLITS)
    session.write_note_once(f"task {task.name}: {sizes}; seed {data.seed}")
    return task


def note_expected_duration(session: Session, seconds: float, qualification: str = "") -> None:
    """Notes how long the work will take, before it begins."""
    session.write_note(f"this takes about {format_duration(seconds)} on this machine{qualification}")


def note_statistical_power(session: Session, task: Task, max_examples: int | None) -> None:
    """Notes what the report split of a task can show, before work begins."""
    from headcount.runs.report.certificates import describe_power

    n_examples = min(len(task.report), max_examples or len(task.report))
    if n_examples > 1:
        session.write_note(describe_power(n_examples, task.metric.name if task.metric else ""))


def has_weights(folder: Path) -> bool:
    """Whether a folder holds weights, not only a configuration."""
    return any(next(folder.glob(pattern), None) for pattern in ("*.safetensors", "pytorch_model*.bin"))


def open_model_or_configuration(session: Session, name_or_folder: str, loading: ModelOptions) -> tuple[nn.Module, HeadMap]:
    """Returns the model of a folder; if that holds only a configuration, a model without weights on the meta device."""
    set_library_verbosity(session)
    folder = local_folder(name_or_folder)
    if has_weights(folder):
        model, heads, _ = open_model(session, str(folder), loading._replace(device="cpu"))
        return model, heads
    config = read_config(folder, loading.trust_remote_code)
    cls, blocks = model_class_of(folder, config, loading.auto), record.parse_cut_record(config.get(record.KEY))
    shaped_class = make_cut_class(cls, blocks) if blocks else cls
    with torch.device("meta"):
        model = build_from_config(folder, cls.__name__, lambda: shaped_class(cls.config_class.from_pretrained(folder)))  # pyright: ignore[reportAttributeAccessIssue]
    heads = HeadMap.of(model)
    session.write_note(f"{folder} holds no weights: mapped from its configuration alone")
    note_model(session, model, heads)
    return model, heads


def set_run_description(
    run: Run,
    session: Session,
    data: ModelAndTaskOptions,
    model: nn.Module,
    heads: HeadMap,
    run_config: Mapping[str, object],
    *,
    new_head: bool = False,
) -> None:
    """Describes the run in its run.json; raises ArtifactError for the folder of another model."""
    session.begin_work("hashing the weights")
    record = describe_run(
        model_record(model, data.model),
        command=session.command,
        seed=data.seed,
        task=data.task or "",
        config={**run_config, "opened": data.opening_record() | ({"new_head": True} if new_head else {})},
        machine=machine_entries(model),
    )
    run.stage_records(record, heads)


def check_plan(session: Session, plan: Plan, model: nn.Module, heads: HeadMap) -> None:
    """Raises PlanError unless a cut of a model can carry a plan out; notes if the plan was made for other weights."""
    plan.check(heads)
    note_other_weights(session, plan, model)


def note_other_weights(session: Session, plan: Plan, model: nn.Module) -> None:
    """Says where a plan was made for other weights than those of a model."""
    if plan.model_identity is not None and plan.model_identity.weights not in ("", weight_hash(model)):
        session.write_note("the plan was made for other weights than these, of a model of the same shape")
