"""The loss of each example: what the model's own loss would be on a batch of that example alone.

Models return one loss for a batch. Its parts are taken from logits and labels by the few published conventions, and the choice is proven
against the model's own loss on the batch; where none fits, examples run one by one.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor, nn
from torch.nn import functional as F

from headcount.core.errors import NonFinite, UnsupportedModel
from headcount.models.modules import Batch, in_float32_or_float64, unwrap
from headcount.models.padding import IGNORED

Losses = Float[Tensor, "batch"]
Weights = Shaped[Tensor, "batch"]
"""The weight of each example in the loss of the batch."""
LossRule = Callable[[Any, Batch], tuple[Losses, Weights] | None]
"""(output, batch) -> losses and weights, or None where the rule does not apply."""


def token_cross_entropies(logits: Float[Tensor, "batch token vocab"], labels: Int[Tensor, "batch token"]) -> Float[Tensor, "batch token"]:
    """Returns the cross-entropy at every position, 0 where the label is ignored."""
    flat = F.cross_entropy(in_float32_or_float64(logits.flatten(0, 1)), labels.flatten(), ignore_index=IGNORED, reduction="none")
    return flat.view(labels.shape)


def kl_or_squared_differences(
    reference: Float[Tensor, "*token classes"], logits: Float[Tensor, "*token classes"]
) -> Float[Tensor, "*token"]:
    """Returns the Kullback-Leibler divergence of logits from reference logits at every token; the squared difference for a single output."""
    if reference.shape[-1] == 1:
        return (logits - reference).square().squeeze(-1)
    before, after = reference.log_softmax(-1), logits.log_softmax(-1)
    return (before.exp() * (before - after)).sum(-1)


def _mean_token_losses(logits: Float[Tensor, "batch token vocab"], labels: Int[Tensor, "batch token"]) -> tuple[Losses, Weights]:
    number = (labels != IGNORED).sum(-1)
    return token_cross_entropies(logits, labels).sum(-1) / number.clamp(min=1), number


def _logits(output: Any) -> Tensor | None:
    logits = output.get("logits") if isinstance(output, Mapping) else None
    return logits if isinstance(logits, Tensor) else None


def _class_losses(output: Any, batch: Batch) -> tuple[Losses, Weights] | None:
    logits, labels = _logits(output), batch.get("labels")
    if logits is None or not isinstance(labels, Tensor) or logits.ndim != 2 or labels.is_floating_point() or logits.shape[1] == 1:
        return None
    labels = labels.reshape(-1)
    if labels.shape[0] != logits.shape[0]:
        return None
    return F.cross_entropy(in_float32_or_float64(logits), labels, reduction="none"), torch.ones_like(labels)


def _squared_errors(output: Any, batch: Batch) -> tuple[Losses, Weights] | None:
    logits, labels = _logits(output), batch.get("labels")
    if logits is None or not isinstance(labels, Tensor) or logits.ndim != 2 or logits.shape[1] != 1 or labels.numel() != logits.shape[0]:
        return None
    wide = in_float32_or_float64(logits[:, 0])
    return (wide - labels.reshape(-1).to(wide.dtype)) ** 2, torch.ones(logits.shape[0], device=logits.device)


def _multilabel_losses(output: Any, batch: Batch) -> tuple[Losses, Weights] | None:
    logits, labels = _logits(output), batch.get("labels")
    if logits is None or not isinstance(labels, Tensor) or logits.ndim != 2 or labels.shape != logits.shape:
        return None
    wide = in_float32_or_float64(logits)
    return F.binary_cross_entropy_with_logits(wide, labels.to(wide.dtype), reduction="none").mean(-1), torch.ones_like(logits[:, 0])


def _unshifted_token_losses(output: Any, batch: Batch) -> tuple[Losses, Weights] | None:
    logits, labels = _logits(output), batch.get("labels")
    if logits is None or not isinstance(labels, Tensor) or logits.ndim != 3 or labels.shape != logits.shape[:2]:
        return None
    return _mean_token_losses(logits, labels)


def _next_token_losses(output: Any, batch: Batch) -> tuple[Losses, Weights] | None:
    logits, labels = _logits(output), batch.get("labels")
    if logits is None or not isinstance(labels, Tensor) or logits.ndim != 3 or labels.ndim != 2 or labels.shape[1] > logits.shape[1]:
        return None
    return _mean_token_losses(logits[:, -labels.shape[1] : -1], labels[:, 1:])


def _span_losses(output: Any, batch: Batch) -> tuple[Losses, Weights] | None:
    """Question answering: the mean of the cross-entropies of both ends."""
    if not isinstance(output, Mapping) or "start_logits" not in output or "start_positions" not in batch:
        return None
    ends = [
        F.cross_entropy(in_float32_or_float64(output[f"{end}_logits"]), batch[f"{end}_positions"], reduction="none")
        for end in ("start", "end")
    ]
    return (ends[0] + ends[1]) / 2, torch.ones_like(ends[0])


RULES: tuple[LossRule, ...] = (
    _class_losses,
    _squared_errors,
    _multilabel_losses,
    _unshifted_token_losses,
    _next_token_losses,
    _span_losses,
)


ROUNDING = {torch.bfloat16: 2e-2, torch.float16: 3e-3}
"""How far a loss in half precision may be from the same in full, relative to it."""


def _gap_to_own_loss_in_rounding_units(rule: LossRule, output: Any, batch: Batch) -> float:
    """Returns the distance of a rule from the model's own loss, in units of rounding: up to 1 it fits; infinite where it does not apply."""
    result = rule(output, batch)
    if result is None:
        return math.inf
    losses, weights = result
    ours, own = ((losses.double() * weights).sum() / weights.sum()).item(), output["loss"].item()
    gap = abs(ours - own) / (ROUNDING.get(output["loss"].dtype, 1e-3) * abs(own) + 1e-5)
    return gap if math.isfinite(gap) else math.inf


