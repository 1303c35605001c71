"""The values that a metric can have, intervals of scores that end there, and the points that differences are stated in."""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headcount.core.evaluation import Evaluation, PairedDifference

_RANGES = {
    **dict.fromkeys(("accuracy", "token accuracy", "F1"), (0.0, 1.0)),
    **dict.fromkeys(("Matthews correlation", "Pearson correlation"), (-1.0, 1.0)),
    **dict.fromkeys(("BLEU", "chrF"), (0.0, 100.0)),
    "perplexity": (1.0, inf),
}


def range_of_metric(metric: str) -> tuple[float, float]:
    """Returns the smallest and the largest value that a metric can have; infinite ends for an unknown one."""
    return _RANGES.get(metric, (-inf, inf))


def size_of_one_point(metric: str) -> float:
    """Returns one point of a metric: a hundredth of accuracy, F1 and correlations, one of BLEU, chrF, perplexity and unknown metrics."""
    lowest, highest = range_of_metric(metric)
    return 0.01 if max(abs(lowest), abs(highest)) == 1 else 1.0


def dense_score_plus_change_interval(dense: Evaluation, change: PairedDifference) -> tuple[float | None, float | None]:
    """Returns the score of the dense model plus the interval of the change from it, as far as the metric can have such values."""
    if change.low is None or change.high is None:
        return None, None
    lowest, highest = range_of_metric(dense.metric)
    return max(lowest, dense.score + change.low), min(highest, dense.score + change.high)
