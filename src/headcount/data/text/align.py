"""Words and the pieces of a tokenizer, brought together by offsets, for every fast tokenizer.

The plain text is tokenized as a model would read it; nothing is tokenized again word by word.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby, islice
from typing import Any

from headcount.core.errors import DataError
from headcount.data.text.aligned import Aligned, Reason, Refusal, Refused, Tokens, Unalignable, assign, match
from headcount.data.text.annotated import Annotated

UNLIMITED = 10**6
"""Tokenizers without a limit state a number beyond this one."""
CHUNK = 256
"""Sentences tokenized at once."""
EXAMPLES = 3
"""Refused sentences shown for each reason."""


@dataclass(frozen=True, slots=True)
class _Encoder:
    """A tokenizer with the options that every call has."""

    tokenizer: Any
    limit: int | None
    truncate: bool
    options: Mapping[str, Any]
    as_target: bool
    end: tuple[int, ...]

    def tokens(self, sentences: Sequence[Annotated], **options: Any) -> Iterator[Tokens]:
        """The tokens of sentences that are all single or all pairs."""
        texts = [[text for _, text in sentence.parts] for sentence in sentences]
        columns = [list(column) for column in zip(*texts, strict=True)]
        named = {"text_target": columns[0], **({"text_pair_target": columns[1]} if len(columns) > 1 else {})} if self.as_target else {}
        made = self.tokenizer(
            *(() if named else columns), **named, **self.options, **options, return_offsets_mapping=True, padding=False, verbose=False
        )
        for row, sentence in enumerate(sentences):
            yield self._tokens(made, row, sentence)

    def _tokens(self, made: Any, row: int, sentence: Annotated) -> Tokens:
        encoding, sequences = made.encodings[row], made.sequence_ids(row)
        shift = [start for start, _ in sentence.parts]
        offsets = [(a + shift[s or 0], b + shift[s or 0]) for (a, b), s in zip(made["offset_mapping"][row], sequences, strict=True)]
        special = [bool(m) or s is None for m, s in zip(encoding.special_tokens_mask, sequences, strict=True)]
        types = list(made["token_type_ids"][row]) if "token_type_ids" in made else None
        n_end = len(self.end)
        return Tokens(
            [*made["input_ids"][row], *self.end],
            [*encoding.tokens, *[""] * n_end],
            [*offsets, *[(0, 0)] * n_end],
            [*sequences, *[None] * n_end],
            [*special, *[True] * n_end],
            None if types is None else [*types, *types[-1:] * n_end],
        )

    def align(self, sentence: Annotated, tokens: Tokens) -> Aligned | Refusal:
        """The alignment, shortened if it is too long and may be."""
        found = match(sentence, tokens)
        if isinstance(found, Refusal) or self.limit is None or len(tokens.ids) <= self.limit:
            return found
        if not self.truncate:
            raise DataError(
                f"{sentence.where} has {len(tokens.ids)} tokens, but at most {self.limit} are allowed; "
                f"to cut texts: --max-length {self.limit} --truncate"
            )
        n_special = sum(tokens.special)
        if self.limit < n_special + len(sentence.parts):
            raise DataError(f"max_length {self.limit} leaves no room for text beside {n_special} special tokens; give a greater one")
        short = next(self.tokens([sentence], truncation=True, max_length=self.limit - len(self.end)))
        return replace(assign(sentence, short), truncated=True)


def _encoder(
    tokenizer: Any, max_length: int | None, truncate: bool, add_special_tokens: bool, as_target: bool, end: Sequence[int]
) -> _Encoder:
    if not getattr(tokenizer, "is_fast", False):
        raise DataError(
            f"{type(tokenizer).__name__} is a tokenizer without offsets, so its pieces cannot be matched to words; "
            "use the fast one of this model (AutoTokenizer loads it from tokenizer.json)"
        )
    if max_length is not None and max_length < 1:
        raise DataError(f"max_length must be 1 or more, got {max_length}")
    stated = getattr(tokenizer, "model_max_length", None) or UNLIMITED
    limit = max_length or (int(stated) if stated < UNLIMITED else None)
    return _Encoder(tokenizer, limit, truncate, {"add_special_tokens": add_special_tokens}, as_target, tuple(end))


def stream(
    sentences: Iterable[Annotated],
    tokenizer: Any,
    max_length: int | None = None,
    *,
    truncate: bool = False,
    add_special_tokens: bool = True,
    as_target: bool = False,
    end: Sequence[int] = (),
) -> Iterator[Aligned | Refusal]:
    """Each sentence aligned, or the reason why not, in order and one chunk at a time.

    `max_length` counts special tokens; without it the tokenizer's own limit holds, and the model's should be given. A longer sentence is an
    error unless `truncate`. `as_target` reads texts as the tokenizer reads translations; `end` are special tokens set after every text.
    """
    encoder, rest = _encoder(tokenizer, max_length, truncate, add_special_tokens, as_target, end), iter(sentences)
    while chunk := list(islice(rest, CHUNK)):
        for _, alike in groupby(chunk, lambda sentence: len(sentence.parts)):
            group = list(alike)
            for sentence, tokens in zip(group, encoder.tokens(group, truncation=False), strict=True):
                yield encoder.align(sentence, tokens)


def align(annotated: Annotated, tokenizer: Any, max_length: int | None = None, **options: Any) -> Aligned:
    """A sentence and its tokens; `options` are those of `stream`. Unalignable, with its reason, where they cannot be brought together."""
    found = next(stream([annotated], tokenizer, max_length, **options))
    if isinstance(found, Refusal):
        raise Unalignable(found)
    return found


def align_all(
    sentences: Iterable[Annotated], tokenizer: Any, max_length: int | None = None, **options: Any
) -> tuple[list[Aligned], Refused]:
    """Every sentence that can be aligned, in order, and an account of those that cannot; `options` are those of `stream`."""
    kept: list[Aligned] = []
    counts: Counter[Reason] = Counter()
    examples: dict[Reason, tuple[Refusal, ...]] = {}
    for found in stream(sentences, tokenizer, max_length, **options):
        if isinstance(found, Refusal):
            counts[found.reason] += 1
            examples[found.reason] = (*examples.get(found.reason, ()), found)[:EXAMPLES]
        else:
            kept.append(found)
    return kept, Refused(counts, examples)
