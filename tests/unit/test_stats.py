"""Laws, third-party oracles and simulated error rates of headcount.stats; no model, no torch."""

from __future__ import annotations

import itertools
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from scipy import stats as oracle

from headcount import stats
from headcount.errors import HeadcountError
from headcount.stats import Samples, StatisticsError, Totals


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.Generator(np.random.Philox(seed))


def planted(examples: int, means: list[float] | np.ndarray, noise: float, seed: int = 0) -> Samples:
    means = np.asarray(means)
    return Samples.of(means + noise * rng(seed).normal(size=(examples, len(means))))


# Samples and Totals


def test_samples_are_ratio_means() -> None:
    values, weights = rng().normal(size=(700, 5)), rng(1).random((700, 1))
    samples = Samples.of(values, weights)
    assert samples.sums.shape == (256, 5)
    assert samples.n == 700
    np.testing.assert_allclose(samples.means(), np.average(values, axis=0, weights=weights[:, 0]), rtol=1e-12)


def test_stderr_of_single_examples_is_the_textbook_one() -> None:
    values = rng().normal(size=(100, 3))
    expected = values.std(0, ddof=1) / 10
    np.testing.assert_allclose(Samples.of(values).stderr(), expected, rtol=1e-12)
    np.testing.assert_allclose(stats.jackknife(Samples.of(values)).stderr, expected, rtol=1e-12)


@pytest.mark.parametrize("shape", [(3,), (3, 2)])
@pytest.mark.parametrize("n", [1, 255, 256, 257, 1000])
def test_totals_do_not_depend_on_how_the_stream_is_cut(shape: tuple[int, ...], n: int) -> None:
    values, weights = rng(n).normal(size=(n, *shape)) * 1e3, rng(n + 1).random((n, 3)) * (rng(n + 2).random((n, 3)) > 0.1) + 1e-3
    whole = Totals(*shape)
    whole.update(values, weights)
    for trial in range(5):
        cuts = np.sort(rng(trial).integers(0, n + 1, size=trial * 7))
        cut = Totals(*shape)
        for part in np.split(np.arange(n), cuts):
            if len(part):
                cut.update(values[part], weights[part])
        assert cut.mean().tobytes() == whole.mean().tobytes()
        assert cut.samples().sums.tobytes() == whole.samples().sums.tobytes()
        assert cut.samples().weights.tobytes() == whole.samples().weights.tobytes()
        if n > 1:
            assert cut.stderr().tobytes() == whole.stderr().tobytes()


def test_totals_agree_with_the_formula_and_with_samples() -> None:
    values, weights = rng().normal(size=(1000, 4)), rng(1).integers(0, 3, size=(1000, 4)).astype(float)
    totals = Totals(4)
    totals.update(values, weights)
    mean = (weights * values).sum(0) / weights.sum(0)
    n = (weights > 0).sum(0)
    stderr = np.sqrt((weights**2 * (values - mean) ** 2).sum(0) * n / (n - 1)) / weights.sum(0)
    np.testing.assert_allclose(totals.mean(), mean, rtol=1e-12)
    np.testing.assert_allclose(totals.stderr(), stderr, rtol=1e-12)
    np.testing.assert_allclose(totals.samples().sums, Samples.of(values, weights).sums, rtol=1e-12)
    assert totals.samples().n == Samples.of(values, weights).n == (weights > 0).any(1).sum()


def test_totals_survive_a_large_offset_and_a_wild_first_example() -> None:
    values = rng().normal(size=(5000, 2))
    shifted = Totals(2)
    shifted.update(values + 1e9)
    np.testing.assert_allclose(shifted.stderr(), values.std(0, ddof=1) / np.sqrt(5000), rtol=1e-6)
    values[0] = 1e7
    wild = Totals(2)
    wild.update(values)
    np.testing.assert_allclose(wild.stderr(), values.std(0, ddof=1) / np.sqrt(5000), rtol=1e-12)


def test_totals_of_features_equal_totals_of_each_feature() -> None:
    values, weights = rng().normal(size=(300, 3, 2)), rng(1).random((300, 1))
    both = Totals(3, 2)
    both.update(values, weights)
    for feature in range(2):
        one = Totals(3)
        one.update(values[..., feature], weights)
        assert one.stderr().tobytes() == np.ascontiguousarray(both.stderr()[:, feature]).tobytes()
        np.testing.assert_array_equal(one.mean(), both.mean()[:, feature])


