"""Rare word: attends to the least frequent token of the sentence (rare:1), or to one of the two least frequent (rare:2).

Only sentences whose rarest token is outside the 500 most frequent of the text count; the rarest token itself does not ask. Ties count as rarest.
"""

from __future__ import annotations

import torch

from headcount.behaviour.base import About, Corpus, Sieve, View

ABOUT = About(source="Voita et al. 2019")


def names(_corpus: Corpus) -> tuple[str, ...]:
    """The rarest, and one of the two rarest."""
    return ("1", "2")


def sieve(view: View, name: str) -> Sieve:
    """The rarest tokens of each sentence."""
    rare = torch.zeros_like(view.keys.real)
    for row, sentence in enumerate(view.keys.sentences):
        tokens = [token for token, special in zip(sentence.ids, sentence.special, strict=True) if not special]
        kinds = sorted(set(tokens), key=lambda token: (view.corpus.counts[token], token))
        if kinds and kinds[0] not in view.corpus.frequent:
            limit = view.corpus.counts[kinds[min(int(name), len(kinds)) - 1]]
            wanted = torch.tensor([token for token in kinds if view.corpus.counts[token] <= limit])
            rare[row] = torch.isin(view.keys.ids[row], wanted) & view.keys.ordinary[row]
    asks = view.queries.ordinary & ~rare if view.queries is view.keys else view.queries.ordinary
    return rare[:, None, :] & asks[:, :, None]
