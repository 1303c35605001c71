"""Bounds of means by betting: they err rarely for every distribution within the clip, and are narrow enough to be of use."""

from __future__ import annotations

import numpy as np
import pytest
from drawn import rng

from headcount.core.errors import StatisticsError
from headcount.core.stats.betting import p_value_of_mean_at_least, upper_bound_of_mean

CLIP, TOLERANCE = 2.0, 0.02


@pytest.mark.parametrize("n", [64, 256, 1024])
@pytest.mark.parametrize(("rate", "harm"), [(0.01, 2.0), (0.05, 0.4), (0.5, 0.04)])
def test_a_mean_at_the_tolerance_is_rarely_refuted(n: int, rate: float, harm: float) -> None:
    damage = (rng(n).random((n, 400)) < rate) * harm
    assert (p_value_of_mean_at_least(damage, TOLERANCE, CLIP) <= 0.05).mean() <= 0.05


def test_bound_and_p_value_are_of_one_test() -> None:
    damage = rng(1).normal(0.0, 0.05, size=(600, 8))
    bounds = upper_bound_of_mean(damage, CLIP)
    for column, bound in enumerate(bounds):
        assert (
            p_value_of_mean_at_least(damage[:, column], bound + 1e-6, CLIP)[0]
            <= 0.05
            < p_value_of_mean_at_least(damage[:, column], bound - 1e-6, CLIP)[0]
        )


def test_no_damage_at_all_is_refuted_by_a_few_hundred_examples() -> None:
    assert p_value_of_mean_at_least(np.zeros(298), TOLERANCE, CLIP)[0] > 0.05  # 298.07 = ln .05 / ln(1 − .01), with the largest bet alone
    assert p_value_of_mean_at_least(np.zeros(480), TOLERANCE, CLIP)[0] <= 0.05


def test_damage_beyond_the_clip_counts_as_the_clip() -> None:
    damage = np.zeros(800)
    damage[::100] = 50.0
    assert upper_bound_of_mean(damage, CLIP)[0] == upper_bound_of_mean(np.minimum(damage, CLIP), CLIP)[0] > 0.02


def test_bounds_move_with_the_order_of_examples_but_stay_above_the_mean() -> None:
    damage = rng(3).normal(0.01, 0.2, size=500)
    bounds = [upper_bound_of_mean(order, CLIP)[0] for order in (damage, damage[::-1])]
    assert all(bound > damage.mean() for bound in bounds)


def test_a_mean_with_weights_is_rarely_refuted_where_the_large_documents_do_the_harm() -> None:
    """Documents of 1 or 20 examples, of which only large ones do harm: the ratio of sums is the tolerance, the mean over documents far less."""
    sizes = np.where(rng(2).random((200, 1024)) < 0.1, 20.0, 1.0)
    harm = TOLERANCE * (0.1 * 20 + 0.9) / (0.1 * 20)
    wrong = [p_value_of_mean_at_least(np.where(size == 20, harm, 0.0), TOLERANCE, CLIP, size)[0] <= 0.05 for size in sizes]
    assert np.mean(wrong) <= 0.05
    unweighted = [p_value_of_mean_at_least(np.where(size == 20, harm, 0.0), TOLERANCE, CLIP)[0] <= 0.05 for size in sizes]
    assert np.mean(unweighted) == 1
    values, equal = rng(4).normal(0.0, 0.1, 200), np.full(200, 7.0)
    assert upper_bound_of_mean(values, CLIP, weights=equal)[0] == upper_bound_of_mean(values, CLIP)[0]
    with pytest.raises(StatisticsError, match="weights"):
        p_value_of_mean_at_least(values, TOLERANCE, CLIP, equal[1:])


@pytest.mark.parametrize(
    "arguments", [(np.zeros(0), 0.1, 1.0), (np.full(3, np.nan), 0.1, 1.0), (np.zeros(3), 1.0, 1.0), (np.zeros(3), 0.1, 0.0)]
)
def test_what_cannot_be_tested_is_an_error(arguments: tuple[np.ndarray, float, float]) -> None:
    with pytest.raises(StatisticsError):
        p_value_of_mean_at_least(*arguments)
