"""The change of a task's metric under every intervention, summed up over a stream of examples."""

from __future__ import annotations

import numpy as np

from headcount.core.stats.samples import GROUPS
from headcount.data.metrics import Metric


class MetricChange:
    """Sums of metric parts, with each head changed and without; example i goes to group i mod GROUPS, in order."""

    def __init__(self, metric: Metric, n_heads: int, n_parts: int) -> None:
        self.metric = metric
        self.n = 0
        self._changed = np.zeros((GROUPS, n_heads, n_parts))
        self._base = np.zeros((GROUPS, n_parts))

    def update(self, changed: np.ndarray, base: np.ndarray) -> None:
        """Adds examples: [n, heads, parts] with each head changed, [n, parts] without."""
        for parts, whole in zip(changed, base, strict=True):
            self._changed[self.n % GROUPS] += parts
            self._base[self.n % GROUPS] += whole
            self.n += 1

    def columns(self) -> dict[str, tuple[float, ...]]:
        """The change of the metric for each head and its standard error by the jackknife over groups, by column name."""
        name = self.metric.name
        columns = {f"{name} change": tuple(self._change(self._changed.sum(0), self._base.sum(0)).tolist())}
        if self.n > 1:
            columns[f"{name} stderr"] = tuple(self._stderr().tolist())
        return columns

    def directions(self, higher_is_keep: bool) -> dict[str, bool]:
        """Whether more means keep, by column name, from what a rise of the loss means: a better metric is a lower loss."""
        return {f"{self.metric.name} change": higher_is_keep != self.metric.higher_is_better}

    def _change(self, changed: np.ndarray, base: np.ndarray) -> np.ndarray:
        return self.metric.total(changed) - self.metric.total(base)[..., None]

    def _stderr(self) -> np.ndarray:
        groups = min(self.n, GROUPS)
        changed, base = self._changed[:groups], self._base[:groups]
        left = self._change(changed.sum(0) - changed, base.sum(0) - base)
        return np.sqrt(((left - left.mean(0)) ** 2).sum(0) * (groups - 1) / groups)
