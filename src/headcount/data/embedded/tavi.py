"""Tavi, the embedded second language: the verb comes last, suffixes mark number, case, place and negation, and gender agrees.

Articles, adjectives and participles take the gender vowel of their noun, the verb that of its subject; nouns take plural and case;
places are cases; relative clauses stand before their noun as participles. Words split into a stem and its suffixes.
"""

from __future__ import annotations

from headcount.data.embedded import lexicon
from headcount.data.embedded.grammar import Clause, Phrase, Relative
from headcount.data.embedded.lexicon import Place
from headcount.data.embedded.trees import Sentence, TreeNode, build_sentence_with_full_stop, make_node


def _gender_and_number_suffix(phrase: Phrase) -> str:
    return lexicon.GENDER_SUFFIX[phrase.noun.gender] + (lexicon.PLURAL_SUFFIX if phrase.plural else "")


def _noun_phrase(phrase: Phrase, relation: str, case_suffix: str = "") -> TreeNode:
    agreement = _gender_and_number_suffix(phrase)
    article = lexicon.DEFINITE_STEM if phrase.definite else lexicon.INDEFINITE_STEM
    before = [make_node(article + agreement, article, "DET", "det")]
    if phrase.relative:
        before.append(_relative_clause(phrase.relative, phrase))
    if phrase.location:
        before.append(_locative_phrase(phrase.location, "nmod"))
    if phrase.adjective:
        before.append(make_node(phrase.adjective.stem + agreement, phrase.adjective.stem, "ADJ", "amod"))
    form = phrase.noun.stem + (lexicon.PLURAL_SUFFIX if phrase.plural else "") + case_suffix
    return make_node(form, phrase.noun.stem, "NOUN", relation, before)


def _locative_phrase(location: tuple[Place, Phrase], relation: str) -> TreeNode:
    return _noun_phrase(location[1], relation, location[0].suffix)


def _relative_clause(relative: Relative, modified_noun: Phrase) -> TreeNode:
    suffix = lexicon.SUBJECT_PARTICIPLE if relative.of_subject else lexicon.OBJECT_PARTICIPLE
    participle = make_node(relative.verb.stem + suffix + _gender_and_number_suffix(modified_noun), relative.verb.stem, "VERB", "acl:relcl")
    if relative.participant:
        participle.before = [
            _noun_phrase(relative.participant, "obj", lexicon.OBJECT_SUFFIX)
            if relative.of_subject
            else _noun_phrase(relative.participant, "nsubj")
        ]
    return participle


def say_clause(clause: Clause) -> Sentence:
    """Returns the Tavi sentence of a clause, with its tree."""
    negation = lexicon.NEGATION_SUFFIX if clause.negated else ""
    verb = make_node(clause.verb.stem + negation + _gender_and_number_suffix(clause.subject), clause.verb.stem, "VERB", "root")
    verb.before = [_noun_phrase(clause.subject, "nsubj")]
    if clause.location:
        verb.before.append(_locative_phrase(clause.location, "obl"))
    if clause.object:
        verb.before.append(_noun_phrase(clause.object, "obj", lexicon.OBJECT_SUFFIX))
    if clause.adverb:
        verb.before.append(make_node(clause.adverb.stem, clause.adverb.stem, "ADV", "advmod"))
    return build_sentence_with_full_stop(verb)
