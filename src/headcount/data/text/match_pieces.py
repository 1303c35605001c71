"""Finds the characters of each piece of a tokenizer that reports no offsets: an exact match from left to right that covers the whole text.

Pieces and text are compared after Unicode's compatibility decomposition (NFKD), which SentencePiece's normalisers agree with; where that fails,
without invisible characters, without case, and last without accents, as uncased models read. White space is passed over. A piece that the
vocabulary lacks stands for one character or more of a word. The match counts only if it is the only one.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise

SPACE = "\N{LOWER ONE EIGHTH BLOCK}"
"""How SentencePiece writes a space."""
CONTINUED = ("##", "@@", "</w>")
"""What other tokenizers add to pieces to say that a word goes on or ends."""
FOLDS = ((False, ()), (False, ("Cc", "Cf")), (True, ("Cc", "Cf")), (True, ("Cc", "Cf", "Mn")))
"""Ways to compare, the strictest first: whether case is ignored, and which categories of characters (control, format, accents)."""


def match_pieces(text: str, pieces: Sequence[str], unknown: str | None = None) -> list[tuple[int, int]] | None:
    """Returns the characters of `text` that each piece stands for, or None if the pieces do not spell the text, or do so in several ways.

    Args:
        text: The text that was tokenised.
        pieces: Its pieces in order, without special tokens.
        unknown: The piece that stands for characters that the vocabulary lacks.
    """
    for ignores_case, ignored in FOLDS:
        fold = partial(_fold, ignores_case=ignores_case, ignored_categories=ignored)
        spans = _original_spans_of_matched_pieces(
            _FoldedText.fold(text, fold), [_possible_texts_of_piece(piece, fold) for piece in pieces], [p == unknown for p in pieces]
        )
        if spans is not None:
            return spans
    return None


def _fold(text: str, *, ignores_case: bool, ignored_categories: Sequence[str]) -> str:
    """Returns a text decomposed, without white space and the ignored categories of characters."""
    folded = unicodedata.normalize("NFKD", text.casefold() if ignores_case else text)
    return "".join(
        character for character in folded if not character.isspace() and unicodedata.category(character) not in ignored_categories
    )


def _possible_texts_of_piece(piece: str, fold: Callable[[str], str]) -> set[str]:
    """Returns what a piece may stand for in the text: itself, or itself without a mark of its tokenizer."""
    forms = set[str]()
    for text in (piece, piece.removeprefix(SPACE), piece.replace(SPACE, "")):
        for mark in ("", *CONTINUED):
            forms |= {fold(text.removeprefix(mark)), fold(text.removesuffix(mark))}
    return forms


@dataclass(frozen=True, slots=True)
class _FoldedText:
    """The characters that pieces are compared with, the part of the text that each is from, and where a word ends before white space."""

    characters: str
    spans: Sequence[tuple[int, int]]
    word_ends: Sequence[int]
    size: int

    @classmethod
    def fold(cls, text: str, fold: Callable[[str], str]) -> _FoldedText:
        """Folds a text. A letter and the accents after it are folded together, since they may change places."""
        starts = [at for at, character in enumerate(text) if not at or not unicodedata.combining(character)]
        characters, spans, ends = "", list[tuple[int, int]](), list[int]()
        for start, end in zip(starts, [*starts[1:], len(text)], strict=True):
            folded = fold(text[start:end])
            characters += folded
            spans += [(start, end)] * len(folded)
            if text[start:end].isspace() and characters:
                ends.append(len(characters))
        return cls(characters, spans, (*ends, len(characters)), len(text))

    def ends_of_piece(self, forms: set[str], start: int, *, is_unknown: bool) -> set[int]:
        """Returns where a piece can end that begins at a character."""
        ends = {start + len(form) for form in forms if self.characters.startswith(form, start)}
        if is_unknown:
            ends.update(range(start + 1, next((end for end in self.word_ends if end > start), start) + 1))
        return ends

    def span_before_folding(self, start: int, end: int) -> tuple[int, int]:
        """Returns the part of the text that some characters are from; no character stands before the next one."""
        first = self.spans[start][0] if start < len(self.spans) else self.size
        return first, self.spans[end - 1][1] if end > start else first


def _original_spans_of_matched_pieces(
    folded_text: _FoldedText, piece_forms: Sequence[set[str]], are_unknown: Sequence[bool]
) -> list[tuple[int, int]] | None:
    """Returns the span of each piece in the text before folding if exactly one sequence of bounds between them reaches the end of the text."""

    def ends_of_piece(number: int, start: int) -> set[int]:
        return folded_text.ends_of_piece(piece_forms[number], start, is_unknown=are_unknown[number])

    reached = [{0}]
    for number in range(len(piece_forms)):
        reached.append({end for start in reached[-1] for end in ends_of_piece(number, start)})
    bounds = [len(folded_text.characters)]
    if bounds[0] not in reached[-1]:
        return None
    for number in reversed(range(len(piece_forms))):  # back from the end, over the only bound of each that leads there
        starts = [start for start in reached[number] if bounds[-1] in ends_of_piece(number, start)]
        if len(starts) != 1:
            return None
        bounds += starts
    return [folded_text.span_before_folding(start, end) for start, end in pairwise(reversed(bounds))]
