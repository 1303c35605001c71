"""Gradient importance: the mean over examples of |∂L(x)/∂ξ_h|, the effect of a head's gate on the example's loss, at open gates.

    ∂L/∂ξ_h = Σ_t head_h(x)_t · ∂L/∂head_h(x)_t

Then divided by the ℓ2 norm of the layer's scores (normalise="layer"). Michel, Levy, Neubig 2019, "Are Sixteen Heads Really Better than One?".
Variants, since all of them circulate under this name:
example  |Σ_t …| per example: the paper's definition;
token    Σ_t |…| over real tokens;
batch    |mean over 32 consecutive examples|;
running  the old bertology script, which never resets its gradient: Σ_b |Σ of all gradients up to batch b of 32| over Σ_b examples so far;
         its standard error comes from 8 interleaved runs over an eighth of the batches each;
signed   no absolute value: negative where opening the gate lowers the loss.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from headcount.core.stats.samples import Samples
from headcount.core.stats.totals import Totals
from headcount.importance.base import About
from headcount.models.modules import at_least_single
from headcount.models.observe import Observation

ABOUT = About(
    needs=frozenset({"gradient", "labels"}),
    higher_is_keep=True,
    cost="one forward and one backward pass without gradients of weights",
    source="Michel et al. 2019",
    variants=("example", "token", "batch", "running", "signed"),
    adds=True,
    normalise="layer",
)
BATCH = 32


def of_block(seen: Observation, variant: str) -> Tensor:
    """Each example's gradient with respect to the gate of each head; for `token` the sum of its tokens' absolute values."""
    assert seen.outputs is not None and seen.gradient is not None
    effect = (at_least_single(seen.outputs) * at_least_single(seen.gradient)).sum(-1)  # [batch, q, heads]
    if variant == "token":
        effect = torch.where(seen.queries.unsqueeze(-1), effect.abs(), 0)
    return effect.sum(1)


def per_example(values: Tensor, variant: str) -> Tensor:
    """Absolute values, where the variant takes them example by example."""
    return values.abs() if variant == "example" else values


def totals(n_heads: int, variant: str) -> Totals | Batches | Running:
    """What sums the stream of examples up."""
    ways = {"batch": Batches, "running": Running}
    return ways[variant](n_heads) if variant in ways else Totals(n_heads)


class Batches:
    """Absolute means of consecutive examples, BATCH at a time; the last batch may be smaller and weighs less."""

    def __init__(self, n_heads: int) -> None:
        self.n = 0
        self._waiting = np.zeros((0, n_heads))
        self._totals = Totals(n_heads)

    def update(self, values: np.ndarray, _weights: np.ndarray) -> None:
        """Adds examples, in order."""
        self.n += len(values)
        self._waiting = np.concatenate([self._waiting, values])
        while len(self._waiting) >= BATCH:
            self._take(self._waiting[:BATCH])
            self._waiting = self._waiting[BATCH:]

    def _take(self, rows: np.ndarray) -> None:
        self._totals.update(np.abs(rows.mean(0, keepdims=True)), np.full((1, 1), float(len(rows))))

    def finished(self) -> Totals:
        """The totals with the last, smaller batch."""
        if len(self._waiting):
            self._take(self._waiting)
            self._waiting = self._waiting[:0]
        return self._totals

    def mean(self) -> np.ndarray:
        """The mean over batches."""
        return self.finished().mean()

    def stderr(self) -> np.ndarray:
        """The standard error over batches; empty for a single one."""
        return self.finished().stderr() if self.finished().n > 1 else np.array([])

    def samples(self) -> Samples | None:
        """The batches behind the mean."""
        return self.finished().samples()


class Running(Batches):
    """The running gradient of the whole stream, and of its interleaved parts."""

    PARTS = 8

    def __init__(self, n_heads: int) -> None:
        super().__init__(n_heads)
        self._batches = 0
        self._streams = np.zeros((1 + self.PARTS, 2, n_heads))  # [whole and parts, gradient so far and sum of its absolute values]
        self._counts = np.zeros((1 + self.PARTS, 2))  # examples so far, and the sum of that over batches

    def _take(self, rows: np.ndarray) -> None:
        for stream in (0, 1 + self._batches % self.PARTS):
            self._streams[stream, 0] += rows.sum(0)
            self._counts[stream, 0] += len(rows)
            self._streams[stream, 1] += np.abs(self._streams[stream, 0])
            self._counts[stream, 1] += self._counts[stream, 0]
        self._batches += 1

    def mean(self) -> np.ndarray:
        """Σ |gradient so far| / Σ examples so far."""
        self.finished()
        return self._streams[0, 1] / self._counts[0, 1]

    def stderr(self) -> np.ndarray:
        """The standard error over the interleaved parts; empty for a single batch."""
        self.finished()
        used = self._counts[1:, 1] > 0
        parts = self._streams[1:, 1][used] / self._counts[1:, 1][used][:, None]
        return parts.std(0, ddof=1) / np.sqrt(len(parts)) if len(parts) > 1 else np.array([])

    def samples(self) -> Samples | None:
        """None: what came earlier weighs on all that follows, so nothing can be drawn again."""
        return None
