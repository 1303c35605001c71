"""Punctuation: attends to tokens without a letter or a digit."""

from __future__ import annotations

import torch

from headcount.roles._contract import About, Sieve, View

ABOUT = About(source="Clark et al. 2019, What Does BERT Look At?")


def sieve(view: View, _name: str) -> Sieve:
    """Pieces of words that are punctuation."""
    marks = torch.zeros_like(view.keys.real)
    for row, sentence in enumerate(view.keys.sentences):
        bare = torch.tensor([not any(char.isalnum() for char in word.form) for word in sentence.annotated.words] + [False])
        marks[row] = bare[view.keys.words[row]]
    return marks[:, None, :] & view.queries.ordinary[:, :, None]
