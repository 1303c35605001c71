"""How much worse a smaller model is than the dense one, at most: bounds and tests of the loss of quality on the same examples.

The loss of quality is in units of what is measured, positive where the smaller model is worse. A bound is one-sided, at the level of one test; the
two bounds of a test, taken together, are an interval of level 1 − 2 (1 − level).

| data | test |
|---|---|
| right or wrong | `TangoLoss` |
| a metric of summed parts (F1, Matthews' correlation, BLEU, chrF, anything over documents) | `BootstrapLoss` |
| a mean loss per example (also perplexity, through its logarithm) | `BettingLoss` |
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from headcount.core.errors import StatisticsError
from headcount.core.stats.betting import p_value_of_mean_at_least, upper_bound_of_mean
from headcount.core.stats.documents import sum_by_document
from headcount.core.stats.metric_parts import MetricOfSums
from headcount.core.stats.resampling import resample_sums
from headcount.core.stats.samples import Array, to_finite_array, to_matching_arrays
from headcount.core.stats.tango import PairedCounts

POWER_QUANTILES = 1.645 + 0.84
"""Normal quantiles of a one-sided test at 5 % and of a power of 80 %."""
FEW_CHANGES, UNSEEN_OF_FEW, UNSEEN = 10, 3, 1
"""Resampling cannot see what did not occur: above, where fewer examples (or documents) changed than the first, so many unchanged ones as the second
says count as changed for the worse, else as many as the third. Without the last, a loss that a dozen examples carry is certified in up to 9 %."""
N_RESAMPLES = 2000

Worsen = Callable[[Array], Array]
"""Parts of the metric [examples, parts] -> the same if the model had got each example wrong."""


class QualityLoss(ABC):
    """The loss of quality of one model against another on the same examples.

    Attributes:
        procedure: The name of the statistical procedure.
        n: How many examples, or documents, there are.
    """

    procedure: str
    n: int

    @property
    @abstractmethod
    def estimate(self) -> float:
        """The observed loss of quality."""

    @abstractmethod
    def one_sided_bounds(self, level: float = 0.95) -> tuple[float, float]:
        """Returns the lower and the upper bound, each one-sided at this level."""

    @abstractmethod
    def p_value_of_at_least(self, margin: float) -> float:
        """Returns the p-value of the loss being `margin` or more: a small one certifies the smaller model."""

    @abstractmethod
    def p_value_of_at_most(self, margin: float) -> float:
        """Returns the p-value of the loss being `margin` or less: a small one shows that the smaller model is worse than that."""

    @abstractmethod
    def stderr_if_loss_were(self, margin: float) -> float:
        """Returns the standard error of the estimate if the loss were `margin`."""

    def excess(self, margin: float) -> float:
        """Returns by how much the observed loss of quality exceeds a margin."""
        return self.estimate - margin

    def examples_needed(self, margin: float) -> int | None:
        """Returns how many examples would decide with a power of 80 %, if the observed loss is the true one; None if it is not below the margin."""
        room = -self.excess(margin)
        if room <= 0:
            return None
        return int(np.ceil(self.n * (POWER_QUANTILES * self.stderr_if_loss_were(margin) / room) ** 2))


class TangoLoss(QualityLoss):
    """The loss of accuracy, by Tango's score method: bounds and p-values come from one statistic."""

    procedure = "Tango"

    def __init__(self, dense_correct: ArrayLike, small_correct: ArrayLike) -> None:
        """Takes 0 or 1 per example for both models."""
        self._counts = PairedCounts.from_answers(dense_correct, small_correct)
        self.n = self._counts.n

    @property
    def estimate(self) -> float:
        """The difference of accuracies."""
        return -self._counts.second_minus_first

    def one_sided_bounds(self, level: float = 0.95) -> tuple[float, float]:
        """Returns the ends of the interval of level 1 − 2 (1 − level)."""
        low, high = self._counts.interval(2 * level - 1)
        return -high, -low

    def p_value_of_at_least(self, margin: float) -> float:
        """Returns the one-sided p-value of Tango's statistic at the margin."""
        return self._counts.p_value_of_at_most(-margin)

    def p_value_of_at_most(self, margin: float) -> float:
        """Returns the p-value of the other side."""
        return self._counts.p_value_of_at_least(-margin)

    def stderr_if_loss_were(self, margin: float) -> float:
        """Returns the standard error under the margin, as the statistic has it."""
        return self._counts.stderr(-margin)