def test_totals_refuse_and_stay_as_they_were() -> None:
    totals = Totals(2)
    totals.update([[1.0, 2.0]])
    for values, weights, text in [
        ([[np.nan, 1.0]], None, "finite, got nan"),
        ([[1.0]], None, "values must be"),
        ([[1.0, 1.0]], [[-1.0]], "negative"),
        ([[1.0, 1.0]], [1.0], "weights must be"),
        (np.empty((0, 2)), None, "empty"),
    ]:
        with pytest.raises(StatisticsError, match=text):
            totals.update(values, weights)
    assert totals.n == 1
    np.testing.assert_array_equal(totals.mean(), [1.0, 2.0])
    with pytest.raises(StatisticsError, match="2 or more"):
        totals.stderr()


@pytest.mark.parametrize(
    ("sums", "weights", "text"),
    [
        (np.zeros((0, 2)), np.ones((0, 2)), "empty"),
        ([[np.inf]], [[1.0]], "finite"),
        ([1.0], [1.0], "sums must be"),
        ([[1.0, 2.0]], [[1.0, 1.0, 1.0]], "sums must be"),
        ([[1.0, 0.0]], [[1.0, 0.0]], "head 1 has no weight"),
        ([[1.0], [1.0]], [[1.0], [0.0]], "without weight"),
        ([[1.0]], [[-1.0]], "negative"),
    ],
)
def test_samples_name_what_is_wrong(sums: object, weights: object, text: str) -> None:
    with pytest.raises(StatisticsError, match=text) as caught:
        Samples(sums, weights)  # type: ignore[arg-type]
    assert isinstance(caught.value, HeadcountError)
    assert isinstance(caught.value, ValueError)


def test_samples_cannot_be_changed() -> None:
    samples = planted(10, [0.0, 1.0], 1.0)
    with pytest.raises(ValueError, match="read-only"):
        samples.sums[0] = 1.0


# resampling


def test_bootstrap_is_deterministic_and_ignores_empty_groups() -> None:
    samples = planted(50, [0.0, 1.0, 2.0], 1.0)
    hollow = Samples(np.insert(samples.sums, 7, 0.0, axis=0), np.insert(samples.weights, 7, 0.0, axis=0))
    first = stats.bootstrap(samples, seed=3, repeats=100)
    np.testing.assert_array_equal(first, stats.bootstrap(samples, seed=3, repeats=100))
    np.testing.assert_array_equal(first, stats.bootstrap(hollow, seed=3, repeats=100))
    assert not np.array_equal(first, stats.bootstrap(samples, seed=4, repeats=100))


def test_bootstrap_in_chunks_equals_bootstrap_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    samples = planted(40, np.arange(6.0), 1.0)
    whole = stats.bootstrap(samples, seed=1, repeats=300)
    monkeypatch.setattr("headcount.stats.resampling._CELLS", 40 * 7)
    np.testing.assert_allclose(stats.bootstrap(samples, seed=1, repeats=300), whole, rtol=1e-12)


def test_bootstrap_spread_is_the_standard_error() -> None:
    samples = planted(200, [0.0, 5.0], 2.0)
    drawn = stats.bootstrap(samples, seed=0, repeats=8000)
    np.testing.assert_allclose(drawn.std(0), samples.stderr(), rtol=0.03)
    np.testing.assert_allclose(drawn.mean(0), samples.means(), atol=0.01)


def test_a_rare_head_gets_a_mean_in_every_resample() -> None:
    weights = np.ones((30, 2))
    weights[3:, 1] = 0.0
    samples = Samples.of(rng().normal(size=(30, 2)) * (weights > 0), weights)
    assert np.isfinite(stats.bootstrap(samples, seed=0, repeats=500)).all()
    weights[1:, 1] = 0.0
    with pytest.raises(StatisticsError, match="head 1 has data in 1 group"):
        stats.bootstrap(Samples.of(np.ones((30, 2)) * (weights > 0), weights), seed=0)


@pytest.mark.parametrize(("method", "bca"), [("percentile", False), ("BCa", True)])
def test_intervals_agree_with_scipy(method: str, bca: bool) -> None:
    values = rng(5).exponential(size=(60, 2))
    samples = Samples.of(values)
    found = stats.intervals(stats.bootstrap(samples, seed=0, repeats=20000), samples=samples if bca else None)
    known = oracle.bootstrap((values,), np.mean, n_resamples=20000, method=method, axis=0, rng=rng(9)).confidence_interval
    np.testing.assert_allclose(found.low, known.low, atol=0.012)
    np.testing.assert_allclose(found.high, known.high, atol=0.012)


