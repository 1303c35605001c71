"""Evaluations of models, example by example, and how two models differ on the same examples."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import sqrt

import numpy as np
from jaxtyping import Float

from headcount.core.stats.documents import Documents, pseudovalues_by_document, sum_by_document
from headcount.core.stats.means import FEWEST_NONZERO, MeanDifference, mean_interval
from headcount.core.stats.metric_parts import MetricOfSums
from headcount.core.stats.resampling import resample_sums
from headcount.core.stats.significance import paired_bootstrap, tango

N_RESAMPLES = 1000
"""Resamples of an interval of a metric."""


@dataclass(frozen=True, slots=True)
class Evaluation:
    """The loss and the metric of a model on one split.

    Args:
        task: The name of the task; empty for other data.
        split: The split of the task.
        n_examples: The number of examples.
        losses: The loss of each example.
        metric: The name of the metric; empty if the data have none.
        higher_is_better: Whether a higher value of the metric is better.
        value: The metric over all examples.
        parts: What each example adds to the metric, [examples, parts].
        data: The hash of the examples.
        documents: The number of the document that each example comes from; None where the data name no documents.
    """

    task: str
    split: str
    n_examples: int
    losses: np.ndarray = field(repr=False)
    metric: str = ""
    higher_is_better: bool = True
    value: float | None = None
    parts: np.ndarray | None = field(default=None, repr=False)
    data: str = ""
    documents: np.ndarray | None = field(default=None, repr=False)

    @property
    def loss(self) -> float:
        """The mean loss of an example."""
        return float(np.mean(self.losses))

    @property
    def score(self) -> float:
        """The metric, or the mean loss where there is none."""
        return self.loss if self.value is None else self.value

    @property
    def loss_stderr(self) -> float:
        """The standard error of the mean loss, over examples, or over documents where the data name them."""
        values = pseudovalues_by_document(self.losses, self.documents)
        return float(np.std(values, ddof=1) / sqrt(len(values))) if len(values) > 1 else float("nan")


@dataclass(frozen=True, slots=True)
class PairedDifference:
    """The difference of a metric or loss from another model's on the same examples: interval and p-value, by which test.

    Both are None where the examples are too few or too skewed for them.
    """

    difference: float
    low: float | None
    high: float | None
    p: float | None
    by: str


def loss_and_metric_of_pruned_minus_dense(
    dense: Evaluation, pruned: Evaluation, metric_of_sums: MetricOfSums | None = None, *, seed: int = 0, level: float = 0.95
) -> dict[str, PairedDifference]:
    """Returns the paired differences of a model from the dense model on the same examples, or documents where the data name them.

    Args:
        dense: The evaluation of the dense model.
        pruned: The evaluation of the other model.
        metric_of_sums: Turns summed parts into the metric (`Metric.total`); None compares losses only.
        seed: Seeds the bootstrap.
        level: The confidence of the intervals.

    Returns:
        "loss", by Hall's t, and "metric": by Tango's score interval if every example is right or wrong, else by a paired bootstrap.
    """
    shift = rise_of_loss(dense, pruned, level=level)
    differences = {"loss": PairedDifference(shift.difference, shift.low, shift.high, shift.p, "Hall's t")}
    if dense.parts is None or pruned.parts is None or metric_of_sums is None:
        return differences
    if dense.documents is None and examples_are_right_or_wrong(dense) and examples_are_right_or_wrong(pruned):
        change = tango(dense.parts[:, 0], pruned.parts[:, 0], level=level)
        return {**differences, "metric": PairedDifference(change.difference, change.low, change.high, change.p, "Tango")}
    return {
        **differences,
        "metric": bootstrap_metric_of_pruned_minus_dense(
            dense.parts, pruned.parts, metric_of_sums, documents=dense.documents, seed=seed, level=level
        ),
    }


def bootstrap_metric_of_pruned_minus_dense(
    dense_parts: Float[np.ndarray, "examples parts"],
    pruned_parts: Float[np.ndarray, "examples parts"],
    metric_of_sums: MetricOfSums,
    *,
    documents: Documents = None,
    seed: int = 0,
    level: float = 0.95,
) -> PairedDifference:
    """Returns the difference of a metric of summed parts [examples, parts], by a paired bootstrap over examples, or over documents.

    Where fewer than `FEWEST_NONZERO` of these changed, there is no interval and no p-value: resampling cannot see what did not occur.
    """
    before, after = (parts_by_document(parts, documents) for parts in (dense_parts, pruned_parts))
    change, by = paired_bootstrap(before, after, metric_of_sums, seed=seed, level=level), "paired bootstrap"
    if (before != after).any(axis=1).sum() < FEWEST_NONZERO:
        return PairedDifference(change.difference, None, None, None, by)
    return PairedDifference(change.difference, change.low, change.high, change.p, by)


def rise_of_loss(dense: Evaluation, pruned: Evaluation, *, level: float = 0.95) -> MeanDifference:
    """Returns the change of the mean loss on the same examples, by the t statistic with Hall's transform over examples, or over documents."""
    return mean_interval(pseudovalues_by_document(pruned.losses - dense.losses, dense.documents), level=level)


def parts_by_document(parts: Float[np.ndarray, "examples parts"], documents: Documents) -> Float[np.ndarray, "examples_or_documents parts"]:
    """Returns parts by document where the data name documents, else by example."""
    return parts if documents is None else sum_by_document(parts, documents)


def score_interval(evaluation: Evaluation, metric_of_sums: MetricOfSums | None, *, seed: int = 0) -> tuple[float | None, float | None]:
    """Returns the 95 % interval of the metric by bootstrap over examples, or documents, or that of the mean loss; None where undefined."""
    if evaluation.value is None:
        if evaluation.n_examples < 2:
            return None, None
        shift = mean_interval(pseudovalues_by_document(evaluation.losses, evaluation.documents))
        return shift.low, shift.high
    if metric_of_sums is None or evaluation.parts is None:
        return None, None
    parts = parts_by_document(evaluation.parts, evaluation.documents)
    if len(parts) < 2:
        return None, None
    resampled = metric_of_sums(resample_sums(parts, seed, N_RESAMPLES))
    if not np.isfinite(resampled).all():
        return None, None
    low, high = np.quantile(resampled, [0.025, 0.975])
    return float(low), float(high)


def examples_are_right_or_wrong(evaluation: Evaluation) -> bool:
    """Whether every example is simply right or wrong, so that pairs of answers can be counted."""
    return (
        evaluation.metric == "accuracy"
        and evaluation.parts is not None
        and evaluation.parts.shape[1:] == (2,)
        and set(np.unique(evaluation.parts[:, 1])) == {1.0}
    )
