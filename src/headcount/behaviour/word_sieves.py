"""Sieves from annotations of words: by a property of the key's word, or by links between words."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from jaxtyping import Bool
from torch import Tensor

from headcount.behaviour.base import Side, Sieve, View
from headcount.data.text.annotated import Word


def mark_words(side: Side, has_property: Callable[[Word], bool]) -> Bool[Tensor, "batch n"]:
    """Returns which tokens belong to a word with the property."""
    marks = torch.zeros_like(side.real)
    for row, sentence in enumerate(side.sentences):
        of_words = torch.tensor(
            [has_property(word) for word in sentence.annotated.words] + [False]
        )  # the last one for tokens without a word, -1
        marks[row] = of_words[side.words[row]]
    return marks


def link_words(view: View, links: Sequence[Sequence[tuple[int, int]]]) -> Sieve:
    """Returns the sieve from all pieces of one word to all pieces of another, for the word pairs (query, key) of each sentence.

    Pairs of words that share a piece count for none of their pieces.
    """
    sieve = torch.zeros(len(links), view.queries.ids.shape[1], view.keys.ids.shape[1], dtype=torch.bool)
    for row, pairs in enumerate(links):
        if pairs:
            queries = view.queries.pieces[row][[query for query, _ in pairs]]
            keys = view.keys.pieces[row][[key for _, key in pairs]]
            if view.queries is view.keys:
                queries = queries & ~(queries & keys).any(1, keepdim=True)
            sieve[row] = (queries.T.float() @ keys.float()) > 0
    return sieve
