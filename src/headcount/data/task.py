"""Tasks: examples in three splits, how they become batches, loss and metric."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from headcount.core.errors import DataError
from headcount.data.function_hash import hash_function
from headcount.data.metrics import IGNORED, Metric
from headcount.models.modules import Batch

Example = Mapping[str, Any]
Split = Literal["calibration", "selection", "report"]
SPLITS: tuple[Split, ...] = ("calibration", "selection", "report")


@dataclass(frozen=True, slots=True)
class Text:
    """An example before tokenisation: a text, the second text of a pair, and the text that it is to become (a translation)."""

    origin: str
    text: str
    pair: str | None = None
    target: str | None = None


@dataclass(frozen=True, slots=True)
class Texts:
    """The texts of a task, read anew for each split, and how they are tokenised.

    `end` are special tokens added after every text where the tokenizer's own are not.
    """

    read: Callable[[Split], Iterable[Text]]
    max_length: int | None = None
    truncate: bool = False
    add_special_tokens: bool = True
    end: tuple[int, ...] = ()

    @property
    def alignment_arguments(self) -> dict[str, Any]:
        """The arguments of `headcount.data.text.align.align_all`."""
        return {name: getattr(self, name) for name in ("max_length", "truncate", "add_special_tokens", "end")}


@dataclass(frozen=True, slots=True)
class Task:
    """Data, loss and metric, with three splits: calibration (scores, gates), selection (choices), report (the number shown).

    An example is a mapping of model inputs, unpadded (`input_ids` and `labels` as lists, numbers or tensors).

    Args:
        name: `name` or `name/variant`, shown in tables.
        calibration: Examples for scores, gates and training.
        selection: Examples for choices between plans.
        report: Examples for the numbers that are shown.
        collate: Makes a padded batch of some examples.
        metric: The metric beside the loss.
        loss: (output, batch) -> one number per example; by default the model's own loss, example by example.
        special_ids: The tokenizer's special tokens.
        texts: The texts of the examples, for roles; without them roles are measured on the tokens alone.
        batch_size: Examples per batch where a call does not set it; training has its own (`Recipe.batch`).
        documents: The document of each example, by split, where examples come from documents: these are what verdicts and bounds count then.
        options: The name and all options of the builder that made the task, for the keys of artifacts; set by `open_task`.
    """

    name: str
    calibration: Sequence[Example]
    selection: Sequence[Example]
    report: Sequence[Example]
    collate: Callable[[list[Example]], Batch]
    metric: Metric | None = None
    loss: Callable[[Any, Batch], Tensor] | None = None
    special_ids: frozenset[int] = field(default_factory=frozenset)
    texts: Texts | None = None
    batch_size: int | None = None
    options: Mapping[str, object] = field(default_factory=dict)
    documents: Mapping[Split, Sequence[Any]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.batch_size is not None and self.batch_size < 1:
            raise DataError(f"batch_size must be 1 or more, got {self.batch_size}")
        for split in SPLITS:
            if not len(self.split(split)):
                raise DataError(f"the {split} split of task '{self.name}' is empty; a task needs examples in each of {', '.join(SPLITS)}")
        for split, documents in self.documents.items():
            if len(documents) != len(self.split(split)):
                raise DataError(
                    f"task '{self.name}' names {len(documents)} documents for {len(self.split(split))} examples of {split}; name one for each"
                )

    def split(self, name: Split) -> Sequence[Example]:
        """Returns the examples of one split."""
        if name not in SPLITS:
            raise DataError(f"no split '{name}'; a task has {', '.join(SPLITS)}")
        return getattr(self, name)


def document_numbers(data: DataSource, split: Split, n_examples: int) -> np.ndarray | None:
    """Returns the number of the document of each of the first examples of a split; None where the data name no documents."""
    if not isinstance(data, Task) or split not in data.documents:
        return None
    numbers: dict[Any, int] = {}
    return np.array([numbers.setdefault(document, len(numbers)) for document in data.documents[split][:n_examples]], dtype=np.int64)


@dataclass(frozen=True, slots=True)
class CollatedExamples:
    """Examples in order, with the function that makes a padded batch of some of them: data without a task."""

    examples: Sequence[Example]
    collate: Callable[[list[Example]], Batch]


Data = Task | Batch | Iterable[Batch] | None
"""A Task, a datasets.Dataset of model inputs, a batch, or anything that yields batches; None where nothing is read."""
DataSource = Data | CollatedExamples
"""Everything that can be read chunk by chunk."""


def pad(examples: Sequence[Example], pad_id: int = 0) -> dict[str, Any]:
    """Returns a batch of examples that hold lists, numbers and tensors: the default `collate`.

    Sequences are padded on the right (labels with -100, masks with 0); an attention mask is added for `input_ids`.
    """
    rows = [{name: torch.as_tensor(value) for name, value in example.items() if value is not None} for example in examples]
    if any("input_ids" in row and "attention_mask" not in row for row in rows):
        rows = [{"attention_mask": torch.ones_like(row["input_ids"]), **row} for row in rows]
    odd = next((number for number, row in enumerate(rows) if row.keys() != rows[0].keys()), None)
    if odd is not None:
        raise DataError(f"example {odd} of a batch has {', '.join(rows[odd]) or 'nothing'}, but the first has {', '.join(rows[0])}")
    fill = {"input_ids": pad_id, "decoder_input_ids": pad_id, "labels": IGNORED}
    return {name: _stack_padded(name, [row[name] for row in rows], fill.get(name, 0)) for name in rows[0]}


def _stack_padded(name: str, values: list[Tensor], fill: int) -> Tensor:
    shapes = {tuple(value.shape) for value in values}
    if len(shapes) == 1:
        return torch.stack(values)
    if any(value.ndim != 1 for value in values):
        raise DataError(f"{name} of a batch has the shapes {', '.join(map(str, sorted(shapes)))}; only sequences of numbers can be padded")
    return torch.nn.utils.rnn.pad_sequence(values, batch_first=True, padding_value=fill)


def task_key(data: DataSource) -> dict[str, Any]:
    """Returns what a task adds to its examples: its name, its metric, the code of its loss, and all options of its builder."""
    if not isinstance(data, Task):
        return {"task": ""}
    key: dict[str, Any] = {"task": data.name, "metric": data.metric.name if data.metric else "", "loss": hash_function(data.loss)}
    numbers = {split: document_numbers(data, split, len(data.split(split))) for split in data.documents}
    if numbers:
        content = b"".join(split.encode() + array.tobytes() for split, array in sorted(numbers.items()) if array is not None)
        key["documents"] = hashlib.sha256(content).hexdigest()
    return key | ({"options": dict(data.options)} if data.options else {})
