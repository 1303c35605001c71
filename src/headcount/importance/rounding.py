"""How far rounding alone moves scores: the changes that a method measured by rounding differently, summed up over a stream of examples."""

from __future__ import annotations

import numpy as np

from headcount.core.errors import RoundingError
from headcount.core.scores import ROUNDING, Scores


class RoundingChange:
    """Sums of squared changes, one for each head.

    Changes of examples are independent and centred, so a mean over n examples moves by √(Σ d²) / n. That is a standard deviation, as the standard
    error is.
    """

    def __init__(self, n_heads: int) -> None:
        self.n = 0
        self._squares = np.zeros(n_heads)

    def update(self, changes: np.ndarray) -> None:
        """Adds examples: [n, heads]."""
        self._squares += (changes**2).sum(0)
        self.n += len(changes)

    def columns(self) -> dict[str, tuple[float, ...]]:
        """By how much rounding moves each head's score, by column name."""
        return {ROUNDING: tuple((np.sqrt(self._squares) / self.n).tolist())}


def check_rounding(scores: Scores) -> RoundingError | None:
    """The error of scores most of which rounding moves by more than their standard error; None where they say something."""
    unresolved = scores.heads_within_rounding()
    if len(unresolved) <= len(scores.heads) / 2:
        return None
    return RoundingError(
        f"rounding in {scores.conditions['dtype']} moves {scores.method} of {len(unresolved)} of {len(scores.heads)} heads by more than the standard "
        f"error (largest: {max(scores.columns[ROUNDING]):.2g}), so that these scores depend on the processor; load the model in a wider dtype "
        "(float32, float64), or use another importance such as lrp:alpha-beta"
    )
