"""Statistics of one sample: streamed totals, resampling, ranks."""

from __future__ import annotations

import numpy as np
import pytest
from drawn import planted, rng
from scipy import stats as oracle

from headcount.core.errors import HeadcountError, StatisticsError
from headcount.core.stats import ranks, resampling
from headcount.core.stats.samples import Samples
from headcount.core.stats.totals import Totals

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


@pytest.mark.parametrize("shape", [(3,), (3, 2)])
@pytest.mark.parametrize("n", [1, 255, 256, 257, 1000])
def test_totals_do_not_depend_on_how_the_stream_is_cut(shape: tuple[int, ...], n: int) -> None:
    values, weights = rng(n).normal(size=(n, *shape)) * 1e3, rng(n + 1).random((n, 3)) * (rng(n + 2).random((n, 3)) > 0.1) + 1e-3
    totals = Totals(*shape)
    totals.update(values, weights)
    for trial in range(5):
        cuts = np.sort(rng(trial).integers(0, n + 1, size=trial * 7))
        cut = Totals(*shape)
        for part in np.split(np.arange(n), cuts):
            if len(part):
                cut.update(values[part], weights[part])
        assert cut.mean().tobytes() == totals.mean().tobytes()
        assert cut.samples().sums.tobytes() == totals.samples().sums.tobytes()
        assert cut.samples().weights.tobytes() == totals.samples().weights.tobytes()
        if n > 1:
            assert cut.stderr().tobytes() == totals.stderr().tobytes()


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
        totals = Totals(3)
        totals.update(values[..., feature], weights)
        assert totals.stderr().tobytes() == np.ascontiguousarray(both.stderr()[:, feature]).tobytes()
        np.testing.assert_array_equal(totals.mean(), both.mean()[:, feature])


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
    first = resampling.bootstrap_scores(samples, seed=3, repeats=100)
    np.testing.assert_array_equal(first, resampling.bootstrap_scores(samples, seed=3, repeats=100))
    np.testing.assert_array_equal(first, resampling.bootstrap_scores(hollow, seed=3, repeats=100))
    assert not np.array_equal(first, resampling.bootstrap_scores(samples, seed=4, repeats=100))


def test_bootstrap_in_chunks_equals_bootstrap_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    samples = planted(40, np.arange(6.0), 1.0)
    complete = resampling.bootstrap_scores(samples, seed=1, repeats=300)
    monkeypatch.setattr("headcount.core.stats.resampling._CELLS", 40 * 7)
    np.testing.assert_allclose(resampling.bootstrap_scores(samples, seed=1, repeats=300), complete, rtol=1e-12)


def test_bootstrap_spread_is_the_standard_error() -> None:
    samples = planted(200, [0.0, 5.0], 2.0)
    sample = resampling.bootstrap_scores(samples, seed=0, repeats=8000)
    np.testing.assert_allclose(sample.std(0), samples.stderr(), rtol=0.03)
    np.testing.assert_allclose(sample.mean(0), samples.means(), atol=0.01)


def test_a_rare_head_gets_a_mean_in_every_resample() -> None:
    weights = np.ones((30, 2))
    weights[3:, 1] = 0.0
    samples = Samples.of(rng().normal(size=(30, 2)) * (weights > 0), weights)
    assert np.isfinite(resampling.bootstrap_scores(samples, seed=0, repeats=500)).all()
    weights[1:, 1] = 0.0
    with pytest.raises(StatisticsError, match="head 1 has data in 1 group"):
        resampling.bootstrap_scores(Samples.of(np.ones((30, 2)) * (weights > 0), weights), seed=0)


def ratio(means: np.ndarray) -> np.ndarray:
    return means[..., 1] / means[..., 0]


def test_pseudovalues_are_those_of_the_jackknife() -> None:
    x = rng().random((80, 3)) + 1
    samples = Samples.of(np.stack([x, 2 * x + 0.1 * rng(1).normal(size=x.shape)], axis=-1))
    actual = resampling.pseudovalues(samples, ratio)
    np.testing.assert_allclose(actual.means(), ratio(samples.means()))
    values = np.array([ratio(np.delete(samples.sums, g, axis=0).mean(0)) for g in range(80)])
    np.testing.assert_allclose(actual.stderr(), np.sqrt(79 / 80 * ((values - values.mean(0)) ** 2).sum(0)), rtol=1e-10)
    np.testing.assert_allclose(resampling.bootstrap_scores(samples, seed=0, combine=ratio).std(0), actual.stderr(), rtol=0.1)
    with pytest.raises(StatisticsError, match="one number per head"):
        resampling.bootstrap_scores(samples, seed=0)
    with pytest.raises(StatisticsError, match="combine must turn"):
        resampling.pseudovalues(samples, lambda means: means)


# ranks


