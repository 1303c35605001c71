"""Samples: the grouped sums behind one score per head, and the small records that statistics come back in."""

from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from headcount.core.errors import StatisticsError

Array = NDArray[np.float64]

GROUPS = 256


class Intervals(NamedTuple):
    """The lower and upper ends, one of each per head."""

    low: NDArray
    high: NDArray


@dataclass(frozen=True, slots=True)
class Estimate:
    """A number with its interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True, slots=True, eq=False)
class Samples:
    """Sums of weight·value [groups, heads] or [groups, heads, features], and sums of weights [groups, heads or 1]; `n` counts examples with weight.

    `n` is the number of groups that are not empty unless the caller knows better.
    """

    sums: Array
    weights: Array
    n: int = 0

    def __post_init__(self) -> None:
        sums, weights = to_finite_array(self.sums, "sums"), to_finite_array(self.weights, "weights")
        _check_shapes(sums, weights)
        _check_weights(sums, weights)
        groups = int((weights > 0).any(axis=1).sum())
        n = self.n or groups
        if n < groups:
            raise StatisticsError(f"{groups} groups cannot hold {n} examples; give n of at least {groups}, or leave it out")
        for name, value in (("sums", _read_only_view(sums)), ("weights", _read_only_view(weights)), ("n", n)):
            object.__setattr__(self, name, value)

    @classmethod
    def of(cls, values: ArrayLike, weights: ArrayLike | None = None) -> Samples:
        """Returns the samples of per-example values [examples, heads], weights 1 unless given; example i goes to group i mod 256."""
        values = to_finite_array(values, "values")
        shares = np.ones((len(values), 1)) if weights is None else to_finite_array(weights, "weights")
        _check_shapes(values, shares)
        sums, totals = (np.zeros((min(len(values), GROUPS), *part.shape[1:])) for part in (values, shares))
        for start in range(0, len(values), GROUPS):
            part = values[start : start + GROUPS], shares[start : start + GROUPS]
            sums[: len(part[0])] += part[0] * _add_feature_axis(part[1], part[0])
            totals[: len(part[0])] += part[1]
        return cls(sums, totals, int((shares > 0).any(axis=1).sum()))

    @property
    def n_groups(self) -> int:
        """The number of groups, empty ones included."""
        return len(self.sums)

    @property
    def n_heads(self) -> int:
        """The number of heads."""
        return self.sums.shape[1]

    def means(self) -> Array:
        """Returns every head's score Σ sums / Σ weights, [heads] or [heads, features]."""
        return self.sums.sum(0) / _add_feature_axis(self.weights.sum(0), self.sums[0])

    def orient(self, *, higher_is_keep: bool) -> Samples:
        """Returns the samples with the sign that makes more mean keep."""
        return self if higher_is_keep else Samples(-self.sums, self.weights, self.n)

    def drop_empty_groups(self) -> Samples:
        """Returns the samples without empty groups."""
        full = (self.weights > 0).any(axis=1)
        return self if full.all() else Samples(self.sums[full], self.weights[full], self.n)

    def features_as_heads(self) -> Samples:
        """Returns the samples with features as further heads, [groups, heads · features]."""
        if self.sums.ndim == 2:
            return self
        weights = self.weights if self.weights.shape[1] == 1 else np.repeat(self.weights, self.sums.shape[2], axis=1)
        return Samples(self.sums.reshape(self.n_groups, -1), weights, self.n)

    def stderr(self) -> Array:
        """Returns the standard error of every mean over groups: √(G/(G−1) Σ (s_g − μ w_g)²) / Σ w."""
        counts = self.count_groups_per_head()
        total = _add_feature_axis(self.weights.sum(0), self.sums[0])
        squares = (self.residuals() ** 2).sum(0)
        return np.sqrt(squares * _add_feature_axis(counts / (counts - 1.0), self.sums[0])) / total

    def residuals(self) -> Array:
        """Returns the residual of each group, s_g − μ w_g."""
        return self.sums - self.means() * _add_feature_axis(self.weights, self.sums)

    def group_pseudovalues(self) -> Array:
        """Returns one number per group and head whose means are the scores and whose spread is theirs, μ + (s_g − μ w_g) G / Σ w."""
        samples = require_one_number_per_head(self)
        return samples.means() + samples.residuals() * samples.n_groups / samples.weights.sum(0)

    def count_groups_per_head(self) -> Array:
        """Returns in how many groups each head has weight; raises StatisticsError if that is below 2, where no spread is defined."""
        counts = (self.weights > 0).sum(0).astype(float)
        if counts.min() < 2:
            raise StatisticsError(
                f"head {int(counts.argmin())} has data in {int(counts.min())} group of examples; its spread needs 2 examples or more"
            )
        return counts


