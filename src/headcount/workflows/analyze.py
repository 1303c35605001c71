"""The whole job on one model and task: `hc.analyze(model, data, out=…)`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, fields, replace
from pathlib import Path
from typing import Any, TypedDict, Unpack

from torch import nn

from headcount.behaviour.base import Corpus
from headcount.behaviour.given import SENTENCES, Parsed, corpus_of
from headcount.core.errors import DataError, UnsupportedModel
from headcount.core.files import opened_model
from headcount.data.open_task import open_task
from headcount.data.readers.processor import reader_of
from headcount.data.task import Split, Task
from headcount.models.modules import unwrap
from headcount.pruning.recipe import Recipe
from headcount.runs.store import Run
from headcount.surgery.load import load
from headcount.surgery.source import local_folder
from headcount.workflows.prune import Sizes, check_methods
from headcount.workflows.walk import KEEPS, METHODS, SCORES, SEEDS, Analysis, Step, Watch, walk

__all__ = ["KEEPS", "METHODS", "SCORES", "SEEDS", "Analysis", "Step", "analyze", "corpus_for", "walk"]


class Options(TypedDict, total=False):
    """How much is done: fields of `Analysis`, under their names, and the `batch_size` of the task."""

    name: str
    seed: int
    scored: int
    reported: int
    by: Sequence[str]
    methods: Sequence[str]
    keeps: Sequence[int | float] | None
    seeds: int
    recipe: Recipe
    measured: Sizes
    watch: Watch | None
    portrayed: int
    longest: int
    batch_size: int | None
    config: Mapping[str, Any]


def analyze(
    model: nn.Module | str | Path,
    data: Task | str | None = None,
    *,
    out: str | Path,
    tokenizer: Any = None,
    text: Any = None,
    said: Callable[[Step], None] | None = None,
    **options: Unpack[Options],
) -> Run:
    """The whole job on a model and a task, in the run folder `out`; the same call goes on from it. `run.report()` is where the report is.

    `model` is a live model, a folder or a hub id, `data` an hc.Task or the name of one (by default the one the model is made for). Roles and
    portraits are of `text` (a file, texts, a corpus; see `hc.roles`), or of the texts of the task. `said` is told each step as it is done. `keeps`
    are numbers of heads that stay, or shares of them (floats below 1); PlanError if one is no whole number of KV groups. By default they are the
    whole KV groups nearest to 12.5, 25 and 50 %.
    """
    asked = dict(options)
    check_methods(options.get("methods", METHODS))
    options.setdefault("recipe", Recipe(seed=options.get("seed", 0)))
    folder = local_folder(model) if isinstance(model, str | Path) else None
    live: Any = load(folder).eval() if folder is not None else unwrap(model)  # pyright: ignore[reportArgumentType]
    tokenizer = reader_of(live, folder) if tokenizer is None and folder is not None else tokenizer
    task = data if isinstance(data, Task) else open_task(data, live, tokenizer, seed=options.get("seed", 0))
    task = replace(task, batch_size=options.pop("batch_size", None) or task.batch_size)
    corpus, why = corpus_for(live, task, tokenizer, text=text)
    name = options.pop("name", "") or (
        str(model) if folder is not None else getattr(live.config, "_name_or_path", "") or type(live).__name__
    )
    told = _command(name, task.name, {"out": str(out), **({"text": text} if isinstance(text, str | Path) else {}), **asked})
    rest: dict[str, Any] = {**options, "config": {**_opened(model, data), **options.get("config", {})}}
    job = Analysis(name, live, task, corpus, command=told, tokenizer=tokenizer, folder=folder, no_roles=why, **rest)
    with Run.lead(Path(out), command=told) as kept:
        for step in walk(job, kept):
            if said is not None:
                said(step)
    return Run.open(Path(out))


def _opened(model: Any, data: Any) -> dict[str, Any]:
    """How model and task are opened again; a task that was made in Python cannot be."""
    place = opened_model(model) if isinstance(model, str | Path) else {}
    if isinstance(data, Task):
        return {"opened": {**place, "own_task": True}} if place else {}
    return {"opened": {**({"task": data} if data else {}), **place}}


def _command(name: str, task: str, options: Mapping[str, Any]) -> str:
    """The call as it is noted: with the options that are not as they would be without."""
    usual = {each.name: each.default if each.default_factory is MISSING else each.default_factory() for each in fields(Analysis)}
    given = {key: value for key, value in options.items() if key not in ("name", "watch", "config") and usual.get(key, MISSING) != value}
    words = [f"{key}={str(value)!r}" if isinstance(value, Path) else f"{key}={value!r}" for key, value in given.items()]
    return f"headcount.analyze({', '.join([repr(name), repr(task), *words])})"


def corpus_for(
    model: nn.Module,
    task: Task,
    tokenizer: Any,
    *,
    text: Any = None,
    split: Split = "calibration",
    limit: int | None = SENTENCES,
    trees: Parsed | None = None,
) -> tuple[Corpus | None, str]:
    """The corpus of roles and portraits: of a text if one is given, else of the task; or why the task has none that can be used."""
    if isinstance(text, Corpus):
        return text, ""
    if text is not None:
        return corpus_of(model, text, tokenizer, limit=limit, trees=trees), ""
    try:
        return corpus_of(model, task, tokenizer, split=split, limit=limit, trees=trees), ""
    except (DataError, UnsupportedModel) as error:
        return None, str(error)
