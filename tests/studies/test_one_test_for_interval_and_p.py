"""An interval and the p-value beside it come from one test: the interval leaves 0 out just where p is below what the level leaves over."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import special

from headcount.core.stats import agreement, significance
from headcount.core.stats.samples import Samples
from headcount.studies._measure.roles_importance import draw_permutations_within_layers, permutation_interval_of_difference


def planted(n: int, means: np.ndarray, noise: float, seed: int) -> Samples:
    return Samples.of(means + noise * np.random.default_rng(seed).normal(size=(n, len(means))))


def test_the_interval_of_a_correlation_is_about_the_observed_one() -> None:
    """0.99 (1.00 … 1.00) was that of another quantity, which has its own name."""
    theta = np.linspace(0, 3, 24)
    correlation = agreement.correlate(planted(60, theta, 1.0, 1), planted(60, theta, 1.0, 2), seed=0, by="pearson")
    assert 0.9 < correlation.value < 1 and correlation.low < correlation.value < correlation.high
    assert correlation.value < correlation.without_noise <= 1, "noise lowers a correlation"


def test_a_correlation_and_its_p_agree() -> None:
    rng = np.random.default_rng(0)
    verdicts = []
    for trial in range(60):
        a, b = rng.normal(size=12), rng.normal(size=12)
        correlation = agreement.correlate(planted(80, a, 3.0, trial), planted(80, b, 3.0, 1000 + trial), seed=trial, repeats=1000)
        outside = correlation.low > 0 or correlation.high < 0
        assert outside == (correlation.p < 0.05) or 0.045 < correlation.p < 0.055
        verdicts.append(outside)
    assert any(verdicts) and not all(verdicts)


def test_the_interval_of_an_observed_correlation_covers_its_mean() -> None:
    """For fixed heads, r is drawn with the examples: its mean over draws of examples lies in 95 % of the intervals, about."""
    theta = np.random.default_rng(3).normal(size=40)
    other = theta + 0.5 * np.random.default_rng(4).normal(size=40)
    draws = [agreement.correlate(planted(60, theta, 2.0, i), planted(60, other, 2.0, 5000 + i), seed=i, repeats=200) for i in range(200)]
    mean = np.mean([draw.value for draw in draws])
    assert np.mean([draw.low <= mean <= draw.high for draw in draws]) > 0.9


@pytest.mark.parametrize("shift", [0.0, 1.0, 2.5, 4.0])
def test_groups_of_heads_and_their_p_agree(shift: float) -> None:
    rng = np.random.default_rng(7)
    has = np.arange(32) < 9
    values = rng.normal(size=32) + shift * has
    low, high, p = permutation_interval_of_difference(values, has, draw_permutations_within_layers(rng, np.zeros(32), 2000))
    assert low is not None and high is not None
    assert low < values[has].mean() - values[~has].mean() < high and (low > 0 or high < 0) == (p <= 0.05)
    assert high - low < 5, "nine heads against 23 tell something"


def test_a_single_head_has_no_interval() -> None:
    rng = np.random.default_rng(0)
    for has in (np.arange(32) < 1, np.arange(32) < 31):
        low, high, p = permutation_interval_of_difference(np.arange(32.0), has, draw_permutations_within_layers(rng, np.zeros(32), 2000))
        assert low is None and high is None and p == pytest.approx(2 / 32, abs=0.02)
    low, high, _ = permutation_interval_of_difference(
        np.arange(4.0), np.arange(4) < 2, draw_permutations_within_layers(rng, np.zeros(4), 2000)
    )
    assert low is None and high is None, "two heads against two reject no shift at all"


def test_the_interval_covers_the_shift() -> None:
    rng, has = np.random.default_rng(11), np.arange(20) < 6
    orders = draw_permutations_within_layers(rng, np.zeros(20), 1000)
    hits = []
    for _ in range(200):
        low, high, _ = permutation_interval_of_difference(rng.normal(size=20) + 2.0 * has, has, orders)
        hits.append(low is not None and high is not None and low <= 2.0 <= high)
    assert 0.9 < np.mean(hits) <= 1


@pytest.mark.parametrize(("only_a", "only_b"), [(0, 0), (3, 0), (0, 5), (6, 1), (12, 4), (10, 10), (40, 22)])
def test_accuracies_have_one_statistic(only_a: int, only_b: int) -> None:
    n = 100
    a = np.r_[np.ones(only_a), np.zeros(only_b), np.ones(n - only_a - only_b)]
    b = np.r_[np.zeros(only_a), np.ones(only_b), np.ones(n - only_a - only_b)]
    interval = significance.tango(a, b)
    assert interval.low <= interval.difference <= interval.high and (interval.low > 0 or interval.high < 0) == (interval.p < 0.05)
    if only_a + only_b == 0:
        z = 1.959964
        assert (interval.low, interval.high) == pytest.approx((-(z**2) / (n + z**2), z**2 / (n + z**2)), abs=1e-5) and interval.p == 1
    else:
        assert interval.p == pytest.approx(2 * float(special.ndtr(-abs(only_a - only_b) / np.sqrt(only_a + only_b))))


@pytest.mark.parametrize(("n", "share"), [(50, 0.1), (200, 0.05), (200, 0.3)])
def test_the_interval_of_accuracies_covers(n: int, share: float) -> None:
    rng = np.random.default_rng(n)
    hits = []
    for _ in range(300):
        sample = rng.choice(4, size=n, p=[1 - 1.5 * share, share, 0.5 * share, 0.0])
        interval = significance.tango((sample != 2).astype(float), (sample != 1).astype(float))
        hits.append(interval.low <= -0.5 * share <= interval.high)
    assert np.mean(hits) > 0.92


def test_a_single_survivor_has_neither_interval_nor_p() -> None:
    from headcount.core.stats.corrected_rows import add_q_values
    from headcount.studies._measure.compensation import summarise_pruned_minus_dense_changes

    single = summarise_pruned_minus_dense_changes("v", "L0", np.array([0.5]), np.array([0.2]))
    several = summarise_pruned_minus_dense_changes("v", "all", np.array([0.5, 0.6, 0.4]), np.array([0.2, 0.2, 0.2]))
    single, several = add_q_values([single, several])
    assert single.difference == pytest.approx(0.3) and single.low is single.p is single.q is None
    assert several.q == several.p, "corrected over those that were tested"
