"""Reads the corpus that roles are measured on from a task, texts, pairs of texts, a dataset, a file, images or speech."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from typing import Any

from torch import Tensor, nn

from headcount.behaviour.base import Corpus, make_wordless_sequence
from headcount.behaviour.speech import read_speech
from headcount.core.errors import AlignmentError, DataError
from headcount.data.checks import n_positions
from headcount.data.metrics import IGNORED
from headcount.data.task import SPLITS, Example, Split, Task, Text
from headcount.data.text.align import align_all
from headcount.data.text.annotated import Annotated
from headcount.data.text.parsers import parse_sentences, parser_of
from headcount.data.text.sentences import annotate_examples, sentences_of
from headcount.data.text.unknown_tokens import unknown_id, warn_of_unknown
from headcount.models.modules import unwrap

Parser = str | Callable[[Iterable[Annotated]], Iterable[Annotated]]
"""`spacy:PIPELINE` or `stanza:LANGUAGE`, or a function that returns sentences with trees."""
SENTENCES = 500
"""How many sentences are read where a command or `analyze` has no other limit."""
MASKED = ("MaskedLM", "ForPreTraining")
"""Parts of the class names of masked language models."""


def read_corpus(
    model: nn.Module,
    text: Any,
    tokenizer: Any = None,
    *,
    split: Split = "calibration",
    limit: int | None = None,
    parser: Parser | None = None,
    max_length: int | None = None,
    truncate: bool = False,
    add_special_tokens: bool = True,
    end: Sequence[int] = (),
) -> Corpus:
    """Returns the corpus of a text for a model, with words aligned to the tokens of its tokenizer.

    Args:
        model: The model that reads it.
        text: A file (CoNLL-U, a table, or plain with a sentence a line), texts, pairs of texts, annotated sentences, a datasets.Dataset, a Task,
            images (mappings with `pixel_values`), or utterances (mappings with `input_features`; see `headcount.behaviour.speech.read_speech`).
        tokenizer: The tokenizer of the model; images, utterances and tasks of tokens need none.
        split: The split of a task.
        limit: How many sentences are read at most; None for all.
        parser: Puts trees on sentences: `spacy:PIPELINE`, `stanza:LANGUAGE`, or a function from sentences to sentences.
        max_length: The longest sentence in tokens; None for as many as the model has positions. A task has its own.
        truncate: Whether longer sentences are cut off instead of refused. A task has its own.
        add_special_tokens: False for models that were trained without the special tokens of their tokenizer.
        end: Token ids after each text, for such models.

    Raises:
        DataError: the text is empty, cannot be aligned, or does not go with the other arguments.
    """
    check_reading_arguments(model, text, split=split, limit=limit, max_length=max_length, truncate=truncate)
    if isinstance(text, Task):
        return _read_task(model, text, tokenizer, split=split, limit=limit, parser=parser)
    items = text
    if not isinstance(text, str | os.PathLike) and not hasattr(text, "column_names"):
        items = list(islice([text] if isinstance(text, Mapping) else text, limit))
        if items and isinstance(items[0], Mapping) and isinstance(items[0].get("pixel_values"), Tensor):
            return _split_into_single_images(model, items)
        if items and isinstance(items[0], Mapping) and "input_features" in items[0]:
            return read_speech(model, items)
    alignment = _Alignment(max_length, truncate, add_special_tokens, tuple(end))
    corpus = _align_with_tokenizer(model, list(_add_parse_trees(islice(sentences_of(items), limit), parser)), tokenizer, alignment)
    _warn_of_unknown_tokens(corpus, tokenizer)
    return corpus


def check_reading_arguments(
    model: nn.Module, text: Any, *, split: str, limit: int | None, max_length: int | None, truncate: bool, parser: Parser | None = None
) -> None:
    """Raises DataError if the arguments of `read_corpus` are out of range or do not go with the text."""
    if split not in SPLITS:
        raise DataError(f"no split '{split}'; a task has {', '.join(SPLITS)}")
    for name, value, minimum in (("limit", limit, 1), ("max_length", max_length, 2)):
        if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < minimum):
            raise DataError(f"{name} must be {minimum} or more, got {value!r}")
    if split != "calibration" and not isinstance(text, Task):
        raise DataError(f"split '{split}' names a part of a task, but the text is no task; leave split out")
    own = {"max_length": max_length is not None, "truncate": truncate}
    if isinstance(text, Corpus):
        own |= {"limit": limit is not None, "parser": parser is not None}
    named = next((name for name, is_set in own.items() if is_set), None)
    if named is not None and isinstance(text, Task | Corpus):
        owner = f"task '{text.name}'" if isinstance(text, Task) else "a corpus"
        raise DataError(f"{named} has no effect on {owner}, which is tokenised already; pass {named} where it is made")
    room = n_positions(model)
    if max_length is not None and room is not None and max_length > room:
        raise DataError(f"max_length is {max_length}, but the model has positions for {room} tokens; set max_length to {room} or less")


@dataclass(frozen=True, slots=True)
class _Alignment:
    """How a tokenizer is applied to sentences."""

    max_length: int | None = None
    truncate: bool = False
    add_special_tokens: bool = True
    end: tuple[int, ...] = ()


def _add_parse_trees(sentences: Iterable[Annotated], parser: Parser | None) -> Iterable[Annotated]:
    """Returns the sentences with the trees of a parser; without one, as they are."""
    if isinstance(parser, str):
        return parse_sentences(sentences, parser_of(parser))
    return sentences if parser is None else parser(sentences)


def _read_task(model: nn.Module, task: Task, tokenizer: Any, *, split: Split, limit: int | None, parser: Parser | None) -> Corpus:
    """Returns the texts of a task or, where it has none, the tokens or images of its examples."""
    examples = _FirstExamples(task.split(split), limit)
    if task.texts is not None:
        sentences = list(_add_parse_trees(islice(annotate_examples(task.texts.read(split)), limit), parser))
        return _align_with_tokenizer(model, sentences, tokenizer, _Alignment(**task.texts.alignment_arguments))
    if parser is not None:
        raise DataError(f"task '{task.name}' holds tokens, not texts, so there is nothing to parse; in language modelling say by=line")
    if "pixel_values" in examples[0]:
        return Corpus(images=examples, grid=_split_into_single_images(model, [examples[0]]).grid)
    if "input_ids" not in examples[0]:
        raise DataError(f"the examples of task '{task.name}' hold {', '.join(examples[0])}; roles need input_ids or pixel_values")
    inner: Any = unwrap(model)
    special = task.special_ids or frozenset(getattr(tokenizer, "all_special_ids", None) or ())
    delimiters = special - {unknown_id(tokenizer)}
    is_masked_lm = any(part in type(inner).__name__ for part in MASKED)
    sentences = []
    for example in examples:
        ids, labels, type_ids = (_as_list_if_tensor(example.get(name)) for name in ("input_ids", "labels", "token_type_ids"))
        if is_masked_lm and isinstance(labels, list) and len(labels) == len(ids):  # the labels of masked tokens are the tokens themselves
            ids = [label if label != IGNORED else token for token, label in zip(ids, labels, strict=True)]
        sentences.append(make_wordless_sequence(ids, [token in delimiters for token in ids], type_ids, label="tokens"))
    targets = []
    if getattr(inner.config, "is_encoder_decoder", False) and all("labels" in example for example in examples):
        for example in examples:
            ids = [token for token in _as_list_if_tensor(example["labels"]) if token != IGNORED]
            targets.append(make_wordless_sequence(ids, [token in special for token in ids], label="tokens"))
    return Corpus(tuple(sentences), tuple(targets))


@dataclass(frozen=True, slots=True)
class _FirstExamples(Sequence[Example]):
    """The first examples of a split; of images only the pixels, which are read when they are indexed."""

    examples: Sequence[Example]
    limit: int | None

    def __len__(self) -> int:
        return min(len(self.examples), self.limit or len(self.examples))

    def __getitem__(self, index: int) -> Example:  # pyright: ignore[reportIncompatibleMethodOverride]
        if not 0 <= index < len(self):
            raise IndexError(f"no example {index} of {len(self)}")
        example = self.examples[index]
        return {"pixel_values": example["pixel_values"]} if "pixel_values" in example else example


def _as_list_if_tensor(values: Any) -> Any:
    return values.tolist() if hasattr(values, "tolist") else values


def _split_into_single_images(model: nn.Module, items: Sequence[Mapping[str, Tensor]]) -> Corpus:
    """Returns single images; the grid of patches follows from the sizes of image and patch."""
    single = [
        {"pixel_values": image}
        for item in items
        for image in (item["pixel_values"] if item["pixel_values"].ndim == 4 else [item["pixel_values"]])
    ]
    inner: Any = unwrap(model)
    patch = getattr(inner.config, "patch_size", None)
    if patch is None:
        raise DataError(f"{type(inner).__name__} names no patch size, so its attention has no grid of patches")
    patch_height, patch_width = (patch, patch) if isinstance(patch, int) else patch
    height, width = single[0]["pixel_values"].shape[-2:]
    return Corpus(images=single, grid=(height // patch_height, width // patch_width))


def _align_with_tokenizer(model: nn.Module, sentences: Sequence[Annotated], tokenizer: Any, alignment: _Alignment) -> Corpus:
    """Returns the corpus of some sentences, aligned with a tokenizer, and of their translations if the model reads these.

    Raises:
        DataError: there is no sentence or no tokenizer, or nothing can be aligned.
    """
    inner: Any = unwrap(model)
    if not sentences:
        raise DataError("the text is empty; roles are tested over sentences")
    if tokenizer is None:
        raise DataError("roles of a text need the tokenizer of the model: roles(model, text, tokenizer)")
    max_length = alignment.max_length or n_positions(inner)
    options: dict[str, Any] = {
        "truncate": alignment.truncate,
        "add_special_tokens": alignment.add_special_tokens,
        "end": alignment.end,
    }
    aligned, refused = align_all(sentences, tokenizer, max_length, **options)
    counts = {str(reason): number for reason, number in refused.counts.items()}
    if not aligned:
        raise AlignmentError(f"none of the {len(sentences)} sentences could be aligned with the tokenizer: {counts}")
    translations = [sentence.annotated.target for sentence in aligned if sentence.annotated.target is not None]
    if not getattr(inner.config, "is_encoder_decoder", False) or len(translations) < len(aligned):
        return Corpus(tuple(aligned), refused=counts)
    targets, refused_targets = align_all(translations, tokenizer, max_length, **options, as_target=True)
    if len(refused_targets):
        raise DataError(f"{len(refused_targets)} translations could not be aligned with the tokenizer; leave their sentences out")
    return Corpus(tuple(aligned), tuple(targets), refused=counts)


def _warn_of_unknown_tokens(corpus: Corpus, tokenizer: Any) -> None:
    """Warns if many tokens of the corpus are unknown to the tokenizer."""
    unknown_token = unknown_id(tokenizer)
    if unknown_token is None:
        return
    texts = (*corpus.sentences, *corpus.targets)
    ordinary = [token for s in texts for token, is_special in zip(s.ids, s.special, strict=True) if not is_special]
    sources = (Text(s.annotated.origin, s.annotated.text) for s in chain(corpus.sentences, corpus.targets))
    warn_of_unknown("the text", tokenizer, (ordinary.count(unknown_token), len(ordinary)), lambda: sources)
