"""The test of roles over sentences, without a model: scipy as oracle, error rates under planted nulls, tables by hand."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from scipy import stats

from headcount.behaviour.bias_test import bias_above_tau_p_values
from headcount.behaviour.definitions.pande2021 import Pande2021
from headcount.behaviour.test import RoleTotals, build_role_scores, run_bias_test, score_roles
from headcount.core.errors import ArtifactError, DataError
from headcount.core.heads import Head
from headcount.core.role_table import BestHead, RoleScore, RoleTable
from headcount.core.stats.significance import adjust_p_values

TAU, ALPHA = 3.0, 0.05


def totals(bias: np.ndarray, *, tokens: Any = 1.0, pieces: int = 1, **measured: Any) -> RoleTotals:
    """Totals of biases [sentences, heads, roles]; heads in blocks of two; the rest of what is measured is made up."""
    n, heads, roles = bias.shape
    kinds = measured.pop("positional", ()), measured.pop("legacy", ())
    role_totals = RoleTotals([Head("", h // 2, h % 2) for h in range(heads)], [f"role:{r}" for r in range(roles)], *kinds)
    complete = {
        "bias": bias,
        "half": np.arange(n) % 2,
        "tokens": np.broadcast_to(tokens, bias.shape),
        "hits": np.zeros(bias.shape),
        "maximum": np.full(bias.shape, 10.0),
        "offsets": np.zeros((n, (heads + 1) // 2, 33, roles)),
        "chance": np.zeros((n, (heads + 1) // 2, roles)),
        "level": (np.broadcast_to(tokens, bias.shape)[:, ::2] > 0).astype(float),
        **measured,
    }
    for part in np.array_split(np.arange(n), pieces):
        role_totals.add_sentences({name: value[part] for name, value in complete.items()})
    return role_totals


def labelled(parts: list[RoleTotals], **options: Any) -> list[RoleScore]:
    """Rows with the labels of the definition, corrected over heads and roles by default."""
    definition = Pande2021(**{"correct": "bh", **options})
    return list(definition.relabel(RoleTable(tuple(score_roles(parts)), ())).rows)


def results(bias: np.ndarray, **options: Any) -> list[RoleScore]:
    return labelled([totals(bias)], **options)


def test_p_values_of_the_plain_test_are_those_of_scipy() -> None:
    rng = np.random.default_rng(0)
    bias = rng.gamma(2.0, 1.6, size=(400, 6, 5)) * rng.uniform(0.6, 1.4, size=(6, 5))
    has = rng.random((400, 6, 5)) < rng.uniform(0.02, 1, size=(6, 5))
    made = run_bias_test(totals(bias, tokens=has, pieces=7), TAU, level=0.95, seed=0)
    assert len(made.columns) == 30
    for i, column in enumerate(made.columns):
        values = bias.reshape(400, -1)[has.reshape(400, -1)[:, column], column]
        oracle = stats.ttest_1samp(values, TAU, alternative="greater")
        assert made.p_t[i] == pytest.approx(oracle.pvalue, rel=1e-9)
        assert made.bias[i] == pytest.approx(values.mean(), rel=1e-12)


def test_without_skewness_the_test_is_the_plain_one() -> None:
    """Every deviation comes with both signs, so that p and interval are scipy's to the last digits; 300 sentences prove enough."""
    rng = np.random.default_rng(11)
    gaps = rng.normal(0, 1, size=(150, 4, 3))
    bias = np.concatenate([gaps, -gaps]) + rng.uniform(2.9, 3.3, size=(4, 3))
    made = run_bias_test(totals(bias, pieces=5), TAU, level=0.95, seed=0)
    assert made.p == pytest.approx(made.p_t, rel=1e-9)
    for i, values in enumerate(bias.reshape(300, -1).T):
        assert made.p[i] == pytest.approx(stats.ttest_1samp(values, TAU, alternative="greater").pvalue, rel=1e-9)
        assert (made.low[i], made.high[i]) == pytest.approx(tuple(stats.ttest_1samp(values, TAU).confidence_interval(0.95)), rel=1e-9)


