from __future__ import annotations

from dataclasses import dataclass
from itertools import permutations

from headcount.behaviour.base import Corpus, OfferedRoles, Role, RoleInfo, Sieve, View
from headcount.behaviour.word_sieves import link_words


@dataclass(frozen=True)
class Coreference(Role):
    """Coreference: attends from a mention to the words of other mentions of the same entity, where the text is annotated with clusters."""

    info = RoleInfo(source="Clark et al. 2019, What Does BERT Look At?", needs=frozenset({"clusters"}), is_content=True)

    @classmethod
    def list_offered(cls, corpus: Corpus) -> OfferedRoles:
        """Returns the role if any sentence has clusters."""
        return OfferedRoles((cls(),) if any(s.annotated.clusters for s in corpus.sentences) else ())

    def sieve(self, view: View) -> Sieve:
        """Returns the pieces of the other mentions of the query's entity."""
        links = [
            [
                (word, other_word)
                for cluster in sentence.annotated.clusters
                for mention, other_mention in permutations([range(*span) for span in cluster], 2)
                if mention != other_mention
                for word in mention
                for other_word in other_mention
            ]
            for sentence in view.queries.sentences
        ]
        return link_words(view, links)