class BettingLoss(QualityLoss):
    """The mean damage per example, each clipped, by betting: valid for every distribution within the clip, also where rare harm was not drawn."""

    procedure = "betting"

    def __init__(self, damage: ArrayLike, clip: float, weights: ArrayLike | None = None) -> None:
        """Takes the rise of the loss of every example, in an order that does not depend on it, and the largest rise that counts.

        Args:
            damage: The rise of every example, or the mean rise of every document.
            clip: The largest rise that counts.
            weights: The number of examples of every document, so that the mean is one over examples; equal by default.
        """
        values = to_finite_array(damage, "damage")
        if values.ndim != 1 or len(values) < 2:
            raise StatisticsError(f"damage must be a vector of 2 examples or more, got shape {values.shape}")
        self.n, self.clip, self._damage = len(values), clip, np.clip(values, -clip, clip)
        self._weights = np.ones(len(values)) if weights is None else to_finite_array(weights, "weights")

    @property
    def estimate(self) -> float:
        """The mean of the clipped damage."""
        return float(np.average(self._damage, weights=self._weights))

    def one_sided_bounds(self, level: float = 0.95) -> tuple[float, float]:
        """Returns both bounds of the mean of the clipped damage."""
        return -float(upper_bound_of_mean(-self._damage, self.clip, level, self._weights)[0]), float(
            upper_bound_of_mean(self._damage, self.clip, level, self._weights)[0]
        )

    def p_value_of_at_least(self, margin: float) -> float:
        """Returns 1 / the largest wealth of gamblers who bet that the mean is below the margin; 1 for a margin beyond the clip."""
        return float(p_value_of_mean_at_least(self._damage, margin, self.clip, self._weights)[0]) if margin < self.clip else 1.0

    def p_value_of_at_most(self, margin: float) -> float:
        """Returns the same for gamblers who bet that it is above."""
        return float(p_value_of_mean_at_least(-self._damage, -margin, self.clip, self._weights)[0]) if margin < self.clip else 1.0

    def stderr_if_loss_were(self, margin: float) -> float:
        """Returns the standard error of the mean, which is a ratio of sums where there are weights."""
        del margin
        residuals = (self._damage - self.estimate) * self._weights / self._weights.mean()
        return float(residuals.std(ddof=1) / np.sqrt(self.n))


class _ModelMetrics(NamedTuple):
    """The metric of the dense model, of the smaller one, and of the smaller one with unseen changes; one value per resample."""

    dense: Array
    small: Array
    with_unseen: Array


class BootstrapLoss(QualityLoss):
    """The loss of a metric made of summed parts, by resampling examples, or documents, the same ones for both models.

    Whatever bounds the loss from above counts a few unchanged examples, or documents, as changed for the worse (`UNSEEN`).
    """

    procedure = "paired bootstrap"

    def __init__(
        self,
        dense_parts: ArrayLike,
        small_parts: ArrayLike,
        metric_of_sums: MetricOfSums,
        *,
        higher_is_better: bool = True,
        worsen: Worsen | None = None,
        documents: NDArray[np.int64] | None = None,
        seed: int = 0,
    ) -> None:
        """Takes what every example adds to the metric of both models.

        Args:
            dense_parts: What each example adds to the dense model's metric, [examples, parts].
            small_parts: The same for the smaller model.
            metric_of_sums: Turns summed parts [..., parts] into the metric [...].
            higher_is_better: Whether a higher value of the metric is better.
            worsen: Turns parts into those of a model that got each example wrong; by default the parts of the worst example stand in.
            documents: The document of each example, by number; documents are resampled then.
            seed: Seeds the resampling.
        """
        dense, small = to_matching_arrays(dense_parts, small_parts, ("dense_parts", "small_parts"))
        if dense.ndim != 2 or len(dense) < 2:
            raise StatisticsError(f"parts must be [examples, parts] with 2 examples or more, got {dense.shape}")
        self._total, self._sign = metric_of_sums, 1.0 if higher_is_better else -1.0
        self._values = float(metric_of_sums(dense.sum(0))), float(metric_of_sums(small.sum(0)))
        # without a rule for wrong examples, the one that lowers the metric most stands in
        lowest = int(np.argmin(self._sign * metric_of_sums(small.sum(0) + small)))
        wrong = np.broadcast_to(small[lowest], small.shape) if worsen is None else worsen(small)
        changed = (dense != small).any(axis=1)
        if documents is not None:
            changed = sum_by_document(changed[:, None].astype(float), documents)[:, 0] > 0
            dense, small, wrong = (sum_by_document(parts, documents) for parts in (dense, small, wrong))
        self.n, self.n_changed = len(dense), int(changed.sum())
        self._parts, self._seed = (dense, small, self._add_unseen_changes(small, wrong, changed)), seed

    @property
    def estimate(self) -> float:
        """The difference of the metrics."""
        return self._sign * (self._values[0] - self._values[1])

    def one_sided_bounds(self, level: float = 0.95) -> tuple[float, float]:
        """Returns the percentiles of the difference, the upper one with unseen changes; the observed difference lies between them."""
        return _one_sided_percentiles(
            self._resampled_losses(1.0), self._resampled_losses(1.0, with_unseen_changes=True), self.estimate, level
        )

    def p_value_of_at_least(self, margin: float) -> float:
        """Returns the share of resamples, with unseen changes, in which the loss is `margin` or more."""
        return _bootstrap_p_value(self._resampled_losses(1.0, with_unseen_changes=True) >= margin)

    def p_value_of_at_most(self, margin: float) -> float:
        """Returns the share of resamples in which the loss is `margin` or less."""
        return _bootstrap_p_value(self._resampled_losses(1.0) <= margin)

    def stderr_if_loss_were(self, margin: float) -> float:
        """Returns the standard deviation of the difference over resamples, with unseen changes."""
        del margin
        return float(self._resampled_losses(1.0, with_unseen_changes=True).std(ddof=1))

    def relative_upper_bound(self, level: float = 0.95) -> float | None:
        """Returns the upper bound as a share of the dense model's metric; None where a resample has a dense metric of 0 or below."""
        dense = self._resampled_metrics.dense
        if dense.min() <= 0 or self._values[0] <= 0:
            return None
        shares = self._resampled_losses(1.0, with_unseen_changes=True) / dense
        return max(float(np.quantile(shares, level)), self.estimate / self._values[0])

    def against_share_of_dense(self, allowed_share: float) -> RelativeLoss:
        """Returns the test of losing at most a share of the dense model's metric, which is itself uncertain."""
        return RelativeLoss(self, allowed_share)

    @cached_property
    def _resampled_metrics(self) -> _ModelMetrics:
        """The metric of the models in every resample."""
        sums = resample_sums(np.concatenate(self._parts, axis=1), self._seed, N_RESAMPLES)
        return _ModelMetrics(
            *(to_finite_array(self._total(part), "totals of a resample") for part in np.split(sums, len(self._parts), axis=1))
        )

    def _resampled_losses(self, dense_share: float, *, with_unseen_changes: bool = False) -> Array:
        """Returns by how much the smaller model's metric is worse than a share of the dense model's, in every resample."""
        metrics = self._resampled_metrics
        return self._sign * (dense_share * metrics.dense - (metrics.with_unseen if with_unseen_changes else metrics.small))

    def _add_unseen_changes(self, small_parts: Array, wrong_parts: Array, is_changed: NDArray[np.bool_]) -> Array:
        """Returns the smaller model's parts with a few unchanged rows made wrong, those that cost most; any rows where all changed."""
        candidates = np.flatnonzero(~is_changed) if not is_changed.all() else np.arange(self.n)
        costs = self._sign * self._total(small_parts.sum(0) - small_parts[candidates] + wrong_parts[candidates])
        number = UNSEEN_OF_FEW if self.n_changed < FEW_CHANGES else UNSEEN
        chosen = candidates[np.argsort(costs, kind="stable")[:number]]
        with_unseen = small_parts.copy()
        with_unseen[chosen] = wrong_parts[chosen]
        return with_unseen