def _rule_matching_own_loss(output: Any, batch: Batch) -> LossRule | None:
    """Returns the rule that is closest to the model's own loss; None where none fits, or where half precision cannot tell two apart."""
    gaps = sorted((_gap_to_own_loss_in_rounding_units(rule, output, batch), number) for number, rule in enumerate(RULES))
    fitting = [RULES[number] for gap, number in gaps if gap <= 1]
    if not fitting or (len(fitting) > 1 and output["loss"].dtype in ROUNDING):
        return None
    return fitting[0]


def _require_own_loss(output: Any) -> Tensor:
    loss = output.get("loss") if isinstance(output, Mapping) else None
    if not isinstance(loss, Tensor):
        raise UnsupportedModel(
            "the model returned no loss for this batch. Gradients and ablations need one: give batches with labels, to a model with a task "
            "head (AutoModelForSequenceClassification, AutoModelForCausalLM, …), or a Task with a loss of its own."
        )
    return loss


class ExampleLosses:
    """Per-example losses of one model; the rule is chosen on its first batch and proven there against the model's own loss."""

    def __init__(self, model: nn.Module, loss: Callable[[Any, Batch], Losses] | None = None) -> None:
        self.model = model
        self._loss = loss
        self._rule: LossRule | None = None
        self.one_by_one = False

    @property
    def reads_logits(self) -> bool:
        """Whether losses are made of logits and labels alone; known after the first batch."""
        return self._rule is not None

    def __call__(self, output: Any, batch: Batch) -> Losses:
        """Returns the loss of each example from one output of the model."""
        if self._loss is not None:
            return self._loss(output, batch)
        if self._rule is None and not self.one_by_one:
            _require_own_loss(output)  # raises for a model without one
            self._rule = _rule_matching_own_loss(output, batch)
            self.one_by_one = self._rule is None
        if self.one_by_one:
            return self._loss_of_single_example(output, batch)
        assert self._rule is not None
        result = self._rule(output, batch)
        if result is None:
            raise UnsupportedModel("a later batch has other inputs or labels than the first one; score data of one kind at a time")
        return result[0]

    def _loss_of_single_example(self, output: Any, batch: Batch) -> Losses:
        loss = _require_own_loss(output)
        first = next((value for value in batch.values() if isinstance(value, Tensor) and value.ndim), None)
        if first is not None and first.shape[0] == 1:
            return loss.reshape(1)
        raise OneByOne


def require_finite_losses(losses: Losses, example_numbers: Sequence[int]) -> Losses:
    """Returns the losses if all are finite; else raises NonFinite, which names the example."""
    bad = (~torch.isfinite(losses)).nonzero()
    if len(bad):
        row = int(bad[0][0])
        raise NonFinite(
            f"the loss of example {example_numbers[row]} is {losses[row].item()}; look at its labels and at the model's outputs there"
        )
    return losses


class OneByOne(Exception):
    """Raised where the losses of the examples of a batch cannot be separated, so that they must run one by one."""


def accepts_argument(model: nn.Module, name: str) -> bool:
    """Whether a model's forward pass takes an argument of that name."""
    return name in inspect.signature(unwrap(model).forward).parameters