@pytest.mark.parametrize("n", [10, 60, 700])
@pytest.mark.parametrize("kind", ["normal", "gamma", "left", "ceiling"])
def test_the_interval_is_that_of_the_test(kind: str, n: int) -> None:
    """At τ = its lower end p is half of what the level leaves over, with and without spread, whichever part of p decides."""
    bias = 1.5 * np.abs(spread(np.random.default_rng(12), (n, 6, 2), kind))
    bias[:, 0, 0] = 4.5
    summed = totals(bias)
    made, lean = run_bias_test(summed, TAU, level=0.9, seed=0), summed.skewness.value()
    for i, low in enumerate(made.low):
        at = [column[i : i + 1] for column in (made.bias, made.stderr, np.full(12, float(n)), lean)]
        assert bias_above_tau_p_values(*at, tau=float(low))[0].item() == pytest.approx(0.05, rel=1e-6)
    assert (made.low < made.bias).all() and (made.high >= made.bias - 0.2).all()


def test_roles_in_fewer_than_two_sentences_are_not_tested() -> None:
    bias = np.ones((5, 2, 2))
    has = np.zeros((5, 2, 2))
    has[0, 0, 0] = has[:2, 1, 1] = 1
    assert run_bias_test(totals(bias, tokens=has), TAU, level=0.95, seed=0).columns.tolist() == [3]
    assert len(run_bias_test(totals(bias, tokens=0 * has), TAU, level=0.95, seed=0).columns) == 0


@pytest.mark.parametrize("n", [2, 9])
def test_equal_sentences_prove_what_their_number_allows(n: int) -> None:
    """All at 5, or at 5 and at 0 in two of five sentences, mean 3: n draws miss the zeros with probability (3/5)^n, and no test can be surer."""
    bias = run_bias_test(totals(np.broadcast_to([[[5.0, 3.0, 1.0, 0.0]]], (n, 2, 4)).copy()), TAU, level=0.95, seed=0)
    assert bias.p == pytest.approx([0.6**n, 1, 1, 1] * 2)
    assert bias.low[0] == pytest.approx(5 * 0.025 ** (1 / n))
    shaken = run_bias_test(totals(5 + 1e-9 * np.random.default_rng(0).normal(size=(n, 1, 1))), TAU, level=0.95, seed=0)
    assert shaken.p[0] == pytest.approx(0.6**n / 2)  # half of the draws that miss the zeros have a lower mean
    free = run_bias_test(totals(np.array([0.0, 1.0]).repeat(n).reshape(n, 1, 2)), 0.0, level=0.95, seed=0)
    assert np.isfinite(free.p).all()


def test_rows_with_few_sentences_are_kept_but_have_no_label() -> None:
    rng = np.random.default_rng(13)
    bias = rng.normal(9, 0.5, size=(30, 2, 2))
    has = np.ones((30, 2, 2))
    has[7:, 0, 0] = has[8:, 0, 1] = 0
    rows = labelled([totals(bias, tokens=has)])
    assert [(row.n_sentences, row.has_role, row.q <= ALPHA) for row in rows] == [
        (7, False, False),
        (8, True, True),
        *[(30, True, True)] * 2,
    ]
    assert rows[0].p < 0.01 and rows[0].q == 1 and rows[0].note == "7 sentences; a label needs 8"
    assert not any(row.note for row in rows[1:])
    complete = labelled([totals(bias[:, :, 1:], tokens=has[:, :, 1:]), totals(bias[:, 1:], tokens=has[:, 1:])], correct="bonferroni")
    assert rows[1].q > 0 and all(row.q == pytest.approx(min(1, 4 * row.p)) for row in complete)


def test_what_is_out_of_reach_is_marked_and_takes_no_part_in_the_correction() -> None:
    rng = np.random.default_rng(14)
    bias = rng.normal(3.4, 1, size=(40, 2, 2))
    bias[:, :, 1] = rng.normal(2, 0.1, size=(40, 2))
    maximum = np.broadcast_to([10.0, 3.0], bias.shape)
    rows = labelled([totals(bias, maximum=maximum)], correct="bonferroni")
    assert [row.attainable for row in rows] == [True, False] * 2
    assert [row.q for row in rows] == pytest.approx([min(1, 2 * rows[0].p), 1, min(1, 2 * rows[2].p), 1])
    assert rows[1].note == "attention reaches 3 at most; a label needs more than 3" and not rows[0].note


