"""Retrieval: while the model copies a needle out of its context, attends to the needle's token that it writes.

Wu et al. 2024, "Retrieval Head Mechanistically Explains Long-Context Factuality". A random needle is planted among random tokens, its beginning is
given again at the end, and the model continues by itself; only tokens that it really copies count. Tested on sequences of its own, in decoders.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from headcount.behaviour.base import About, Corpus, Sieve, View, bare
from headcount.behaviour.random_sequences import random_tokens, starts
from headcount.models.observe import evaluating
from headcount.models.state import forward

ABOUT = About(source="Wu et al. 2024")
SEQUENCES, BEFORE, NEEDLE, AFTER, CUE = 64, 8, 8, 12, 3


def probe(model: nn.Module, seed: int) -> Corpus | None:
    """Contexts with a needle, the cue, and what the model wrote after it."""
    start = starts(model, BEFORE + NEEDLE + AFTER + NEEDLE)
    drawn = random_tokens(model, (SEQUENCES, BEFORE + NEEDLE + AFTER), seed) if start is not None else None
    if drawn is None or start is None or not hasattr(model, "generate"):
        return None
    needle = drawn[:, BEFORE : BEFORE + NEEDLE]
    front = torch.tensor(start, dtype=torch.long).expand(SEQUENCES, len(start))
    prompts = torch.cat([front, drawn, needle[:, :CUE]], 1)
    written = _continued(model, prompts, NEEDLE - CUE)
    sentences = tuple(bare(row, len(start)) for row in torch.cat([prompts, written], 1).tolist())
    return Corpus(sentences, facts={"needle": len(start) + BEFORE, "written": prompts.shape[1]})


def _continued(model: Any, prompts: torch.Tensor, number: int) -> torch.Tensor:
    """What the model writes, one token after the other."""
    tokens = prompts.to(next(model.parameters()).device)
    with evaluating(model):
        for _ in range(number):
            guess = forward(model, {"input_ids": tokens, "attention_mask": torch.ones_like(tokens)}).logits[:, -1].argmax(-1, keepdim=True)
            tokens = torch.cat([tokens, guess], 1)
    return tokens[:, prompts.shape[1] :].cpu()


def sieve(view: View, _name: str) -> Sieve:
    """For every place that wrote a token of the needle, that token's place in the needle."""
    needle, written = view.corpus.facts["needle"], view.corpus.facts["written"]
    found = torch.zeros(len(view.queries.sentences), view.queries.ids.shape[1], view.keys.ids.shape[1], dtype=torch.bool)
    for step in range(NEEDLE - CUE):
        place = needle + CUE + step
        copied = view.keys.ids[:, place] == view.queries.ids[:, written + step]
        found[:, written + step - 1, place] = copied
    return found
