"""The test of roles over sentences, without a model: scipy as oracle, error rates under planted nulls, tables by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from scipy import stats

from headcount.heads import Head
from headcount.roles._roles import _rows
from headcount.roles._table import RoleScore, RoleTable
from headcount.roles._test import RoleTotals, rows_of, run_test

TAU, ALPHA = 3.0, 0.05


def totals(bias: np.ndarray, *, tokens: Any = 1.0, pieces: int = 1, **measured: Any) -> RoleTotals:
    """Totals of biases [sentences, heads, roles]; heads in blocks of two; the rest of what is measured is made up."""
    n, heads, roles = bias.shape
    made = RoleTotals([Head("", h // 2, h % 2) for h in range(heads)], [f"role:{r}" for r in range(roles)], measured.pop("positional", ()))
    whole = {
        "bias": bias,
        "tokens": np.broadcast_to(tokens, bias.shape),
        "hits": np.zeros(bias.shape),
        "maximum": np.full(bias.shape, 10.0),
        "offsets": np.zeros((n, (heads + 1) // 2, 33, roles)),
        **measured,
    }
    for part in np.array_split(np.arange(n), pieces):
        made.update({name: value[part] for name, value in whole.items()})
    return made


def results(bias: np.ndarray, **options: Any) -> list[RoleScore]:
    return _rows([totals(bias)], options, options.get("tau", TAU), options.get("alpha", ALPHA))


def test_p_values_are_those_of_scipy() -> None:
    rng = np.random.default_rng(0)
    bias = rng.gamma(2.0, 1.6, size=(400, 6, 5)) * rng.uniform(0.6, 1.4, size=(6, 5))
    has = rng.random((400, 6, 5)) < rng.uniform(0.02, 1, size=(6, 5))
    made = run_test(totals(bias, tokens=has, pieces=7), TAU, level=0.95, seed=0)
    assert len(made.place) == 30
    for i, place in enumerate(made.place):
        values = bias.reshape(400, -1)[has.reshape(400, -1)[:, place], place]
        oracle = stats.ttest_1samp(values, TAU, alternative="greater")
        assert made.p[i] == pytest.approx(oracle.pvalue, rel=1e-9)
        assert made.bias[i] == pytest.approx(values.mean(), rel=1e-12)
        low, high = stats.ttest_1samp(values, TAU).confidence_interval(0.95)
        assert (made.bias[i] - made.reach[i], made.bias[i] + made.reach[i]) == pytest.approx((low, high), rel=1e-9)


def test_roles_in_fewer_than_two_sentences_are_not_tested() -> None:
    bias = np.ones((5, 2, 2))
    has = np.zeros((5, 2, 2))
    has[0, 0, 0] = has[:2, 1, 1] = 1
    assert run_test(totals(bias, tokens=has), TAU, level=0.95, seed=0).place.tolist() == [3]
    assert len(run_test(totals(bias, tokens=0 * has), TAU, level=0.95, seed=0).place) == 0


def test_without_spread_the_mean_decides() -> None:
    made = run_test(totals(np.broadcast_to([[[5.0, 3.0, 1.0]]], (9, 2, 3)).copy()), TAU, level=0.95, seed=0)
    assert made.p.tolist() == [0, 1, 1] * 2


@pytest.mark.parametrize("correct", ["bh", "bonferroni", "none"])
def test_corrections_run_over_all_heads_and_roles_of_all_texts(correct: Any) -> None:
    rng = np.random.default_rng(1)
    parts = [rng.normal(3.1, 1, size=(50, 4, 6)), rng.normal(3.3, 1, size=(80, 8, 1))]
    rows = _rows([totals(part) for part in parts], {"correct": correct}, TAU, ALPHA)
    p = np.array([row.p for row in rows])
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
        assert np.abs(t - flipped).max() < 0.08  # 999 patterns: four standard errors of a share of a half are 0.063
        for p in (t, flipped):
            assert stats.kstest(p, "uniform").pvalue > 0.01


def spread(rng: np.random.Generator, shape: tuple[int, ...], kind: str) -> np.ndarray:
    """Biases of mean τ: as seen in practice skewed to the right, or bounded, or mostly zero with a few large ones."""
    if kind == "gamma":
        return TAU * rng.gamma(1.5, 1 / 1.5, size=shape)
    if kind == "lognormal":
        return TAU * rng.lognormal(-0.32, 0.8, size=shape)
    if kind == "sparse":
        return (rng.random(shape) < 0.25) * 12.0
    return rng.normal(TAU, 1.0, size=shape)


@pytest.mark.parametrize("kind", ["normal", "gamma", "lognormal", "sparse"])
def test_nulls_are_rarely_taken_for_roles(kind: str) -> None:
    """In 200 tables of heads whose mean is exactly τ, few have any discovery: α, plus three standard errors of 200 draws."""
    rng = np.random.default_rng(3)
    wrong = sum(any(row.has_role for row in results(spread(rng, (60, 6, 5), kind))) for _ in range(200))
    assert wrong / 200 <= ALPHA + 3 * np.sqrt(ALPHA * (1 - ALPHA) / 200)


def test_nulls_skewed_to_the_left_need_more_sentences() -> None:
    """The weak spot of the t-test: biases that reach their maximum, 4, in most sentences and are 0 in others, with a mean of exactly τ.

    With 60 sentences a quarter of the tables has a false discovery where one in twenty may; with 1,000 it is one in fourteen.
    """
    rng = np.random.default_rng(8)
    few, many = (
        np.mean([any(row.has_role for row in results(4.0 * (rng.random((n, 6, 5)) < 0.75))) for _ in range(200)]) for n in (60, 1000)
    )
    assert 0.1 < few < 0.3, "few sentences behave otherwise than said above"
    assert many < 0.13


def test_false_discoveries_among_true_ones_stay_at_their_level() -> None:
    """A third of the heads × roles are true: the mean share of false discoveries is at most α times the share of nulls, here 0.033."""
    rng = np.random.default_rng(4)
    shares, power = [], []
    for _ in range(200):
        bias = spread(rng, (60, 6, 6), "normal")
        bias[:, :, :2] += rng.uniform(0.3, 1.2, size=(6, 2))
        rows = results(bias)
        false = [row for row in rows if row.has_role and row.role not in ("role:0", "role:1")]
        found = sum(row.has_role for row in rows)
        shares.append(len(false) / max(found, 1))
        power.append((found - len(false)) / 12)
    assert np.mean(shares) <= ALPHA * 2 / 3 + 3 * np.std(shares) / np.sqrt(200)
    assert np.mean(shares) > 0.01, "the test would be needlessly strict"
    assert np.mean(power) > 0.8


def test_intervals_cover_the_mean() -> None:
    rng = np.random.default_rng(5)
    for level in (0.8, 0.95):
        rows = results(rng.normal(4, 1.5, size=(25, 40, 50)), level=level)
        covered = np.mean([row.low <= 4 <= row.high for row in rows])
        assert covered == pytest.approx(level, abs=4 * np.sqrt(level * (1 - level) / 2000))


def test_accuracy_is_over_tokens_and_its_interval_has_the_level() -> None:
    rng = np.random.default_rng(6)
    tokens = rng.integers(1, 12, size=(80, 20, 20)).astype(float)
    hits = rng.binomial(tokens.astype(int), 0.4).astype(float)
    for level in (0.8, 0.95):
        made = totals(np.ones(tokens.shape), tokens=tokens, hits=hits)
        result = run_test(made, TAU, level=level, seed=0)
        rows = rows_of(made, result, result.p, tau=TAU, alpha=ALPHA)
        assert [row.accuracy for row in rows] == pytest.approx((hits.sum(0) / tokens.sum(0)).ravel().tolist())
        covered = np.mean([row.accuracy_low <= 0.4 <= row.accuracy_high for row in rows])
        assert covered == pytest.approx(level, abs=0.06)


def test_effect_maximum_and_normalised_score() -> None:
    bias = np.array([4.0, 6.0, 8.0, 2.0]).reshape(4, 1, 1)
    maximum = np.array([8.0, 12.0, 8.0, 12.0]).reshape(4, 1, 1)
    has = np.array([1.0, 3.0, 1.0, 0.0]).reshape(4, 1, 1)
    made = totals(bias, tokens=has, maximum=maximum)
    result = run_test(made, TAU, level=0.95, seed=0)
    row = rows_of(made, result, result.p, tau=TAU, alpha=ALPHA)[0]
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
    made = totals(np.ones((200, 4, 1)), tokens=tokens, hits=hits, offsets=offsets)
    result = run_test(made, TAU, level=0.95, seed=0)
    rows = rows_of(made, result, result.p, tau=TAU, alpha=ALPHA)
    share = float(back.mean())
    assert [row.baseline for row in rows] == pytest.approx([share, share, 1, 1])
    assert {row.baseline_offset for row in rows} == {-2}
    assert [row.by_argmax for row in rows] == [False, True, False, False]  # ten points ahead; of a sure offset no head can be
    assert [row.by_argmax for row in rows_of(_positional(made), result, result.p, tau=TAU, alpha=ALPHA)] == [False, False, True, True]


def _positional(made: RoleTotals) -> RoleTotals:
    made.positional = frozenset(made.roles)
    return made


ROW = RoleScore(Head("", 0, 0), "a", 9, 9, 5, 0.1, 4, 6, 0, 0, 0, 1, 9, 0.5, 1, 1, 1, 0.2, -1, True, True)


def table(having: dict[str, set[int]], n: int = 12, **argmax: set[int]) -> RoleTable:
    """Heads in blocks of three, each tested for all roles; `argmax` says who has a role by the definition of 2019, where it differs."""
    heads = tuple(Head("", h // 3, h % 3) for h in range(n))
    rows = [
        replace(
            ROW, head=head, role=role, has_role=h in owners, by_argmax=h in argmax.get(role, owners), bias=5.0 + h, normalised=place / 10
        )
        for place, (role, owners) in enumerate(having.items())
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
    assert made.roles() == ["a", "b", "c"] and str(made.best("b").head) == "L3H2"
    assert [row.role for row in made.of("L0H1")] == ["a", "b", "c"]
    assert len(made.to_pandas()) == len(made) == 36


def test_colocation_is_hypergeometric() -> None:
    owners = {"a": {0, 1, 2, 3, 4}, "b": {1, 2, 3, 9}, "c": {10, 11}, "none": set()}
    found = {(row.a, row.b): row for row in table(owners).colocation()}
    assert set(found) == {("a", "b"), ("a", "c"), ("b", "c")}
    for (a, b), row in found.items():
        both = len(owners[a] & owners[b])
        assert (row.both, row.only_a, row.only_b) == (both, len(owners[a]) - both, len(owners[b]) - both)
        assert row.expected == pytest.approx(len(owners[a]) * len(owners[b]) / 12)
        inside = [[both, len(owners[a]) - both], [len(owners[b]) - both, 12 - len(owners[a] | owners[b])]]
        assert row.p == pytest.approx(stats.fisher_exact(inside, alternative="greater").pvalue)
    assert [row.q for row in found.values()] == pytest.approx(stats.false_discovery_control([row.p for row in found.values()]).tolist())


def test_colocation_counts_heads_that_both_roles_were_tested_on() -> None:
    whole = table({"a": {0, 1}, "b": {0, 1}})
    part = replace(whole, rows=tuple(row for row in whole.rows if row.role == "a" or row.head.layer == 0))
    row = part.colocation()[0]
    assert (row.both, row.expected, row.p) == (2, pytest.approx(4 / 3), pytest.approx(1 / 3))
    apart = replace(whole, rows=tuple(row for row in whole.rows if (row.role == "a") == (row.head.layer < 2)))
    assert apart.colocation() == []
