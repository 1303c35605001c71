from __future__ import annotations

from dataclasses import dataclass

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

N_SEQUENCES = 64


@dataclass(frozen=True)
class Induction(ProbeRole):
    """Induction: on a random sequence that is repeated, attends to the token that came after the previous occurrence of the current one.

    Olsson et al. 2022, "In-context Learning and Induction Heads". Tested on sequences of its own, in decoders; each is 12 to 48 tokens, twice in a
    row, so that no fixed offset finds the token.
    """

    info = RoleInfo(source="Olsson et al. 2022", is_content=True)

    def probe(self, model: nn.Module, seed: int) -> Corpus | None:
        """Returns random tokens, each sequence twice in a row."""
        start = start_tokens_of_text_decoder(model)
        longest = 0 if start is None else max_tokens_after_start(model, start) // 2
        if start is None or longest < PERIODS[0]:
            return None
        periods = draw_repetition_periods(N_SEQUENCES, longest, seed)
        tokens = draw_distinct_ordinary_tokens(model, (N_SEQUENCES, max(periods)), seed)
        if tokens is None:
            return None
        rows = [row[:period] for row, period in zip(tokens.tolist(), periods, strict=True)]
        return Corpus(tuple(make_wordless_sequence([*start, *row, *row], [True] * len(start)) for row in rows))

    def sieve(self, view: View) -> Sieve:
        """Returns, for every token of the repetition, the token after its first occurrence."""
        n_front = sum(view.corpus.sentences[0].special)
        periods = torch.tensor([(len(sentence.ids) - n_front) // 2 for sentence in view.queries.sentences])[:, None]
        is_repeated = (view.queries.positions >= n_front + periods) & view.queries.real
        return is_repeated[:, :, None] & (view.distance == 1 - periods[:, :, None])
