"""What goes through a model: tasks, datasets or plain batches, cut into fixed blocks of examples in a fixed order.

A block does not depend on the batch size or on how many processes share the work, so sums over blocks in their order do not either.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor

from headcount.core.errors import DataError
from headcount.data.metrics import IGNORED, Metric
from headcount.models.modules import Batch

Example = Mapping[str, Any]
Split = Literal["calibration", "selection", "report"]
SPLITS: tuple[Split, ...] = ("calibration", "selection", "report")
BLOCK, BATCH = 128, 32
"""Examples per block."""


@dataclass(frozen=True, slots=True)
class Text:
    """What an example says before any tokenizer: a text, maybe the second of a pair, maybe what becomes of it (its translation)."""

    where: str
    text: str
    pair: str | None = None
    target: str | None = None


@dataclass(frozen=True, slots=True)
class Texts:
    """The texts of a task, read anew for each split that is asked for, and how its tokenizer meets them.

    `end` are special tokens set after every text where the tokenizer's own are not added.
    """

    read: Callable[[Split], Iterable[Text]]
    max_length: int | None = None
    truncate: bool = False
    add_special_tokens: bool = True
    end: tuple[int, ...] = ()

    @property
    def alignment(self) -> dict[str, Any]:
        """The options of `headcount.data.text.align.stream`."""
        return {name: getattr(self, name) for name in ("max_length", "truncate", "add_special_tokens", "end")}


@dataclass(frozen=True, slots=True)
class Task:
    """Data, loss and metric, with its three splits: calibration (scores, gates), selection (choices), report (the number shown).

    An example is a mapping of what the model takes, unpadded (`input_ids` and `labels` as lists, numbers or tensors); `collate` makes a padded
    batch of some. Without `loss` the model's own is used, example by example. `special_ids` are the tokenizer's special tokens, `texts` what the
    examples say, for roles: without it these are told by the tokens alone.
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
    """How many examples are read at a time where a call does not say it; training has its own (`Recipe.batch`)."""

    def __post_init__(self) -> None:
        if self.batch_size is not None and self.batch_size < 1:
            raise DataError(f"batch_size must be 1 or more, got {self.batch_size}")
        for split in SPLITS:
            if not len(self.split(split)):
                raise DataError(f"the {split} split of task '{self.name}' is empty; a task needs examples in each of {', '.join(SPLITS)}")

    def split(self, name: Split) -> Sequence[Example]:
        """The examples of one split."""
        if name not in SPLITS:
            raise DataError(f"no split '{name}'; a task has {', '.join(SPLITS)}")
        return getattr(self, name)


@dataclass(frozen=True, slots=True)
class CollatedExamples:
    """Examples in order, with the function that makes a padded batch of some of them: data without a task."""

    examples: Sequence[Example]
    collate: Callable[[list[Example]], Batch]


def pad(examples: Sequence[Example], pad_id: int = 0) -> dict[str, Any]:
    """A batch of examples: sequences padded on the right (labels with -100, masks with 0), an attention mask added for `input_ids`.

    It is the default `collate` for examples that hold lists, numbers and tensors.
    """
    rows = [{name: torch.as_tensor(value) for name, value in example.items() if value is not None} for example in examples]
    if any("input_ids" in row and "attention_mask" not in row for row in rows):
        rows = [{"attention_mask": torch.ones_like(row["input_ids"]), **row} for row in rows]
    odd = next((place for place, row in enumerate(rows) if row.keys() != rows[0].keys()), None)
    if odd is not None:
        raise DataError(f"example {odd} of a batch has {', '.join(rows[odd]) or 'nothing'}, but the first has {', '.join(rows[0])}")
    fill = {"input_ids": pad_id, "decoder_input_ids": pad_id, "labels": IGNORED}
    return {name: _stack(name, [row[name] for row in rows], fill.get(name, 0)) for name in rows[0]}


