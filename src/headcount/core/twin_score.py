"""The test of an excess mass: how much more of its attention a head has on a sieve than its distance twin."""

from __future__ import annotations

import numpy as np

MIN_EXCESS = 0.05
"""The excess mass that a label must exceed: against 0, noise of a head of distance is significant too often."""


def excess_p_values(excess: np.ndarray, stderr: np.ndarray, n_folds: np.ndarray | int, minimum: float) -> np.ndarray:
    """Returns the one-sided p-value of excess ≤ minimum, t with folds − 1 degrees of freedom; 1 where there is no standard error."""
    from scipy import special

    freedom = np.maximum(np.asarray(n_folds) - 1, 1)
    varies = stderr > 0
    t = np.divide(excess - minimum, stderr, out=np.where(excess > minimum, np.inf, -np.inf), where=varies)
    return np.where(
        np.isfinite(excess) & np.isfinite(stderr), special.stdtr(freedom, -np.nan_to_num(t, posinf=np.inf, neginf=-np.inf)), 1.0
    )


def excess_interval(excess: np.ndarray, stderr: np.ndarray, n_folds: np.ndarray | int, level: float) -> tuple[np.ndarray, np.ndarray]:
    """Returns the interval of an excess mass, of the same t statistic."""
    from scipy import special

    reach = special.stdtrit(np.maximum(np.asarray(n_folds) - 1, 1), (1 + level) / 2) * stderr
    return excess - reach, excess + reach
