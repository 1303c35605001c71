"""The embedded text of rare words: one word of every sentence is rare, the others follow Zipf's law, and all agree with the rare one.

Every word has one of three genders. The label of a word is the gender of the word before it (its own at the beginning) and that of the rarest word
of its sentence, so that a model needs a head for the previous word and one for the rarest.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from random import Random

from headcount.core.errors import DataError
from headcount.data.embedded.splits import DemoSplit, draw_split
from headcount.data.embedded.tokenizer import SPECIAL
from headcount.data.text.annotated import Annotated
from headcount.data.text.sentences import split_words

CONSONANTS, VOWELS = "bdfgklmnprstvz", "aeiou"
SYLLABLES = tuple(consonant + vowel for consonant, vowel in product(CONSONANTS, VOWELS))
N_FREQUENT, N_RARE = 60, 600
LENGTHS = (6, 12)
"""The fewest and the most words of a sentence."""
GENDERS = ("animal", "plant", "stone")
LABELS = tuple(f"{before}, {rarest}" for before, rarest in product(GENDERS, GENDERS))
"""The gender of the previous word and that of the rarest one."""


def _draw_words(n_words: int, n_syllables: int) -> tuple[str, ...]:
    random, words = Random(f"words/{n_syllables}"), dict[str, None]()
    while len(words) < n_words:
        words["".join(random.choices(SYLLABLES, k=n_syllables))] = None
    return tuple(words)


FREQUENT = _draw_words(N_FREQUENT, 2)
"""From the most frequent one; the n-th is drawn with a probability proportional to 1/n."""
RARE = _draw_words(N_RARE, 3)
"""All equally rare: each sentence has exactly one."""
GENDER_OF = {word: GENDERS[number % len(GENDERS)] for number, word in enumerate(FREQUENT + RARE)}


@dataclass(frozen=True, slots=True)
class RareSentence:
    """Words in order; `str` gives the text, words set apart by spaces."""

    words: tuple[str, ...]

    def __str__(self) -> str:
        return " ".join(self.words)

    @property
    def rarest(self) -> str:
        """The one rare word."""
        return next(word for word in self.words if len(word) == len(RARE[0]))

    @property
    def gender_labels(self) -> tuple[str, ...]:
        """The label of every word: the gender of the word before it, and that of the rarest."""
        before = (self.words[0], *self.words[:-1])
        return tuple(f"{GENDER_OF[word]}, {GENDER_OF[self.rarest]}" for word in before)


def draw_rare_sentence(random: Random) -> RareSentence:
    """Returns a sentence with a rare word at any place."""
    words = random.choices(FREQUENT, [1 / (number + 1) for number in range(N_FREQUENT)], k=random.randint(*LENGTHS) - 1)
    words.insert(random.randint(0, len(words)), random.choice(RARE))
    return RareSentence(tuple(words))


def draw_rare_sentences(number: int = 512, *, seed: int = 0, split: DemoSplit = "report") -> list[Annotated]:
    """Returns sentences of one split, always the same for one seed; they have words, but no trees."""
    if number < 1:
        raise DataError(f"the number of sentences must be 1 or more, got {number}")
    sentences = draw_split(Random(f"rare words/{split}/{seed}"), split, number, draw_rare_sentence, str)
    return [split_words(str(sentence), f"sentence {i}") for i, sentence in enumerate(sentences)]


def list_full_vocabulary() -> list[str]:
    """Every token in a fixed order: specials, frequent words, rare words."""
    return [*SPECIAL, *FREQUENT, *RARE]