@pytest.mark.parametrize("bca", [False, True])
def test_interval_coverage(bca: bool) -> None:
    # 1000 heads are 1000 simulated data sets, in blocks that share no draw
    hits = []
    for block in range(10):
        samples = planted(100, np.zeros(100), 1.0, seed=block)
        found = stats.intervals(stats.bootstrap(samples, seed=block, repeats=1000), samples=samples if bca else None)
        hits.append((found.low <= 0) & (found.high >= 0))
    assert 0.93 <= np.mean(hits) <= 0.97


def test_bca_of_a_constant_head_is_a_point() -> None:
    samples = Samples.of(np.column_stack([np.full(20, 2.0), rng().normal(size=20)]))
    found = stats.intervals(stats.bootstrap(samples, seed=0, repeats=200), samples=samples)
    assert found.low[0] == found.high[0] == 2.0


def test_bca_splits_ties_evenly() -> None:
    samples = Samples.of(np.repeat([[-1.0], [0.0], [1.0]], [2, 16, 2], axis=0))
    drawn = stats.bootstrap(samples, seed=0, repeats=4000)
    bca, plain = stats.intervals(drawn, samples=samples), stats.intervals(drawn)
    np.testing.assert_allclose(bca, plain, atol=0.03)


@given(st.floats(0.5, 0.9), st.floats(0.901, 0.99))
@settings(max_examples=20, deadline=None)
def test_a_higher_level_gives_a_wider_interval(low: float, high: float) -> None:
    samples = planted(20, [0.0, 1.0], 1.0)
    drawn = stats.bootstrap(samples, seed=0, repeats=200)
    for with_samples in (None, samples):
        narrow, wide = (stats.intervals(drawn, level, samples=with_samples) for level in (low, high))
        assert (wide.low <= narrow.low).all()
        assert (wide.high >= narrow.high).all()


def ratio(means: np.ndarray) -> np.ndarray:
    return means[..., 1] / means[..., 0]


def test_jackknife_of_features() -> None:
    x = rng().random((80, 3)) + 1
    samples = Samples.of(np.stack([x, 2 * x + 0.1 * rng(1).normal(size=x.shape)], axis=-1))
    found = stats.jackknife(samples, ratio)
    np.testing.assert_allclose(found.values, ratio(samples.means()))
    left = np.array([ratio(np.delete(samples.sums, g, axis=0).mean(0)) for g in range(80)])
    np.testing.assert_allclose(found.stderr, np.sqrt(79 / 80 * ((left - left.mean(0)) ** 2).sum(0)), rtol=1e-10)
    np.testing.assert_allclose(stats.bootstrap(samples, seed=0, combine=ratio).std(0), found.stderr, rtol=0.1)
    with pytest.raises(StatisticsError, match="one number per head"):
        stats.jackknife(samples)
    with pytest.raises(StatisticsError, match="combine must turn"):
        stats.jackknife(samples, lambda means: means)


def test_jackknife_takes_the_bias_off_a_square() -> None:
    values = rng().normal(size=(30, 4))
    square = Samples.of(values[..., None])
    found = stats.jackknife(square, lambda means: means[..., 0] ** 2)
    np.testing.assert_allclose(found.corrected, values.mean(0) ** 2 - values.var(0, ddof=1) / 30, rtol=1e-9)


# ranks


def test_ranks_break_ties_like_scores() -> None:
    assert stats.ranks([1.0, 3.0, 3.0, 0.0]).tolist() == [3, 1, 2, 4]
    assert stats.ranks([1.0, 3.0, 3.0, 0.0], higher_is_keep=False).tolist() == [2, 3, 4, 1]
    many = rng().integers(0, 2, size=500).astype(float)
    expected = sorted(range(500), key=lambda head: (-many[head], head))
    assert np.argsort(stats.ranks(many)).tolist() == expected


def test_rank_intervals_cover_ranks_and_lowest_finds_planted_heads() -> None:
    means = np.array([3.0, 2.8, 0.0, 5.0, 0.1, 1.5])
    drawn = stats.bootstrap(planted(100, means, 1.0), seed=0)
    found = stats.rank_intervals(drawn)
    truth = stats.ranks(means)
    assert ((found.low <= truth) & (truth <= found.high)).all()
    assert found.low[3] == found.high[3] == 1
    probability = stats.lowest(drawn, 2)
    assert probability.sum() == pytest.approx(2)
    assert (probability[[2, 4]] > 0.99).all()
    np.testing.assert_array_equal(stats.lowest(-drawn, 2, higher_is_keep=False), probability)


def test_rank_interval_coverage() -> None:
    means, hits = np.arange(8) * 0.4, []
    for trial in range(200):
        found = stats.rank_intervals(stats.bootstrap(planted(60, means, 1.0, seed=trial), seed=trial, repeats=400))
        truth = stats.ranks(means)
        hits.append((found.low <= truth) & (truth <= found.high))
    assert 0.93 <= np.mean(hits) <= 1.0


