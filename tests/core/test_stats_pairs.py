"""Statistics of pairs: two models on the same examples, correlations, stability, agreement."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
from drawn import planted, rng
from scipy import stats as oracle

from headcount.core.errors import StatisticsError
from headcount.core.evaluation import Evaluation
from headcount.core.stats import agreement, ranks, resampling, significance
from headcount.core.stats.means import t_interval
from headcount.core.stats.samples import Samples
from headcount.core.stats.seed_parts import align_seed_counts

# two models on the same examples


@pytest.mark.parametrize(("only_a", "only_b"), [(0, 0), (5, 5), (1, 9), (12, 3), (0, 7)])
def test_tango_at_no_difference_is_mcnemars_statistic(only_a: int, only_b: int) -> None:
    a = [1] * only_a + [0] * only_b + [1] * 10
    b = [0] * only_a + [1] * only_b + [1] * 10
    total = only_a + only_b
    change = significance.tango(a, b)
    assert change.difference == pytest.approx((only_b - only_a) / (total + 10))
    z = (only_b - only_a) / total**0.5 if total else 0.0
    assert change.p == pytest.approx(2 * oracle.norm.sf(abs(z)))


def test_tango_refuses_what_is_not_right_or_wrong() -> None:
    with pytest.raises(StatisticsError, match="0 or 1"):
        significance.tango([0.5, 1], [1, 1])
    with pytest.raises(StatisticsError, match="same heads or examples"):
        significance.tango([1], [1, 1])


def share(sums: np.ndarray) -> np.ndarray:
    return sums[..., 0] / sums[..., 1]


def test_paired_bootstrap_of_a_ratio() -> None:
    sizes = rng(0).integers(5, 30, size=400).astype(float)
    a = np.column_stack([rng(1).binomial(sizes.astype(int), 0.6), sizes])
    b = np.column_stack([rng(2).binomial(sizes.astype(int), 0.65), sizes])
    difference = significance.paired_bootstrap(a, b, share, seed=0)
    assert difference.difference == pytest.approx(share(b.sum(0)) - share(a.sum(0)))
    assert difference.low < difference.difference < difference.high
    assert difference.p < 0.05
    back = significance.paired_bootstrap(b, a, share, seed=0)
    assert (back.difference, back.low, back.p) == pytest.approx((-difference.difference, -difference.high, difference.p))
    assert significance.paired_bootstrap(a, a, share, seed=0).p == 1.0


def test_paired_bootstrap_error_rate_and_coverage() -> None:
    actual = []
    for trial in range(1000):
        a, b = (rng(1000 * side + trial).normal(size=(80, 1)) for side in (1, 2))
        actual.append(significance.paired_bootstrap(a, b, lambda sums: sums[..., 0] / 80, seed=trial, repeats=400))
    assert 0.03 <= np.mean([f.p <= 0.05 for f in actual]) <= 0.08
    assert 0.92 <= np.mean([f.low <= 0 <= f.high for f in actual]) <= 0.97


def test_paired_bootstrap_refuses_what_has_no_total() -> None:
    with pytest.raises(StatisticsError, match="any choice of examples"), np.errstate(all="ignore"):
        significance.paired_bootstrap([[0, 0], [1, 1]], [[1, 1], [1, 1]], share, seed=0)
    with pytest.raises(StatisticsError, match="values \\[rows\\]"):
        significance.paired_bootstrap([[0, 1], [1, 1]], [[1, 1], [1, 1]], lambda sums: sums, seed=0)


def test_the_t_interval_is_scipys() -> None:
    values = rng().normal(0.2, 1, size=50)
    known = oracle.ttest_1samp(values, 0)
    actual = t_interval(values)
    interval = known.confidence_interval()
    assert (actual.p, actual.low, actual.high) == pytest.approx((known.pvalue, interval.low, interval.high))
    assert t_interval([0.0, 0.0]).p == 1.0
    with pytest.raises(StatisticsError, match="2 values"):
        t_interval([1.0])


def test_away_from_zero_is_scipys_and_knows_values_without_spread() -> None:
    values, errors = rng().normal(size=20), rng(1).random(20) + 0.1
    np.testing.assert_allclose(significance.p_values_of_zero(values, errors, 12), 2 * oracle.t.sf(np.abs(values / errors), 12), rtol=1e-12)
    np.testing.assert_allclose(
        significance.p_values_of_zero(values, errors, np.inf), 2 * oracle.norm.sf(np.abs(values / errors)), rtol=1e-12
    )
    assert significance.p_values_of_zero([0.0, 1e-9, -3.0, 0.0], [0.0, 0.0, 0.0, 1.0], 5).tolist() == [1.0, 0.0, 0.0, 1.0]
    sample = rng(2).normal(size=(4000, 6))
    p = significance.p_values_of_zero(sample.mean(1), sample.std(1, ddof=1) / np.sqrt(6), 5)
    assert abs((p < 0.05).mean() - 0.05) < 0.01
    for bad in (([1.0], [-1.0], 5), ([1.0], [1.0], 0), ([1.0], [1.0, 2.0], 5), ([1.0], [np.nan], 5)):
        with pytest.raises(StatisticsError):
            significance.p_values_of_zero(*bad)


@pytest.mark.parametrize("alternative", ["two-sided", "greater", "less"])
def test_sign_flip_is_exact_for_few_examples(alternative: str) -> None:
    values = rng(4).normal(0.3, 1, size=(10, 3))
    actual = significance.sign_flip_p_value(values, seed=0, alternative=alternative)  # type: ignore[arg-type]
    known = oracle.permutation_test(
        (values,), lambda x, axis: x.mean(axis), permutation_type="samples", n_resamples=np.inf, alternative=alternative, axis=0
    )
    np.testing.assert_allclose(actual, known.pvalue, rtol=1e-12)
    assert significance.sign_flip_p_value(values[:, 0], seed=0, alternative=alternative) == actual[0]  # type: ignore[arg-type]


def test_sign_flip_error_rate_and_power() -> None:
    null = significance.sign_flip_p_value(rng(0).laplace(size=(60, 2000)), seed=0, repeats=999)
    assert 0.035 <= (null <= 0.05).mean() <= 0.065
    assert significance.sign_flip_p_value(rng(0).normal(1, 1, size=60), seed=0) == 1e-4
    sample = significance.sign_flip_p_value(rng(1).normal(0.2, 1, size=60), seed=0)
    assert sample == pytest.approx(t_interval(rng(1).normal(0.2, 1, size=60)).p, abs=0.02)


# correlations, stability, agreement


def test_correlations_are_scipys() -> None:
    a, b = rng(0).integers(0, 8, size=(3, 20)).astype(float), rng(1).integers(0, 8, size=(3, 20)).astype(float)
    for ours, theirs in (
        (agreement.spearman, oracle.spearmanr),
        (agreement.pearson, oracle.pearsonr),
    ):
        np.testing.assert_allclose(ours(a, b), [theirs(x, y)[0] for x, y in zip(a, b, strict=True)], rtol=1e-12)
    with pytest.raises(StatisticsError, match="not defined"):
        agreement.pearson([1.0, 1.0], [1.0, 2.0])


@pytest.mark.parametrize("by", ["pearson", "spearman"])
def test_a_correlation_without_noise_is_nearer_to_the_true_one(by: str) -> None:
    observed, without_noise = [], []
    for trial in range(60):
        theta = rng(trial).normal(size=60)
        phi = 0.8 * theta + 0.6 * rng(trial + 1000).normal(size=60)
        truth = float(getattr(agreement, by)(theta, phi))
        a, b = planted(100, theta, 2.0, trial + 2000), planted(100, phi, 2.0, trial + 3000)
        correlation = agreement.correlate(a, b, by=by, paired=True, repeats=300, seed=trial)  # type: ignore[arg-type]
        observed.append(correlation.value - truth)
        without_noise.append(correlation.without_noise - truth)
    assert np.mean(observed) < 0
    assert abs(np.mean(without_noise)) < abs(np.mean(observed)) / 3


def test_correlate_pairs_or_not() -> None:
    a = planted(60, np.arange(10.0), 1.0)
    same = agreement.correlate(a, a, paired=True, seed=0, repeats=100)
    assert same.value == pytest.approx(1) == same.low == same.high
    assert agreement.correlate(a, a, seed=0, repeats=100).high <= 1
    fixed = Samples(np.arange(10.0)[None], np.ones((1, 1)))
    assert agreement.correlate(fixed, a, seed=0, repeats=100, by="pearson").value > 0.8
    with pytest.raises(StatisticsError, match="same examples"):
        agreement.correlate(a, planted(61, np.arange(10.0), 1.0), paired=True, seed=0)
    with pytest.raises(StatisticsError, match="Known: spearman"):
        agreement.correlate(a, a, by="rank", seed=0)  # type: ignore[arg-type]


def test_stability_grows_with_size() -> None:
    samples = planted(1000, np.linspace(0, 1, 30), 2.0)
    rows = agreement.stability(samples, [20, 100, 500, 1000], 10, seed=0)
    assert [row.groups for row in rows] == [5, 26, 128, 256]
    for name in ("spearman", "overlap"):
        values = [getattr(row, name).value for row in rows]
        assert values == sorted(values)
        assert values[-1] == pytest.approx(1)
    assert rows[3].disjoint_spearman is None
    assert all(row.disjoint_spearman and row.disjoint_spearman.value < row.spearman.value for row in rows[:3])
    flipped = agreement.stability(Samples(-samples.sums, samples.weights, samples.n), [20], 10, seed=0, higher_is_keep=False)
    assert flipped[0] == rows[0]
    with pytest.raises(StatisticsError, match="size must be from 1 to 1000"):
        agreement.stability(samples, [1001], 10, seed=0)


def test_subsets_that_rank_nothing_count_as_zero() -> None:
    values = np.zeros((50, 4))
    values[0] = [0, 1, 2, 3]
    (row,) = agreement.stability(Samples.of(values), [5], 2, seed=0)
    assert 0 < row.spearman.value < 0.4


def test_reliability_predicts_the_correlation_with_a_new_sample() -> None:
    predicted, real = [], []
    for trial in range(30):
        theta = rng(trial).normal(size=80)
        a, b = planted(100, theta, 8.0, trial + 100), planted(100, theta, 8.0, trial + 200)
        predicted.append(agreement.split_half_reliability(a, seed=trial, n_splits=50).value)
        real.append(float(agreement.spearman(a.means(), b.means())))
    assert np.mean(predicted) == pytest.approx(np.mean(real), abs=0.03)


def test_agreement_of_a_cheap_score() -> None:
    theta = rng(0).normal(size=48)
    truth, estimate = planted(200, theta, 2.0, 1), planted(200, 3 * theta + rng(9).normal(size=48), 2.0, 2)
    agreements = agreement.agreement(estimate, truth, 12, seed=0, paired=True, repeats=300)
    known = oracle.spearmanr(estimate.means(), truth.means())
    assert agreements.spearman.value == pytest.approx(known.statistic)
    assert agreements.lowest == ranks.overlap(estimate.means(), truth.means(), 12)
    assert agreements.highest.p < 0.01
    assert 0.95 < agreements.ceiling <= 1
    noise = agreement.agreement(planted(200, rng(5).normal(size=48), 2.0, 3), truth, 12, seed=0, repeats=300)
    assert noise.spearman.low < 0 < noise.spearman.high or noise.spearman.p <= 0.05


@pytest.mark.parametrize("level", [0.0, 1.0, 1.5])
def test_a_level_lies_between_0_and_1(level: float) -> None:
    with pytest.raises(StatisticsError, match="between 0 and 1"):
        ranks.rank_confidence_sets(np.zeros((3, 2)), seed=0, level=level)


@pytest.mark.parametrize("seed", [-1, 0.5, "a"])
def test_a_seed_is_a_whole_number(seed: object) -> None:
    with pytest.raises(StatisticsError, match="seed must be"):
        resampling.bootstrap_scores(planted(5, [0.0, 1.0], 1.0), seed=seed)  # type: ignore[arg-type]


def test_importing_needs_neither_torch_nor_scipy() -> None:
    code = "import sys, headcount.core.stats; assert not {'torch', 'scipy'} & set(sys.modules), 'heavy import'"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_standard_error_of_a_loss_counts_documents() -> None:
    """Ten equal examples of one document are one observation."""
    of_documents = rng(0).gamma(2.0, 1.0, 60)
    evaluation = Evaluation("t", "report", 60, of_documents)
    ten = Evaluation("t", "report", 600, of_documents.repeat(10), documents=np.repeat(np.arange(60), 10))
    assert ten.loss_stderr == pytest.approx(evaluation.loss_stderr) == pytest.approx(of_documents.std(ddof=1) / 60**0.5)
    assert np.isnan(replace(ten, documents=np.zeros(600, dtype=int)).loss_stderr)


def test_parts_of_a_single_seed_are_compared_as_those_of_a_model() -> None:
    first, second = (np.column_stack([rng(seed).integers(0, 2, 300), np.ones(300)]) for seed in (1, 2))
    (with_axis, without), total = align_seed_counts((first[:, None], second), share)
    difference = significance.paired_bootstrap(with_axis, without, total, seed=0)
    assert difference == significance.paired_bootstrap(first, second, share, seed=0)


def test_the_lowest_units_are_shared_as_units() -> None:
    """Of four groups of four heads, the lowest by its mean is the first, though the lowest heads are spread over the others."""
    means = np.array([1.0, 1.0, 1.0, 1.0] + [0.0, 3.0, 3.0, 3.0] * 3)
    other = np.array([1.0, 1.0, 1.0, 1.0] + [3.0, 3.0, 3.0, 0.5] * 3)
    units = [tuple(range(start, start + 4)) for start in range(0, 16, 4)]
    samples = [Samples.of(values + rng(seed).normal(0, 0.01, (300, 16))) for seed, values in enumerate((means, other))]
    agreements = agreement.agreement(samples[0], samples[1], 1, seed=0, positions_of_units=units, repeats=100)
    assert (agreements.lowest.shared, agreements.lowest.k) == (1, 1)
    assert agreement.agreement(samples[0], samples[1], 4, seed=0, repeats=100).lowest.shared < 4
    assert agreement.stability(samples[0], [40], 1, seed=0, units=units)[0].overlap.value == 1