def test_legacy_roles_are_reported_and_no_labels() -> None:
    rows = labelled([totals(np.random.default_rng(15).normal(8, 1, size=(40, 2, 2)), legacy=["role:1"], hits=np.ones((40, 2, 2)))])
    assert [(row.has_role, row.by_argmax, row.q == 1, row.p < 1e-9) for row in rows] == [
        (True, True, False, True),
        (False, False, True, True),
    ] * 2
    assert "legacy" in rows[1].note


@pytest.mark.parametrize("correct", ["bh", "bonferroni", "none"])
def test_corrections_run_over_all_heads_and_roles_of_all_texts(correct: Any) -> None:
    rng = np.random.default_rng(1)
    parts = [rng.normal(3.1, 1, size=(50, 4, 6)), rng.normal(3.3, 1, size=(80, 8, 1))]
    rows = labelled([totals(part) for part in parts], correct=correct)
    p = np.array([row.p_t if correct == "none" else row.p for row in rows])
    oracle = {"bh": stats.false_discovery_control(p), "bonferroni": np.minimum(1, p * len(p)), "none": p}[correct]
    assert [row.q for row in rows] == pytest.approx(oracle.tolist(), rel=1e-12)
    assert len(rows) == 32
    assert all(row.has_role == (row.q <= ALPHA) for row in rows) and {row.has_role for row in rows} == {True, False}


def test_sign_flips_agree_with_the_t_test() -> None:
    """Over normal values, and over more sentences than groups, where signs of whole groups are flipped."""
    rng = np.random.default_rng(2)
    for n in (40, 700):
        rows = results(rng.normal(TAU, 1, size=(n, 20, 20)))
        t, flipped = np.array([(row.p, row.p_permutation) for row in rows]).T
        assert np.corrcoef(t, flipped)[0, 1] > 0.995
        assert np.abs(t - flipped)[t < 0.4].max() < 0.08  # 999 patterns: four standard errors of a share of a half are 0.063
        assert np.abs(t - flipped).max() < 0.3  # up to a half, missed zeros count, which symmetric values do not know
        plain = np.array([row.p_t for row in rows])
        for p in (plain, flipped):
            assert stats.kstest(p, "uniform").pvalue > 0.01


def spread(rng: np.random.Generator, shape: tuple[int, ...], kind: str) -> np.ndarray:
    """Biases of mean τ: symmetric; skewed to the right, as most are; mostly zero with a few large ones; or skewed to the left: bounded above,
    mostly at a ceiling and 0 elsewhere, or so near a ceiling that a small sample hardly ever sees anything else.
    """
    if kind == "gamma":
        return TAU * rng.gamma(1.5, 1 / 1.5, size=shape)
    if kind == "lognormal":
        return TAU * rng.lognormal(-0.32, 0.8, size=shape)
    if kind == "sparse":
        return (rng.random(shape) < 0.25) * 12.0
    if kind == "left":
        return 3.75 * rng.beta(4, 1, size=shape)
    if kind in ("ceiling", "rare zero"):
        share = 0.75 if kind == "ceiling" else 0.97
        return (TAU / share + rng.normal(0, 0.05, size=shape)) * (rng.random(shape) < share)
    return rng.normal(TAU, 1.0, size=shape)


@pytest.mark.parametrize("n", [8, 20, 60, 300])
@pytest.mark.parametrize("kind", ["normal", "gamma", "lognormal", "sparse", "left", "ceiling", "rare zero"])
def test_nulls_are_rarely_taken_for_roles(kind: str, n: int) -> None:
    """In 400 tables of 30 heads × roles whose mean is exactly τ, few have any discovery: α, plus three standard errors of 400 draws."""
    bias = spread(np.random.default_rng(n), (400, n, 30), kind)
    p = null_p_values(bias)[0]
    wrong = np.mean([(adjust_p_values(table, "bh") <= ALPHA).any() for table in p])
    assert wrong <= ALPHA + 3 * np.sqrt(ALPHA * (1 - ALPHA) / 400)