@given(hnp.arrays(float, (20, 6), elements=st.integers(-3, 3).map(float)), st.integers(1, 6))
@settings(max_examples=50, deadline=None)
def test_lowest_sums_to_k_and_grows_with_k(drawn: np.ndarray, k: int) -> None:
    assert stats.lowest(drawn, k).sum() == pytest.approx(k)
    if k < 6:
        assert (stats.lowest(drawn, k + 1) >= stats.lowest(drawn, k)).all()


def test_units_go_together_by_their_mean() -> None:
    drawn = np.tile([0.0, 9.0, 3.0, 3.0, 5.0, 5.5], (10, 1))
    units = [(2, 3), (0, 1), (4, 5)]
    assert stats.lowest(drawn, 1, units=units).tolist() == [0, 0, 1, 1, 0, 0]
    assert stats.jointly_lowest(drawn, 2, units=units).heads == (0, 1, 2, 3)
    for wrong in ([(0, 1)], [(0, 1), (2, 3), (4, 4)], [(0, 1), (2, 3), (4, 5), ()]):
        with pytest.raises(StatisticsError, match="exactly once"):
            stats.lowest(drawn, 1, units=wrong)


def brute_joint(members: np.ndarray, level: float) -> int:
    heads = range(members.shape[1])
    sizes = range(members.shape[1], -1, -1)
    return next(size for size in sizes if any(members[:, list(c)].all(1).mean() >= level for c in itertools.combinations(heads, size)))


def test_joint_set_holds_and_is_nearly_always_the_largest() -> None:
    equal = 0
    for trial in range(60):
        drawn = stats.bootstrap(planted(30, np.arange(7) * 0.25, 1.0, seed=trial), seed=trial, repeats=200)
        found = stats.jointly_lowest(drawn, 4, level=0.8)
        members = stats.ranks(drawn) > 3
        assert found.probability == members[:, list(found.heads)].all(1).mean() >= 0.8
        equal += len(found.heads) == brute_joint(members, 0.8)
    assert equal >= 57


def test_overlap_against_hypergeometric() -> None:
    a, b = rng(0).normal(size=40), rng(1).normal(size=40)
    found = stats.overlap(a, b, 10)
    lowest = set(np.argsort(a)[:10]) & set(np.argsort(b)[:10])
    assert (found.shared, found.share, found.expected) == (len(lowest), len(lowest) / 10, 0.25)
    assert found.p == pytest.approx(oracle.hypergeom(40, 10, 10).sf(found.shared - 1))
    same = stats.overlap(a, a, 10, end="highest")
    assert same.share == 1
    assert same.p == pytest.approx(oracle.hypergeom(40, 10, 10).pmf(10))
    for k in (0, 41):
        with pytest.raises(StatisticsError, match="k must be from 1 to 40"):
            stats.overlap(a, b, k)


# corrections


@given(hnp.arrays(float, st.integers(1, 30), elements=st.floats(0, 1)))
def test_corrections(p: np.ndarray) -> None:
    np.testing.assert_allclose(stats.benjamini_hochberg(p), oracle.false_discovery_control(p), rtol=1e-12)
    assert (p <= stats.benjamini_hochberg(p) + 1e-15).all()
    assert (stats.benjamini_hochberg(p) <= stats.bonferroni(p) + 1e-15).all()
    np.testing.assert_array_equal(stats.adjust(p, "none"), p)


def test_corrections_refuse() -> None:
    with pytest.raises(StatisticsError, match=r"\[0, 1\]"):
        stats.bonferroni([1.2])
    with pytest.raises(StatisticsError, match="Known: bh"):
        stats.adjust([0.1], "holm")  # type: ignore[arg-type]


# Hall's transform


@pytest.mark.parametrize("kind", ["exponential", "negative", "normal", "constant"])
@pytest.mark.parametrize("pieces", [1, 7])
def test_streamed_skewness_is_that_of_scipy(kind: str, pieces: int) -> None:
    """Far from 0 too, where raw powers would cancel, and where some values do not count."""
    drawn = {"exponential": 1.0, "negative": -1.0}.get(kind, 0.0) * rng(3).exponential(size=(500, 8))
    values = 1e6 + drawn + (rng(4).normal(size=(500, 8)) if kind == "normal" else 0.0)
    has = rng(5).random((500, 8)) < 0.7
    made = stats.Skewness(8)
    for part in np.array_split(np.arange(500), pieces):
        made.update(values[part], has[part])
    expected = [0.0 if kind == "constant" else oracle.skew(values[has[:, i], i]) for i in range(8)]
    np.testing.assert_allclose(made.value(), expected, rtol=1e-7, atol=1e-9)
    with pytest.raises(StatisticsError, match="got"):
        made.update(values[:, :3], has[:, :3])


