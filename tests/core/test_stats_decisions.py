"""Statistics of decisions: corrections of many tests, and the transform for skewness."""

from __future__ import annotations

import numpy as np
import pytest
from drawn import rng
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from scipy import stats as oracle

from headcount.core.errors import StatisticsError
from headcount.core.stats import hall, significance

# corrections


@given(hnp.arrays(float, st.integers(1, 30), elements=st.floats(0, 1)))
def test_corrections(p: np.ndarray) -> None:
    np.testing.assert_allclose(significance.benjamini_hochberg(p), oracle.false_discovery_control(p), rtol=1e-12)
    assert (p <= significance.benjamini_hochberg(p) + 1e-15).all()
    assert (significance.benjamini_hochberg(p) <= significance.bonferroni(p) + 1e-15).all()
    np.testing.assert_array_equal(significance.adjust_p_values(p, "none"), p)


def test_corrections_refuse() -> None:
    with pytest.raises(StatisticsError, match=r"\[0, 1\]"):
        significance.bonferroni([1.2])
    with pytest.raises(StatisticsError, match="Known: bh"):
        significance.adjust_p_values([0.1], "holm")  # type: ignore[arg-type]


# Hall's transform


@pytest.mark.parametrize("kind", ["exponential", "negative", "normal", "constant"])
@pytest.mark.parametrize("pieces", [1, 7])
def test_streamed_skewness_is_that_of_scipy(kind: str, pieces: int) -> None:
    """Far from 0 too, where raw powers would cancel, and where some values do not count."""
    sample = {"exponential": 1.0, "negative": -1.0}.get(kind, 0.0) * rng(3).exponential(size=(500, 8))
    values = 1e6 + sample + (rng(4).normal(size=(500, 8)) if kind == "normal" else 0.0)
    has = rng(5).random((500, 8)) < 0.7
    skewness = hall.Skewness(8)
    for part in np.array_split(np.arange(500), pieces):
        skewness.update(values[part], has[part])
    expected = [0.0 if kind == "constant" else oracle.skew(values[has[:, i], i]) for i in range(8)]
    np.testing.assert_allclose(skewness.value(), expected, rtol=1e-7, atol=1e-9)
    with pytest.raises(StatisticsError, match="got"):
        skewness.update(values[:, :3], has[:, :3])


@given(st.floats(-3, 3), st.floats(-40, 40), st.integers(2, 5000))
@settings(max_examples=100, deadline=None)
def test_halls_transform_can_be_turned_round(skewness: float, t: float, n: int) -> None:
    size, lean = np.array([float(n)]), np.array([skewness])
    straight = np.array([t])
    np.testing.assert_allclose(
        hall.hall_transform(hall.inverse_hall_transform(straight, size, lean), size, lean), straight, rtol=1e-6, atol=1e-4
    )
    np.testing.assert_array_equal(hall.hall_transform(straight, size, 0 * lean), np.sqrt(size) * (straight / np.sqrt(size)))
