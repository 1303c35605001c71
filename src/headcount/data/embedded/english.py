"""The embedded English: subject, verb, object; the verb agrees with its subject, however far away that is."""

from __future__ import annotations

from headcount.data.embedded.annotated import Node, Sentence, finish, node
from headcount.data.embedded.grammar import Clause, Phrase, Relative
from headcount.data.embedded.lexicon import Place, Verb

VOWELS = "aeiou"


def _article(phrase: Phrase) -> Node | None:
    if phrase.definite:
        return node("the", "the", "DET", "det")
    if phrase.plural:
        return None
    next_word = phrase.adjective.word if phrase.adjective else phrase.noun.singular
    return node("an" if next_word[0] in VOWELS else "a", "a", "DET", "det")


def _noun(phrase: Phrase, relation: str) -> Node:
    article = _article(phrase)
    before = [article] if article else []
    if phrase.adjective:
        before.append(node(phrase.adjective.word, phrase.adjective.word, "ADJ", "amod"))
    form = phrase.noun.plural if phrase.plural else phrase.noun.singular
    made = node(form, phrase.noun.singular, "NOUN", relation, before)
    if phrase.where:
        made.after.append(_place(phrase.where, "nmod"))
    if phrase.relative:
        made.after.append(_relative(phrase.relative, phrase))
    return made


def _place(where: tuple[Place, Phrase], relation: str) -> Node:
    made = _noun(where[1], relation)
    made.before.insert(0, node(where[0].word, where[0].word, "ADP", "case"))
    return made


def _finite(verb: Verb, plural: bool, relation: str) -> Node:
    return node(verb.plain if plural else verb.third, verb.plain, "VERB", relation)


def _relative(relative: Relative, head: Phrase) -> Node:
    pronoun = node("that", "that", "PRON", "nsubj" if relative.of_subject else "obj")
    if relative.of_subject:
        made = _finite(relative.verb, head.plural, "acl:relcl")
        made.before = [pronoun]
        made.after = [_noun(relative.other, "obj")] if relative.other else []
        return made
    assert relative.other is not None
    made = _finite(relative.verb, relative.other.plural, "acl:relcl")
    made.before = [pronoun, _noun(relative.other, "nsubj")]
    return made


def say(clause: Clause) -> Sentence:
    """The English sentence of a clause, with its tree."""
    plural = clause.subject.plural
    if clause.negated:
        verb = node(clause.verb.plain, clause.verb.plain, "VERB", "root")
        verb.before = [node("do" if plural else "does", "do", "AUX", "aux"), node("not", "not", "PART", "advmod")]
    else:
        verb = _finite(clause.verb, plural, "root")
    verb.before.insert(0, _noun(clause.subject, "nsubj"))
    if clause.object:
        verb.after.append(_noun(clause.object, "obj"))
    if clause.where:
        verb.after.append(_place(clause.where, "obl"))
    if clause.adverb:
        verb.after.append(node(clause.adverb.word, clause.adverb.word, "ADV", "advmod"))
    return finish(verb)