@given(st.floats(-3, 3), st.floats(-40, 40), st.integers(2, 5000))
@settings(max_examples=100, deadline=None)
def test_halls_transform_can_be_turned_round(skewness: float, t: float, n: int) -> None:
    size, lean = np.array([float(n)]), np.array([skewness])
    straight = np.array([t])
    np.testing.assert_allclose(stats.straightened(stats.bent(straight, size, lean), size, lean), straight, rtol=1e-6, atol=1e-4)
    np.testing.assert_array_equal(stats.straightened(straight, size, 0 * lean), np.sqrt(size) * (straight / np.sqrt(size)))


# safe to remove


def test_safe_finds_planted_heads_and_its_bound_matches_p() -> None:
    damage = planted(200, [0.0, 0.0, 0.5, 0.12], 0.2)
    rows = stats.safe_to_remove(damage, tolerance=0.1, worst=None)
    assert [row.safe for row in rows] == [True, True, False, False]
    for row in stats.safe_to_remove(damage, tolerance=0.1, worst=None, correct="none"):
        assert row.safe == (row.bound <= 0.1) == (row.p <= 0.05)
    np.testing.assert_allclose(stats.benjamini_hochberg([row.p for row in rows]), [row.q for row in rows])


@pytest.mark.parametrize("level", [0.9, 0.95, 0.99])
def test_the_bound_is_the_tolerance_at_which_p_is_the_error_rate(level: float) -> None:
    for sign in (1.0, -1.0):
        damage = Samples.of(sign * rng(7).exponential(size=(40, 1)))
        (row,) = stats.safe_to_remove(damage, tolerance=0.0, worst=None, level=level)
        (edge,) = stats.safe_to_remove(damage, tolerance=row.bound, worst=None, level=level)
        assert edge.p == pytest.approx(1 - level, rel=1e-9)


@given(st.floats(-0.5, 0.5), st.floats(0.0, 0.5))
@settings(max_examples=30, deadline=None)
def test_more_tolerance_never_takes_safety_away(tolerance: float, more: float) -> None:
    damage = planted(40, [0.0, 0.1, -0.2, 0.3], 0.5)
    strict, lax = (stats.safe_to_remove(damage, tolerance=t, worst=None) for t in (tolerance, tolerance + more))
    assert all(b.safe or not a.safe for a, b in zip(strict, lax, strict=True))
    assert [row.bound for row in strict] == [row.bound for row in lax]


@pytest.mark.parametrize(("n", "limit"), [(100, 0.07), (300, 0.065)])
def test_safe_holds_its_error_rate_on_skewed_damage(n: int, limit: float) -> None:
    wrong = []
    for block in range(4):
        damage = Samples.of(rng(block).exponential(size=(n, 500)))
        rows = stats.safe_to_remove(damage, tolerance=1.0, worst=None, correct="none")
        wrong += [row.safe for row in rows]
    assert 0.03 <= np.mean(wrong) <= limit


@pytest.mark.parametrize(("n", "worse", "better"), [(50, 0.01, 0.0), (200, 0.015, 0.0), (200, 0.05, 0.03), (1000, 0.01, 0.005)])
def test_safe_holds_its_error_rate_on_accuracy(n: int, worse: float, better: float) -> None:
    draws = rng(n).random((n, 2000))
    damage = Samples.of((draws < worse).astype(float) - (draws > 1 - better))
    rows = stats.safe_to_remove(damage, tolerance=worse - better, worst=1.0, correct="none")
    assert np.mean([row.safe for row in rows]) <= 0.065


def test_no_error_seen_is_no_proof() -> None:
    damage = Samples.of(np.zeros((200, 1)))
    assert stats.safe_to_remove(damage, tolerance=0.005, worst=None)[0].safe
    (row,) = stats.safe_to_remove(damage, tolerance=0.005, worst=1.0)
    assert not row.safe
    assert 0.01 < row.bound < 0.02  # the rule of three says 0.015
    assert stats.safe_to_remove(Samples.of(np.zeros((2000, 1))), tolerance=0.005, worst=1.0)[0].safe
    with pytest.raises(StatisticsError, match="below the worst"):
        stats.safe_to_remove(damage, tolerance=2.0, worst=1.0)


