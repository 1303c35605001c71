"""Sentences of the embedded languages with their gold trees, and translations whose content words are linked through their shared meaning."""

from __future__ import annotations

from random import Random
from typing import Any, Literal

from headcount.core.errors import DataError, unknown_name_error
from headcount.data.embedded import english, lexicon, tavi
from headcount.data.embedded.grammar import Clause, draw_clause
from headcount.data.embedded.splits import DemoSplit, draw_split
from headcount.data.embedded.trees import Sentence
from headcount.data.text.annotated import Annotated, Word

Language = Literal["english", "tavi"]
SPEAKERS: dict[str, Any] = {"english": english, "tavi": tavi}
CONTENT = ("NOUN", "VERB", "ADJ", "ADV")
STEMS = {
    **{("NOUN", noun.singular): noun.stem for noun in lexicon.NOUNS},
    **{("VERB", verb.plain): verb.stem for verb in lexicon.VERBS},
    **{("ADJ", adjective.word): adjective.stem for adjective in lexicon.ADJECTIVES},
    **{("ADV", adverb.word): adverb.stem for adverb in lexicon.ADVERBS},
}
"""(part of speech, English lemma) -> Tavi stem."""
RelationAndLemma = tuple[str, str]


def draw_sentences(language: Language = "english", number: int = 512, *, seed: int = 0, split: DemoSplit = "report") -> list[Annotated]:
    """Returns sentences of one split, always the same for one seed; the same meanings in both languages."""
    speaker = _language_module(language)
    return [_annotate(speaker.say_clause(clause), f"sentence {i}") for i, clause in enumerate(_draw_clauses(number, seed, split))]


def draw_translations(source: Language = "english", number: int = 512, *, seed: int = 0, split: DemoSplit = "report") -> list[Annotated]:
    """Returns the same sentences, each with its translation into the other language as `target` and its content words linked one to one."""
    _language_module(source)
    translations = []
    for i, clause in enumerate(_draw_clauses(number, seed, split)):
        ours, theirs = (_annotate(speaker.say_clause(clause), f"sentence {i}") for speaker in (english, tavi))
        # Content words with the same meaning on the same path of relations to the root: no two of a clause have both in common.
        by_path = {_path_to_root(theirs.words, number, {}): number for number, word in enumerate(theirs.words) if word.upos in CONTENT}
        links = {
            (number, by_path[_path_to_root(ours.words, number, STEMS)]) for number, word in enumerate(ours.words) if word.upos in CONTENT
        }
        if source == "tavi":
            ours, theirs, links = theirs, ours, {(b, a) for a, b in links}
        translations.append(Annotated(ours.text, ours.words, target=theirs, links=frozenset(links), origin=ours.origin))
    return translations


def _language_module(language: str) -> Any:
    if language not in SPEAKERS:
        raise unknown_name_error("embedded language", language, SPEAKERS)
    return SPEAKERS[language]


def _draw_clauses(n_clauses: int, seed: int, split: DemoSplit) -> list[Clause]:
    if n_clauses < 1:
        raise DataError(f"the number of sentences must be 1 or more, got {n_clauses}")
    return draw_split(Random(f"trees/{split}/{seed}"), split, n_clauses, draw_clause, lambda clause: str(english.say_clause(clause)))


def _annotate(sentence: Sentence, origin: str) -> Annotated:
    words, at = [], 0
    for word in sentence.words:
        words.append(Word(word.form, word.lemma, word.pos, word.head - 1, word.relation, at, at + len(word.form)))
        at += len(word.form) + 1
    return Annotated(str(sentence), tuple(words), origin=origin)


def _path_to_root(words: tuple[Word, ...], word_number: int, tavi_stems: dict[tuple[str, str], str]) -> tuple[RelationAndLemma, ...]:
    """Returns the relations and lemmas from a word to the root; lemmas as Tavi stems where these are given."""
    steps: list[RelationAndLemma] = []
    number: int | None = word_number
    while number is not None and number >= 0:
        word = words[number]
        steps.append((word.relation, tavi_stems.get((word.upos, word.lemma), word.lemma)))
        number = word.head
    return tuple(steps)
