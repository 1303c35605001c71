"""Meanings: clauses and noun phrases as plain data, drawn at random; the two languages put them into words."""

from __future__ import annotations

from dataclasses import dataclass, replace
from random import Random

from headcount.data.embedded import lexicon
from headcount.data.embedded.lexicon import Modifier, Noun, Place, Verb


@dataclass(frozen=True, slots=True)
class Phrase:
    """A noun with what belongs to it; at most one of `location` and `relative` is set."""

    noun: Noun
    plural: bool = False
    definite: bool = True
    adjective: Modifier | None = None
    location: tuple[Place, Phrase] | None = None
    relative: Relative | None = None


@dataclass(frozen=True, slots=True)
class Relative:
    """A relative clause: its verb and the participant beside the noun it belongs to; `of_subject` says that this noun acts in it."""

    verb: Verb
    participant: Phrase | None
    of_subject: bool


@dataclass(frozen=True, slots=True)
class Clause:
    """Who does what, to whom, where and how."""

    subject: Phrase
    verb: Verb
    object: Phrase | None = None
    location: tuple[Place, Phrase] | None = None
    adverb: Modifier | None = None
    negated: bool = False


def bare_phrase(phrase: Phrase) -> Phrase:
    """Returns a noun phrase without its adjective, place and relative clause."""
    return replace(phrase, adjective=None, location=None, relative=None)


def draw_phrase(random: Random, *, only_animate: bool, may_nest: bool = True) -> Phrase:
    """A noun phrase; if it may nest, it can hold a place or a relative clause."""
    noun = random.choice(lexicon.PEOPLE if only_animate else lexicon.NOUNS)
    phrase = Phrase(noun, plural=random.random() < 0.4, definite=random.random() < 0.7)
    if random.random() < 0.4:
        phrase = replace(phrase, adjective=random.choice(lexicon.ADJECTIVES))
    roll = random.random()
    if may_nest and roll < 0.25:
        return replace(phrase, location=draw_place(random))
    if may_nest and roll < 0.5 and noun.animate:
        return replace(phrase, relative=_draw_relative(random))
    return phrase


def draw_place(random: Random) -> tuple[Place, Phrase]:
    """A place: a preposition and a thing without anything further."""
    phrase = Phrase(random.choice(lexicon.THINGS), plural=random.random() < 0.2)
    if random.random() < 0.2:
        phrase = replace(phrase, adjective=random.choice(lexicon.ADJECTIVES))
    return random.choice(lexicon.PLACES), phrase


def _draw_relative(random: Random) -> Relative:
    if random.random() < 0.25:
        return Relative(random.choice(lexicon.INTRANSITIVE), None, of_subject=True)
    participant = bare_phrase(draw_phrase(random, only_animate=True, may_nest=False))
    return Relative(random.choice(lexicon.TRANSITIVE), participant, of_subject=random.random() < 0.6)


def draw_clause(random: Random, *, negation_probability: float = 0.12) -> Clause:
    """A clause about anything."""
    verb = random.choice(lexicon.TRANSITIVE if random.random() < 0.7 else lexicon.INTRANSITIVE)
    return Clause(
        subject=draw_phrase(random, only_animate=True),
        verb=verb,
        object=draw_phrase(random, only_animate=False) if verb.transitive else None,
        location=draw_place(random) if random.random() < 0.2 else None,
        adverb=random.choice(lexicon.ADVERBS) if random.random() < 0.3 else None,
        negated=random.random() < negation_probability,
    )
