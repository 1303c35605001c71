from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import Literal

import torch

from headcount.behaviour.base import Corpus, OfferedRoles, Role, RoleInfo, Sieve, View
from headcount.core.options import option


@dataclass(frozen=True)
class Rare(Role):
    """Rare word: attends to the least frequent token of the sentence (rare:1), or to one of the two least frequent (rare:2).

    Only sentences whose rarest token is outside the 500 most frequent of the text count; the rarest token itself is no query. Ties count as rarest.
    """

    n_tokens: Literal["1", "2"] = option(help="How many of the least frequent tokens count")
    _: KW_ONLY
    frequent: int = option(500, "Sentences count whose rarest token is outside so many most frequent tokens of the text", minimum=0)
    info = RoleInfo(source="Voita et al. 2019", is_content=True)

    @classmethod
    def list_offered(cls, corpus: Corpus) -> OfferedRoles:
        """Returns both roles."""
        return OfferedRoles((cls("1"), cls("2")))

    def sieve(self, view: View) -> Sieve:
        """Returns the rarest tokens of each sentence."""
        counts, frequent_tokens = view.corpus.token_counts, view.corpus.most_frequent_tokens(self.frequent)
        is_rare = torch.zeros_like(view.keys.real)
        for row, sentence in enumerate(view.keys.sentences):
            ordinary = {token for token, is_special in zip(sentence.ids, sentence.special, strict=True) if not is_special}
            by_count = sorted(ordinary, key=lambda token: (counts[token], token))
            if by_count and by_count[0] not in frequent_tokens:
                most = counts[by_count[min(int(self.n_tokens), len(by_count)) - 1]]
                rarest = torch.tensor([token for token in by_count if counts[token] <= most])
                is_rare[row] = torch.isin(view.keys.ids[row], rarest) & view.keys.ordinary[row]
        queries = view.queries.ordinary & ~is_rare if view.queries is view.keys else view.queries.ordinary
        return is_rare[:, None, :] & queries[:, :, None]
