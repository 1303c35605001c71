from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from headcount.behaviour.base import Corpus, OfferedRoles, Role, RoleInfo, Sieve, View
from headcount.behaviour.word_sieves import link_words
from headcount.core.options import option
from headcount.data.text.annotated import base_relation

SKIPPED = ("root", "punct")
BACK = "-of"


@dataclass(frozen=True)
class Syntax(Role):
    """Syntax: attends from a word to the word that it depends on by some relation (syntax:nsubj), or back (syntax:nsubj-of).

    All pieces of the dependent are queries, all pieces of the governor are keys. Relations that occur at least 20 times are tested, subtypes
    counted as their base relation.
    """

    relation: str = option(help="A dependency relation of the text, such as nsubj; with -of from the governor to the dependent")
    info = RoleInfo(source="Voita et al. 2019; Pande et al. 2021", needs=frozenset({"tree"}), is_content=True)

    @classmethod
    def list_offered(cls, corpus: Corpus) -> OfferedRoles:
        """Returns the relations of the text in both directions."""
        counts: Counter[str] = Counter()
        for relation, number in corpus.relation_counts.items():
            counts[base_relation(relation)] += number
        names = [name for name in sorted(counts) if name not in SKIPPED]
        return OfferedRoles.by_count({cls(name + direction): counts[name] for name in names for direction in ("", BACK)})

    def sieve(self, view: View) -> Sieve:
        """Returns the pieces of the word at the other end of the relation."""
        relation, is_back = self.relation.removesuffix(BACK), self.relation.endswith(BACK)
        links = [
            [
                (word.head, number) if is_back else (number, word.head)
                for number, word in enumerate(sentence.annotated.words)
                if word.head is not None and word.head != -1 and base_relation(word.relation or "") == relation
            ]
            for sentence in view.queries.sentences
        ]
        return link_words(view, links)
