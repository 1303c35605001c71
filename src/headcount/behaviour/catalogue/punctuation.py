from __future__ import annotations

from dataclasses import dataclass

from headcount.behaviour.base import Role, RoleInfo, Sieve, View
from headcount.behaviour.word_sieves import mark_words


@dataclass(frozen=True)
class Punctuation(Role):
    """Punctuation: attends to words without a letter or a digit. The query's own word does not count."""

    info = RoleInfo(source="Clark et al. 2019, What Does BERT Look At?", is_content=True)

    def sieve(self, view: View) -> Sieve:
        """Returns the pieces of punctuation, in other words than the query's."""
        is_mark = mark_words(view.keys, lambda word: not any(char.isalnum() for char in word.form))
        return is_mark[:, None, :] & view.other_words
