"""The embedded English: subject, verb, object; the verb agrees with its subject, however far away that is."""

from __future__ import annotations

from headcount.data.embedded.grammar import Clause, Phrase, Relative
from headcount.data.embedded.lexicon import Place, Verb
from headcount.data.embedded.trees import Sentence, TreeNode, build_sentence_with_full_stop, make_node

VOWELS = "aeiou"


def _article(phrase: Phrase) -> TreeNode | None:
    if phrase.definite:
        return make_node("the", "the", "DET", "det")
    if phrase.plural:
        return None
    next_word = phrase.adjective.word if phrase.adjective else phrase.noun.singular
    return make_node("an" if next_word[0] in VOWELS else "a", "a", "DET", "det")


def _noun_phrase(phrase: Phrase, relation: str) -> TreeNode:
    article = _article(phrase)
    before = [article] if article else []
    if phrase.adjective:
        before.append(make_node(phrase.adjective.word, phrase.adjective.word, "ADJ", "amod"))
    form = phrase.noun.plural if phrase.plural else phrase.noun.singular
    noun = make_node(form, phrase.noun.singular, "NOUN", relation, before)
    if phrase.location:
        noun.after.append(_locative_phrase(phrase.location, "nmod"))
    if phrase.relative:
        noun.after.append(_relative_clause(phrase.relative, phrase))
    return noun


def _locative_phrase(location: tuple[Place, Phrase], relation: str) -> TreeNode:
    noun = _noun_phrase(location[1], relation)
    noun.before.insert(0, make_node(location[0].word, location[0].word, "ADP", "case"))
    return noun


def _finite_verb(verb: Verb, plural: bool, relation: str) -> TreeNode:
    return make_node(verb.plain if plural else verb.third, verb.plain, "VERB", relation)


def _relative_clause(relative: Relative, modified_noun: Phrase) -> TreeNode:
    pronoun = make_node("that", "that", "PRON", "nsubj" if relative.of_subject else "obj")
    if relative.of_subject:
        verb = _finite_verb(relative.verb, modified_noun.plural, "acl:relcl")
        verb.before = [pronoun]
        verb.after = [_noun_phrase(relative.participant, "obj")] if relative.participant else []
        return verb
    assert relative.participant is not None
    verb = _finite_verb(relative.verb, relative.participant.plural, "acl:relcl")
    verb.before = [pronoun, _noun_phrase(relative.participant, "nsubj")]
    return verb


def say_clause(clause: Clause) -> Sentence:
    """Returns the English sentence of a clause, with its tree."""
    plural = clause.subject.plural
    if clause.negated:
        verb = make_node(clause.verb.plain, clause.verb.plain, "VERB", "root")
        verb.before = [make_node("do" if plural else "does", "do", "AUX", "aux"), make_node("not", "not", "PART", "advmod")]
    else:
        verb = _finite_verb(clause.verb, plural, "root")
    verb.before.insert(0, _noun_phrase(clause.subject, "nsubj"))
    if clause.object:
        verb.after.append(_noun_phrase(clause.object, "obj"))
    if clause.location:
        verb.after.append(_locative_phrase(clause.location, "obl"))
    if clause.adverb:
        verb.after.append(make_node(clause.adverb.word, clause.adverb.word, "ADV", "advmod"))
    return build_sentence_with_full_stop(verb)