class RelativeLoss(QualityLoss):
    """The loss of a resampled metric against a share of the dense model's: M_small − (1 − share) M_dense, resampled jointly.

    Margins of this test are differences from that share, so that 0 is the margin itself.
    """

    procedure = "paired bootstrap"

    def __init__(self, loss: BootstrapLoss, share: float) -> None:
        """Takes the loss in units of the metric, and the share of the dense model's metric that may be lost."""
        self._loss, self.n = loss, loss.n
        self._dense_share = 1 - share if loss._sign > 0 else 1 + share

    @property
    def estimate(self) -> float:
        """The observed loss beyond the share."""
        dense, small = self._loss._values
        return self._loss._sign * (self._dense_share * dense - small)

    def one_sided_bounds(self, level: float = 0.95) -> tuple[float, float]:
        """Returns the percentiles of the loss beyond the share, the upper one with unseen changes."""
        return _one_sided_percentiles(
            self._loss._resampled_losses(self._dense_share), self._losses_with_unseen_changes(), self.estimate, level
        )

    def p_value_of_at_least(self, margin: float = 0.0) -> float:
        """Returns the share of resamples, with unseen changes, in which more is lost."""
        return _bootstrap_p_value(self._losses_with_unseen_changes() >= margin)

    def p_value_of_at_most(self, margin: float = 0.0) -> float:
        """Returns the share of resamples in which less is lost."""
        return _bootstrap_p_value(self._loss._resampled_losses(self._dense_share) <= margin)

    def stderr_if_loss_were(self, margin: float = 0.0) -> float:
        """Returns the standard deviation over resamples, with unseen changes."""
        del margin
        return float(self._losses_with_unseen_changes().std(ddof=1))

    def _losses_with_unseen_changes(self) -> Array:
        return self._loss._resampled_losses(self._dense_share, with_unseen_changes=True)


def _one_sided_percentiles(losses: Array, losses_with_unseen_changes: Array, estimate: float, level: float) -> tuple[float, float]:
    """Returns the one-sided percentiles, which the estimate lies between."""
    return min(float(np.quantile(losses, 1 - level)), estimate), max(float(np.quantile(losses_with_unseen_changes, level)), estimate)


def _bootstrap_p_value(is_extreme: NDArray[np.bool_]) -> float:
    return float((1 + is_extreme.sum()) / (N_RESAMPLES + 1))
