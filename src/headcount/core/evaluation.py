"""What a model scored, example by example, and how two models differ on the same examples."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import sqrt

import numpy as np

from headcount.core.stats.metric_parts import Total
from headcount.core.stats.resampling import draw_with_replacement
from headcount.core.stats.significance import paired_bootstrap, paired_t, tango

REPEATS, CELLS = 1000, 2**21
"""Resamples of an interval, and how many numbers of them are held at a time."""


@dataclass(frozen=True, slots=True)
class Evaluation:
    """What a model scored on one split: `value` of the `metric`, mean `loss`, and per example its losses and what it adds to the metric."""

    task: str
    split: str
    n_examples: int
    losses: np.ndarray = field(repr=False)
    metric: str = ""
    higher_is_better: bool = True
    value: float | None = None
    parts: np.ndarray | None = field(default=None, repr=False)
    data: str = ""

    @property
    def loss(self) -> float:
        """The mean loss of an example."""
        return float(np.mean(self.losses))

    @property
    def loss_stderr(self) -> float:
        """The standard error of the mean loss."""
        return float(np.std(self.losses, ddof=1) / sqrt(self.n_examples)) if self.n_examples > 1 else float("nan")


@dataclass(frozen=True, slots=True)
class PairedDifference:
    """The difference of a metric or loss from the dense model's on the same examples: interval and p-value, by which test."""

    difference: float
    low: float
    high: float
    p: float
    by: str


def compare_with(dense: Evaluation, other: Evaluation, total: Total | None = None, *, seed: int = 0) -> dict[str, PairedDifference]:
    """The change of the loss (paired t), and of the metric (Tango's score for right or wrong, else a paired bootstrap), with interval and p."""
    shift = paired_t(other.losses - dense.losses)
    changes = {"loss": PairedDifference(shift.difference, shift.low, shift.high, shift.p, "paired t")}
    if dense.parts is None or other.parts is None or total is None:
        return changes
    if is_right_or_wrong(dense):
        change, by = tango(dense.parts[:, 0], other.parts[:, 0]), "Tango"
    else:
        change, by = paired_bootstrap(dense.parts, other.parts, total, seed=seed), "paired bootstrap"
    return {**changes, "metric": PairedDifference(change.difference, change.low, change.high, change.p, by)}


def interval(made: Evaluation, total: Total | None) -> tuple[float | None, float | None]:
    """The 95 % interval of the metric by bootstrap over examples, of the loss by t where there is no metric."""
    if made.value is None:
        if made.n_examples < 2:
            return None, None
        shift = paired_t(made.losses)
        return shift.low, shift.high
    if total is None or made.parts is None or len(made.parts) < 2:
        return None, None
    draw, step = draw_with_replacement(len(made.parts), 0), max(1, CELLS // len(made.parts))
    drawn = np.concatenate([total(draw(min(step, REPEATS - start))[:, 0] @ made.parts) for start in range(0, REPEATS, step)])
    if not np.isfinite(drawn).all():
        return None, None
    low, high = np.quantile(drawn, [0.025, 0.975])
    return float(low), float(high)


def is_right_or_wrong(made: Evaluation) -> bool:
    """Whether every example is simply right or wrong, so that pairs of answers can be counted."""
    return made.metric == "accuracy" and made.parts is not None and made.parts.shape[1] == 2 and set(np.unique(made.parts[:, 1])) == {1.0}
