"""The verdict "safe to remove", from the damage that a head's removal does."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from headcount.core.errors import StatisticsError
from headcount.core.stats.hall import hall_transform, inverse_hall_transform
from headcount.core.stats.samples import Array, Samples, error_probability, require_one_number_per_head
from headcount.core.stats.significance import Adjust, adjust


@dataclass(frozen=True, slots=True)
class Safety:
    """Whether one head (by index) is safe to remove: q ≤ 1 − level, with the estimate and the bound that p comes from."""

    head: int
    estimate: float
    bound: float
    p: float
    q: float
    safe: bool


def safe_to_remove(
    damage: Samples, *, tolerance: float, worst: float | None, level: float = 0.95, correct: Adjust = "bh"
) -> tuple[Safety, ...]:
    """Tests for each head whether it is safe to remove, from the damage that removing it alone does (loss rise, metric fall): non-inferiority.

    H0: damage ≥ tolerance. p is one-sided, `bound` the upper confidence bound at `level` of this one head, q corrects p over heads, and a head is
    safe when q ≤ 1 − level; then its bound is within the tolerance too. This holds for heads removed one at a time, not for all safe ones together.
    Damage per example is skewed, and the plain t bound is then too low; Hall's transform (1992) corrects that.
    `worst` is the greatest damage one example can take: 1 for accuracy, None for a loss. It stands in for the harm that did not happen to be
    drawn (no error in 200 examples does not prove a rate of 0): one more example with that damage is added, and the larger bound and p count.
    """
    damage = require_one_number_per_head(damage)
    if not np.isfinite(tolerance) or (worst is not None and not (np.isfinite(worst) and worst > tolerance)):
        raise StatisticsError(f"tolerance must be finite and below the worst damage of an example, got {tolerance} and {worst}")
    bound, p = _hall(damage, tolerance, error_probability(level), skewed=True)
    if worst is not None:
        weight = damage.weights.sum(0, keepdims=True) / damage.n
        sums = np.broadcast_to(worst * weight, (1, damage.n_heads))
        extended = Samples(np.concatenate([damage.sums, sums]), np.concatenate([damage.weights, weight]), damage.n + 1)
        cautious = _hall(extended, tolerance, error_probability(level), skewed=False)
        bound, p = np.maximum(bound, cautious[0]), np.maximum(p, cautious[1])
    q = adjust(p, correct)
    rows = zip(damage.means().tolist(), bound.tolist(), p.tolist(), q.tolist(), (q <= error_probability(level)).tolist(), strict=True)
    return tuple(Safety(head, *row) for head, row in enumerate(rows))


def _hall(damage: Samples, tolerance: float, alpha: float, *, skewed: bool) -> tuple[Array, Array]:
    """Returns the upper bound and the p-value of H0: mean ≥ tolerance, by Hall's transform over groups; without skewness this is the t-test."""
    from scipy import special

    mean, stderr, residuals = damage.means(), damage.stderr(), damage.residuals()
    n = np.broadcast_to(damage.count_groups_of_heads(), mean.shape)
    square = (residuals**2).sum(0) / n
    skewness = np.divide((residuals**3).sum(0) / n, square**1.5, out=np.zeros_like(mean), where=(square > 0) & skewed)
    t = np.divide(mean - tolerance, stderr, out=np.zeros_like(mean), where=stderr > 0)
    p = special.stdtr(n - 1, hall_transform(t, n, skewness))
    p = np.where(stderr > 0, p, np.where(mean <= tolerance, 0.0, 1.0))
    return mean - stderr * inverse_hall_transform(special.stdtrit(n - 1, alpha), n, skewness), p
