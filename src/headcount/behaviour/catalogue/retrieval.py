from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from headcount.behaviour.base import Corpus, ProbeRole, RoleInfo, Sieve, View, make_wordless_sequence
from headcount.behaviour.random_sequences import (
    PERIODS,
    draw_distinct_ordinary_tokens,
    draw_repetition_periods,
    max_tokens_after_start,
    start_tokens_of_text_decoder,
)
from headcount.models.observe import evaluating
from headcount.models.state import forward_preserving_state

N_SEQUENCES, NEEDLE, CUE = 64, 8, 3
"""How many sequences; how many tokens the needle has, and how many of it are repeated as a cue."""


@dataclass(frozen=True)
class Retrieval(ProbeRole):
    """Retrieval: while the model copies a needle out of its context, attends to the needle's token that it writes.

    Wu et al. 2024, "Retrieval Head Mechanistically Explains Long-Context Factuality". A random needle is planted among random tokens, its beginning
    is repeated at the end, and the model continues greedily; only tokens that it really copies count. Tested on sequences of its own, in decoders;
    the needle stands 12 to 48 tokens before its copy, so that no fixed offset finds its tokens.
    """

    info = RoleInfo(source="Wu et al. 2024", is_content=True)

    def probe(self, model: nn.Module, seed: int) -> Corpus | None:
        """Returns contexts with a needle, the cue, and the model's continuation."""
        start = start_tokens_of_text_decoder(model)
        longest = 0 if start is None else max_tokens_after_start(model, start) - NEEDLE
        if start is None or longest < PERIODS[0] or not hasattr(model, "generate"):
            return None
        periods = torch.tensor(draw_repetition_periods(N_SEQUENCES, longest, seed))[:, None]
        tokens = draw_distinct_ordinary_tokens(model, (N_SEQUENCES, min(PERIODS[1], longest)), seed)
        if tokens is None:
            return None
        cue = tokens.gather(1, tokens.shape[1] - periods + torch.arange(CUE))
        front = torch.tensor(start, dtype=torch.long).expand(N_SEQUENCES, len(start))
        sequences = _append_greedy_continuations(model, torch.cat([front, tokens, cue], 1), NEEDLE - CUE)
        return Corpus(tuple(make_wordless_sequence(row, [True] * len(start)) for row in sequences.tolist()))

    def sieve(self, view: View) -> Sieve:
        """Returns, for every position that wrote a token of the needle, the position of that token in the needle."""
        sieve = torch.zeros(len(view.queries.sentences), view.queries.ids.shape[1], view.keys.ids.shape[1], dtype=torch.bool)
        for row, sentence in enumerate(view.queries.sentences):
            copy = len(sentence.ids) - NEEDLE
            needle = sentence.ids.index(sentence.ids[copy], sum(sentence.special))  # no other token of the context is the first of the cue
            for step in range(CUE, NEEDLE):
                sieve[row, copy + step - 1, needle + step] = sentence.ids[needle + step] == sentence.ids[copy + step]
        return sieve


def _append_greedy_continuations(model: Any, prompts: torch.Tensor, n_tokens: int) -> torch.Tensor:
    """Returns the prompts with the tokens that the model finds most probable after them."""
    tokens = prompts.to(next(model.parameters()).device)
    with evaluating(model):
        for _ in range(n_tokens):
            logits = forward_preserving_state(model, {"input_ids": tokens, "attention_mask": torch.ones_like(tokens)}).logits
            tokens = torch.cat([tokens, logits[:, -1].argmax(-1, keepdim=True)], 1)
    return tokens.cpu()