def _stack(name: str, values: list[Tensor], fill: int) -> Tensor:
    shapes = {tuple(value.shape) for value in values}
    if len(shapes) == 1:
        return torch.stack(values)
    if any(value.ndim != 1 for value in values):
        raise DataError(f"{name} of a batch has the shapes {', '.join(map(str, sorted(shapes)))}; only sequences of numbers can be padded")
    return torch.nn.utils.rnn.pad_sequence(values, batch_first=True, padding_value=fill)


def n_rows(batch: Batch) -> int:
    """How many examples a batch holds: the first size of its inputs."""
    names = ("input_ids", "inputs_embeds", "pixel_values", "input_values", "input_features")
    ordered = [batch[name] for name in names if name in batch] + list(batch.values())
    first = next((value for value in ordered if isinstance(value, Tensor) and value.ndim), None)
    if first is None:
        raise DataError(f"a batch holds tensors whose first size is the number of examples; this one has {', '.join(batch) or 'nothing'}")
    return int(first.shape[0])


def rows_of(batch: Batch, rows: slice | list[int]) -> dict[str, Any]:
    """Some examples of a batch."""
    total = n_rows(batch)
    return {
        name: value[rows] if isinstance(value, Tensor) and value.ndim and value.shape[0] == total else value
        for name, value in batch.items()
    }


def _plain(value: Any) -> Any:
    return value.tolist() if hasattr(value, "tolist") else value


def _digest(example: Example) -> bytes:
    digest = hashlib.sha256()
    for name in sorted(example):
        value = example[name]
        digest.update(name.encode())
        if isinstance(value, Tensor):
            digest.update(str((value.dtype, tuple(value.shape))).encode())
            digest.update(value.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes())
        else:
            digest.update(json.dumps(value, default=lambda v: _plain(v) if hasattr(v, "tolist") else repr(v)).encode())
    return digest.digest()


@dataclass(frozen=True, slots=True)
class Block:
    """Consecutive examples, `first` being the number of the first one; batches of it are padded together.

    `digest` strings the hashes of its examples together, so that those of all blocks do not depend on where one ends.
    """

    first: int
    size: int
    digest: bytes
    _make: Callable[[list[int]], Batch]
    _lengths: tuple[int, ...]

    def batch(self, numbers: list[int]) -> Batch:
        """Some examples of the block, by their numbers in it, as one batch."""
        return self._make(numbers)

    def batches(self, size: int, start: int = 0) -> Iterator[tuple[list[int], Batch]]:
        """Batches of at most `size` examples, with the places of these in the block; alike lengths together, the first `start` left out."""
        order = sorted(range(self.size), key=lambda i: (self._lengths[i], i))
        for first in range(start, self.size, size):
            places = order[first : first + size]
            yield places, self._make(places)


def _length(example: Example) -> int:
    value = example.get("input_ids", ())
    return len(value) if hasattr(value, "__len__") else 0


def _of_examples(examples: Sequence[Example], first: int, collate: Callable[[list[Example]], Batch]) -> Block:
    digest = b"".join(map(_digest, examples))
    return Block(first, len(examples), digest, lambda places: collate([examples[i] for i in places]), tuple(map(_length, examples)))


def _of_batch(batch: Batch, first: int) -> Block:
    size = n_rows(_checked(batch))
    if not size:
        raise DataError(f"the batch that begins at example {first} is empty; leave such batches out")
    lengths = batch["attention_mask"].sum(-1).tolist() if _masked(batch, size) else [0] * size
    whole = list(range(size))
    return Block(first, size, _digest(batch), lambda places: batch if places == whole else rows_of(batch, places), tuple(lengths))


def _masked(batch: Batch, size: int) -> bool:
    mask = batch.get("attention_mask")
    return isinstance(mask, Tensor) and mask.ndim == 2 and mask.shape[0] == size and not mask.is_floating_point()


Data = Any
"""A Task, a datasets.Dataset of model inputs, a batch, or anything that yields batches."""


def _examples(data: Any, split: Split, pad_id: int) -> tuple[Sequence[Example], Callable[[list[Example]], Batch]] | None:
    if isinstance(data, Task):
        return data.split(split), data.collate
    if isinstance(data, CollatedExamples):
        return data.examples, data.collate
    if hasattr(data, "column_names"):
        _check_columns(data)
        return data, lambda examples: pad(examples, pad_id)
    return None


