"""Aligns words with the pieces of a tokenizer by offsets, for every fast tokenizer.

The plain text is tokenized as a model would read it; nothing is tokenized again word by word.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby, islice
from typing import Any

from headcount.core.errors import DataError
from headcount.data.text.aligned import Aligned, Reason, RefusalCounts, SentenceRefusal, Tokens, assign_tokens, match_tokens
from headcount.data.text.annotated import Annotated

UNLIMITED = 10**6
"""Tokenizers without a limit state a number beyond this one."""
TOKENIZED_AT_ONCE = 256
"""Sentences."""
EXAMPLES = 3
"""Refused sentences shown for each reason."""


@dataclass(frozen=True, slots=True)
class _Encoder:
    """A tokenizer with the options that every call has."""

    tokenizer: Any
    limit: int | None
    truncate: bool
    add_special_tokens: bool
    as_target: bool
    end: tuple[int, ...]

    def tokens(self, sentences: Sequence[Annotated], max_length: int | None = None) -> Iterator[Tokens]:
        """Yields the tokens of sentences that are all single or all pairs, cut to `max_length` tokens if given."""
        texts = [[text for _, text in sentence.texts_with_start] for sentence in sentences]
        columns = [list(column) for column in zip(*texts, strict=True)]
        named = {"text_target": columns[0], **({"text_pair_target": columns[1]} if len(columns) > 1 else {})} if self.as_target else {}
        encoded = self.tokenizer(
            *(() if named else columns),
            **named,
            **({"truncation": False} if max_length is None else {"truncation": True, "max_length": max_length}),
            add_special_tokens=self.add_special_tokens,
            return_offsets_mapping=True,
            padding=False,
            verbose=False,
        )
        for row, sentence in enumerate(sentences):
            yield self._tokens_of_row(encoded, row, sentence)

    def _tokens_of_row(self, encoded: Any, row: int, sentence: Annotated) -> Tokens:
        encoding, sequences = encoded.encodings[row], encoded.sequence_ids(row)
        shift = [start for start, _ in sentence.texts_with_start]
        offsets = [(a + shift[s or 0], b + shift[s or 0]) for (a, b), s in zip(encoded["offset_mapping"][row], sequences, strict=True)]
        special = [bool(m) or s is None for m, s in zip(encoding.special_tokens_mask, sequences, strict=True)]
        types = list(encoded["token_type_ids"][row]) if "token_type_ids" in encoded else None
        n_end = len(self.end)
        return Tokens(
            [*encoded["input_ids"][row], *self.end],
            [*encoding.tokens, *[""] * n_end],
            [*offsets, *[(0, 0)] * n_end],
            [*sequences, *[None] * n_end],
            [*special, *[True] * n_end],
            None if types is None else [*types, *types[-1:] * n_end],
        )

    def align(self, sentence: Annotated, tokens: Tokens) -> Aligned | SentenceRefusal:
        """Returns the alignment, truncated if it is too long and `truncate` is set."""
        aligned = match_tokens(sentence, tokens)
        if isinstance(aligned, SentenceRefusal) or self.limit is None or len(tokens.ids) <= self.limit:
            return aligned
        if not self.truncate:
            raise DataError(
                f"{sentence.origin} has {len(tokens.ids)} tokens, but at most {self.limit} are allowed; "
                f"to cut texts: max_length={self.limit}, truncate=True"
            )
        n_special = sum(tokens.special)
        if self.limit < n_special + len(sentence.texts_with_start):
            raise DataError(f"max_length {self.limit} leaves no room for text beside {n_special} special tokens; give a greater one")
        short = next(self.tokens([sentence], self.limit - len(self.end)))
        return replace(assign_tokens(sentence, short), truncated=True)

    def align_each(self, sentences: Iterable[Annotated]) -> Iterator[Aligned | SentenceRefusal]:
        """Yields the alignment of each sentence, or the reason why there is none, in order."""
        remaining = iter(sentences)
        while chunk := list(islice(remaining, TOKENIZED_AT_ONCE)):
            for _, same_kind in groupby(chunk, lambda sentence: len(sentence.texts_with_start)):
                group = list(same_kind)
                for sentence, tokens in zip(group, self.tokens(group), strict=True):
                    yield self.align(sentence, tokens)


def align_all(
    sentences: Iterable[Annotated],
    tokenizer: Any,
    max_length: int | None = None,
    *,
    truncate: bool = False,
    add_special_tokens: bool = True,
    as_target: bool = False,
    end: Sequence[int] = (),
) -> tuple[list[Aligned], RefusalCounts]:
    """Returns every sentence that can be aligned, in order, and an account of those that cannot.

    Args:
        sentences: Sentences or pairs of them.
        tokenizer: A fast tokenizer.
        max_length: The most tokens of a sentence, special tokens included; by default the tokenizer's own limit.
        truncate: Cuts longer sentences instead of raising DataError.
        add_special_tokens: Whether the tokenizer adds its special tokens.
        as_target: Tokenises texts as targets of a translation.
        end: Special tokens added after every text.
    """
    if not getattr(tokenizer, "is_fast", False):
        raise DataError(
            f"{type(tokenizer).__name__} is a tokenizer without offsets, so its pieces cannot be matched to words; "
            "use the fast one of this model (AutoTokenizer loads it from tokenizer.json)"
        )
    if max_length is not None and max_length < 1:
        raise DataError(f"max_length must be 1 or more, got {max_length}")
    stated = getattr(tokenizer, "model_max_length", None) or UNLIMITED
    limit = max_length or (int(stated) if stated < UNLIMITED else None)
    encoder = _Encoder(tokenizer, limit, truncate, add_special_tokens, as_target, tuple(end))
    alignments: list[Aligned] = []
    counts: Counter[Reason] = Counter()
    examples: dict[Reason, tuple[SentenceRefusal, ...]] = {}
    for result in encoder.align_each(sentences):
        if isinstance(result, SentenceRefusal):
            counts[result.reason] += 1
            examples[result.reason] = (*examples.get(result.reason, ()), result)[:EXAMPLES]
        else:
            alignments.append(result)
    return alignments, RefusalCounts(counts, examples)
