"""An alignment of words with the pieces of a tokenizer: by the characters that both cover, and by nothing else.

A token belongs to the word that it shares most characters with, to the first of several.
"""

from __future__ import annotations

import unicodedata
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from headcount.data.text.annotated import Annotated

MARKERS = "▁Ġ"
"""How SentencePiece and byte-level tokenizers write a space."""


class Reason(StrEnum):
    """Why a sentence cannot be aligned."""

    UNCOVERED = "a word without a token"
    OFFSETS = "offsets out of order or outside the text"
    PIECES = "pieces that do not spell the text, or in several ways"
    EMPTY = "no words or no tokens"


@dataclass(frozen=True, slots=True)
class SentenceRefusal:
    """A sentence that cannot be aligned, and what is wrong with it."""

    reason: Reason
    annotated: Annotated
    detail: str

    def __str__(self) -> str:
        return f"{self.annotated.origin}: {self.reason}: {self.detail}"


@dataclass(frozen=True, slots=True)
class RefusalCounts:
    """How many sentences were refused for each reason, and the first of them."""

    counts: Mapping[Reason, int] = field(default_factory=dict)
    examples: Mapping[Reason, tuple[SentenceRefusal, ...]] = field(default_factory=dict)

    def __len__(self) -> int:
        return sum(self.counts.values())


@dataclass(frozen=True, slots=True)
class Aligned:
    """A sentence and its tokens.

    `words` holds the word that each token belongs to: None for special tokens, for white space and its markers. `special` tokens are those that
    the tokenizer adds; `segments` says which text of a pair a token is from, -1 for special ones; `offsets` are characters of the sentence's text.
    `shared` counts tokens on characters of several words.
    """

    ids: tuple[int, ...]
    words: tuple[int | None, ...]
    special: tuple[bool, ...]
    segments: tuple[int, ...]
    annotated: Annotated
    truncated: bool
    offsets: tuple[tuple[int, int], ...]
    by_word: tuple[tuple[int, ...], ...]
    shared: int
    type_ids: tuple[int, ...] | None = None

    def pieces(self, word: int) -> tuple[int, ...]:
        """The tokens of a word, in order: none if it was cut off, fewer if it was cut in two.

        A word that no token belongs to, since it stands in one with another word (not in cannot, the second word of im), borrows that one.
        """
        return self.by_word[word]

    @property
    def words_borrowing_pieces(self) -> tuple[int, ...]:
        """The words whose pieces all belong to other words."""
        return tuple(word for word, pieces in enumerate(self.by_word) if pieces and self.words[pieces[0]] != word)

    @property
    def words_without_pieces(self) -> tuple[int, ...]:
        """The words without a piece: cut off, or of white space only."""
        return tuple(word for word, pieces in enumerate(self.by_word) if not pieces)


@dataclass(frozen=True, slots=True)
class Tokens:
    """What a tokenizer made of a text; `sequences` are None for tokens of no text."""

    ids: list[int]
    texts: list[str]
    offsets: list[tuple[int, int]]
    sequences: list[int | None]
    special: list[bool]
    types: list[int] | None


def assign_tokens_or_refuse(sentence: Annotated, tokens: Tokens) -> Aligned | SentenceRefusal:
    """Returns the alignment of a sentence with all its tokens, or why there is none."""
    wrong = _explain_wrong_offsets(sentence, tokens)
    if wrong:
        return SentenceRefusal(Reason.OFFSETS, sentence, wrong)
    if not sentence.words or all(tokens.special):
        return SentenceRefusal(Reason.EMPTY, sentence, f"{len(sentence.words)} words, {tokens.special.count(False)} tokens")
    aligned = assign_tokens_unchecked(sentence, tokens)
    bare = next((w for w in aligned.words_without_pieces if sentence.text[sentence.words[w].start : sentence.words[w].end].strip()), None)
    if bare is not None:
        word = sentence.words[bare]
        return SentenceRefusal(Reason.UNCOVERED, sentence, f"word {bare} ({word.form!r}) at characters {word.start}:{word.end}")
    return aligned


def _explain_wrong_offsets(sentence: Annotated, tokens: Tokens) -> str | None:
    last = 0
    bounds = [start + len(text) for start, text in sentence.texts_with_start]
    for text, (start, end), special, sequence in zip(tokens.texts, tokens.offsets, tokens.special, tokens.sequences, strict=True):
        if special:
            continue
        if not last <= start <= end <= bounds[sequence or 0]:
            return f"token {text!r} at {start}:{end}, after one that begins at {last}, in a text that ends at {bounds[sequence or 0]}"
        last = start
    return None


def assign_tokens_unchecked(sentence: Annotated, tokens: Tokens) -> Aligned:
    """Returns which word each token belongs to, and which tokens each word has, without any check."""
    groups = _first_words_of_spans(sentence)
    touched = _count_characters_by_word(sentence, tokens, groups)
    words = [max(counts, key=lambda word: counts[word]) if counts else None for counts in touched]  # the first of equals
    own: dict[int, list[int]] = {}
    touching: dict[int, list[int]] = {}
    for token, (word, counts) in enumerate(zip(words, touched, strict=True)):
        if word is not None:
            own.setdefault(word, []).append(token)
        for touched_word in counts:
            touching.setdefault(touched_word, []).append(token)
    joint = {group for number, group in enumerate(groups) if group != number}
    return Aligned(
        tuple(tokens.ids),
        tuple(words),
        tuple(tokens.special),
        tuple(-1 if special else sequence or 0 for special, sequence in zip(tokens.special, tokens.sequences, strict=True)),
        sentence,
        False,
        tuple(tokens.offsets),
        tuple(tuple(own.get(group) or touching.get(group, ())) for group in groups),
        sum(len(counts) > 1 or not joint.isdisjoint(counts) for counts in touched),
        None if tokens.types is None else tuple(tokens.types),
    )


def _first_words_of_spans(sentence: Annotated) -> list[int]:
    """Returns for each word the first of those on the same characters."""
    groups: list[int] = []
    for number, word in enumerate(sentence.words):
        before = sentence.words[number - 1] if number else None
        groups.append(groups[-1] if before and (before.start, before.end) == (word.start, word.end) else number)
    return groups


def _count_characters_by_word(sentence: Annotated, tokens: Tokens, first_words: list[int]) -> list[Counter[int]]:
    """Returns for each token how many characters it has of each word, in the order of the text."""
    holder: list[int | None] = [None] * len(sentence.text)
    for word, group in zip(sentence.words, first_words, strict=True):
        holder[word.start : word.end] = [group] * (word.end - word.start)
    by_token: list[Counter[int]] = []
    for text, (start, end), special in zip(tokens.texts, tokens.offsets, tokens.special, strict=True):
        blank = special or _is_blank_token(text, sentence.text[start:end])
        by_token.append(Counter(word for word in holder[start:end] if word is not None) if not blank else Counter())
    return by_token


def _is_blank_token(token: str, covered_text: str) -> bool:
    """Whether a token is white space, or only the marker of one, which some tokenizers set on the first letter of the text."""
    if not covered_text.strip():
        return True
    return not token.strip(MARKERS) and not set(_casefold_and_decompose(token)) & set(_casefold_and_decompose(covered_text))


def _casefold_and_decompose(text: str) -> str:
    return unicodedata.normalize("NFKD", text.casefold())