def _check_columns(dataset: Any) -> None:
    if not len(dataset):
        raise DataError("the dataset is empty")
    texts = [name for name, value in dataset[0].items() if isinstance(value, str)]
    if texts:
        raise DataError(
            f"column '{texts[0]}' of the dataset holds text; a model takes tokens. Tokenise the dataset and remove text columns, or make a task "
            "of it (see docs/tasks.md)"
        )


def blocks(data: Data, *, split: Split = "calibration", limit: int | None = None, size: int = BLOCK, pad_id: int = 0) -> Iterator[Block]:
    """The examples of `data` in order, in blocks of `size`; plain batches are blocks of their own. At most `limit` examples."""
    if limit is not None and limit < 1:
        raise DataError(f"limit must be 1 or more, got {limit}")
    found = _examples(data, split, pad_id)
    made = _cut(found, limit, size) if found else _given([data] if isinstance(data, Mapping) else data, limit)
    empty = True
    for block in made:
        empty = False
        yield block
    if empty:
        raise DataError("the data are empty: no batch came. An iterator can be read once; pass a list or a DataLoader to use data again")


def _cut(found: tuple[Sequence[Example], Callable[[list[Example]], Batch]], limit: int | None, size: int) -> Iterator[Block]:
    examples, collate = found
    number = len(examples) if limit is None else min(limit, len(examples))
    for first in range(0, number, size):
        yield _of_examples([examples[i] for i in range(first, min(first + size, number))], first, collate)


def _given(batches: Iterable[Batch], limit: int | None) -> Iterator[Block]:
    first = 0
    for batch in batches:
        if limit is not None and first >= limit:
            return
        block = _of_batch(batch, first)
        if limit is not None and first + block.size > limit:
            block = _of_batch(rows_of(batch, slice(0, limit - first)), first)
        yield block
        first += block.size


def batches(data: Data, *, split: Split = "calibration", limit: int | None = None, pad_id: int = 0) -> Iterator[Batch]:
    """The examples of `data`, at most `limit`, as many at a time as a task says; plain batches without a limit come as they are."""
    if limit is not None or _examples(data, split, pad_id) is not None:
        for block in blocks(data, split=split, limit=limit, pad_id=pad_id):
            yield from (batch for _, batch in block.batches(batch_size_of(data)))
        return
    for batch in [data] if isinstance(data, Mapping) else data:
        yield _checked(batch)


def _checked(batch: Batch) -> Batch:
    if not isinstance(batch, Mapping):
        raise DataError(f"data must yield batches (mappings of tensors that model(**batch) takes), got {type(batch).__name__}")
    return batch


def number_of_examples(data: Data, split: Split = "calibration", limit: int | None = None) -> int | None:
    """How many examples there are, where that is known without reading them."""
    examples = data.split(split) if isinstance(data, Task) else data if hasattr(data, "column_names") else None
    if isinstance(data, CollatedExamples):
        examples = data.examples
    if examples is None:
        return None
    return len(examples) if limit is None else min(limit, len(examples))


def batch_size_of(data: Data) -> int:
    """How many examples of the data are read at a time: what the task says, else 32."""
    return (data.batch_size if isinstance(data, Task) else None) or BATCH


def task_key(data: Data) -> dict[str, Any]:
    """What a task adds to its examples: its name, its metric, and the code of its loss."""
    if not isinstance(data, Task):
        return {"task": ""}
    return {"task": data.name, "metric": data.metric.name if data.metric else "", "loss": _code(data.loss)}


def _code(function: Any) -> str:
    """What tells one function from another: its name and the hash of its code."""
    if function is None:
        return ""
    code = getattr(function, "__code__", None)
    body = hashlib.sha256(code.co_code + repr(code.co_consts).encode()).hexdigest()[:16] if code is not None else ""
    return f"{getattr(function, '__module__', '')}.{getattr(function, '__qualname__', type(function).__qualname__)} {body}".strip()
