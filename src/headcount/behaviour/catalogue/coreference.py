"""Coreference: attends from a mention to the words of other mentions of the same entity, where the text is annotated with clusters."""

from __future__ import annotations

from headcount.behaviour.base import About, Corpus, Sieve, View
from headcount.behaviour.catalogue.syntax import between

ABOUT = About(source="Clark et al. 2019, What Does BERT Look At?", needs=frozenset({"clusters"}))


def names(corpus: Corpus) -> tuple[str, ...]:
    """One role where there are clusters."""
    return ("",) if any(s.annotated.clusters for s in corpus.sentences) else ()


def sieve(view: View, _name: str) -> Sieve:
    """Pieces of the cluster's other mentions."""
    links = []
    for sentence in view.queries.sentences:
        mentions = [[list(range(*span)) for span in cluster] for cluster in sentence.annotated.clusters]
        links.append([(a, b) for spans in mentions for one in spans for other in spans if one != other for a in one for b in other])
    return between(view, links)
