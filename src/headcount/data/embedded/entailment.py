"""Entailment on the embedded languages: pairs of clauses about one scene, labelled entailment, neutral or contradiction.

What a clause says holds without any of its modifiers, and so does what its relative clauses say_clause. Denying any of that, or saying the opposite
adverb of an action, contradicts it. Anything else (participants exchanged or replaced, another verb, a modifier added) is neutral. Telling them
apart takes syntax: all words of a neutral hypothesis can stand in the premise.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from random import Random

from headcount.data.embedded import english, lexicon
from headcount.data.embedded.grammar import Clause, bare_phrase, draw_clause, draw_place

LABELS = ("entailment", "neutral", "contradiction")


@dataclass(frozen=True, slots=True)
class EntailmentPair:
    """A premise, a hypothesis and the label between them."""

    premise: Clause
    hypothesis: Clause
    label: str


def english_text_of_pair(pair: EntailmentPair) -> str:
    """Returns premise and hypothesis in English, whatever language the pair is put into: its identity."""
    return f"{english.say_clause(pair.premise)} | {english.say_clause(pair.hypothesis)}"


def _list_facts(clause: Clause) -> list[Clause]:
    """Returns what a premise says as plain clauses: its own, and one for each relative clause."""
    main = replace(clause, subject=bare_phrase(clause.subject), object=bare_phrase(clause.object) if clause.object else None)
    facts = [main]
    for phrase in (clause.subject, clause.object):
        if phrase is not None and phrase.relative is not None:
            relative, head = phrase.relative, bare_phrase(phrase)
            if relative.of_subject or relative.participant is None:
                facts.append(Clause(head, relative.verb, relative.participant))
            else:
                facts.append(Clause(relative.participant, relative.verb, head))
    return facts


def _drop_modifiers(random: Random, clause: Clause) -> Clause:
    """Returns a fact, with some of its modifiers dropped."""
    return replace(
        clause, location=clause.location if random.random() < 0.5 else None, adverb=clause.adverb if random.random() < 0.5 else None
    )


def _draw_entailed(random: Random, premise: Clause) -> Clause | None:
    fact = _drop_modifiers(random, random.choice(_list_facts(premise)))
    return fact if fact != premise else None


def _draw_contradiction(random: Random, premise: Clause) -> Clause | None:
    fact = random.choice(_list_facts(premise))
    if fact.adverb and random.random() < 0.4:
        return replace(_drop_modifiers(random, fact), adverb=lexicon.opposite(fact.adverb))
    return replace(_drop_modifiers(random, replace(fact, adverb=None)), negated=True)


def _exchange_subject_and_object(fact: Clause) -> Clause | None:
    if fact.object is None or not fact.object.noun.animate or fact.object == fact.subject:
        return None
    return replace(fact, subject=fact.object, object=fact.subject)


def _replace_subject_by_relative_participant(premise: Clause) -> Clause | None:
    """Returns a clause in which somebody of a relative clause does what the main clause says."""
    relative = premise.subject.relative
    return replace(premise, subject=relative.participant) if relative and relative.participant else None


def _draw_neutral(random: Random, premise: Clause) -> Clause | None:
    fact = random.choice(_list_facts(premise))
    changes: list[Callable[[], Clause | None]] = [
        lambda: _exchange_subject_and_object(fact),
        lambda: _replace_subject_by_relative_participant(
            _list_facts(premise)[0]
            if premise.subject.relative is None
            else replace(premise, object=fact.object and bare_phrase(fact.object))
        ),
        lambda: replace(fact, subject=replace(fact.subject, noun=random.choice(lexicon.PEOPLE))),
        lambda: replace(fact, verb=random.choice(lexicon.TRANSITIVE if fact.verb.transitive else lexicon.INTRANSITIVE)),
        lambda: replace(fact, location=draw_place(random)) if fact.location is None else None,
        lambda: replace(fact, adverb=random.choice(lexicon.ADVERBS)) if fact.adverb is None else None,
    ]
    hypothesis = random.choice(changes)()
    return None if hypothesis is None or _follows(premise, hypothesis) else hypothesis


def _follows(premise: Clause, hypothesis: Clause) -> bool:
    """Whether some fact of the premise says all that the hypothesis says, up to its modifiers."""
    core = replace(hypothesis, location=None, adverb=None)
    return any(
        replace(fact, location=None, adverb=None) == core
        and hypothesis.location in (None, fact.location)
        and (hypothesis.adverb is None or fact.adverb is not None)
        for fact in _list_facts(premise)
    )


MAKERS = {"entailment": _draw_entailed, "neutral": _draw_neutral, "contradiction": _draw_contradiction}


def draw_pair(random: Random) -> EntailmentPair:
    """Returns a pair with a label drawn evenly; premises are affirmative."""
    label = random.choice(LABELS)
    while True:
        premise = draw_clause(random, negation_probability=0.0)
        hypothesis = MAKERS[label](random, premise)
        if hypothesis is not None:
            return EntailmentPair(premise, hypothesis, label)