def to_finite_array(values: ArrayLike, name: str, remedy: str = "leave such an example out by weight 0 and value 0") -> Array:
    """Returns the values as a float64 array; raises StatisticsError if they are empty or not finite."""
    array = np.asarray(values, dtype=np.float64)
    if array.size == 0:
        raise StatisticsError(f"{name} are empty, shape {array.shape}; a statistic needs data")
    if not np.isfinite(array).all():
        position = tuple(int(i) for i in np.argwhere(~np.isfinite(array))[0])
        raise StatisticsError(f"{name} must be finite, got {array[position]} at {position}; {remedy}")
    return array


def to_matching_arrays(a: ArrayLike, b: ArrayLike, names: tuple[str, str] = ("a", "b")) -> tuple[Array, Array]:
    """Returns both as finite float64 arrays; raises StatisticsError if their shapes differ."""
    first, second = to_finite_array(a, names[0]), to_finite_array(b, names[1])
    if first.shape != second.shape:
        raise StatisticsError(
            f"{names[0]} has shape {first.shape} but {names[1]} has {second.shape}; give the same heads or examples in both"
        )
    return first, second


def require_one_number_per_head(samples: Samples) -> Samples:
    """Returns the samples without empty groups; raises StatisticsError if they hold features rather than one number per head."""
    if samples.sums.ndim != 2:
        raise StatisticsError(f"one number per head is needed, got sums of shape {samples.sums.shape}; combine the features first")
    return samples.drop_empty_groups()


def make_generator(seed: int) -> np.random.Generator:
    """Returns the random number generator of a seed."""
    try:
        number = operator.index(seed)
    except TypeError:
        number = -1
    if number < 0:
        raise StatisticsError(f"seed must be a whole number of 0 or more, got {seed!r}")
    return np.random.Generator(np.random.Philox(number))


def derive_seed(seed: int, part_number: int) -> int:
    """Returns the seed of part `part_number` of a computation."""
    make_generator(seed)
    return int(np.random.SeedSequence((seed, part_number)).generate_state(1, np.uint64)[0])


def error_probability(level: float) -> float:
    """Returns 1 − level; raises StatisticsError outside (0, 1)."""
    if not 0.0 < level < 1.0:
        raise StatisticsError(f"level must lie between 0 and 1, got {level}; 0.95 is customary")
    return 1.0 - level


def require_count(value: int, name: str, low: int, high: int | None = None) -> int:
    """Returns the value; raises StatisticsError unless it lies in [low, high]."""
    if value < low or (high is not None and value > high):
        limits = f"from {low} to {high}" if high is not None else f"{low} or more"
        raise StatisticsError(f"{name} must be {limits}, got {value}")
    return value


def _read_only_view(array: Array) -> Array:
    view = array.view()
    view.flags.writeable = False
    return view


def _add_feature_axis(weights: Array, values: Array) -> Array:
    return weights if weights.ndim == values.ndim else weights[..., None]


def _check_shapes(sums: Array, weights: Array) -> None:
    if sums.ndim not in (2, 3) or weights.ndim != 2 or len(weights) != len(sums) or weights.shape[1] not in (1, sums.shape[1]):
        raise StatisticsError(
            "sums must be [groups, heads] or [groups, heads, features] with weights [groups, heads] or [groups, 1], "
            f"got {sums.shape} and {weights.shape}"
        )


def _check_weights(sums: Array, weights: Array) -> None:
    if weights.min() < 0:
        raise StatisticsError(f"weights must not be negative, got {weights.min()}")
    if weights.sum(0).min() <= 0:
        raise StatisticsError(f"head {int(weights.sum(0).argmin())} has no weight in any group, so it has no mean; leave it out")
    if np.any(sums[np.broadcast_to(weights, sums.shape[:2]) == 0]):
        raise StatisticsError("a group without weight must have sum 0, or its values would count for nothing")
