"""Metrics over seeds: what every example adds for each seed side by side, and the metric as the mean over seeds of that of each.

    M̄ = 1/S Σ_s M(Σ_i parts_is)

A metric that is not linear in its parts (F1, Matthews' correlation, BLEU, perplexity) of parts that are averaged over seeds is another quantity.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import lcm

import numpy as np
from jaxtyping import Float

from headcount.core.evaluation import Evaluation, PairedDifference, bootstrap_metric_of_pruned_minus_dense, examples_are_right_or_wrong
from headcount.core.stats.metric_parts import MetricOfSums
from headcount.core.stats.significance import tango


def stack_parts_of_seeds(evaluations: Sequence[Evaluation]) -> Float[np.ndarray, "examples seeds parts"] | None:
    """Returns the parts of every example by seed; None where an evaluation has none."""
    parts = [evaluation.parts for evaluation in evaluations if evaluation.parts is not None]
    return np.stack(parts, axis=1) if len(parts) == len(evaluations) else None


def count_seeds(parts: np.ndarray) -> int:
    """Returns how many seeds the parts of an evaluation hold: those of a single model have no axis for them."""
    return parts.shape[1] if parts.ndim == 3 else 1


def align_seed_counts(
    parts: Sequence[np.ndarray], metric_of_sums: MetricOfSums
) -> tuple[list[Float[np.ndarray, "examples seed_parts"]], MetricOfSums]:
    """Returns parts with their seeds side by side, and the function that turns their sums into the mean of the metric over seeds.

    All get the same number of seeds, by repetition, so that models that agree have exactly the same metric. That of single models is returned as
    it is.
    """
    n_seeds = lcm(*map(count_seeds, parts))
    if n_seeds == 1:
        return [array.reshape(len(array), -1) for array in parts], metric_of_sums

    def mean_metric_over_seeds(sums: np.ndarray) -> np.ndarray:
        return metric_of_sums(sums.reshape(*sums.shape[:-1], n_seeds, -1)).mean(-1)

    by_seed = [array if array.ndim == 3 else array[:, None] for array in parts]
    repeated = [np.tile(array, (1, n_seeds // array.shape[1], 1)) for array in by_seed]
    return [array.reshape(len(array), -1) for array in repeated], mean_metric_over_seeds


def metric_of_second_minus_first(
    first: Evaluation, second: Evaluation, metric_of_sums: MetricOfSums, *, seed: int = 0, level: float = 0.95
) -> PairedDifference:
    """Returns the change of the metric on the same examples, as a mean over seeds, with the test that gives its interval and p-value.

    Tango's score method if every example is right or wrong in both; else (corpus metrics, means over seeds, documents) a paired bootstrap, in which
    the metric of a resample is the mean over seeds of that of each.
    """
    assert first.parts is not None and second.parts is not None
    if first.documents is None and examples_are_right_or_wrong(first) and examples_are_right_or_wrong(second):
        change = tango(first.parts[:, 0], second.parts[:, 0], level=level)
        return PairedDifference(change.difference, change.low, change.high, change.p, "Tango")
    (before, after), mean_metric_over_seeds = align_seed_counts((first.parts, second.parts), metric_of_sums)
    return bootstrap_metric_of_pruned_minus_dense(before, after, mean_metric_over_seeds, documents=first.documents, seed=seed, level=level)