def test_benjamini_hochberg_keeps_false_safety_rare() -> None:
    shares = []
    for trial in range(200):
        damage = planted(60, np.r_[np.zeros(20), np.full(20, 0.5)], 0.8, seed=trial)
        safe = np.array([row.safe for row in stats.safe_to_remove(damage, tolerance=0.5, worst=None)])
        shares.append(safe[20:].sum() / max(1, safe.sum()))
    assert np.mean(shares) <= 0.05


def test_safe_by_rank_is_the_probability_of_the_lowest() -> None:
    samples = planted(80, np.arange(8) * 0.2, 1.0)
    drawn = stats.bootstrap(samples, seed=0)
    rows = stats.safe_by_rank(samples, drawn, 4)
    probability = stats.lowest(drawn, 4)
    assert [row.safe for row in rows] == (probability >= 0.95).tolist() == [row.bound > 4 for row in rows]
    assert any(row.safe for row in rows)
    np.testing.assert_allclose([row.p for row in rows], 1 - probability)
    halves = stats.safe_by_rank(samples, drawn, 2, units=[(0, 1), (2, 3), (4, 5), (6, 7)])
    assert [row.safe for row in halves] == [True] * 4 + [False] * 4
    with pytest.raises(StatisticsError, match="those of the samples"):
        stats.safe_by_rank(samples, drawn[:, :3], 2)


# two models on the same examples


@pytest.mark.parametrize(("only_a", "only_b"), [(0, 0), (5, 5), (1, 9), (12, 3), (0, 7)])
def test_mcnemar_is_a_binomial_test(only_a: int, only_b: int) -> None:
    a = [1] * only_a + [0] * only_b + [1] * 10
    b = [0] * only_a + [1] * only_b + [1] * 10
    found = stats.mcnemar(a, b)
    total = only_a + only_b
    assert (found.only_a, found.only_b) == (only_a, only_b)
    assert found.difference == pytest.approx((only_b - only_a) / (total + 10))
    assert found.p == pytest.approx(oracle.binomtest(only_a, total).pvalue if total else 1.0)
    mid = stats.mcnemar(a, b, mid=True).p
    point = oracle.binom.pmf(min(only_a, only_b), total, 0.5)
    assert mid == pytest.approx(min(1.0, 2 * oracle.binom.cdf(min(only_a, only_b), total, 0.5) - (point if total else 0)))


def test_mcnemar_error_rate() -> None:
    draws = rng(3).random((1000, 120))
    a, b = draws < 0.7, (draws > 0.1) & (draws < 0.8)
    exact = np.mean([stats.mcnemar(x, y).p <= 0.05 for x, y in zip(a, b, strict=True)])
    mid = np.mean([stats.mcnemar(x, y, mid=True).p <= 0.05 for x, y in zip(a, b, strict=True)])
    assert exact <= mid <= 0.065
    assert exact <= 0.05
    with pytest.raises(StatisticsError, match="0 or 1"):
        stats.mcnemar([0.5, 1], [1, 1])
    with pytest.raises(StatisticsError, match="same heads or examples"):
        stats.mcnemar([1], [1, 1])


def share(sums: np.ndarray) -> np.ndarray:
    return sums[..., 0] / sums[..., 1]


def test_paired_bootstrap_of_a_ratio() -> None:
    sizes = rng(0).integers(5, 30, size=400).astype(float)
    a = np.column_stack([rng(1).binomial(sizes.astype(int), 0.6), sizes])
    b = np.column_stack([rng(2).binomial(sizes.astype(int), 0.65), sizes])
    found = stats.paired_bootstrap(a, b, share, seed=0)
    assert found.difference == pytest.approx(share(b.sum(0)) - share(a.sum(0)))
    assert found.low < found.difference < found.high
    assert found.p < 0.05
    back = stats.paired_bootstrap(b, a, share, seed=0)
    assert (back.difference, back.low, back.p) == pytest.approx((-found.difference, -found.high, found.p))
    assert stats.paired_bootstrap(a, a, share, seed=0).p == 1.0


def test_paired_bootstrap_error_rate_and_coverage() -> None:
    found = []
    for trial in range(1000):
        a, b = (rng(1000 * side + trial).normal(size=(80, 1)) for side in (1, 2))
        found.append(stats.paired_bootstrap(a, b, lambda sums: sums[..., 0] / 80, seed=trial, repeats=400))
    assert 0.03 <= np.mean([f.p <= 0.05 for f in found]) <= 0.08
    assert 0.92 <= np.mean([f.low <= 0 <= f.high for f in found]) <= 0.97


