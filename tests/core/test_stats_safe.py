"""Statistics of decisions: corrections, skewness, what is safe to remove."""

from __future__ import annotations

import numpy as np
import pytest
from drawn import planted, rng
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from scipy import stats as oracle

from headcount.core.errors import StatisticsError
from headcount.core.stats import hall, safe, significance
from headcount.core.stats.samples import Samples

# corrections


@given(hnp.arrays(float, st.integers(1, 30), elements=st.floats(0, 1)))
def test_corrections(p: np.ndarray) -> None:
    np.testing.assert_allclose(significance.benjamini_hochberg(p), oracle.false_discovery_control(p), rtol=1e-12)
    assert (p <= significance.benjamini_hochberg(p) + 1e-15).all()
    assert (significance.benjamini_hochberg(p) <= significance.bonferroni(p) + 1e-15).all()
    np.testing.assert_array_equal(significance.adjust(p, "none"), p)


def test_corrections_refuse() -> None:
    with pytest.raises(StatisticsError, match=r"\[0, 1\]"):
        significance.bonferroni([1.2])
    with pytest.raises(StatisticsError, match="Known: bh"):
        significance.adjust([0.1], "holm")  # type: ignore[arg-type]


# Hall's transform


@pytest.mark.parametrize("kind", ["exponential", "negative", "normal", "constant"])
@pytest.mark.parametrize("pieces", [1, 7])
def test_streamed_skewness_is_that_of_scipy(kind: str, pieces: int) -> None:
    """Far from 0 too, where raw powers would cancel, and where some values do not count."""
    drawn = {"exponential": 1.0, "negative": -1.0}.get(kind, 0.0) * rng(3).exponential(size=(500, 8))
    values = 1e6 + drawn + (rng(4).normal(size=(500, 8)) if kind == "normal" else 0.0)
    has = rng(5).random((500, 8)) < 0.7
    made = hall.Skewness(8)
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
    np.testing.assert_allclose(
        hall.hall_transform(hall.inverse_hall_transform(straight, size, lean), size, lean), straight, rtol=1e-6, atol=1e-4
    )
    np.testing.assert_array_equal(hall.hall_transform(straight, size, 0 * lean), np.sqrt(size) * (straight / np.sqrt(size)))


# safe to remove


def test_safe_finds_planted_heads_and_its_bound_matches_p() -> None:
    damage = planted(200, [0.0, 0.0, 0.5, 0.12], 0.2)
    rows = safe.safe_to_remove(damage, tolerance=0.1, worst=None)
    assert [row.safe for row in rows] == [True, True, False, False]
    for row in safe.safe_to_remove(damage, tolerance=0.1, worst=None, correct="none"):
        assert row.safe == (row.bound <= 0.1) == (row.p <= 0.05)
    np.testing.assert_allclose(significance.benjamini_hochberg([row.p for row in rows]), [row.q for row in rows])


@pytest.mark.parametrize("level", [0.9, 0.95, 0.99])
def test_the_bound_is_the_tolerance_at_which_p_is_the_error_rate(level: float) -> None:
    for sign in (1.0, -1.0):
        damage = Samples.of(sign * rng(7).exponential(size=(40, 1)))
        (row,) = safe.safe_to_remove(damage, tolerance=0.0, worst=None, level=level)
        (edge,) = safe.safe_to_remove(damage, tolerance=row.bound, worst=None, level=level)
        assert edge.p == pytest.approx(1 - level, rel=1e-9)


@given(st.floats(-0.5, 0.5), st.floats(0.0, 0.5))
@settings(max_examples=30, deadline=None)
def test_more_tolerance_never_takes_safety_away(tolerance: float, more: float) -> None:
    damage = planted(40, [0.0, 0.1, -0.2, 0.3], 0.5)
    strict, lax = (safe.safe_to_remove(damage, tolerance=t, worst=None) for t in (tolerance, tolerance + more))
    assert all(b.safe or not a.safe for a, b in zip(strict, lax, strict=True))
    assert [row.bound for row in strict] == [row.bound for row in lax]


@pytest.mark.parametrize(("n", "limit"), [(100, 0.07), (300, 0.065)])
def test_safe_holds_its_error_rate_on_skewed_damage(n: int, limit: float) -> None:
    wrong = []
    for block in range(4):
        damage = Samples.of(rng(block).exponential(size=(n, 500)))
        rows = safe.safe_to_remove(damage, tolerance=1.0, worst=None, correct="none")
        wrong += [row.safe for row in rows]
    assert 0.03 <= np.mean(wrong) <= limit


@pytest.mark.parametrize(("n", "worse", "better"), [(50, 0.01, 0.0), (200, 0.015, 0.0), (200, 0.05, 0.03), (1000, 0.01, 0.005)])
def test_safe_holds_its_error_rate_on_accuracy(n: int, worse: float, better: float) -> None:
    draws = rng(n).random((n, 2000))
    damage = Samples.of((draws < worse).astype(float) - (draws > 1 - better))
    rows = safe.safe_to_remove(damage, tolerance=worse - better, worst=1.0, correct="none")
    assert np.mean([row.safe for row in rows]) <= 0.065


def test_no_error_seen_is_no_proof() -> None:
    damage = Samples.of(np.zeros((200, 1)))
    assert safe.safe_to_remove(damage, tolerance=0.005, worst=None)[0].safe
    (row,) = safe.safe_to_remove(damage, tolerance=0.005, worst=1.0)
    assert not row.safe
    assert 0.01 < row.bound < 0.02  # the rule of three says 0.015
    assert safe.safe_to_remove(Samples.of(np.zeros((2000, 1))), tolerance=0.005, worst=1.0)[0].safe
    with pytest.raises(StatisticsError, match="below the worst"):
        safe.safe_to_remove(damage, tolerance=2.0, worst=1.0)


def test_benjamini_hochberg_keeps_false_safety_rare() -> None:
    shares = []
    for trial in range(200):
        damage = planted(60, np.r_[np.zeros(20), np.full(20, 0.5)], 0.8, seed=trial)
        is_safe = np.array([row.safe for row in safe.safe_to_remove(damage, tolerance=0.5, worst=None)])
        shares.append(is_safe[20:].sum() / max(1, is_safe.sum()))
    assert np.mean(shares) <= 0.05
