"""The distance twin: heads of distance earn no role of content, a planted one does, the standard error is right. No model."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
import role_coverage as coverage
import torch
from planting import VOCABULARY, Row, annotated, offset, planted, tokenizer_of

import headcount as hc
from headcount.behaviour.base import View
from headcount.behaviour.catalogue.syntax import Syntax
from headcount.behaviour.corpus import read_corpus
from headcount.behaviour.pairs import MaskLayout
from headcount.behaviour.twin import MIN_PAIRS, jackknife_stderr
from headcount.core.errors import ArtifactError
from headcount.core.role_table import RoleTable
from headcount.core.twin_score import excess_interval, excess_p_values
from headcount.data.text.aligned import Aligned
from headcount.models.tiny.build import tiny_model

Sees = Callable[[int], np.ndarray]
MASKS: dict[str, Sees] = {
    "full": lambda n: np.ones((n, n), dtype=bool),
    "causal": lambda n: np.tri(n, dtype=bool),
    "window": lambda n: np.abs(np.arange(n)[:, None] - np.arange(n)) <= 6,
    "causal window": lambda n: np.tri(n, dtype=bool) & ~np.tri(n, k=-6, dtype=bool),
}


@cache
def encoder() -> Any:
    return tiny_model("bert", vocab_size=VOCABULARY)


def sentences(number: int, seed: int = 0, lengths: tuple[int, int] = (5, 40)) -> list[Aligned]:
    random = np.random.default_rng(seed)
    return [coverage.draw_sentence(random, lengths) for _ in range(number)]


def distance(sentence: Aligned, random: np.random.Generator) -> np.ndarray:
    """A head of distance without noise, to which special tokens are equally near everywhere."""
    del random
    offset = np.arange(len(sentence.ids))[None, :] - np.arange(len(sentence.ids))[:, None]
    return np.where(sentence.special, 0.2, np.exp(-0.5 * ((offset + 1) / 1.5) ** 2) + 0.01)


def test_heads_of_distance_have_no_role_of_content_and_a_planted_one_is_found() -> None:
    rows = [experiment.run() for experiment in coverage.role_experiments(2, n_swaps=5)]
    assert len(rows) == len(coverage.DISTANCE_HEADS) + 2
    assert [row.rate for row in rows] == [0, 0, 0, 0, 0, 1, 0]
    assert all(row.holds for row in rows)


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("lengths", [(5, 9), (5, 40)])
def test_the_twin_of_a_head_of_distance_is_that_head_at_every_border(mask: str, lengths: tuple[int, int]) -> None:
    made = coverage.simulate(sentences(150, lengths=lengths), [distance], np.random.default_rng(0), sees=MASKS[mask])
    testable = [compared for compared in made.comparisons if np.isfinite(compared.excess).all()]
    assert len(testable) > len(made.comparisons) / 2
    for compared in testable:
        assert abs(compared.excess[0]) < 1e-4
        assert compared.twin_bias == pytest.approx(compared.bias, rel=1e-3)


def test_excess_and_bias_are_those_of_their_definition() -> None:
    """Summed by hand over the pairs at kept offsets; the twin of a head of distance is the head."""
    text, role = sentences(6, lengths=(6, 9)), Syntax("nsubj")
    head = coverage.on_governor(0.4, distance)
    (compared,) = coverage.simulate(text, [head], np.random.default_rng(0), roles=[role]).comparisons
    outside: dict[int, int] = {}
    for sentence in text:
        n = len(sentence.annotated.words)
        nsubj = {(i, word.head) for i, word in enumerate(sentence.annotated.words) if word.relation == "nsubj" and word.head != -1}
        for query in range(n):
            for key in range(n):
                outside[key - query] = outside.get(key - query, 0) + ((query, key) not in nsubj)
    mass, bias, shown, n_pairs, n_kept = 0.0, 0.0, 0, 0, 0
    for sentence in text:
        attention = head(sentence, np.random.default_rng(0))
        attention /= attention.sum(-1, keepdims=True)
        pairs = [(i, w.head) for i, w in enumerate(sentence.annotated.words) if w.relation == "nsubj" and w.head not in (-1, None)]
        remaining = [(query, key) for query, key in pairs if outside[key - query] >= MIN_PAIRS]
        n_pairs, n_kept, shown = n_pairs + len(pairs), n_kept + len(remaining), shown + bool(pairs)
        on_sieve = sum(attention[query + 1, key + 1] for query, key in remaining) / max(len(pairs), 1)
        mass, bias = mass + on_sieve, bias + on_sieve * len(sentence.ids)
    assert (compared.n_pairs, compared.n_kept) == (n_pairs, n_kept)
    assert n_kept < n_pairs, "some offsets are dropped"
    assert compared.bias[0] == pytest.approx(bias / shown)
    assert 0 < compared.excess[0] < mass / shown and compared.twin_bias[0] < compared.bias[0]


def test_a_role_at_rare_offsets_is_not_testable() -> None:
    text = sentences(4, lengths=(5, 8))
    (compared,) = coverage.simulate(text, [distance], np.random.default_rng(0), roles=[Syntax("nsubj")]).comparisons
    assert compared.n_pairs > 0 and compared.n_kept < compared.n_pairs / 2
    assert np.isnan(compared.excess).all() and np.isnan(compared.twin_bias).all()


def test_the_standard_error_is_the_spread_over_texts() -> None:
    heads = [coverage.previous_token, coverage.at_distance(0, 1.5), coverage.on_governor(0.3, coverage.at_distance(0, 3))]
    roles = [Syntax(relation) for relation in coverage.RELATIONS]
    excess, stderr = [], []
    for draw in range(40):
        comparisons = coverage.simulate(sentences(120, draw, (5, 30)), heads, np.random.default_rng(draw), roles=roles).comparisons
        excess.append([compared.excess for compared in comparisons])
        stderr.append([compared.stderr for compared in comparisons])
    ratio = np.array(excess).std(0, ddof=1) / np.array(stderr).mean(0)  # of relations that are alike
    assert ((ratio.mean(0) > 0.85) & (ratio.mean(0) < 1.15)).all()


def excess_of_random_labels(n_sentences: int, n_labelings: int, heads: Sequence[coverage.Attention]) -> np.ndarray:
    """Returns the excess mass of heads on relations that are dealt out at random, on the same sentences: [labelings, roles, heads]."""
    random = np.random.default_rng(0)
    sentences = [coverage.draw_sentence(random) for _ in range(n_sentences)]
    roles = tuple(Syntax(relation) for relation in coverage.RELATIONS)
    by_text = {sentence.annotated.text: [head(sentence, random) for head in heads] for sentence in sentences}

    def repeat(number: int) -> coverage.Attention:
        return lambda sentence, _: by_text[sentence.annotated.text][number].copy()

    excess = []
    for _ in range(n_labelings):
        relabelled = [relabel_at_random(sentence, random) for sentence in sentences]
        simulated = coverage.simulate(relabelled, [repeat(number) for number in range(len(heads))], random, roles=roles)
        excess.append([comparison.excess for comparison in simulated.comparisons])
    return np.array(excess)


def relabel_at_random(sentence: Aligned, random: np.random.Generator) -> Aligned:
    """Returns a sentence in which each word depends on a random other one, by a random relation."""
    n = len(sentence.annotated.words)
    heads = (np.arange(n) + random.integers(1, n, n)) % n
    words = tuple(
        replace(word, head=int(head), relation=str(relation))
        for word, head, relation in zip(sentence.annotated.words, heads, random.choice(coverage.RELATIONS, n), strict=True)
    )
    return replace(sentence, annotated=replace(sentence.annotated, words=words))


def test_random_labels_have_no_excess_mass() -> None:
    heads = [coverage.previous_token, coverage.on_governor(0.3, coverage.at_distance(0, 3))]
    excess = excess_of_random_labels(40, 200, heads)
    assert np.isfinite(excess).mean() > 0.5
    assert (np.abs(np.nanmean(excess, axis=(0, 1))) < 0.01).all()


def test_p_value_and_interval_are_of_one_test() -> None:
    excess, stderr, folds = np.array([0.2, 0.05, np.nan, 0.3]), np.array([0.04, 0.01, np.nan, 0.0]), np.array([20, 20, 20, 20])
    low, high = excess_interval(excess, stderr, folds, 0.9)
    assert (high + low)[:2] / 2 == pytest.approx(excess[:2])
    assert excess_p_values(excess, stderr, folds, float(low[0]))[0] == pytest.approx(0.05)
    assert excess_p_values(excess, stderr, folds, 0.05).tolist()[1:] == [0.5, 1.0, 0.0]


def test_the_jackknife_of_a_mean_is_its_standard_error() -> None:
    """For folds of one value each; folds of unequal size weigh as Busing et al. 1999."""
    values = np.random.default_rng(0).normal(size=(30, 2))
    without = (values.sum(0) - values) / 29
    expected = values.std(0, ddof=1) / np.sqrt(30)
    assert jackknife_stderr(values.mean(0), without, np.ones(30)) == pytest.approx(expected)


def test_patterns_are_tested_as_roles_of_content() -> None:
    """Two left of a comma, by a rule and by matrices; a head that does it has the role, one that looks two to the left everywhere has not."""
    corpus = read_corpus(encoder(), annotated(120), tokenizer_of("[CLS] $A [SEP]"))
    commas = [[number for number, word in enumerate(s.annotated.words) if word.form == ","] for s in corpus.sentences]
    matrices = []
    for sentence, of_sentence in zip(corpus.sentences, commas, strict=True):
        matrix = np.zeros((len(sentence.annotated.words),) * 2, dtype=bool)
        for comma in of_sentence:
            if comma >= 2:
                matrix[comma, comma - 2] = True
        matrices.append(matrix)

    def rule(view: View) -> torch.Tensor:
        is_comma = view.queries.ids == corpus.sentences[0].ids[corpus.sentences[0].by_word[commas[0][0]][0]]
        return is_comma[:, :, None] & (view.distance == -2)[None] & view.ordinary

    def two_left_of_commas(row: Row) -> list[tuple[int, int]]:
        assert row.source is not None
        return [
            (q, q - 2)
            for q, word in enumerate(row.source.words)
            if word is not None and row.source.annotated.words[word].form == "," and q > 2
        ]

    with planted(encoder(), {"L0H0": two_left_of_commas, "L0H1": offset(-2)}, corpus):
        table = hc.roles(encoder(), corpus, only="offset", patterns={"two left of a comma": rule, "in matrices": matrices}, swaps=3)
    labels = {str(head): set(roles) for head, roles in table.labels().items()}
    assert {"two left of a comma", "in matrices"} <= labels["L0H0"]
    assert not {"two left of a comma", "in matrices"} & labels["L0H1"]
    by_head = {(str(row.head), row.role): row for row in table}
    assert by_head["L0H0", "two left of a comma"].is_content and not by_head["L0H0", "offset:-2"].is_content
    assert (by_head["L0H1", "two left of a comma"].explained_by_distance or 0) > 0.95
    assert table.swapped is not None and table.swapped.n_swaps == 3


@pytest.mark.parametrize(
    ("patterns", "message"),
    [
        ({"x": 7}, "must be a function|must be a mapping"),
        ({"syntax:mine": lambda view: view.ordinary}, "has the name of a role"),
        ({"x": lambda view: view.distance}, "must return booleans"),
        ({"x": [np.zeros((3, 3), dtype=bool)]}, "1 matrices for 4 sentences"),
        ({"x": [np.zeros((2, 2), dtype=bool)] * 4}, "booleans of 1"),
    ],
)
def test_a_wrong_pattern_is_told(patterns: Any, message: str) -> None:
    corpus = read_corpus(encoder(), annotated(4), tokenizer_of("[CLS] $A [SEP]"))
    with pytest.raises(hc.HeadcountError, match=message):
        hc.roles(encoder(), corpus, only="local", patterns=patterns)


def test_tables_know_their_twins_after_storage() -> None:
    corpus = read_corpus(encoder(), annotated(40), tokenizer_of("[CLS] $A [SEP]"))
    table = hc.roles(encoder(), corpus, only=["offset", "same", "local"], swaps=2)
    restored = RoleTable.from_dict(json.loads(json.dumps(table.to_dict())))
    assert restored == table and restored.curves and restored.nested
    assert ("offset:-1", "local") in table.nested and ("local", "offset:-1") not in table.nested
    assert table.relabel("pande2021").relabel("beyond-distance") == replace(
        table, rows=table.relabel("pande2021").relabel("beyond-distance").rows
    )
    strict = table.relabel("beyond-distance(excess=0.9)")
    assert not any(row.has_role for row in strict if row.is_content)
    old = replace(table, rows=tuple(replace(row, is_content=None) for row in table.rows))
    with pytest.raises(ArtifactError, match="measure them again"):
        old.relabel("beyond-distance")


def test_roles_of_nested_sieves_are_one_kind() -> None:
    table = RoleTable((), (), nested=(("sink", "delimiter:any"), ("delimiter:first", "sink"), ("sink", "delimiter:first"), ("a", "b")))
    assert table.kinds(["sink", "delimiter:any"]) == ["delimiter:any"]
    assert table.kinds(["sink", "delimiter:first"]) == ["sink"], "of identical sieves the first"
    assert table.kinds(["a", "offset:-1"]) == ["a", "offset:-1"]


def test_a_mask_that_is_not_one_of_positions_leaves_no_twin(monkeypatch: pytest.MonkeyPatch) -> None:
    """Such heads keep their bias; the note says why there is no label."""
    corpus = read_corpus(encoder(), annotated(40), tokenizer_of("[CLS] $A [SEP]"))
    monkeypatch.setattr(MaskLayout, "ordinary_queries_match_mask", lambda *_: False)
    table = hc.roles(encoder(), corpus, only=["same", "offset:-1"], swaps=2)
    rows = [row for row in table if row.role == "same"]
    assert rows and all(row.excess is None and "no distance twin can be fitted" in row.note and not row.has_role for row in rows)
    assert all(row.bias > 0 for row in rows) and table.swapped is None and table.curves == ()
