"""Aligns words with the pieces of a tokenizer by offsets: its own, or those of an exact match where it reports none.

The plain text is tokenized as a model would read it; nothing is tokenized again word by word.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby, islice, product
from typing import Any

from headcount.core.errors import AlignmentError, DataError
from headcount.data.text.aligned import (
    Aligned,
    Reason,
    RefusalCounts,
    SentenceRefusal,
    Tokens,
    assign_tokens_or_refuse,
    assign_tokens_unchecked,
)
from headcount.data.text.annotated import Annotated
from headcount.data.text.match_pieces import match_pieces

UNLIMITED = 10**6
"""Tokenizers without a limit state a number beyond this one."""
TOKENIZED_AT_ONCE = 256
"""Sentences."""
EXAMPLES = 3
"""Refused sentences shown for each reason."""
PLACING = ("tokenize", "convert_tokens_to_ids", "convert_ids_to_tokens")
"""What a tokenizer without offsets must have."""


@dataclass(frozen=True, slots=True)
class _Encoder:
    """A fast tokenizer with the options that every call has."""

    tokenizer: Any
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


@dataclass(frozen=True, slots=True)
class _SlowEncoder:
    """A tokenizer without offsets; where its pieces stand in the text is found by an exact match."""

    tokenizer: Any
    add_special_tokens: bool
    as_target: bool
    end: tuple[int, ...]

    def tokens(self, sentences: Sequence[Annotated], max_length: int | None = None) -> Iterator[Tokens | SentenceRefusal]:
        """Yields the tokens of sentences, cut to `max_length` tokens if given, or the reason why their pieces cannot be placed."""
        for sentence in sentences:
            yield self._tokens_or_refusal(sentence, max_length)

    def _encode(self, *texts: str, **options: Any) -> Any:
        named = dict(zip(("text_target", "text_pair_target"), texts, strict=False)) if self.as_target else {}
        return self.tokenizer(*(() if named else texts), **named, padding=False, verbose=False, **options)

    def _tokens_or_refusal(self, sentence: Annotated, max_length: int | None) -> Tokens | SentenceRefusal:
        texts = sentence.texts_with_start
        located = [self._locate_pieces(text, start, number) for number, (start, text) in enumerate(texts)]
        if any(pieces is None for pieces in located):
            return SentenceRefusal(Reason.PIECES, sentence, "the pieces of the tokenizer are not found one after the other in the text")
        pieces = [piece for of_text in located for piece in of_text or ()]
        untruncated = self._encode(*(text for _, text in texts), add_special_tokens=self.add_special_tokens)
        encoded = untruncated
        if max_length is not None:
            cut = {"truncation": True, "max_length": max_length}
            encoded = self._encode(*(text for _, text in texts), add_special_tokens=self.add_special_tokens, **cut)
        ids = list(encoded["input_ids"])
        rows = _piece_of_each_token(ids, pieces, len(untruncated["input_ids"]) - len(pieces))
        if rows is None:
            return SentenceRefusal(Reason.PIECES, sentence, "the tokens of the text are not its pieces with special tokens around them")
        types = list(encoded["token_type_ids"]) if "token_type_ids" in encoded else None
        n_end = len(self.end)
        return Tokens(
            [*ids, *self.end],
            [*("" if piece is None else piece.text for piece in rows), *[""] * n_end],
            [*((0, 0) if piece is None else piece.offsets for piece in rows), *[(0, 0)] * n_end],
            [*(None if piece is None else piece.sequence for piece in rows), *[None] * n_end],
            [*(piece is None for piece in rows), *[True] * n_end],
            None if types is None else [*types, *types[-1:] * n_end],
        )

    def _locate_pieces(self, text: str, text_start: int, text_number: int) -> list[_Piece] | None:
        """Returns the pieces of one of the texts of a sentence, with their characters in the sentence; None if they cannot be found."""
        ids = list(self._encode(text, add_special_tokens=False)["input_ids"])
        surface = self.tokenizer.tokenize(text)  # SentencePiece spells what its vocabulary lacks
        pieces = surface if self.tokenizer.convert_tokens_to_ids(surface) == ids else self.tokenizer.convert_ids_to_tokens(ids)
        spans = match_pieces(text, pieces, self.tokenizer.unk_token)
        if spans is None:
            return None
        return [
            _Piece(id, piece, (start + text_start, end + text_start), text_number)
            for id, piece, (start, end) in zip(ids, pieces, spans, strict=True)
        ]


@dataclass(frozen=True, slots=True)
class _Piece:
    """A token of a text: its id, how it is spelled, its characters in the sentence, and which text of a pair it is from."""

    id: int
    text: str
    offsets: tuple[int, int]
    sequence: int


def _piece_of_each_token(ids: Sequence[int], pieces: Sequence[_Piece], n_special: int) -> list[_Piece | None] | None:
    """Returns the piece of each token, None for special tokens, or None if `ids` are not the first pieces of each text among special tokens."""
    by_text = [[piece for piece in pieces if piece.sequence == number] for number in (0, 1)]
    n_ordinary = len(ids) - n_special
    for n_first in range(min(len(by_text[0]), n_ordinary), -1, -1):
        first, second = by_text[0][:n_first], by_text[1][: n_ordinary - n_first]
        if len(first) + len(second) != n_ordinary:
            continue
        for before, between in product(range(n_special + 1), repeat=2):
            if before + between <= n_special:
                after = n_special - before - between
                rows = [*[None] * before, *first, *[None] * between, *second, *[None] * after]
                if all(piece is None or piece.id == id for id, piece in zip(ids, rows, strict=True)):
                    return rows
    return None


@dataclass(frozen=True, slots=True)
class _Aligner:
    """An encoder, with what is done about sentences that are too long."""

    encoder: _Encoder | _SlowEncoder
    limit: int | None
    truncate: bool

    def align(self, sentence: Annotated, tokens: Tokens) -> Aligned | SentenceRefusal:
        """Returns the alignment, truncated if it is too long and `truncate` is set."""
        aligned = assign_tokens_or_refuse(sentence, tokens)
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
        short = next(self.encoder.tokens([sentence], self.limit - len(self.encoder.end)))
        return short if isinstance(short, SentenceRefusal) else replace(assign_tokens_unchecked(sentence, short), truncated=True)

    def align_each(self, sentences: Iterable[Annotated]) -> Iterator[Aligned | SentenceRefusal]:
        """Yields the alignment of each sentence, or the reason why there is none, in order."""
        remaining = iter(sentences)
        while chunk := list(islice(remaining, TOKENIZED_AT_ONCE)):
            for _, same_kind in groupby(chunk, lambda sentence: len(sentence.texts_with_start)):
                group = list(same_kind)
                for sentence, tokens in zip(group, self.encoder.tokens(group), strict=True):
                    yield tokens if isinstance(tokens, SentenceRefusal) else self.align(sentence, tokens)


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
        tokenizer: A fast tokenizer, or one whose pieces spell the text: SentencePiece, WordPiece, BPE.
        max_length: The most tokens of a sentence, special tokens included; by default the tokenizer's own limit.
        truncate: Cuts longer sentences instead of raising DataError.
        add_special_tokens: Whether the tokenizer adds its special tokens.
        as_target: Tokenises texts as targets of a translation.
        end: Special tokens added after every text.
    """
    is_fast = getattr(tokenizer, "is_fast", False)
    if not is_fast and not all(callable(getattr(tokenizer, name, None)) for name in ("__call__", *PLACING)):
        raise AlignmentError(
            f"{type(tokenizer).__name__} is a tokenizer without offsets and without {' and '.join(PLACING)}, so its pieces cannot be matched "
            "to words; use the fast one of this model (AutoTokenizer loads it from tokenizer.json)"
        )
    if max_length is not None and max_length < 1:
        raise DataError(f"max_length must be 1 or more, got {max_length}")
    stated = getattr(tokenizer, "model_max_length", None) or UNLIMITED
    limit = max_length or (int(stated) if stated < UNLIMITED else None)
    encoder = (_Encoder if is_fast else _SlowEncoder)(tokenizer, add_special_tokens, as_target, tuple(end))
    alignments: list[Aligned] = []
    counts: Counter[Reason] = Counter()
    examples: dict[Reason, tuple[SentenceRefusal, ...]] = {}
    for result in _Aligner(encoder, limit, truncate).align_each(sentences):
        if isinstance(result, SentenceRefusal):
            counts[result.reason] += 1
            examples[result.reason] = (*examples.get(result.reason, ()), result)[:EXAMPLES]
        else:
            alignments.append(result)
    return alignments, RefusalCounts(counts, examples)
