"""The walk of relevance down a tape: where it starts, the rule of every operation, and what arrives at the inputs.

Relevance starts as 1 at the highest logit of every prediction. It does not start as the logit's value: a softmax ignores a constant added to
all logits, so their values do not compare between predictions, and heads are compared by their shares of the total.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from transformers.utils import ModelOutput

from headcount.core.errors import UnsupportedModel
from headcount.importance.relevance.layers import pass_convolution, pass_linear, pass_matrix_product, pass_normalisation
from headcount.importance.relevance.noise import RoundingNoise
from headcount.importance.relevance.operations import (
    ELEMENTWISE,
    MATRIX_PRODUCTS,
    MOVES,
    NORMALISATIONS,
    SUMS,
    VIEWS,
    OperationRule,
    pass_addition,
    pass_as_strided,
    pass_copy_into_tensor,
    pass_glu,
    pass_indexed_addition,
    pass_moved_entries,
    pass_product,
    pass_quotient,
    pass_sum_or_pooling,
    pass_to_input,
    pass_view,
)
from headcount.importance.relevance.owners import Owners
from headcount.importance.relevance.rules import RelevanceError, Rule
from headcount.importance.relevance.tape import Slot, Tape, TapeNode
from headcount.models.modules import Batch

LOGITS = ("logits", "logits_per_image", "prediction_logits")

OPERATION_RULES: dict[str, OperationRule] = {
    **dict.fromkeys(ELEMENTWISE, pass_to_input),
    **dict.fromkeys(MOVES, pass_moved_entries),
    **dict.fromkeys(VIEWS, pass_view),
    **dict.fromkeys(SUMS, pass_sum_or_pooling),
    **dict.fromkeys(NORMALISATIONS, pass_normalisation),
    **dict.fromkeys(("add", "sub", "rsub"), pass_addition),
    **dict.fromkeys(MATRIX_PRODUCTS, pass_matrix_product),
    "linear": pass_linear,
    "convolution": pass_convolution,
    **dict.fromkeys(("index_add", "scatter_add"), pass_indexed_addition),
    "as_strided": pass_as_strided,
    "copy": pass_copy_into_tensor,
    "glu": pass_glu,
    "mul": pass_product,
    "div": pass_quotient,
}
"""The rule of every operation, by its name."""


def operation_rule_of(node: TapeNode) -> OperationRule:
    """Returns the rule of a node.

    Raises:
        UnsupportedModel: the operation has none.
    """
    if node.function is None:
        return pass_to_input
    if "scaled_dot_product" in node.name:
        raise node.error("is a fused kernel (load the model with attn_implementation='eager')")
    if node.name not in OPERATION_RULES:
        raise node.error()
    return OPERATION_RULES[node.name]


@dataclass(frozen=True, slots=True)
class WalkResult:
    """What a walk gives: relevance per example at the inputs and in leaks, and that of the slots asked for."""

    arrived: Float[Tensor, " batch"]
    leaked: Float[Tensor, " batch"]
    by_slot: dict[int, Tensor]


class BackwardWalk:
    """One walk down a tape, from the logits to the inputs, in float64 if any value of the forward pass has it, else in float32."""

    def __init__(self, tape: Tape, owners: Owners, rule: Rule, noise: RoundingNoise | None = None) -> None:
        self.tape, self.owners, self.rule, self.noise = tape, owners, rule, noise
        # Models in double precision run their softmax in single, and models in half precision have nothing wider.
        self.dtype = torch.float64 if any(value.dtype == torch.float64 for value in tape.values) else torch.float32
        self.leaked = torch.zeros(owners.n_examples, dtype=torch.float64)
        self._relevance: dict[int, Tensor] = {}  # by slot; complete once all nodes that read the slot are done

    def value_of(self, argument: Any) -> Any:
        """Returns the tensor of an argument, floats in the precision of the walk; other arguments as they are."""
        value = self.tape.values[argument.index] if isinstance(argument, Slot) else argument
        return value.to(self.dtype) if isinstance(value, Tensor) and value.is_floating_point() else value

    def book_leakage(self, node: TapeNode, relevance: Tensor) -> None:
        """Books relevance, shaped like the node's first result, as taken by constants or ε."""
        slot = node.outputs[0]
        assert slot is not None
        self.leaked += self.owners.sum_by_example(relevance, slot).to(self.leaked)

    def run(self, output_slot: int, output_relevance: Tensor, watched_slots: frozenset[int]) -> WalkResult:
        """Walks all the way down from `output_relevance` at the slot `output_slot`, and returns the relevance that reached `watched_slots` too."""
        self._relevance = {output_slot: output_relevance.to(self.dtype)}
        by_slot: dict[int, Tensor] = {}

        def take_relevance(slot: int | None) -> Tensor | None:
            relevance = self._relevance.pop(slot, None) if slot is not None else None
            if slot in watched_slots and relevance is not None:
                by_slot[slot] = relevance
            return relevance

        for node in reversed(self.tape.nodes):
            result_relevances = [take_relevance(slot) for slot in node.outputs]
            if any(relevance is not None for relevance in result_relevances):
                self._propagate(node, result_relevances)
        arrived = torch.zeros_like(self.leaked)
        for slot in self.tape.sources:
            relevance = take_relevance(slot)
            arrived += 0 if relevance is None else self.owners.sum_by_example(relevance, slot).to(arrived)
        return WalkResult(arrived, self.leaked, by_slot)

    def _propagate(self, node: TapeNode, result_relevances: list[Tensor | None]) -> None:
        """Adds the relevance of a node's results to the slots that it read."""
        for slot, share in operation_rule_of(node)(self, node, result_relevances):
            earlier = self._relevance.get(slot)
            rounded = share if self.noise is None else self.noise.add_noise(share)
            self._relevance[slot] = rounded if earlier is None else earlier + rounded


