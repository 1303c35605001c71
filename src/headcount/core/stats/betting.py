"""Betting on means: one-sided bounds that hold for every distribution within known limits, rare harm included (Waudby-Smith & Ramdas 2024).

A gambler bets that the mean of values in [−c, c] is below m. A bet of size λ multiplies the wealth by 1 − λ (y − m) with every value y; if the mean
is m or more, wealth is not expected to grow, and by Ville's inequality it exceeds 1/α at any time with probability at most α. The wealth here is the
mean over ten gamblers with constant bets of 5 % to 95 % of the largest that cannot ruin them, λ = 1/(c − m).

Values may have weights w, such as the sizes of documents: a bet is then λ w / max(w), and m is the ratio Σ w y / Σ w, since E[w (y − m)] = 0 there.
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Float
from numpy.typing import ArrayLike

from headcount.core.errors import StatisticsError
from headcount.core.stats.samples import error_probability, to_finite_array

BETS = np.linspace(0.05, 0.95, 10)
"""The bets, as shares of the largest."""
_HALVINGS = 26
_CELLS = 2**21


def p_value_of_mean_at_least(
    values: ArrayLike, mean: float, clip: float, weights: ArrayLike | None = None
) -> Float[np.ndarray, " columns"]:
    """Returns for every column the p-value of its mean being `mean` or more: 1 / the largest wealth, at most 1.

    Args:
        values: One number per example, [examples] or [examples, columns], in an order that does not depend on them; clipped to [−clip, clip].
        mean: The mean of the null hypothesis, above −clip and below clip.
        clip: What a value can be at most; larger ones count as that.
        weights: The weight of every row of values in the mean, above 0; equal by default.
    """
    clipped, stakes = _clip_to_columns(values, clip), _stakes(values, weights)
    if not -clip < mean < clip:
        raise StatisticsError(f"the mean must lie between −{clip:g} and {clip:g}, where the values are, got {mean:g}")
    return np.minimum(1.0, np.exp(-_largest_log_wealth(clipped, stakes, np.full(clipped.shape[1], float(mean)), clip)))


def upper_bound_of_mean(
    values: ArrayLike, clip: float, level: float = 0.95, weights: ArrayLike | None = None
) -> Float[np.ndarray, " columns"]:
    """Returns the upper confidence bound of every column's mean: the smallest mean that the wealth refutes, `clip` where none is refuted.

    Args:
        values: As for `p_value_of_mean_at_least`.
        clip: What a value can be at most; larger ones count as that. The bound is that of the mean of clipped values.
        level: The confidence.
        weights: As for `p_value_of_mean_at_least`.
    """
    clipped, stakes, goal = _clip_to_columns(values, clip), _stakes(values, weights), -np.log(error_probability(level))
    low, high = np.average(clipped, axis=0, weights=stakes), np.full(clipped.shape[1], float(clip))
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        refuted = _largest_log_wealth(clipped, stakes, middle, clip) >= goal
        low, high = np.where(refuted, low, middle), np.where(refuted, middle, high)
    return high


def fewest_zeros_to_refute(mean: float, clip: float, p: float) -> int:
    """Returns how many values, all 0, the gamblers need to refute a mean at this p-value: with fewer, nothing can be refuted so surely.

    Args:
        mean: The mean of the null hypothesis, above 0 and below clip.
        clip: As for `p_value_of_mean_at_least`.
        p: The p-value to reach.
    """
    if not 0 < mean < clip or not 0 < p < 1:
        raise StatisticsError(f"the mean must lie between 0 and {clip:g} and p between 0 and 1, got {mean:g} and {p:g}")
    growth, goal = np.log1p(BETS * mean / (clip - mean)), np.log(len(BETS) / p)
    low, high = 0, int(np.ceil(goal / growth[-1]))  # the boldest gambler alone reaches the goal with `high`
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if np.logaddexp.reduce(middle * growth) >= goal else (middle, high)
    return high


def _clip_to_columns(values: ArrayLike, clip: float) -> Float[np.ndarray, "examples columns"]:
    numbers = to_finite_array(values, "values")
    if numbers.ndim not in (1, 2) or not clip > 0:
        raise StatisticsError(f"values must be [examples] or [examples, columns] and clip above 0, got {numbers.shape} and {clip:g}")
    return np.clip(numbers.reshape(len(numbers), -1), -clip, clip)


def _stakes(values: ArrayLike, weights: ArrayLike | None) -> Float[np.ndarray, " examples"]:
    """Returns the share of the bet that is laid on each value: in proportion to its weight, all of it on the largest."""
    if weights is None:
        return np.ones(len(np.asarray(values)))
    numbers = to_finite_array(weights, "weights")
    if numbers.shape != (len(np.asarray(values)),) or not (numbers > 0).all():
        raise StatisticsError(f"weights must be above 0, one for each of {len(np.asarray(values))} values, got {numbers.shape}")
    return numbers / numbers.max()


def _largest_log_wealth(
    clipped: Float[np.ndarray, "examples columns"],
    stakes: Float[np.ndarray, " examples"],
    mean: Float[np.ndarray, " columns"],
    clip: float,
) -> Float[np.ndarray, " columns"]:
    """Returns the logarithm of the largest wealth that each column ever reached against its mean."""
    largest = np.zeros(clipped.shape[1])
    wealth = np.zeros((len(BETS), clipped.shape[1]))
    reach = np.maximum(clip - mean, np.finfo(float).tiny)
    step = max(1, _CELLS // wealth.size)
    for start in range(0, len(clipped), step):
        lost = (clipped[start : start + step] - mean) / reach * stakes[start : start + step, None]
        steps = np.log1p(-BETS[:, None, None] * lost).cumsum(1) + wealth[:, None]
        largest = np.maximum(largest, np.logaddexp.reduce(steps, axis=0).max(0) - np.log(len(BETS)))
        wealth = steps[:, -1]
    return largest
