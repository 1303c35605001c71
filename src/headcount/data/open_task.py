"""Tasks: what a model is scored on. One file each, found by file name; third parties add theirs by an entry point in the group `headcount.tasks`.

A task's module has a docstring, `USES` (the arguments of `open_task` that mean something to it), optionally `VARIANTS` (the names that may stand
after the slash), and `build(request)`, which returns a `headcount.data.task.Task`.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from headcount.core.errors import DataError, unknown
from headcount.core.registry import TASKS
from headcount.data.readers.tables import Source, most_rows

if TYPE_CHECKING:
    from torch import nn

    from headcount.data.task import Task

ALWAYS = frozenset({"name", "model", "tokenizer", "variant", "limit", "seed", "options"})
"""What every request has, whatever its task."""


@dataclass(frozen=True, slots=True)
class Request:
    """All that a task is made of.

    `train` is where calibration comes from, `eval` where selection and report come from; a single one is divided in three. `tokenizer` is the
    image processor for images. `options` holds what only this task knows.
    """

    name: str
    model: nn.Module
    tokenizer: Any = None
    variant: str | None = None
    train: Source = None
    eval: Source = None
    text_column: str | None = None
    text_pair_column: str | None = None
    label_column: str | None = None
    source_column: str | None = None
    target_column: str | None = None
    image_column: str | None = None
    max_length: int | None = None
    truncate: bool = False
    limit: int | None = None
    seed: int = 0
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def most_rows(self) -> int | None:
        """The most rows that are read of a source; None where the task has no limit."""
        return None if self.limit is None else most_rows(self.limit)

    def choice(self, name: str, known: Sequence[str]) -> str:
        """An option that takes one of some names; the first is the default."""
        value = self.options.get(name, known[0])
        if value not in known:
            raise unknown(f"{name} of task '{self.name}'", str(value), known)
        return value

    def number(self, name: str, default: int | None = None) -> int | None:
        """An option that takes a whole number from 1 on."""
        value = self.options.get(name, default)
        if value is None:
            return None
        if not str(value).isdecimal() or int(value) < 1:
            raise DataError(f"{name} of task '{self.name}' must be a whole number from 1 on, got {value!r}")
        return int(value)


def open_task(
    spec: str | None,
    model: nn.Module,
    tokenizer: Any = None,
    *,
    train: str | Path | Sequence[str | Path] | Any = None,
    eval: str | Path | Sequence[str | Path] | Any = None,
    limit: int | None = None,
    seed: int = 0,
    **options: Any,
) -> Task:
    """The task called `spec` (`name` or `name/variant`) for a model; without a name, the one that the model's head is made for.

    `train` and `eval` are a file, several parallel files, or a datasets.Dataset. `options` are the columns, `max_length`, `truncate`, and what
    the task itself takes; None means not given. An option that the task does not use is an error, as is anything in the data that it cannot use.
    """
    name, _, variant = (spec or _fitting(model)).partition("/")
    module = TASKS.module(name)
    given = {"train": _source(train), "eval": _source(eval), **options}
    given = {key: value for key, value in given.items() if value is not None and value is not False}
    _check_used(name, module, given)
    if limit is not None and limit < 1:
        raise DataError(f"limit must be 1 or more, got {limit}")
    known = {f.name for f in fields(Request)}
    own = {key: value for key, value in given.items() if key not in known}
    rest = {key: value for key, value in given.items() if key in known}
    request = Request(
        f"{name}/{variant}" if variant else name,
        model,
        tokenizer,
        _variant(name, variant, module),
        limit=limit,
        seed=seed,
        options=own,
        **rest,
    )
    return module.build(request)


def _source(given: Any) -> Source:
    if given is None or hasattr(given, "column_names"):
        return given
    paths = [given] if isinstance(given, str | os.PathLike) else list(given)
    return tuple(Path(path) for path in paths) or None


def _variant(name: str, variant: str, module: ModuleType) -> str | None:
    variants = getattr(module, "VARIANTS", ())
    if not variants and variant:
        raise DataError(f"task '{name}' has no variants, so '{name}/{variant}' names nothing; say '{name}'")
    if variants and variant not in variants:
        if not variant:
            raise DataError(f"task '{name}' has variants; name one: {', '.join(f'{name}/{v}' for v in variants)}")
        raise unknown(f"variant of task '{name}'", variant, variants)
    return variant or None


def _check_used(name: str, module: ModuleType, given: Mapping[str, Any]) -> None:
    uses = set(getattr(module, "USES", ())) - ALWAYS
    unused = sorted(set(given) - uses)
    if unused:
        raise DataError(f"task '{name}' does not use {', '.join(unused)}; it uses {', '.join(sorted(uses)) or 'none of the options'}")


HEADS = {
    "SequenceClassification": "classification",
    "TokenClassification": "token-classification",
    "ImageClassification": "image-classification",
    "MaskedLM": "masked-lm",
    "CausalLM": "causal-lm",
    "LMHead": "causal-lm",
}


def _fitting(model: nn.Module) -> str:
    from headcount.models.modules import unwrap

    name = type(unwrap(model)).__name__
    task = next((task for part, task in HEADS.items() if part in name), None)
    if task is None:
        raise DataError(f"{name} does not tell which task it is for; name one with --task: {', '.join(TASKS.names())}")
    return task
