"""The studies of single functions of heads, on planted heads: relations and rare words; and counts against chance."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from planting import VOCABULARY, Row, annotated, offset, planted, tokenizer_of
from scipy import stats

import headcount as hc
from headcount.behaviour.base import Corpus
from headcount.behaviour.corpus import read_corpus
from headcount.core.errors import DataError
from headcount.core.figure import BarFigure, HeatMap
from headcount.core.stats.chance import count_heads_with_several_marks, hypergeometric_chance, rank_correlation
from headcount.models.tiny.build import tiny_model
from headcount.studies._measure.roles_importance import draw_permutations_within_layers, permutation_interval_of_difference

TOKENIZER = tokenizer_of("[CLS] $A [SEP]")
FREQUENT = 10


def rarest_token(ids: Sequence[int], corpus: Corpus) -> int:
    return min(ids[1:-1], key=lambda token: (corpus.token_counts[token], token))


def test_a_planted_rare_word_head_is_found_with_its_ranks() -> None:
    model, texts = tiny_model("bert", vocab_size=VOCABULARY), annotated(120)
    corpus = read_corpus(model, texts, TOKENIZER)

    def attend_rarest(row: Row) -> list[tuple[int, int]]:
        rarest = rarest_token(row.ids, corpus)
        return [(query, key) for query in range(len(row.ids)) for key, token in enumerate(row.ids) if token == rarest]

    with planted(model, {"L1H2": attend_rarest, "L0H1": offset(-1)}, corpus):
        result = hc.study(f"rare-words(frequent={FREQUENT})", model, text=texts, tokenizer=TOKENIZER, progress=False)
    best = {row["tokens"]: row for row in result.table("best").records()}
    assert best["rarest"]["best head"] == "L1H2" and best["rarest"]["share of queries"] == pytest.approx(1)
    assert best["rarest"]["of a random key"] < 0.5 and best["two rarest"]["share of queries"] == pytest.approx(1)
    rows = {row["head"]: [value for name, value in row.items() if name.startswith("rank ")] for row in result.table("ranks").records()}
    assert rows["L1H2"][0] == pytest.approx(1) and all(sum(shares) == pytest.approx(1) for shares in rows.values())
    assert rows["L1H0"] == pytest.approx(rows["random key"], abs=1e-6), "a uniform head attends as a random key"
    ranks, heads = result.figure("ranks"), result.figure("heads")
    assert isinstance(ranks, BarFigure) and list(ranks.bars[0].values) == rows["L1H2"] and ranks.categories[-1] == "9+"
    assert isinstance(heads, HeatMap) and heads.values[1][2] == rows["L1H2"][0] and heads.marks[1][2] and sum(map(sum, heads.marks)) == 1
    with pytest.raises(DataError, match="outside the 100000 most frequent"):
        hc.study("rare-words(frequent=100000)", model, text=texts, tokenizer=TOKENIZER, progress=False)


def test_a_planted_subject_head_is_the_best_of_its_relation() -> None:
    model, texts = tiny_model("bert", vocab_size=VOCABULARY), annotated(120)
    corpus = read_corpus(model, texts, TOKENIZER)
    relation = next(name for name, number in corpus.relation_counts.most_common() if number >= 60 and name not in ("root", "punct"))

    def attend_governor(row: Row) -> list[tuple[int, int]]:
        sentence = row.source
        assert sentence is not None
        pairs = []
        for number, word in enumerate(sentence.annotated.words):
            if word.relation == relation and word.head is not None and word.head >= 0:
                pairs += [(query, key) for query in sentence.pieces(number) for key in sentence.pieces(word.head)]
        return pairs

    with planted(model, {"L1H3": attend_governor}, corpus):
        result = hc.study("relation-accuracy", model, text=texts, tokenizer=TOKENIZER, progress=False)
    rows = result.table("rows").records()
    row = next(row for row in rows if row["relation"] == relation and row["direction"] == "dependent → governor")
    assert (
        row["best head"] == "L1H3" and row["accuracy"] == pytest.approx(1) and row["difference"] == pytest.approx(1 - row["its accuracy"])
    )
    assert row["tokens"] < corpus.relation_counts[relation], "measured on one half"
    figure = result.figure("relations")
    assert isinstance(figure, BarFigure) and figure.bars[0].values == tuple(row["accuracy"] for row in rows)
    plain = [text.text for text in texts]
    with pytest.raises(DataError, match="relations cannot be measured on this text"):
        hc.study("relation-accuracy", model, text=plain, tokenizer=TOKENIZER, progress=False)


def test_counts_against_chance() -> None:
    chance = hypergeometric_chance(6, 32, 8, 8)
    sample = stats.hypergeom(32, 8, 8)
    assert chance.expected == 2 and chance.p == pytest.approx(2 * sample.sf(5)) and (chance.low, chance.high) == (0, 4)
    assert hypergeometric_chance(2, 32, 8, 8).p == 1
    apart = np.zeros((2, 32), dtype=bool)
    apart[0, :16] = apart[1, 16:] = True
    number, chance = count_heads_with_several_marks(apart, seed=0)
    assert number == 0 and chance.p < 0.01 and chance.expected == pytest.approx(8, abs=0.2) and chance.low < 8 < chance.high


def test_a_trend_over_layers() -> None:
    layers = np.repeat(np.arange(4), 8)
    rng = np.random.default_rng(0)
    rho, p = rank_correlation(layers, layers + 0.1 * rng.normal(size=32), seed=0)
    assert rho == pytest.approx(stats.spearmanr(layers, layers + 0.0).statistic, abs=0.1) and p < 0.001
    p_values = [rank_correlation(layers, rng.normal(size=32), seed=seed, repeats=199)[1] for seed in range(200)]
    assert 0.01 <= np.mean(np.array(p_values) <= 0.05) <= 0.1, "a trend by chance in one of twenty"
    assert rank_correlation(layers, np.ones(32), seed=0) == (0.0, 1.0)


def test_permutations_within_layers_say_nothing_of_a_role_that_fills_layers() -> None:
    layers, has = np.repeat(np.arange(4), 8), np.arange(32) < 8
    values = np.where(has, 0.0, 5.0) + np.random.default_rng(0).normal(size=32)
    orders = draw_permutations_within_layers(np.random.default_rng(1), layers, 500)
    assert (layers[orders] == layers).all() and (np.sort(orders, axis=1) == np.arange(32)).all() and len(np.unique(orders, axis=0)) == 500
    assert (
        permutation_interval_of_difference(values, has, orders)[2] == 1
        and permutation_interval_of_difference(values, has, draw_permutations_within_layers(np.random.default_rng(2), np.zeros(32), 500))[2]
        < 0.01
    )
    spread = np.arange(32) % 8 < 2
    low, high, p = permutation_interval_of_difference(values - 3.0 * spread, spread, orders)
    assert p < 0.01 and low is not None and high is not None and low < -3 + 1 and high < 0
