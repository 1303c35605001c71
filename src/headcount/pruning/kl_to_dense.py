"""How far a plan takes a model from the dense one once it is carried out, on the selection split: decides between plans, and on repair.

    mean KL(dense ‖ pruned) of the predictions

Not the loss: a model that was fine-tuned for long is too sure of itself, and losing heads makes it less so. Its loss on new data then falls while it
gets more wrong, and a repair, which brings the old predictions back, seems to do harm.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn

from headcount.core.plan import Plan
from headcount.data.evaluate import evaluate
from headcount.data.losses import kl_or_squared_differences
from headcount.data.metrics import IGNORED
from headcount.data.task import Task
from headcount.models.modules import Batch, shifts_labels
from headcount.models.observe import evaluating
from headcount.models.state import forward_preserving_state
from headcount.pruning.base import PruneContext
from headcount.pruning.repair.repair import Repaired
from headcount.surgery.cut import cut

KL_EXAMPLES = 256
"""Examples of the selection split that the KL to dense is measured on."""


class KLToDense:
    """A loss: the distance of every example's output from a dense model's, as KL of the predictions, or mean squares where there are no logits."""

    def __init__(self, dense: nn.Module) -> None:
        self.dense = dense

    def __call__(self, output: Any, batch: Batch) -> Tensor:
        """Returns one number per example."""
        with torch.no_grad(), evaluating(self.dense):
            dense_output: Any = forward_preserving_state(self.dense, batch)
        floats = [
            name for name, value in dense_output.items() if isinstance(value, Tensor) and value.is_floating_point() and value.ndim > 1
        ]
        names = [name for name in floats if "logits" in name] or floats[:1]
        distances = []
        for name in names:
            dense, pruned = dense_output[name].double(), output[name].double()
            distance = kl_or_squared_differences(dense, pruned) if "logits" in name else (pruned - dense).square().mean(-1)
            distances.append(_mean_over_counted_tokens(distance, batch, shifts_labels(self.dense)))
        return torch.stack(distances).sum(0)


def _mean_over_counted_tokens(distances: Float[Tensor, "batch ..."], batch: Batch, labels_are_shifted: bool) -> Float[Tensor, " batch"]:
    """Returns the mean of each example over the tokens that have labels, or over those that are no padding."""
    if distances.ndim == 1:
        return distances
    labels, mask = batch.get("labels"), batch.get("attention_mask")
    if isinstance(labels, Tensor) and labels.shape == distances.shape:
        counts = labels != IGNORED
        if labels_are_shifted:
            distances, counts = distances[:, :-1], counts[:, 1:]  # what a token predicts is the label of the next
    elif isinstance(mask, Tensor) and mask.shape == distances.shape:
        counts = mask.bool()
    else:
        counts = torch.ones_like(distances, dtype=torch.bool)
    counts = counts.to(distances)
    return (distances * counts).flatten(1).sum(1) / counts.flatten(1).sum(1).clamp(min=1)


def kl_to_dense(context: PruneContext, uncut_model: nn.Module, plan: Plan, limit: int = KL_EXAMPLES) -> float:
    """Returns the mean distance from the dense model of this model cut, that is without the heads that a plan removes."""
    data = replace(context.data, metric=None) if isinstance(context.data, Task) else context.data
    return evaluate(cut(uncut_model, plan), data, split="selection", limit=limit, loss=KLToDense(context.model)).loss


class ClosestModel(NamedTuple):
    """The repaired model, or the unrepaired one without fits, and the KLs of both to the dense model as a log entry."""

    repaired: Repaired
    log_entry: dict[str, Any]


def keep_repair_if_closer(context: PruneContext, plan: Plan, unrepaired_model: nn.Module, repaired: Repaired) -> ClosestModel:
    """Returns the repaired model if its KL to the dense model is smaller, else the unrepaired one.

    A block whose output is nearly that of the dense one need not help the layers after it: with most heads gone, the output at the one token that a
    classifier reads can get worse while the mean over all tokens gets better.
    """
    without, after = kl_to_dense(context, unrepaired_model, plan), kl_to_dense(context, repaired.model, plan)
    is_closer = after <= without
    entry = {"stage": "repair", "kept": is_closer, "kl_to_dense": after, "kl_to_dense without": without}
    return ClosestModel(repaired if is_closer else Repaired(unrepaired_model, {}), entry)
