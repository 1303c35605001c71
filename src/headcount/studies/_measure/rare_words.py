"""Where heads attend by the frequency of tokens: the share of queries whose strongest key has each frequency rank of its sentence."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import NamedTuple

import torch

from headcount.behaviour.base import Corpus, OfferedRoles, Role, RoleInfo, Sieve, View
from headcount.behaviour.catalogue.rare import Rare
from headcount.behaviour.spec import RoleSpec
from headcount.core.errors import DataError
from headcount.core.heads import Head
from headcount.core.options import option
from headcount.core.role_table import BestHead, RoleTable
from headcount.studies._base import StudyContext
from headcount.studies._measure.role_tables import open_study_corpus
from headcount.studies._results import describe_study_run
from headcount.workflows.roles import roles_into

N_RANKS = 8
"""Frequency ranks that are told apart; the rest is one class."""


@dataclass(frozen=True)
class FrequencyRank(Role):
    """Attends to the token of one frequency rank of its sentence, 1 being the rarest; ties are settled by the token."""

    rank: int = option(help="The rank among the distinct tokens of the sentence, from the rarest", minimum=1)
    _: KW_ONLY
    frequent: int = option(500, "Sentences count whose rarest token is outside so many most frequent tokens of the text", minimum=0)
    info = RoleInfo(source="Voita et al. 2019")

    @classmethod
    def list_offered(cls, corpus: Corpus) -> OfferedRoles:
        """Returns every rank."""
        return OfferedRoles(tuple(cls(rank) for rank in range(1, N_RANKS + 1)))

    def sieve(self, view: View) -> Sieve:
        """Returns the occurrences of the token of that rank, for all ordinary queries."""
        counts, frequent_tokens = view.corpus.token_counts, view.corpus.most_frequent_tokens(self.frequent)
        is_ranked = torch.zeros_like(view.keys.real)
        for row, sentence in enumerate(view.keys.sentences):
            ordinary = {token for token, is_special in zip(sentence.ids, sentence.special, strict=True) if not is_special}
            by_count = sorted(ordinary, key=lambda token: (counts[token], token))
            if len(by_count) >= self.rank and by_count[0] not in frequent_tokens:
                is_ranked[row] = (view.keys.ids[row] == by_count[self.rank - 1]) & view.keys.ordinary[row]
        return is_ranked[:, None, :] & view.queries.ordinary[:, :, None]


@dataclass(frozen=True, slots=True)
class RareWordResult:
    """The best heads for the rarest and for one of the two rarest tokens, and for every head the share of queries by frequency rank.

    `chance` are the shares of a random key. Shares of a head add up to 1 with those of later ranks, the last entry.
    """

    table: RoleTable
    best: Mapping[str, BestHead]
    shares: Mapping[Head, tuple[float, ...]]
    chance: tuple[float, ...]


def measure_rare_words(context: StudyContext, study_name: str, n_frequent: int, max_sentences: int | None) -> RareWordResult:
    """Measures where the heads of a study's model attend by the frequency of tokens.

    Raises:
        DataError: no sentence has a token outside the most frequent ones.
    """
    loaded = context.loaded
    describe_study_run(context, loaded, {"study": study_name, "frequent": n_frequent, "limit": context.limit})
    task = context.task if context.sources.task_name else None
    corpus = open_study_corpus(context, loaded, task, max_sentences)
    rare = [Rare(number, frequent=n_frequent) for number in ("1", "2")]
    ranks = [FrequencyRank(rank, frequent=n_frequent) for rank in range(1, N_RANKS + 1)]
    spec = RoleSpec((*rare, *ranks), batch_size=context.batch_size, seed=context.seed, swaps=0)
    with context.progress("testing roles") as advance:
        table = roles_into(context.run, loaded.model, corpus, spec, progress=advance)
    best = {
        label: row for label, role in zip(("rarest", "two rarest"), rare, strict=True) for row in table.best_heads if row.role == str(role)
    }
    if not best:
        raise DataError(
            f"too few sentences have a token outside the {n_frequent} most frequent of this text ({len(corpus.token_counts)} different tokens); "
            "use a larger text, or a smaller number of frequent tokens"
        )
    shares = _tabulate_shares_by_frequency_rank(table, [str(rank) for rank in ranks])
    return RareWordResult(table, best, shares.of_heads, shares.of_random_key)


class RankShares(NamedTuple):
    """The shares of queries by frequency rank of every head, and those of a random key."""

    of_heads: dict[Head, tuple[float, ...]]
    of_random_key: tuple[float, ...]


def _tabulate_shares_by_frequency_rank(table: RoleTable, rank_role_names: Sequence[str]) -> RankShares:
    """Returns the share of queries by frequency rank of every head, and of a random key."""
    rows = {(row.head, row.role): row for row in table}
    shares, chances = {}, []
    for head in table.heads:
        of_head = [rows.get((head, role)) for role in rank_role_names]
        if of_head[0] is None:
            continue
        n_queries = of_head[0].n_tokens
        hits, random_hits = (
            [0.0 if r is None else getattr(r, name) * r.n_tokens / n_queries for r in of_head] for name in ("accuracy", "chance")
        )
        shares[head] = (*hits, max(0.0, 1 - sum(hits)))
        chances.append((*random_hits, max(0.0, 1 - sum(random_hits))))
    means = tuple(sum(column) / len(chances) for column in zip(*chances, strict=True))
    return RankShares(shares, means)
