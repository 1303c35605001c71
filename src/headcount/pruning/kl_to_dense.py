"""How far a plan takes a model from the dense one once it is carried out, on the selection split: decides between plans, and on repair.

    mean KL(dense ‖ pruned) of the predictions

Not the loss: a model that was fine-tuned for long is too sure of itself, and losing heads makes it less so. Its loss on new data then falls while it
gets more wrong, and a repair, which brings the old predictions back, seems to do harm.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from headcount.core.plan import Plan
from headcount.data.evaluate import evaluate
from headcount.data.losses import kl_divergences
from headcount.data.metrics import IGNORED
from headcount.data.task import Task
from headcount.models.modules import shifts_labels
from headcount.models.observe import evaluating
from headcount.models.state import forward
from headcount.pruning.base import PruneContext
from headcount.pruning.repair.repair import Repaired
from headcount.surgery.cut import cut

CHECKED = 256
"""Examples of the selection split that judge."""


class KLToDense:
    """The distance of every example's output from a dense model's: the divergence of predictions, or mean squares where there are none."""

    def __init__(self, dense: nn.Module) -> None:
        self.dense = dense

    def __call__(self, output: Any, batch: Any) -> Tensor:
        """One number per example."""
        with torch.no_grad(), evaluating(self.dense):
            whole: Any = forward(self.dense, batch)
        names = [name for name, value in whole.items() if isinstance(value, Tensor) and value.is_floating_point() and value.ndim > 1]
        told = [name for name in names if "logits" in name] or names[:1]
        return torch.stack([self._one(whole[name], output[name], batch, "logits" in name) for name in told]).sum(0)

    def _one(self, dense: Tensor, other: Tensor, batch: Any, is_logits: bool) -> Tensor:
        dense, other = dense.double(), other.double()
        each = kl_divergences(dense, other) if is_logits else (other - dense).square().mean(-1)
        return _per_example(each, batch, shifts_labels(self.dense))


def _per_example(each: Tensor, batch: Any, is_shifted: bool) -> Tensor:
    """The mean over the tokens that have labels, or over those that are no padding."""
    if each.ndim == 1:
        return each
    labels, mask = batch.get("labels"), batch.get("attention_mask")
    if isinstance(labels, Tensor) and labels.shape == each.shape:
        counts = labels != IGNORED
        if is_shifted:
            each, counts = each[:, :-1], counts[:, 1:]  # what a token predicts is the label of the next
    else:
        counts = mask.bool() if isinstance(mask, Tensor) and mask.shape == each.shape else torch.ones_like(each, dtype=torch.bool)
    counts = counts.to(each)
    return (each * counts).flatten(1).sum(1) / counts.flatten(1).sum(1).clamp(min=1)


def kl_to_dense(context: PruneContext, model: nn.Module, plan: Plan, limit: int = CHECKED) -> float:
    """The mean distance from the dense model of one without the heads that a plan removes."""
    data = replace(context.data, metric=None) if isinstance(context.data, Task) else context.data
    return evaluate(cut(model, plan), data, split="selection", limit=limit, loss=KLToDense(context.model)).loss


def repair_if_closer(context: PruneContext, plan: Plan, source: nn.Module, repaired: Repaired) -> tuple[Repaired, dict[str, Any]]:
    """Returns the repaired model if its KL to the dense model is smaller, else the unrepaired one; and both KLs as a log entry.

    A block whose output is nearly that of the dense one need not help the layers after it: with most heads gone, the output at the one token that a
    classifier reads can get worse while the mean over all tokens gets better.
    """
    without, after = kl_to_dense(context, source, plan), kl_to_dense(context, repaired.model, plan)
    is_closer = after <= without
    entry = {"stage": "repair", "kept": is_closer, "kl_to_dense": after, "kl_to_dense without": without}
    return (repaired if is_closer else Repaired(source, {})), entry
