from __future__ import annotations

from dataclasses import dataclass

from torch import nn

from headcount.behaviour.base import Corpus, ProbeRole, RoleInfo, Sieve, View, make_sequence
from headcount.behaviour.random_sequences import draw_tokens, start_tokens

N_SEQUENCES, LENGTH = 64, 24


@dataclass(frozen=True)
class Induction(ProbeRole):
    """Induction: on a random sequence that is repeated, attends to the token that came after the previous occurrence of the current one.

    Olsson et al. 2022, "In-context Learning and Induction Heads". Tested on sequences of its own, in decoders.
    """

    info = RoleInfo(source="Olsson et al. 2022")

    def probe(self, model: nn.Module, seed: int) -> Corpus | None:
        """Returns random tokens, each sequence twice in a row."""
        start = start_tokens(model, 2 * LENGTH)
        tokens = draw_tokens(model, (N_SEQUENCES, LENGTH), seed) if start is not None else None
        if tokens is None or start is None:
            return None
        return Corpus(tuple(make_sequence([*start, *row, *row], [True] * len(start)) for row in tokens.tolist()))

    def sieve(self, view: View) -> Sieve:
        """Returns, for every token of the repetition, the token after its first occurrence."""
        n_front = sum(view.corpus.sentences[0].special)
        is_repeated = (view.queries.positions >= n_front + LENGTH)[:, None]
        sieve = is_repeated & (view.distance == 1 - LENGTH)
        return sieve[None].expand(len(view.queries.sentences), *sieve.shape)
