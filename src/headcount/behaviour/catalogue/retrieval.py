from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from headcount.behaviour.base import Corpus, ProbeRole, RoleInfo, Sieve, View, make_sequence
from headcount.behaviour.random_sequences import draw_tokens, start_tokens
from headcount.models.observe import evaluating
from headcount.models.state import forward

N_SEQUENCES, BEFORE, NEEDLE, AFTER, CUE = 64, 8, 8, 12, 3
"""How many sequences; how many tokens stand before the needle, in it and after it, and how many of it are repeated as a cue."""


@dataclass(frozen=True)
class Retrieval(ProbeRole):
    """Retrieval: while the model copies a needle out of its context, attends to the needle's token that it writes.

    Wu et al. 2024, "Retrieval Head Mechanistically Explains Long-Context Factuality". A random needle is planted among random tokens, its beginning
    is repeated at the end, and the model continues greedily; only tokens that it really copies count. Tested on sequences of its own, in decoders.
    """

    info = RoleInfo(source="Wu et al. 2024")

    def probe(self, model: nn.Module, seed: int) -> Corpus | None:
        """Returns contexts with a needle, the cue, and the model's continuation."""
        start = start_tokens(model, BEFORE + NEEDLE + AFTER + NEEDLE)
        tokens = draw_tokens(model, (N_SEQUENCES, BEFORE + NEEDLE + AFTER), seed) if start is not None else None
        if tokens is None or start is None or not hasattr(model, "generate"):
            return None
        needle = tokens[:, BEFORE : BEFORE + NEEDLE]
        front = torch.tensor(start, dtype=torch.long).expand(N_SEQUENCES, len(start))
        sequences = _continue_greedily(model, torch.cat([front, tokens, needle[:, :CUE]], 1), NEEDLE - CUE)
        return Corpus(tuple(make_sequence(row, [True] * len(start)) for row in sequences.tolist()))

    def sieve(self, view: View) -> Sieve:
        """Returns, for every position that wrote a token of the needle, the position of that token in the needle."""
        n_written = NEEDLE - CUE
        first_written = len(view.corpus.sentences[0].ids) - n_written
        needle = first_written - CUE - AFTER - NEEDLE
        sieve = torch.zeros(len(view.queries.sentences), view.queries.ids.shape[1], view.keys.ids.shape[1], dtype=torch.bool)
        for step in range(n_written):
            key = needle + CUE + step
            is_copy = view.keys.ids[:, key] == view.queries.ids[:, first_written + step]
            sieve[:, first_written + step - 1, key] = is_copy
        return sieve


def _continue_greedily(model: Any, prompts: torch.Tensor, n_tokens: int) -> torch.Tensor:
    """Returns the prompts with the tokens that the model finds most probable after them."""
    tokens = prompts.to(next(model.parameters()).device)
    with evaluating(model):
        for _ in range(n_tokens):
            logits = forward(model, {"input_ids": tokens, "attention_mask": torch.ones_like(tokens)}).logits
            tokens = torch.cat([tokens, logits[:, -1].argmax(-1, keepdim=True)], 1)
    return tokens.cpu()
