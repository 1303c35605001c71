"""Syntax: attends from a word to the word that it depends on by some relation (syntax:nsubj), or back (syntax:nsubj-of).

All pieces of the dependent ask, all pieces of the governor count. Any relation that occurs at least 20 times is tested, subtypes under their base.
"""

from __future__ import annotations

import torch

from headcount.behaviour.base import LEAST, About, Corpus, Sieve, View
from headcount.data.text.annotated import base

ABOUT = About(source="Voita et al. 2019; Pande et al. 2021", needs=frozenset({"tree"}))
SKIPPED = ("root", "punct")


def names(corpus: Corpus) -> tuple[str, ...]:
    """Every frequent relation in both directions."""
    return tuple(name for name, number in _counts(corpus).items() if number >= LEAST)


def scarce(corpus: Corpus) -> dict[str, int]:
    """The other relations in both directions, with how often they occur."""
    return {name: number for name, number in _counts(corpus).items() if number < LEAST}


def _counts(corpus: Corpus) -> dict[str, int]:
    counts: dict[str, int] = {}
    for relation, number in corpus.relations.items():
        counts[base(relation)] = counts.get(base(relation), 0) + number
    return {f"{name}{end}": counts[name] for name in sorted(counts) if name not in SKIPPED for end in ("", "-of")}


def sieve(view: View, name: str) -> Sieve:
    """The pieces of the word at the other end of the relation."""
    relation, back = name.removesuffix("-of"), name.endswith("-of")
    arcs = [
        [
            (w, word.head)
            for w, word in enumerate(s.annotated.words)
            if word.head not in (None, -1) and base(word.relation or "") == relation
        ]
        for s in view.queries.sentences
    ]
    return between(view, [[(b, a) for a, b in row] for row in arcs] if back else arcs)


def between(view: View, links: list) -> Sieve:
    """From all pieces of one word to all pieces of another, for the word pairs of each sentence; words that share a piece say nothing."""
    found = torch.zeros(len(links), view.queries.ids.shape[1], view.keys.ids.shape[1], dtype=torch.bool)
    for row, pairs in enumerate(links):
        if pairs:
            queries, keys = view.queries.pieces[row][[a for a, _ in pairs]], view.keys.pieces[row][[b for _, b in pairs]]
            if view.queries is view.keys:
                queries = queries & ~(queries & keys).any(1, keepdim=True)
            found[row] = (queries.T.float() @ keys.float()) > 0
    return found
