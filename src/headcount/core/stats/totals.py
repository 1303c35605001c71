"""Totals: a mean per head from a stream of examples, with its standard error and its grouped sums, in memory that does not grow."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from headcount.core.errors import StatisticsError
from headcount.core.stats.samples import GROUPS, Array, Samples, to_finite_array


class Totals:
    """Sums of (value, weight) over examples, bit-equal however the stream is cut into updates; example i goes to group i mod 256.

    Each group keeps Σw, Σwv, and Welford's running Σw², centre and Σw²(v − centre)², all changed elementwise and in the order of examples.
    """

    __slots__ = ("_centers", "_counts", "_spreads", "_squares", "_sums", "_weighted", "_weights", "n", "shape")

    def __init__(self, *shape: int) -> None:
        """Starts empty for `Totals(heads)` or `Totals(heads, features)`."""
        if len(shape) not in (1, 2) or min(shape) < 1:
            raise StatisticsError(f"Totals need heads, or heads and features, each 1 or more, got {shape}")
        self.shape = shape
        self.n = self._weighted = 0
        self._sums, self._centers, self._spreads = (np.zeros((GROUPS, *shape)) for _ in range(3))
        self._weights, self._squares = (np.zeros((GROUPS, shape[0])) for _ in range(2))
        self._counts = np.zeros(shape[0], dtype=np.int64)

    def update(self, values: ArrayLike, weights: ArrayLike | None = None) -> None:
        """Adds examples: values [n, heads] or [n, heads, features], weights [n, heads] or [n, 1], 1 unless given; nothing changes on an error."""
        rows, shares = self._to_rows_and_weights(values, weights)
        self._weighted += int((shares > 0).any(axis=1).sum())
        first = 0
        while first < len(rows):
            start = self.n % GROUPS
            step = min(GROUPS - start, len(rows) - first)
            self._add_to_groups(slice(start, start + step), rows[first : first + step], shares[first : first + step])
            self.n += step
            first += step

    def mean(self) -> Array:
        """Σ w v / Σ w, [heads] or [heads, features]."""
        return self.samples().means()

    def stderr(self) -> Array:
        """Returns the standard error of the ratio mean over examples, √(n/(n−1) Σ w²(v−μ)²) / Σ w, n counting examples with weight."""
        if self._counts.min() < 2:
            head = int(self._counts.argmin())
            raise StatisticsError(f"head {head} has {int(self._counts[head])} example with weight; a standard error needs 2 or more")
        gaps = self._add_feature_axis(self._squares) * (self._centers - self.mean()) ** 2
        squares = (self._spreads + gaps).sum(0)
        return np.sqrt(squares * self._add_feature_axis(self._counts / (self._counts - 1.0))) / self._add_feature_axis(self._weights.sum(0))

    def take(self, head_positions: NDArray[np.int64]) -> Totals:
        """Returns the totals of some heads."""
        part = Totals(len(head_positions), *self.shape[1:])
        part.n = self.n
        for name in ("_centers", "_spreads", "_squares", "_sums", "_weights"):
            setattr(part, name, getattr(self, name)[:, head_positions])
        part._counts = self._counts[head_positions]
        return part

    def samples(self) -> Samples:
        """Returns the grouped sums so far; up to 256 examples each is a group of its own."""
        groups = min(self.n, GROUPS)
        return Samples(self._sums[:groups].copy(), self._weights[:groups].copy(), self._weighted)

    def _to_rows_and_weights(self, values: ArrayLike, weights: ArrayLike | None) -> tuple[Array, Array]:
        rows = to_finite_array(values, "values")
        if rows.shape[1:] != self.shape:
            raise StatisticsError(f"values must be [examples, {', '.join(map(str, self.shape))}], got {rows.shape}")
        shares = np.ones((len(rows), 1)) if weights is None else to_finite_array(weights, "weights")
        if shares.shape not in ((len(rows), 1), (len(rows), self.shape[0])):
            raise StatisticsError(f"weights must be [{len(rows)}, 1] or [{len(rows)}, {self.shape[0]}], got {shares.shape}")
        if shares.min() < 0:
            raise StatisticsError(f"weights must not be negative, got {shares.min()}")
        return rows, np.broadcast_to(shares, (len(rows), self.shape[0]))

    def _add_to_groups(self, groups: slice, rows: Array, weights: Array) -> None:
        squares = weights * weights
        self._sums[groups] += self._add_feature_axis(weights) * rows
        self._weights[groups] += weights
        self._squares[groups] += squares
        self._counts += (weights > 0).sum(0)
        total = self._squares[groups]
        share = np.divide(squares, total, out=np.zeros_like(total), where=total > 0)
        gap = rows - self._centers[groups]
        self._centers[groups] += self._add_feature_axis(share) * gap
        self._spreads[groups] += self._add_feature_axis(squares) * gap * (rows - self._centers[groups])

    def _add_feature_axis(self, per_head: Array) -> Array:
        return per_head if len(self.shape) == 1 else per_head[..., None]