def test_paired_bootstrap_refuses_what_has_no_total() -> None:
    with pytest.raises(StatisticsError, match="any choice of examples"), np.errstate(all="ignore"):
        stats.paired_bootstrap([[0, 0], [1, 1]], [[1, 1], [1, 1]], share, seed=0)
    with pytest.raises(StatisticsError, match="values \\[rows\\]"):
        stats.paired_bootstrap([[0, 1], [1, 1]], [[1, 1], [1, 1]], lambda sums: sums, seed=0)


def test_paired_t_is_scipys() -> None:
    values = rng().normal(0.2, 1, size=50)
    known = oracle.ttest_1samp(values, 0)
    found = stats.paired_t(values)
    interval = known.confidence_interval()
    assert (found.p, found.low, found.high) == pytest.approx((known.pvalue, interval.low, interval.high))
    assert stats.paired_t([0.0, 0.0]).p == 1.0
    with pytest.raises(StatisticsError, match="2 differences"):
        stats.paired_t([1.0])


def test_away_from_zero_is_scipys_and_knows_values_without_spread() -> None:
    values, errors = rng().normal(size=20), rng(1).random(20) + 0.1
    np.testing.assert_allclose(stats.away_from_zero(values, errors, 12), 2 * oracle.t.sf(np.abs(values / errors), 12), rtol=1e-12)
    np.testing.assert_allclose(stats.away_from_zero(values, errors, np.inf), 2 * oracle.norm.sf(np.abs(values / errors)), rtol=1e-12)
    assert stats.away_from_zero([0.0, 1e-9, -3.0, 0.0], [0.0, 0.0, 0.0, 1.0], 5).tolist() == [1.0, 0.0, 0.0, 1.0]
    drawn = rng(2).normal(size=(4000, 6))
    p = stats.away_from_zero(drawn.mean(1), drawn.std(1, ddof=1) / np.sqrt(6), 5)
    assert abs((p < 0.05).mean() - 0.05) < 0.01
    for bad in (([1.0], [-1.0], 5), ([1.0], [1.0], 0), ([1.0], [1.0, 2.0], 5), ([1.0], [np.nan], 5)):
        with pytest.raises(StatisticsError):
            stats.away_from_zero(*bad)


@pytest.mark.parametrize("alternative", ["two-sided", "greater", "less"])
def test_sign_flip_is_exact_for_few_examples(alternative: str) -> None:
    values = rng(4).normal(0.3, 1, size=(10, 3))
    found = stats.sign_flip(values, seed=0, alternative=alternative)  # type: ignore[arg-type]
    known = oracle.permutation_test(
        (values,), lambda x, axis: x.mean(axis), permutation_type="samples", n_resamples=np.inf, alternative=alternative, axis=0
    )
    np.testing.assert_allclose(found, known.pvalue, rtol=1e-12)
    assert stats.sign_flip(values[:, 0], seed=0, alternative=alternative) == found[0]  # type: ignore[arg-type]


def test_sign_flip_error_rate_and_power() -> None:
    null = stats.sign_flip(rng(0).laplace(size=(60, 2000)), seed=0, repeats=999)
    assert 0.035 <= (null <= 0.05).mean() <= 0.065
    assert stats.sign_flip(rng(0).normal(1, 1, size=60), seed=0) == 1e-4
    drawn = stats.sign_flip(rng(1).normal(0.2, 1, size=60), seed=0)
    assert drawn == pytest.approx(stats.paired_t(rng(1).normal(0.2, 1, size=60)).p, abs=0.02)


# correlations, stability, agreement


def test_correlations_are_scipys() -> None:
    a, b = rng(0).integers(0, 8, size=(3, 20)).astype(float), rng(1).integers(0, 8, size=(3, 20)).astype(float)
    for ours, theirs in ((stats.spearman, oracle.spearmanr), (stats.pearson, oracle.pearsonr), (stats.kendall, oracle.kendalltau)):
        np.testing.assert_allclose(ours(a, b), [theirs(x, y)[0] for x, y in zip(a, b, strict=True)], rtol=1e-12)
    with pytest.raises(StatisticsError, match="not defined"):
        stats.pearson([1.0, 1.0], [1.0, 2.0])


@pytest.mark.parametrize(("by", "least"), [("pearson", 0.9), ("spearman", 0.85)])
def test_correlation_interval_covers_the_true_correlation(by: str, least: float) -> None:
    # the percentile interval covers it in under 0.4 of these sets: noise pulls every replicate down
    hits = []
    for trial in range(300):
        theta = rng(trial).normal(size=60)
        phi = 0.8 * theta + 0.6 * rng(trial + 1000).normal(size=60)
        truth = float(getattr(stats, by)(theta, phi))
        a, b = planted(100, theta, 2.0, trial + 2000), planted(100, phi, 2.0, trial + 3000)
        found = stats.correlate(a, b, by=by, paired=True, repeats=300, seed=trial)  # type: ignore[arg-type]
        hits.append(found.low <= truth <= found.high)
    assert np.mean(hits) >= least


