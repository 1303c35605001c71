"""Sentences, and pairs of sentences, whose words know their characters and what is annotated on them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import accumulate, pairwise

from headcount.core.errors import DataError

Span = tuple[int, int]
"""First word, and the one after the last."""
Cluster = tuple[Span, ...]
"""Mentions of the same thing."""


class Note(StrEnum):
    """What a reader could not take over as it stood; one for each time. Count them: `Counter(n for s in sentences for n in s.notes)`."""

    REBUILT = "the text was built from the forms, since the text that is given differs from them"
    MENTION = "a coreference mention was left out: discontinuous, empty, or not within one sentence"


@dataclass(frozen=True, slots=True)
class Word:
    """A word at the characters `start:end` of its sentence; words of one multi-word token may have the same characters.

    `head` is the number of its governor from 0, -1 for a root, None where no tree is known; a field that is not known is empty.
    """

    form: str
    lemma: str
    upos: str
    head: int | None
    relation: str
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Annotated:
    """A sentence; with `pair_at` two texts in a row, the second from that character on.

    `clusters` hold two or more mentions each. `links` are (word, word of `target`), where `target` is the translation. `origin` is for messages.
    """

    text: str
    words: tuple[Word, ...]
    clusters: tuple[Cluster, ...] = ()
    pair_at: int | None = None
    target: Annotated | None = None
    links: frozenset[tuple[int, int]] = frozenset()
    origin: str = "a sentence"
    notes: tuple[Note, ...] = ()

    def __post_init__(self) -> None:
        problem = _find_text_problem(self) or _find_word_problem(self) or _find_cluster_or_link_problem(self)
        if problem:
            raise DataError(f"{self.origin}: {problem}")

    @property
    def texts_with_start(self) -> tuple[tuple[int, str], ...]:
        """Each text with the character that it begins at: one, or two of a pair."""
        if self.pair_at is None:
            return ((0, self.text),)
        return (0, self.text[: self.pair_at]), (self.pair_at, self.text[self.pair_at :])


def _find_text_problem(sentence: Annotated) -> str | None:
    try:
        sentence.text.encode()
    except UnicodeEncodeError as error:
        return f"character {error.start} is half of a surrogate pair (U+{ord(error.object[error.start]):04X}), which is no text; repair it"
    if sentence.pair_at is not None and not 0 < sentence.pair_at < len(sentence.text):
        return f"the second text of a pair cannot begin at character {sentence.pair_at} of {len(sentence.text)}; both texts need characters"
    return None


def _find_word_problem(sentence: Annotated) -> str | None:
    words, size = sentence.words, len(sentence.text)
    for number, word in enumerate(words):
        if not 0 <= word.start < word.end <= size:
            return f"word {number} ('{word.form}') is at {word.start}:{word.end} of a text of {size} characters"
        if sentence.pair_at is not None and word.start < sentence.pair_at < word.end:
            return f"word {number} ('{word.form}') is in both texts of a pair"
        if word.head is not None and (not -1 <= word.head < len(words) or word.head == number):
            return f"the head of word {number} ('{word.form}') is {word.head}; it is another of the {len(words)} words, or -1 for the root"
    for word, following in pairwise(words):
        if following.start < word.end and (word.start, word.end) != (following.start, following.end):
            return f"'{word.form}' at {word.start}:{word.end} and '{following.form}' at {following.start}:{following.end} overlap in part"
    return None


def _find_cluster_or_link_problem(sentence: Annotated) -> str | None:
    n_words, n_target = len(sentence.words), len(sentence.target.words) if sentence.target else 0
    span = next((s for cluster in sentence.clusters for s in cluster if not 0 <= s[0] < s[1] <= n_words), None)
    if span:
        return f"a mention spans the words {span[0]}:{span[1]} of {n_words}"
    link = next((pair for pair in sentence.links if not (0 <= pair[0] < n_words and 0 <= pair[1] < n_target)), None)
    return f"word {link[0]} of {n_words} is linked to word {link[1]} of {n_target}" if link else None


def base_relation(relation: str) -> str:
    """A relation without its subtype: nsubj for nsubj:pass."""
    return relation.partition(":")[0]


def join_pair(first: Annotated, second: Annotated) -> Annotated:
    """Returns two sentences as the input of one model: the second text begins where the first ends, its words are counted on."""
    if first.pair_at is not None or second.pair_at is not None:
        raise DataError(f"{first.origin}: a pair is made of two single texts, not of pairs")
    at, n_words = len(first.text), len(first.words)
    words = tuple(_shift_word(word, at, n_words) for word in second.words)
    clusters = tuple(tuple((start + n_words, end + n_words) for start, end in cluster) for cluster in second.clusters)
    return Annotated(
        first.text + second.text,
        first.words + words,
        first.clusters + clusters,
        at,
        origin=first.origin,
        notes=first.notes + second.notes,
    )


def _shift_word(word: Word, n_characters: int, n_words: int) -> Word:
    head = word.head if word.head is None or word.head < 0 else word.head + n_words
    return replace(word, head=head, start=word.start + n_characters, end=word.end + n_characters)


def character_spans_of_words(surface: str, forms: Sequence[str], start: int) -> list[tuple[int, int]]:
    """Returns the characters of each word of a multi-word token at `start`: its own where the forms spell it (do + n't), else all (im)."""
    spelled = "".join(forms)
    if len(spelled) != len(surface) or spelled.lower() != surface.lower():
        return [(start, start + len(surface))] * len(forms)
    ends = [start + size for size in accumulate(map(len, forms))]
    return list(zip([start, *ends[:-1]], ends, strict=True))
