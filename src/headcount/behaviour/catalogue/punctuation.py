"""Punctuation: attends to tokens without a letter or a digit; a mark itself does not count, so that a look at oneself is no look at punctuation."""

from __future__ import annotations

import torch

from headcount.behaviour.base import About, Sieve, View

ABOUT = About(source="Clark et al. 2019, What Does BERT Look At?")


def sieve(view: View, _name: str) -> Sieve:
    """Pieces of punctuation, in other words than the query's."""
    marks = torch.zeros_like(view.keys.real)
    for row, sentence in enumerate(view.keys.sentences):
        bare = torch.tensor([not any(char.isalnum() for char in word.form) for word in sentence.annotated.words] + [False])
        marks[row] = bare[view.keys.words[row]]
    other = view.queries.words[:, :, None] != view.keys.words[:, None, :]
    return marks[:, None, :] & other & view.queries.ordinary[:, :, None]