def null_p_values(bias: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """p and plain p of tables [tables, sentences, columns]."""
    n = np.full(bias[:, 0].shape, float(bias.shape[1]))
    return bias_above_tau_p_values(bias.mean(1), bias.std(1, ddof=1) / np.sqrt(n), n, stats.skew(bias, axis=1), TAU)


def test_the_plain_test_would_take_nulls_that_lean_left_for_roles() -> None:
    """What the transform and the bound are for: at 60 sentences a fifth of the tables has a false discovery, near a ceiling all of them have."""
    actual = {}
    for kind in ("ceiling", "rare zero"):
        tables = null_p_values(spread(np.random.default_rng(8), (200, 60, 30), kind))[1]
        actual[kind] = np.mean([(adjust_p_values(table, "bh") <= ALPHA).any() for table in tables])
    assert actual["ceiling"] > 0.12 and actual["rare zero"] > 0.9


def test_the_simulated_p_values_are_those_of_tables() -> None:
    """The simulations above take a short way; a whole table goes the long one, in pieces, with sentences that lack a role."""
    rng = np.random.default_rng(9)
    bias = spread(rng, (300, 4, 3), "ceiling")
    made = run_bias_test(totals(bias, pieces=6), TAU, level=0.95, seed=0)
    assert made.p == pytest.approx(null_p_values(bias.reshape(1, 300, 12))[0][0], rel=1e-9)
    has = rng.random(bias.shape) < 0.3
    made = run_bias_test(totals(bias, tokens=has, pieces=6), TAU, level=0.95, seed=0)
    for i in range(12):
        values = bias.reshape(300, 12)[has.reshape(300, 12)[:, i], i]
        assert made.p[i] == pytest.approx(null_p_values(values[None, :, None])[0].item(), rel=1e-9)


def test_false_discoveries_among_true_ones_stay_at_their_level() -> None:
    """A third of the heads × roles are true: the mean share of false discoveries is at most α times the share of nulls, here 0.033."""
    rng = np.random.default_rng(4)
    shares, power = [], []
    for _ in range(200):
        bias = spread(rng, (60, 6, 6), "normal")
        bias[:, :, :2] += rng.uniform(0.3, 1.2, size=(6, 2))
        rows = results(bias)
        false = [row for row in rows if row.has_role and row.role not in ("role:0", "role:1")]
        total = sum(row.has_role for row in rows)
        shares.append(len(false) / max(total, 1))
        power.append((total - len(false)) / 12)
    assert np.mean(shares) <= ALPHA * 2 / 3 + 3 * np.std(shares) / np.sqrt(200)
    assert np.mean(shares) > 0.01, "the test would be needlessly strict"
    assert np.mean(power) > 0.8


def test_intervals_cover_the_mean() -> None:
    rng = np.random.default_rng(5)
    for level in (0.8, 0.95):
        rows = score_roles([totals(rng.normal(4, 1.5, size=(25, 40, 50)))], level=level)
        covered = np.mean([row.low <= 4 <= row.high for row in rows])
        assert covered == pytest.approx(level, abs=4 * np.sqrt(level * (1 - level) / 2000))


def test_accuracy_is_over_tokens_and_its_interval_has_the_level() -> None:
    rng = np.random.default_rng(6)
    tokens = rng.integers(1, 12, size=(80, 20, 20)).astype(float)
    hits = rng.binomial(tokens.astype(int), 0.4).astype(float)
    for level in (0.8, 0.95):
        sums = totals(np.ones(tokens.shape), tokens=tokens, hits=hits)
        result = run_bias_test(sums, TAU, level=level, seed=0)
        rows = build_role_scores(sums, result, TAU)
        assert [row.accuracy for row in rows] == pytest.approx((hits.sum(0) / tokens.sum(0)).ravel().tolist())
        covered = np.mean([row.accuracy_low <= 0.4 <= row.accuracy_high for row in rows])
        assert covered == pytest.approx(level, abs=0.06)


@pytest.mark.parametrize("level", [0.8, 0.95])
def test_an_accuracy_on_which_all_sentences_agree_has_an_exact_interval(level: float) -> None:
    """100 % of twelve sentences was 100 % (100 % … 100 %)."""
    hits = np.broadcast_to([[[3.0, 0.0]]], (12, 1, 2)).copy()
    sums = totals(np.ones(hits.shape), tokens=np.full(hits.shape, 3.0), hits=hits)
    right, wrong = build_role_scores(sums, run_bias_test(sums, TAU, level=level, seed=0), TAU)
    exact = stats.binomtest(12, 12).proportion_ci(level, "exact")
    assert (right.accuracy_low, right.accuracy_high) == pytest.approx((exact.low, 1.0)) and exact.low < 0.9
    assert (wrong.accuracy_low, wrong.accuracy_high) == pytest.approx((0.0, 1 - exact.low))


def test_effect_maximum_and_normalised_score() -> None:
    bias = np.array([4.0, 6.0, 8.0, 2.0]).reshape(4, 1, 1)
    maximum = np.array([8.0, 12.0, 8.0, 12.0]).reshape(4, 1, 1)
    has = np.array([1.0, 3.0, 1.0, 0.0]).reshape(4, 1, 1)
    sums = totals(bias, tokens=has, maximum=maximum)
    result = run_bias_test(sums, TAU, level=0.95, seed=0)
    row = build_role_scores(sums, result, TAU)[0]
    assert (row.n_sentences, row.n_tokens) == (3, 5)
    assert row.bias == pytest.approx(6) and row.maximum == pytest.approx(28 / 3)
    assert row.effect == pytest.approx((6 - 3) / 2)  # the deviation of 4, 6, 8 is 2
    assert row.normalised == pytest.approx((6 - 1) / (28 / 3 - 1))


def test_the_baseline_is_the_best_fixed_offset_of_the_block() -> None:
    """A relation that points two back in 60 % of cases, one ahead in the others; the second block sees only what is behind."""
    rng = np.random.default_rng(7)
    offsets = np.zeros((200, 2, 33, 1))
    back = rng.random(200) < 0.6
    offsets[:, :, 16 - 2, 0] = back[:, None]
    offsets[:, 0, 16 + 1, 0] = ~back
    tokens = np.ones((200, 4, 1))
    tokens[:, 2:, 0] = back[:, None]
    hits = tokens * np.array([0.65, 0.75, 1, 1])[None, :, None]
    sums = totals(np.ones((200, 4, 1)), tokens=tokens, hits=hits, offsets=offsets)
    result = run_bias_test(sums, TAU, level=0.95, seed=0)
    rows = build_role_scores(sums, result, TAU)
    share = float(back.mean())
    assert {row.chance for row in rows} == {0}
    assert [row.baseline for row in rows] == pytest.approx([share, share, 1, 1])
    assert {row.baseline_offset for row in rows} == {-2}
    assert [row.by_argmax for row in rows] == [False, True, False, False]  # ten points ahead; of a sure offset no head can be
    assert [row.by_argmax for row in build_role_scores(_positional(sums), result, TAU)] == [False, False, True, True]


def test_a_sieve_of_many_keys_has_chance_as_its_bar() -> None:
    """A random key is in the sieve six times of ten: ten points more are needed, also where no fixed offset finds half as much."""
    tokens = np.full((50, 4, 1), 10.0)
    hits = np.broadcast_to(np.array([6.0, 6.9, 7.1, 9.5])[None, :, None], tokens.shape)
    offsets, chance = np.zeros((50, 2, 33, 1)), np.full((50, 2, 1), 6.0)
    offsets[:, :, 16] = 3
    sums = totals(np.ones(tokens.shape), tokens=tokens, hits=hits, offsets=offsets, chance=chance)
    result = run_bias_test(sums, TAU, level=0.95, seed=0)
    rows = build_role_scores(sums, result, TAU)
    assert {(round(row.baseline, 9), round(row.chance, 9)) for row in rows} == {(0.3, 0.6)}
    assert [row.by_argmax for row in rows] == [False, False, True, True]
    sure = _positional(totals(np.ones(tokens.shape), tokens=tokens, hits=hits, offsets=offsets, chance=chance * 1.5))
    assert not any(row.by_argmax for row in build_role_scores(sure, result, TAU))  # 95 % where a random key has 90


def _positional(made: RoleTotals) -> RoleTotals:
    made.positional = frozenset(made.roles)
    return made


ROW = RoleScore(Head("", 0, 0), "a", 9, 9, 5, 0.1, 4, 6, 0, 0, 0, 1, 9, 0.5, 1, 1, 1, 0.2, -1, True, True, 0, 0.1, True, "")


def table(having: dict[str, set[int]], n: int = 12, **argmax: set[int]) -> RoleTable:
    """Heads in blocks of three, each tested for all roles; `argmax` says who has a role by the definition of 2019, where it differs."""
    heads = tuple(Head("", h // 3, h % 3) for h in range(n))
    rows = [
        replace(
            ROW, head=head, role=role, has_role=h in owners, by_argmax=h in argmax.get(role, owners), bias=5.0 + h, normalised=index / 10
        )
        for index, (role, owners) in enumerate(having.items())
        for h, head in enumerate(heads)
    ]
    return RoleTable(tuple(rows), heads)


def test_tables_answer_questions() -> None:
    made = table({"a": {0, 1, 2, 7}, "b": {1, 7}, "c": set()}, b={1, 5})
    names = {str(head): roles for head, roles in made.labels().items() if roles}
    assert names == {"L0H0": ["a"], "L0H1": ["b", "a"], "L0H2": ["a"], "L2H1": ["b", "a"]}
    assert len(made.labels()) == 12
    assert [str(head) for head in made.multifunctional()] == ["L0H1", "L2H1"]
    assert made.share() == {
        "a": pytest.approx({"L0": 1, "L1": 0, "L2": 1 / 3, "L3": 0}),
        "b": pytest.approx({"L0": 1 / 3, "L1": 0, "L2": 1 / 3, "L3": 0}),
        "c": {"L0": 0, "L1": 0, "L2": 0, "L3": 0},
    }
    assert [(str(row.head), row.role) for row in made.disagreements()] == [("L1H2", "b"), ("L2H1", "b")]
    assert made.roles() == ["a", "b", "c"] and str(made.strongest("b").head) == "L3H2"
    assert [row.role for row in made.of("L0H1")] == ["a", "b", "c"]
    assert len(made.to_pandas()) == len(made) == 36


def test_colocation_is_hypergeometric() -> None:
    owners = {"a": {0, 1, 2, 3, 4}, "b": {1, 2, 3, 9}, "c": {10, 11}, "none": set()}
    by_pair = {(row.a, row.b): row for row in table(owners).colocation()}
    assert set(by_pair) == {("a", "b"), ("a", "c"), ("b", "c")}
    for (a, b), row in by_pair.items():
        both = len(owners[a] & owners[b])
        assert (row.both, row.only_a, row.only_b) == (both, len(owners[a]) - both, len(owners[b]) - both)
        assert row.expected == pytest.approx(len(owners[a]) * len(owners[b]) / 12)
        inside = [[both, len(owners[a]) - both], [len(owners[b]) - both, 12 - len(owners[a] | owners[b])]]
        assert row.p == pytest.approx(stats.fisher_exact(inside, alternative="greater").pvalue)
    assert [row.q for row in by_pair.values()] == pytest.approx(stats.false_discovery_control([row.p for row in by_pair.values()]).tolist())


def test_colocation_counts_heads_that_both_roles_were_tested_on() -> None:
    complete = table({"a": {0, 1}, "b": {0, 1}})
    part = replace(complete, rows=tuple(row for row in complete.rows if row.role == "a" or row.head.layer == 0))
    row = part.colocation()[0]
    assert (row.both, row.expected, row.p) == (2, pytest.approx(4 / 3), pytest.approx(1 / 3))
    apart = replace(complete, rows=tuple(row for row in complete.rows if (row.role == "a") == (row.head.layer < 2)))
    assert apart.colocation() == []


def test_a_table_is_given_back_by_its_plain_data() -> None:
    """What a run folder stores of a table; csv and parquet hold the same columns."""
    rows = results(np.random.default_rng(16).gamma(3, 1.2, size=(7, 2, 2)))
    heads = tuple(dict.fromkeys(row.head for row in rows))
    best = BestHead("role:0", heads[1], 0.5, 0.4, 0.6, 0.3, -1, 0.01, 0.1, 4, 9, 3)
    role_table = RoleTable(tuple(rows), heads, 2.5, 0.01, {"sink": "why"}, {"reason": 3}, "print", {"dtype": "float32"}, (best,))
    plain = json.loads(json.dumps(role_table.to_dict()))
    assert RoleTable.from_dict(plain) == role_table and all(row.note for row in rows)
    assert list(role_table.to_pandas().columns) == list(plain["rows"][0])
    for damaged in ({**plain, "rows": [{"head": "L0H0"}]}, {**plain, "best_heads": None}, {**plain, "more": 1}, {}):
        with pytest.raises(ArtifactError, match="no table of roles"):
            RoleTable.from_dict(damaged)


def test_a_role_without_best_head_says_why() -> None:
    rows = results(np.random.default_rng(0).gamma(2, 1, size=(9, 2, 1)))
    with pytest.raises(DataError, match="9 sentences show it, too few in one half"):
        RoleTable(tuple(rows), tuple(row.head for row in rows)).best("role:0")
