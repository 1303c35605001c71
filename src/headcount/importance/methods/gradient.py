from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from headcount.core.options import option
from headcount.core.stats.samples import Samples
from headcount.core.stats.totals import Totals
from headcount.importance.base import BlockImportance, ImportanceInfo
from headcount.models.modules import in_float32_or_float64
from headcount.models.observe import Observation

BATCH = 32


@dataclass(frozen=True)
class Gradient(BlockImportance):
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

    variant: Literal["example", "token", "batch", "running", "signed"] = option("example", "Where absolute values are taken")
    info = ImportanceInfo(
        needs={"gradient", "labels"},
        higher_is_keep=True,
        cost="one forward and one backward pass without gradients of weights",
        source="Michel et al. 2019",
        sums_calls=True,
        normalise="layer",
    )

    def of_block(self, observation: Observation) -> Float[Tensor, "batch heads"]:
        """Returns each example's gradient with respect to the gate of each head; for `token` the sum of its tokens' absolute values."""
        gradients = gate_gradients(observation)
        if self.variant == "token":
            gradients = torch.where(observation.queries.unsqueeze(-1), gradients.abs(), 0)
        return gradients.sum(1)

    def per_example(self, values: Float[Tensor, "batch heads"]) -> Float[Tensor, "batch heads"]:
        """Returns absolute values, where the variant takes them example by example."""
        return values.abs() if self.variant == "example" else values

    def make_accumulator(self, n_heads: int, *n_features: int) -> Totals | AbsoluteBatchMeans | RunningGradient:
        """Returns the accumulator of the variant."""
        accumulators = {"batch": AbsoluteBatchMeans, "running": RunningGradient}
        return accumulators.get(self.variant, Totals)(n_heads, *n_features)


def gate_gradients(observation: Observation) -> Float[Tensor, "batch q heads"]:
    """Returns what each token adds to the gradient of the loss with respect to the gate of each head."""
    assert observation.outputs is not None and observation.gradient is not None
    return (in_float32_or_float64(observation.outputs) * in_float32_or_float64(observation.gradient)).sum(-1)


class AbsoluteBatchMeans:
    """Absolute means of consecutive examples, BATCH at a time; the last batch may be smaller and weighs less."""

    def __init__(self, n_heads: int) -> None:
        self.n = 0
        self._pending = np.zeros((0, n_heads))
        self._totals = Totals(n_heads)

    def update(self, values: Float[np.ndarray, "examples heads"], _weights: np.ndarray) -> None:
        """Adds examples, in order."""
        self.n += len(values)
        self._pending = np.concatenate([self._pending, values])
        while len(self._pending) >= BATCH:
            self._add_batch(self._pending[:BATCH])
            self._pending = self._pending[BATCH:]

    def _add_batch(self, values: Float[np.ndarray, "batch heads"]) -> None:
        self._totals.update(np.abs(values.mean(0, keepdims=True)), np.full((1, 1), float(len(values))))

    def totals_with_last_batch(self) -> Totals:
        """Adds the last, smaller batch and returns the totals."""
        if len(self._pending):
            self._add_batch(self._pending)
            self._pending = self._pending[:0]
        return self._totals

    def mean(self) -> Float[np.ndarray, " heads"]:
        """Returns the mean over batches."""
        return self.totals_with_last_batch().mean()

    def stderr(self) -> Float[np.ndarray, " heads"]:
        """Returns the standard error over batches; empty for a single one."""
        return self.totals_with_last_batch().stderr() if self.totals_with_last_batch().n > 1 else np.array([])

    def samples(self) -> Samples | None:
        """Returns the batches behind the mean."""
        return self.totals_with_last_batch().samples()


class RunningGradient(AbsoluteBatchMeans):
    """The running gradient of the whole stream, and of its interleaved parts."""

    PARTS = 8

    def __init__(self, n_heads: int) -> None:
        super().__init__(n_heads)
        self._batches = 0
        self._streams = np.zeros((1 + self.PARTS, 2, n_heads))  # [whole and parts, gradient so far and sum of its absolute values]
        self._counts = np.zeros((1 + self.PARTS, 2))  # examples so far, and the sum of that over batches

    def _add_batch(self, values: Float[np.ndarray, "batch heads"]) -> None:
        for stream in (0, 1 + self._batches % self.PARTS):
            self._streams[stream, 0] += values.sum(0)
            self._counts[stream, 0] += len(values)
            self._streams[stream, 1] += np.abs(self._streams[stream, 0])
            self._counts[stream, 1] += self._counts[stream, 0]
        self._batches += 1

    def mean(self) -> Float[np.ndarray, " heads"]:
        """Returns Σ |gradient so far| / Σ examples so far."""
        self.totals_with_last_batch()
        return self._streams[0, 1] / self._counts[0, 1]

    def stderr(self) -> Float[np.ndarray, " heads"]:
        """Returns the standard error over the interleaved parts; empty for a single batch."""
        self.totals_with_last_batch()
        used = self._counts[1:, 1] > 0
        parts = self._streams[1:, 1][used] / self._counts[1:, 1][used][:, None]
        return parts.std(0, ddof=1) / np.sqrt(len(parts)) if len(parts) > 1 else np.array([])

    def samples(self) -> Samples | None:
        """Returns None: every batch depends on those before it, so nothing can be resampled."""
        return None
