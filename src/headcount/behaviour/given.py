"""`roles` on whatever a caller has: a task, texts, pairs, a dataset, a file, images."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from typing import Any, Unpack

from torch import Tensor, nn

from headcount.behaviour.base import Corpus
from headcount.behaviour.corpus import align_items
from headcount.behaviour.roles import Options, measure
from headcount.core.errors import DataError
from headcount.core.role_table import RoleTable
from headcount.data.checks import positions
from headcount.data.metrics import IGNORED
from headcount.data.task import Example, Split, Task, Text
from headcount.data.text.aligned import Aligned
from headcount.data.text.annotated import Annotated
from headcount.data.text.sentences import sentences_of, sentences_of_examples
from headcount.data.text.unknown_tokens import unknown_id, warn_of_unknown
from headcount.models.modules import unwrap

Parsed = Callable[[Iterable[Annotated]], Iterable[Annotated]]
"""Puts trees on sentences: `lambda sentences: headcount.data.text.parsers.parse_sentences(sentences, parse)`."""
SENTENCES = 500
"""How many sentences roles are taken on, unless told."""
MASKED = ("MaskedLM", "ForPreTraining")


def roles(
    model: nn.Module, text: Any, tokenizer: Any = None, *, alignment: Mapping[str, Any] | None = None, **options: Unpack[Options]
) -> RoleTable:
    """What every head does: for each head and role the bias of its attention with test, interval and baseline.

    `text` is a file (CoNLL-U, a table, or plain with a sentence a line), a list of texts, pairs of texts or annotated sentences, a
    datasets.Dataset, an hc.Task, or images (mappings with pixel_values); `tokenizer` is the model's, `alignment` are options of `corpus_of`. `only`
    names roles (`syntax`, `offset:-1`); `tau` and `alpha` are those of the test, `correct` is bh, bonferroni or none.
    """
    if isinstance(text, Task):
        options.setdefault("batch_size", text.batch_size)
    corpus = text if isinstance(text, Corpus) else corpus_of(model, text, tokenizer, **(alignment or {}))
    return measure(model, corpus, **options)


def corpus_of(
    model: nn.Module,
    text: Any,
    tokenizer: Any = None,
    *,
    split: Split = "calibration",
    limit: int | None = None,
    trees: Parsed | None = None,
    **alignment: Any,
) -> Corpus:
    """The corpus of a text for a model: words and pieces aligned, what cannot be aligned counted in `facts["refused"]`.

    `split` is read of a task, `limit` is the most sentences read, `trees` parses them. `alignment` takes max_length, truncate, add_special_tokens
    and end (token ids after each text), for tokenizers that the model was not trained with as they are; a task brings its own.
    """
    if limit is not None and limit < 1:
        raise DataError(f"limit must be 1 or more, got {limit}")
    if isinstance(text, Task):
        return _of_task(model, text, tokenizer, split, limit, trees)
    is_file = isinstance(text, str | os.PathLike) or hasattr(text, "column_names")
    items: Any = text
    if not is_file:
        items = list(islice([items] if isinstance(items, Mapping) else items, limit))
    if not is_file and items and _is_image(items[0]):
        return align_items(model, items, tokenizer)
    _check_length(model, alignment.get("max_length"))
    found = islice(sentences_of(items), limit)
    corpus = align_items(model, list(trees(found) if trees else found), tokenizer, **alignment)
    _warn_of_unknown(corpus, tokenizer)
    return corpus


def _check_length(model: nn.Module, max_length: int | None) -> None:
    room = positions(model)
    if max_length is not None and room is not None and max_length > room:
        raise DataError(f"max_length is {max_length}, but the model has positions for {room} tokens; give --max-length {room} or less")


def _is_image(item: Any) -> bool:
    return isinstance(item, Mapping) and isinstance(item.get("pixel_values"), Tensor)


def _of_task(model: nn.Module, task: Task, tokenizer: Any, split: Split, limit: int | None, trees: Parsed | None) -> Corpus:
    """The texts of a task, or, where it has none, its tokens or images just as its examples hold them."""
    examples = _Some(task.split(split), limit)
    if task.texts is not None:
        found = islice(sentences_of_examples(task.texts.read(split)), limit)
        return align_items(model, list(trees(found) if trees else found), tokenizer, **task.texts.alignment)
    if trees is not None:
        raise DataError(f"task '{task.name}' holds tokens, not texts, so there is nothing to parse; in language modelling say by=line")
    if "pixel_values" in examples[0]:
        return _of_images(model, examples)
    if "input_ids" not in examples[0]:
        raise DataError(f"the examples of task '{task.name}' hold {', '.join(examples[0])}; roles need input_ids or pixel_values")
    inner: Any = unwrap(model)
    special = task.special_ids or frozenset(getattr(tokenizer, "all_special_ids", None) or ())
    unknown = unknown_id(tokenizer)
    bare = [_bare(_ids(inner, example), example.get("token_type_ids"), special - {unknown}) for example in examples]
    seq2seq = getattr(inner.config, "is_encoder_decoder", False) and all("labels" in example for example in examples)
    targets = [_bare([i for i in _plain(example["labels"]) if i != IGNORED], None, special) for example in examples] if seq2seq else ()
    return Corpus(tuple(bare), tuple(targets))


@dataclass(frozen=True, slots=True)
class _Some(Sequence[Example]):
    """The first examples of a split; of images only the pixels, which are read when they are asked for."""

    examples: Sequence[Example]
    limit: int | None

    def __len__(self) -> int:
        return min(len(self.examples), self.limit or len(self.examples))

    def __getitem__(self, index: int) -> Example:  # pyright: ignore[reportIncompatibleMethodOverride]
        if not 0 <= index < len(self):
            raise IndexError(f"no example {index} of {len(self)}")
        example = self.examples[index]
        return {"pixel_values": example["pixel_values"]} if "pixel_values" in example else example


def _of_images(model: nn.Module, examples: Sequence[Example]) -> Corpus:
    grid = align_items(model, [examples[0]]).grid
    return Corpus(images=examples, grid=grid)


def _ids(model: Any, example: Example) -> list[int]:
    """The tokens of an example; where some are masked, what stood there."""
    ids, labels = _plain(example["input_ids"]), _plain(example.get("labels", ()))
    masked = isinstance(labels, list) and len(labels) == len(ids) and any(part in type(model).__name__ for part in MASKED)
    return [label if label != IGNORED else i for i, label in zip(ids, labels, strict=True)] if masked else ids


def _plain(values: Any) -> Any:
    return values.tolist() if hasattr(values, "tolist") else values


def _bare(ids: Sequence[int], types: Any, special: frozenset[int]) -> Aligned:
    """Tokens as they are, without words; the second text of a pair is told by its token types."""
    kinds = _plain(types) if types is not None else [0] * len(ids)
    delimiters = tuple(i in special for i in ids)
    segments = tuple(-1 if is_special else kind for is_special, kind in zip(delimiters, kinds, strict=True))
    nothing, nowhere = (None,) * len(ids), ((0, 0),) * len(ids)
    return Aligned(
        tuple(ids), nothing, delimiters, segments, Annotated("tokens", ()), False, nowhere, (), 0, tuple(kinds) if types else None
    )


def _warn_of_unknown(corpus: Corpus, tokenizer: Any) -> None:
    wanted = unknown_id(tokenizer)
    if wanted is None:
        return
    ordinary = [i for s in chain(corpus.sentences, corpus.targets) for i, special in zip(s.ids, s.special, strict=True) if not special]
    texts = (Text(s.annotated.origin, s.annotated.text) for s in chain(corpus.sentences, corpus.targets))
    warn_of_unknown("the text", tokenizer, (ordinary.count(wanted), len(ordinary)), lambda: texts)
