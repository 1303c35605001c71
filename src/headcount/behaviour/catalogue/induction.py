"""Induction: on a random sequence that is repeated, attends to the token that came after the previous occurrence of the current one.

Olsson et al. 2022, "In-context Learning and Induction Heads". Tested on sequences of its own, in decoders.
"""

from __future__ import annotations

import torch
from torch import nn

from headcount.behaviour.base import About, Corpus, Sieve, View, bare
from headcount.behaviour.random_sequences import random_tokens, starts

ABOUT = About(source="Olsson et al. 2022")
SEQUENCES, LENGTH = 64, 24


def probe(model: nn.Module, seed: int) -> Corpus | None:
    """Random tokens, twice in a row."""
    start = starts(model, 2 * LENGTH)
    drawn = random_tokens(model, (SEQUENCES, LENGTH), seed) if start is not None else None
    if drawn is None or start is None:
        return None
    return Corpus(tuple(bare([*start, *row, *row], len(start)) for row in drawn.tolist()), facts={"front": len(start), "length": LENGTH})


def sieve(view: View, _name: str) -> Sieve:
    """For every token of the repetition, the token after its first occurrence."""
    front, length = view.corpus.facts["front"], view.corpus.facts["length"]
    repeated = (view.queries.positions >= front + length)[:, None]
    after = view.distance == 1 - length
    return (repeated & after)[None].expand(len(view.queries.sentences), *after.shape) & torch.ones(1, dtype=torch.bool)
