"""Metrics from parts that add up over examples: sums [..., parts] in, values [...] out, by the names in evaluations.

`headcount.data.metrics` computes the parts from a model; the functions here need no model, so that metrics can be computed again from a run folder.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from jaxtyping import Float

SumsOfParts = Float[np.ndarray, "*rows parts"]
MetricValues = Float[np.ndarray, "*rows"]
MetricOfSums = Callable[[np.ndarray], np.ndarray]


def ratio(sums: SumsOfParts) -> MetricValues:
    """The first part over the second."""
    return sums[..., 0] / sums[..., 1]


def perplexity(sums: SumsOfParts) -> MetricValues:
    """The exponential of the mean loss of a token."""
    return np.exp(ratio(sums))


def _confusion_matrix(sums: SumsOfParts) -> Float[np.ndarray, "*rows true predicted"]:
    classes = round(sums.shape[-1] ** 0.5)
    return sums.reshape(*sums.shape[:-1], classes, classes)


def f1(sums: SumsOfParts) -> MetricValues:
    """F1 of class 1, of counts [true, predicted], flattened."""
    grid = _confusion_matrix(sums)
    hits, guessed, true = grid[..., 1, 1], grid[..., :, 1].sum(-1), grid[..., 1, :].sum(-1)
    return np.divide(2 * hits, guessed + true, out=np.zeros_like(hits), where=guessed + true > 0)


def matthews(sums: SumsOfParts) -> MetricValues:
    """Matthews' correlation for any number of classes, of counts [true, predicted], flattened; 0 where it is not defined."""
    grid = _confusion_matrix(sums)
    number, hits = grid.sum((-1, -2)), np.trace(grid, axis1=-2, axis2=-1)
    true, guessed = grid.sum(-1), grid.sum(-2)
    above = hits * number - (true * guessed).sum(-1)
    below = np.sqrt((number**2 - (guessed**2).sum(-1)) * (number**2 - (true**2).sum(-1)))
    return np.divide(above, below, out=np.zeros_like(above), where=below > 0)


def pearson_correlation(sums: SumsOfParts) -> MetricValues:
    """Pearson's correlation, of 1, x, y, x², y² and xy; 0 where it is not defined."""
    n, x, y, xx, yy, xy = np.moveaxis(sums, -1, 0)
    below = np.sqrt(np.maximum(n * xx - x * x, 0) * np.maximum(n * yy - y * y, 0))
    above = n * xy - x * y
    return np.divide(above, below, out=np.zeros_like(above), where=below > 0)


def sacrebleu_score_of_sums(scorer: Any) -> MetricOfSums:
    """Returns the function that computes a corpus metric of sacrebleu from its sums."""

    def score_of_sums(sums: SumsOfParts) -> MetricValues:
        scores = [scorer._compute_score_from_stats(row.tolist()).score for row in sums.reshape(-1, sums.shape[-1])]
        return np.asarray(scores, dtype=np.float64).reshape(sums.shape[:-1])

    return score_of_sums


_TOTALS: dict[str, MetricOfSums] = {
    "accuracy": ratio,
    "token accuracy": ratio,
    "perplexity": perplexity,
    "F1": f1,
    "Matthews correlation": matthews,
    "Pearson correlation": pearson_correlation,
}


def find_metric_of_sums(metric: str) -> MetricOfSums | None:
    """Returns the function that computes a metric from its summed parts; None for an unknown metric."""
    if metric == "BLEU":
        from sacrebleu.metrics.bleu import BLEU

        return sacrebleu_score_of_sums(BLEU(force=True))
    if metric == "chrF":
        from sacrebleu.metrics.chrf import CHRF

        return sacrebleu_score_of_sums(CHRF())
    return _TOTALS.get(metric)


def parts_if_all_wrong(metric: str, parts: Float[np.ndarray, "examples parts"]) -> Float[np.ndarray, "examples parts"] | None:
    """Returns the parts of each example [examples, parts] if the model had got it wrong; None for a metric whose parts are not known.

    A wrong class is the next one, a wrong text matches nothing of its reference, a wrong number lies as far on the other side of the mean.
    """
    if metric in ("accuracy", "token accuracy"):
        return np.stack([np.zeros(len(parts)), parts[:, 1]], axis=1)
    if metric in ("F1", "Matthews correlation"):
        n_classes = round(parts.shape[1] ** 0.5)
        true = parts.argmax(1) // n_classes
        return np.eye(parts.shape[1])[true * n_classes + (true + 1) % n_classes]
    if metric == "BLEU":  # lengths of hypothesis and reference, n-grams that match by order, n-grams in all by order
        matches = slice(2, 2 + (parts.shape[1] - 2) // 2)
        return _with_columns_zeroed(parts, matches)
    if metric == "chrF":  # by order: n-grams of the hypothesis, of the reference, and those that match
        return _with_columns_zeroed(parts, slice(2, None, 3))
    if metric == "Pearson correlation":
        n, x, y = parts[:, 0], parts[:, 1], parts[:, 2]
        mirrored = 2 * x.sum() / n.sum() - x
        return np.stack([n, mirrored, y, mirrored**2, parts[:, 4], mirrored * y], axis=1)
    return None


def _with_columns_zeroed(parts: np.ndarray, columns: slice) -> np.ndarray:
    worse = parts.copy()
    worse[:, columns] = 0
    return worse
