"""The p-value of a sieve bias over sentences: H0 bias ≤ τ against bias > τ, one-sided, corrected for skewness.

    p = max( t-test by Hall's transform,  c (τ / bias)ⁿ ),   c = ½, or 1 where all sentences have the same bias

The first corrects the t-test, which rejects too often where scores are skewed to the left. The second is a lower bound for any test over n
sentences: a bias can be 0, and if the true mean is only τ because a share of the sentences has 0, n draws miss all of these with probability
(τ / bias)ⁿ, half of the time below this mean.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from headcount.core.stats.hall import hall_transform


class BiasPValues(NamedTuple):
    """The p-value of bias ≤ τ as above, and that of the plain t-test."""

    skewness_corrected: np.ndarray
    plain_t: np.ndarray


def bias_above_tau_p_values(
    bias: np.ndarray, stderr: np.ndarray, n_sentences: np.ndarray, skewness: np.ndarray, tau: float | np.ndarray
) -> BiasPValues:
    """Returns the one-sided p-values of H0 bias ≤ τ against bias > τ."""
    from scipy import special

    varies = stderr > 0
    t = np.divide(bias - tau, stderr, out=np.where(bias > tau, np.inf, -np.inf), where=varies)
    corrected_t = np.where(varies, hall_transform(np.where(varies, t, 0.0), n_sentences, skewness), t)
    ratio = np.divide(tau, bias, out=np.ones_like(bias), where=bias > tau)
    bound = np.where(varies, 0.5, 1.0) * ratio**n_sentences
    return BiasPValues(np.maximum(special.stdtr(n_sentences - 1, -corrected_t), bound), special.stdtr(n_sentences - 1, -t))
