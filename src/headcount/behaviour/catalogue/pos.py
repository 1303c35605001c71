"""Part of speech: attends to words of one kind, such as pos:NOUN, wherever they stand; the word itself does not count."""

from __future__ import annotations

import torch

from headcount.behaviour.base import LEAST, About, Corpus, Sieve, View

ABOUT = About(source="Vig and Belinkov 2019", needs=frozenset({"tags"}))
SKIPPED = ("PUNCT", "SYM", "X", "_")


def names(corpus: Corpus) -> tuple[str, ...]:
    """Every frequent part of speech."""
    return tuple(sorted(tag for tag, number in corpus.tags.items() if number >= LEAST and tag not in SKIPPED))


def scarce(corpus: Corpus) -> dict[str, int]:
    """The other parts of speech, with how often they occur."""
    return {tag: number for tag, number in sorted(corpus.tags.items()) if number < LEAST and tag not in SKIPPED}


def sieve(view: View, name: str) -> Sieve:
    """Keys of that part of speech, in other words than the query's."""
    kinds = torch.zeros_like(view.keys.real)
    for row, sentence in enumerate(view.keys.sentences):
        tagged = torch.tensor([word.upos == name for word in sentence.annotated.words] + [False])
        kinds[row] = tagged[view.keys.words[row]]
    other = view.queries.words[:, :, None] != view.keys.words[:, None, :]
    return kinds[:, None, :] & other & view.queries.ordinary[:, :, None]