def find_logits(output: ModelOutput) -> Tensor:
    """Returns the logits of a model's output.

    Raises:
        UnsupportedModel: it has none under a usual name.
    """
    for name in LOGITS:
        logits = getattr(output, name, None)
        if isinstance(logits, Tensor):
            return logits
    raise UnsupportedModel(f"the output {type(output).__name__} has none of {', '.join(LOGITS)}; pass logits=, a function of the output")


def relevance_of_best_logits(
    logits: Float[Tensor, "*predictions vocab"], is_counted: Bool[Tensor, "*predictions"]
) -> Float[Tensor, "*predictions vocab"]:
    """Returns relevance 1 at the highest logit of every prediction that counts, 0 elsewhere."""
    best = torch.nn.functional.one_hot(logits.argmax(-1), logits.shape[-1])
    return (best * is_counted.unsqueeze(-1)).double()


def mask_counted_predictions(
    model: nn.Module, batch: Batch, logits: Float[Tensor, "*predictions vocab"], positions: Tensor | None
) -> Bool[Tensor, "*predictions"]:
    """Returns which predictions count: one per example of [batch, classes], else `positions`, or those that labels or the attention mask select.

    Raises:
        UnsupportedModel: the logits have another shape.
        RelevanceError: `positions` has not the shape of the predictions.
    """
    if logits.ndim not in (2, 3):
        raise UnsupportedModel(f"logits must be [batch, classes] or [batch, token, vocab], got {tuple(logits.shape)}; pass logits=")
    shape = logits.shape[:-1]
    if positions is None:
        positions = torch.ones(shape, dtype=torch.bool) if logits.ndim == 2 else _mask_labelled_or_real_tokens(model, batch, shape)
    if positions.shape != shape:
        raise RelevanceError(f"positions must have the shape {tuple(shape)} of the predictions, got {tuple(positions.shape)}")
    return positions.to(logits.device).bool()


def _mask_labelled_or_real_tokens(model: nn.Module, batch: Batch, shape: torch.Size) -> Bool[Tensor, "batch token"]:
    """Returns the predictions of tokens that have a label or, without labels, that are no padding; all of them if nothing marks padding."""
    labels = batch.get("labels")
    is_encoder_decoder = bool(getattr(model.config, "is_encoder_decoder", False))
    if isinstance(labels, Tensor) and labels.shape == shape:
        has_label = labels != -100
        # A causal model predicts at each token the label of the next.
        is_causal = not is_encoder_decoder and hasattr(model, "can_generate") and model.can_generate()  # pyright: ignore[reportCallIssue]
        return torch.cat([has_label[:, 1:], torch.zeros_like(has_label[:, :1])], dim=1) if is_causal else has_label
    mask = batch.get("decoder_attention_mask" if is_encoder_decoder else "attention_mask")
    return mask.bool() if isinstance(mask, Tensor) and mask.shape == shape else torch.ones(shape, dtype=torch.bool)