def test_ranks_break_ties_like_scores() -> None:
    assert ranks.ranks([1.0, 3.0, 3.0, 0.0], tie_ranks=range(4)).tolist() == [3, 1, 2, 4]
    assert ranks.ranks([1.0, 3.0, 3.0, 0.0], tie_ranks=[3, 2, 1, 0]).tolist() == [3, 2, 1, 4]
    assert ranks.ranks([1.0, 3.0, 3.0, 0.0], higher_is_keep=False, tie_ranks=range(4)).tolist() == [2, 3, 4, 1]
    many = rng().integers(0, 2, size=500).astype(float)
    ties = rng().permutation(500)
    expected = sorted(range(500), key=lambda head: (-many[head], ties[head]))
    assert np.argsort(ranks.ranks(many, tie_ranks=ties)).tolist() == expected
    assert abs(np.corrcoef(ranks.ranks(np.ones(500)), np.arange(500))[0, 1]) < 0.2, "no order of positions unless it is named"


def test_rank_sets_find_heads_that_differ_and_leave_ties_open() -> None:
    means = np.array([3.0, 2.9, 0.0, 5.0, 0.0, 1.5])
    samples = planted(200, means, 0.5)
    confidence_sets = ranks.rank_confidence_sets(samples.group_pseudovalues(), seed=0)
    assert confidence_sets is not None
    assert confidence_sets.low.tolist() == [2, 2, 5, 1, 5, 4] and confidence_sets.high.tolist() == [3, 3, 6, 1, 6, 4]
    turned = ranks.rank_confidence_sets(-samples.group_pseudovalues(), seed=0, higher_is_keep=False)
    np.testing.assert_array_equal(turned, confidence_sets)
    same = ranks.rank_confidence_sets(np.tile([1.0, 1.0, 0.0], (20, 1)), seed=0)
    assert same is not None and same.low.tolist() == [1, 1, 3] and same.high.tolist() == [2, 2, 3], (
        "what no example moves differs or is equal"
    )
    assert ranks.rank_confidence_sets(np.ones((1, 3)), seed=0) is None
    assert ranks.rank_confidence_sets(np.ones((2, ranks.MOST_RANKED + 1)), seed=0) is None


@pytest.mark.parametrize(("n", "kind"), [(64, "normal"), (64, "skewed"), (64, "rare"), (256, "rare")])
def test_rank_sets_cover_all_heads_jointly(n: int, kind: str) -> None:
    """Skewed damage, and harm that few examples show: the sets of all heads hold together in 95 of 100 draws."""
    hits = []
    for trial in range(150):
        random = rng(trial)
        means = np.array([0.0, 0.02, 0.05, 0.1, 0.3, 0.6])
        draws = {
            "normal": lambda random=random, means=means: means + random.normal(size=(n, 6)),
            "skewed": lambda random=random, means=means: means + 0.3 * (random.gamma(1.0, 1.0, (n, 6)) - 1),
            "rare": lambda random=random, means=means: (random.random((n, 6)) < means / 2) * 2.0,
        }
        confidence_sets = ranks.rank_confidence_sets(draws[kind](), seed=trial, repeats=200)
        assert confidence_sets is not None
        truth = ranks.ranks(means)
        hits.append(((confidence_sets.low <= truth) & (truth <= confidence_sets.high)).all())
    assert np.mean(hits) >= 0.93


def test_units_have_the_mean_of_their_members() -> None:
    units = [(2, 3), (0, 1)]
    assert ranks.unit_means(np.array([0.0, 9.0, 3.0, 3.0]), units).tolist() == [3.0, 4.5]
    assert ranks.spread_to_heads(np.array([1.0, 2.0]), units).tolist() == [2, 2, 1, 1]


def test_values_of_groups_have_the_mean_and_the_spread_of_the_score() -> None:
    weights = rng(1).integers(1, 5, (400, 1)).astype(float)
    samples = Samples.of(rng(2).gamma(1.0, 1.0, (400, 3)), weights)
    values = samples.group_pseudovalues()
    np.testing.assert_allclose(values.mean(0), samples.means())
    np.testing.assert_allclose(values.std(0, ddof=1) / np.sqrt(len(values)), samples.stderr())


def test_overlap_against_hypergeometric() -> None:
    a, b = rng(0).normal(size=40), rng(1).normal(size=40)
    actual = ranks.overlap(a, b, 10)
    lowest = set(np.argsort(a)[:10]) & set(np.argsort(b)[:10])
    assert (actual.shared, actual.share, actual.expected) == (len(lowest), len(lowest) / 10, 0.25)
    assert actual.p == pytest.approx(oracle.hypergeom(40, 10, 10).sf(actual.shared - 1))
    same = ranks.overlap(a, a, 10, end="highest")
    assert same.share == 1
    assert same.p == pytest.approx(oracle.hypergeom(40, 10, 10).pmf(10))
    for k in (0, 41):
        with pytest.raises(StatisticsError, match="k must be from 1 to 40"):
            ranks.overlap(a, b, k)