def test_correlate_pairs_or_not() -> None:
    a = planted(60, np.arange(10.0), 1.0)
    same = stats.correlate(a, a, paired=True, seed=0, repeats=100)
    assert same.value == pytest.approx(1) == same.low == same.high
    assert stats.correlate(a, a, seed=0, repeats=100).high <= 1
    fixed = Samples(np.arange(10.0)[None], np.ones((1, 1)))
    assert stats.correlate(fixed, a, seed=0, repeats=100, by="kendall").value > 0.8
    with pytest.raises(StatisticsError, match="same examples"):
        stats.correlate(a, planted(61, np.arange(10.0), 1.0), paired=True, seed=0)
    with pytest.raises(StatisticsError, match="Known: spearman"):
        stats.correlate(a, a, by="rank", seed=0)  # type: ignore[arg-type]


def test_stability_grows_with_size() -> None:
    samples = planted(1000, np.linspace(0, 1, 30), 2.0)
    rows = stats.stability(samples, [20, 100, 500, 1000], 10, seed=0)
    assert [row.groups for row in rows] == [5, 26, 128, 256]
    for name in ("spearman", "overlap"):
        found = [getattr(row, name).value for row in rows]
        assert found == sorted(found)
        assert found[-1] == pytest.approx(1)
    assert rows[3].disjoint_spearman is None
    assert all(row.disjoint_spearman and row.disjoint_spearman.value < row.spearman.value for row in rows[:3])
    flipped = stats.stability(Samples(-samples.sums, samples.weights, samples.n), [20], 10, seed=0, higher_is_keep=False)
    assert flipped[0] == rows[0]
    with pytest.raises(StatisticsError, match="size must be from 1 to 1000"):
        stats.stability(samples, [1001], 10, seed=0)


def test_subsets_that_rank_nothing_count_as_zero() -> None:
    values = np.zeros((50, 4))
    values[0] = [0, 1, 2, 3]
    (row,) = stats.stability(Samples.of(values), [5], 2, seed=0)
    assert 0 < row.spearman.value < 0.4


def test_reliability_predicts_the_correlation_with_a_new_sample() -> None:
    predicted, real = [], []
    for trial in range(30):
        theta = rng(trial).normal(size=80)
        a, b = planted(100, theta, 8.0, trial + 100), planted(100, theta, 8.0, trial + 200)
        predicted.append(stats.reliability(a, seed=trial, repeats=50).value)
        real.append(float(stats.spearman(a.means(), b.means())))
    assert np.mean(predicted) == pytest.approx(np.mean(real), abs=0.03)


def test_agreement_of_a_cheap_score() -> None:
    theta = rng(0).normal(size=48)
    truth, cheap = planted(200, theta, 2.0, 1), planted(200, 3 * theta + rng(9).normal(size=48), 2.0, 2)
    found = stats.agreement(cheap, truth, 12, seed=0, paired=True, repeats=300)
    known = oracle.spearmanr(cheap.means(), truth.means())
    assert (found.spearman.value, found.p) == pytest.approx((known.statistic, known.pvalue))
    assert found.lowest == stats.overlap(cheap.means(), truth.means(), 12)
    assert found.highest.p < 0.01
    assert 0.95 < found.ceiling <= 1
    noise = stats.agreement(planted(200, rng(5).normal(size=48), 2.0, 3), truth, 12, seed=0, repeats=300)
    assert noise.spearman.low < 0 < noise.spearman.high or noise.p > 0.01


@pytest.mark.parametrize("level", [0.0, 1.0, 1.5])
def test_a_level_lies_between_0_and_1(level: float) -> None:
    with pytest.raises(StatisticsError, match="between 0 and 1"):
        stats.intervals(np.zeros((3, 2)), level)


@pytest.mark.parametrize("seed", [-1, 0.5, "a"])
def test_a_seed_is_a_whole_number(seed: object) -> None:
    with pytest.raises(StatisticsError, match="seed must be"):
        stats.bootstrap(planted(5, [0.0, 1.0], 1.0), seed=seed)  # type: ignore[arg-type]


def test_importing_needs_neither_torch_nor_scipy() -> None:
    code = "import sys, headcount.stats; assert not {'torch', 'scipy'} & set(sys.modules), 'heavy import'"
    subprocess.run([sys.executable, "-c", code], check=True)
