from __future__ import annotations

from dataclasses import dataclass

from headcount.behaviour.base import Corpus, OfferedRoles, Role, RoleInfo, Sieve, View
from headcount.behaviour.word_sieves import mark_words
from headcount.core.options import option

SKIPPED = ("PUNCT", "SYM", "X", "_")


@dataclass(frozen=True)
class PartOfSpeech(Role):
    """Part of speech: attends to words of one part of speech, such as pos:NOUN, at any distance; the query's own word does not count."""

    tag: str = option(help="A universal part of speech that the text is annotated with, such as NOUN")
    info = RoleInfo(source="Vig and Belinkov 2019", needs=frozenset({"tags"}), is_content=True)

    @classmethod
    def list_offered(cls, corpus: Corpus) -> OfferedRoles:
        """Returns one role for each part of speech of the text."""
        return OfferedRoles.by_count({cls(tag): number for tag, number in sorted(corpus.tag_counts.items()) if tag not in SKIPPED})

    def sieve(self, view: View) -> Sieve:
        """Returns the keys of that part of speech, in other words than the query's."""
        return mark_words(view.keys, lambda word: word.upos == self.tag)[:, None, :] & view.other_words
