"""Heads of equal score are ranked by a hash of seed and address, never by where they stand in the model."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from headcount.core.heads import Head, hashed_tie_ranks
from headcount.core.plan import Plan
from headcount.core.scores import Scores
from headcount.core.stats.samples import Samples
from headcount.importance.rankings import rank_heads

HEADS = tuple(Head("", layer, index) for layer in range(12) for index in range(12))
EQUAL = Scores(HEADS, (1.0,) * len(HEADS))


def test_equal_heads_go_from_everywhere() -> None:
    layers = [head.layer for head in Plan.keep_top(EQUAL, 72).removed]
    assert len(set(layers)) == 12 and 4 < np.mean(layers) < 7
    assert abs(np.corrcoef([HEADS.index(head) for head in EQUAL.ranking()], np.arange(144))[0, 1]) < 0.25


def test_the_order_follows_seed_and_address_alone() -> None:
    assert EQUAL.ranking() == replace(EQUAL).ranking() != replace(EQUAL, seed=1).ranking()
    backwards = Scores(HEADS[::-1], EQUAL.values)
    assert backwards.ranking() == EQUAL.ranking()
    fewer = Scores(HEADS[::2], EQUAL.values[::2])
    assert fewer.ranking() == [head for head in EQUAL.ranking() if head in fewer.heads]
    assert sorted(hashed_tie_ranks(HEADS)) == list(range(144))


def test_every_ranking_breaks_ties_alike() -> None:
    values = tuple(float(place % 3) for place in range(144))
    for higher in (True, False):
        scores = replace(EQUAL, values=values, higher_is_keep=higher)
        ranks = {row.head: row.rank for row in rank_heads(scores)}
        assert sorted(HEADS, key=ranks.__getitem__) == scores.ranking()
        removed_heads = set(Plan.keep_top(scores, 100).removed)
        assert removed_heads == set(scores.ranking()[100:])


def test_heads_that_tie_share_all_ranks() -> None:
    scores = replace(EQUAL, samples=Samples(np.ones((8, 144)), np.ones((8, 1)), 8), n_examples=8, stderr=(0.0,) * 144)
    rows = rank_heads(scores, k=36, repeats=50)
    assert {(row.rank_low, row.rank_high, row.is_lowest) for row in rows} == {(1, 144, False)}
    assert {row.head for row in rows if row.rank > 108} == set(scores.ranking()[-36:])
