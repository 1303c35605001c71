"""Alignment: in cross-attention, looks at the source words that the target word is aligned with, where alignments are given.

A decoder's query at place t holds target token t − 1 and predicts token t: alignment:said is about the former, alignment:next about the latter.
"""

from __future__ import annotations

import torch

from headcount.behaviour.base import About, Corpus, Sieve, View
from headcount.behaviour.catalogue.syntax import between

ABOUT = About(source="Voita et al. 2019; word alignment", where=frozenset({"cross"}), needs=frozenset({"links"}))


def names(corpus: Corpus) -> tuple[str, ...]:
    """Both directions in time, where there are links."""
    return ("said", "next") if any(s.annotated.links for s in corpus.sentences) else ()


def sieve(view: View, name: str) -> Sieve:
    """Pieces of the aligned source words."""
    links = [[(target, source) for source, target in sentence.annotated.links] for sentence in view.keys.sentences]
    said = between(view, links)
    if name == "said":
        return said
    empty = torch.zeros_like(said[:, :1])
    return torch.cat([said[:, 1:], empty], dim=1)
