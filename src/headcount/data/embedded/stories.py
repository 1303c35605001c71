"""Free text for a language model: short stories in which a few participants come back, so that what was said earlier helps."""

from __future__ import annotations

from dataclasses import replace
from random import Random

from headcount.data.embedded import english, lexicon
from headcount.data.embedded.grammar import Clause, Phrase, draw_place


def draw_story(random: Random, n_sentences: int = 5) -> list[str]:
    """Returns the sentences of one story; participants keep their adjectives throughout."""
    people = random.sample(lexicon.PEOPLE, 3)
    cast = [Phrase(noun, plural=random.random() < 0.3, adjective=random.choice(lexicon.ADJECTIVES)) for noun in people]
    story = []
    for _ in range(n_sentences):
        subject, participant = random.sample(cast, 2)
        verb = random.choice(lexicon.VERBS)
        clause = Clause(subject, verb, participant if verb.transitive else None)
        if random.random() < 0.3:
            clause = replace(clause, location=draw_place(random))
        if random.random() < 0.3:
            clause = replace(clause, adverb=random.choice(lexicon.ADVERBS))
        story.append(str(english.say_clause(clause)))
    return story
