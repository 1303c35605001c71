"""Further columns of scores, summed up over a stream of examples: the change of the metric, and what rounding changes."""

from __future__ import annotations

import numpy as np
from jaxtyping import Float

from headcount.core.errors import RoundingError
from headcount.core.scores import ROUNDING, Scores
from headcount.core.stats.samples import GROUPS
from headcount.data.metrics import Metric


class MetricChange:
    """The change of a task's metric under the intervention on each head, from sums of metric parts.

    Example i goes to group i mod GROUPS, in order.
    """

    def __init__(self, metric: Metric, n_heads: int, n_parts: int) -> None:
        self.metric = metric
        self.n = 0
        self._changed = np.zeros((GROUPS, n_heads, n_parts))
        self._base = np.zeros((GROUPS, n_parts))

    def update(self, changed: Float[np.ndarray, "examples heads parts"], base: Float[np.ndarray, "examples parts"]) -> None:
        """Adds examples: [n, heads, parts] under the intervention on each head, [n, parts] without."""
        for changed_parts, base_parts in zip(changed, base, strict=True):
            self._changed[self.n % GROUPS] += changed_parts
            self._base[self.n % GROUPS] += base_parts
            self.n += 1

    def columns(self) -> dict[str, tuple[float, ...]]:
        """Returns the change of the metric for each head and its standard error by the jackknife over groups, by column name."""
        name, n_groups = self.metric.name, min(self.n, GROUPS)
        columns = {f"{name} change": tuple(self._metric_difference(self._changed.sum(0), self._base.sum(0)).tolist())}
        if self.n > 1:
            changed, base = self._changed[:n_groups], self._base[:n_groups]
            replicates = self._metric_difference(changed.sum(0) - changed, base.sum(0) - base)  # each without one group
            stderr = np.sqrt(((replicates - replicates.mean(0)) ** 2).sum(0) * (n_groups - 1) / n_groups)
            columns[f"{name} stderr"] = tuple(stderr.tolist())
        return columns

    def higher_is_keep_by_column(self, scores_higher_is_keep: bool) -> dict[str, bool]:
        """Returns whether more means keep, by column name, from what a rise of the loss means: a better metric is a lower loss."""
        return {f"{self.metric.name} change": scores_higher_is_keep != self.metric.higher_is_better}

    def _metric_difference(
        self, changed: Float[np.ndarray, "*groups heads parts"], base: Float[np.ndarray, "*groups parts"]
    ) -> Float[np.ndarray, "*groups heads"]:
        """Returns the metric of parts [..., heads, parts] minus that of parts [..., parts]."""
        return self.metric.total(changed) - self.metric.total(base)[..., None]


class RoundingChange:
    """How far rounding alone moves each score, from the changes that a method measured by rounding differently.

    Changes of examples are independent and centred, so a mean over n examples moves by √(Σ d²) / n. That is a standard deviation, as the standard
    error is.
    """

    def __init__(self, n_heads: int) -> None:
        self.n = 0
        self._squares = np.zeros(n_heads)

    def update(self, changes: Float[np.ndarray, "examples heads"]) -> None:
        """Adds examples: [n, heads]."""
        self._squares += (changes**2).sum(0)
        self.n += len(changes)

    def columns(self) -> dict[str, tuple[float, ...]]:
        """Returns by how much rounding moves each head's score, by column name."""
        return {ROUNDING: tuple((np.sqrt(self._squares) / self.n).tolist())}


def rounding_error(scores: Scores) -> RoundingError | None:
    """Returns an error if rounding moves the scores of most heads by more than their standard error, else None."""
    unresolved = scores.heads_within_rounding()
    if len(unresolved) <= len(scores.heads) / 2:
        return None
    return RoundingError(
        f"rounding in {scores.conditions['dtype']} moves {scores.method} of {len(unresolved)} of {len(scores.heads)} heads by more than the standard "
        f"error (largest: {max(scores.columns[ROUNDING]):.2g}), so that these scores depend on the processor; load the model in a wider dtype "
        "(float32, float64), or use another importance such as lrp:alpha-beta"
    )
