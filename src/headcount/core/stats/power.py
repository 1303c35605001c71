"""What data can show before anything is measured: the margin that can be certified where models hardly differ."""

from __future__ import annotations

import numpy as np

from headcount.core.errors import StatisticsError
from headcount.core.stats.betting import upper_bound_of_mean
from headcount.core.stats.tango import PairedCounts

CHANGED_SHARE = 1 / 50
"""The share of the predictions that is taken to change; one half for the better."""


def smallest_certifiable_loss_of_accuracy(n_examples: int, level: float = 0.95) -> float:
    """Returns the bound by Tango's method if one prediction in fifty changes and the model is no worse; margins above it are certified then."""
    _require_two_examples(n_examples)
    n_changed = max(2, round(n_examples * CHANGED_SHARE))
    low, _ = PairedCounts(n_examples, n_changed - n_changed // 2, n_changed // 2).interval(2 * level - 1)
    return -low


def smallest_certifiable_rise_of_loss(n_examples: int, clip: float, level: float = 0.95) -> float:
    """Returns the bound of the mean clipped damage by betting if no example is damaged, in nats."""
    _require_two_examples(n_examples)
    return float(upper_bound_of_mean(np.zeros(n_examples), clip, level)[0])


def _require_two_examples(n_examples: int) -> None:
    if n_examples < 2:
        raise StatisticsError(f"a bound needs 2 examples or more, got {n_examples}")
