"""One batch, one way of reading the model's output, and any number of copies of the batch in one pass."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_map

from headcount.importance.replay.stacking import batch_rows, first_rows, stack_batch
from headcount.models.modules import Batch, device_of
from headcount.models.randomness import pass_rng
from headcount.models.state import forward

Read = Callable[[Any, Batch], Any]
"""(model output, stacked batch) -> a tensor with one row per row of the batch, or a tuple or dict of such tensors."""


@dataclass(frozen=True, slots=True)
class Pass:
    """A model on a batch; `options` go to the model too, entries of the batch named in `withhold` do not."""

    model: nn.Module
    batch: Batch
    rows: int
    read: Read
    options: Mapping[str, Any]
    withhold: frozenset[str]

    @classmethod
    def of(cls, model: nn.Module, batch: Batch, read: Read, options: Mapping[str, Any], withhold: frozenset[str]) -> Pass:
        """An evaluation of a whole batch."""
        passed_on = {name: value for name, value in options.items() if name not in batch}
        return cls(model, batch, batch_rows(batch), read, passed_on, withhold)

    @property
    def tokens(self) -> int:
        """The approximate number of tokens in the batch; a guess for inputs other than text."""
        texts = [self.batch[name].numel() for name in ("input_ids", "decoder_input_ids") if isinstance(self.batch.get(name), Tensor)]
        return max(texts, default=256 * self.rows)

    def sample(self, rows: int) -> Pass:
        """The evaluation of the first few examples."""
        if rows >= self.rows:
            return self
        return Pass(self.model, first_rows(self.batch, self.rows, rows), rows, self.read, self.options, self.withhold)

    def forward(self, copies: int = 1) -> Any:
        """Returns the model's output for copies of the batch. Models that draw random numbers draw the same ones in every pass."""
        return self._forward(self._stack(copies))

    def result(self, copies: int = 1) -> Any:
        """Returns what `read` gives for copies of the batch: tensors [copies, rows, …]."""
        stacked = self._stack(copies)
        read = self.read(self._forward(stacked), stacked)
        return tree_map(lambda tensor: tensor.unflatten(0, (copies, self.rows)), read)

    def _stack(self, copies: int) -> Mapping[str, Any]:
        return self.batch if copies == 1 else stack_batch(self.batch, self.rows, copies)

    def _forward(self, batch: Batch) -> Any:
        device = device_of(self.model)
        inputs = {name: value for name, value in batch.items() if name not in self.withhold}
        with pass_rng(self.model, seed=0, devices=[device] if device.type == "cuda" else ()):
            return forward(self.model, {**inputs, **self.options})


def gap(ours: Any, theirs: Any) -> float:
    """Returns the largest difference between two results, relative to the largest number (or one); infinite where shape or finiteness differ."""
    (first, first_spec), (second, second_spec) = tree_flatten(ours), tree_flatten(theirs)
    if first_spec != second_spec:
        return float("inf")
    return max((_gap(a.double(), b.double()) for a, b in zip(first, second, strict=True)), default=0.0)


def _gap(ours: Tensor, theirs: Tensor) -> float:
    finite = theirs.isfinite()
    if ours.shape != theirs.shape or not torch.equal(ours.isfinite(), finite):
        return float("inf")
    if not finite.any():
        return 0.0
    return float((ours - theirs)[finite].abs().max()) / max(1.0, float(theirs[finite].abs().max()))
