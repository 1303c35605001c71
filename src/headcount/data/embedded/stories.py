"""Free text for a language model: short stories in which a few participants come back, so that what was said earlier helps."""

from __future__ import annotations

from dataclasses import replace
from random import Random

from headcount.data.embedded import english, lexicon
from headcount.data.embedded.grammar import Clause, Phrase, draw_place


def _cast(random: Random) -> list[Phrase]:
    people = random.sample(lexicon.PEOPLE, 3)
    return [Phrase(noun, plural=random.random() < 0.3, adjective=random.choice(lexicon.ADJECTIVES)) for noun in people]


def draw_story(random: Random, sentences: int = 5) -> list[str]:
    """The sentences of one story; participants keep their adjectives throughout."""
    cast = _cast(random)
    told = []
    for _ in range(sentences):
        subject, other = random.sample(cast, 2)
        verb = random.choice(lexicon.VERBS)
        clause = Clause(subject, verb, other if verb.transitive else None)
        if random.random() < 0.3:
            clause = replace(clause, where=draw_place(random))
        if random.random() < 0.3:
            clause = replace(clause, adverb=random.choice(lexicon.ADVERBS))
        told.append(str(english.say(clause)))
    return told
