"""Where relevance starts: 1 at the highest logit of every prediction.

It starts at 1, not at the logit's value: a softmax ignores a constant added to all logits, so their values do not compare between
predictions, and heads are compared by their parts of the whole.
"""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from headcount.core.errors import UnsupportedModel
from headcount.importance.relevance.rules import RelevanceError
from headcount.models.modules import Batch

LOGITS = ("logits", "logits_per_image", "prediction_logits")


def find_logits(output: Any) -> Tensor:
    """Returns the logits of a model's output."""
    for name in LOGITS:
        logits = getattr(output, name, None)
        if isinstance(logits, Tensor):
            return logits
    raise UnsupportedModel(f"the output {type(output).__name__} has none of {', '.join(LOGITS)}; pass logits=, a function of the output")


def start_relevance(logits: Tensor, positions: Tensor) -> Float[Tensor, " ..."]:
    """Returns relevance 1 at the highest logit of every chosen prediction, 0 elsewhere."""
    best = torch.nn.functional.one_hot(logits.argmax(-1), logits.shape[-1])
    return (best * positions.unsqueeze(-1)).double()


def choose_positions(model: nn.Module, batch: Batch, logits: Tensor, positions: Tensor | None) -> Bool[Tensor, "batch ..."]:
    """Returns which predictions count: one per example of [batch, classes], else `positions`, or those that labels or the attention mask select."""
    if logits.ndim not in (2, 3):
        raise UnsupportedModel(f"logits must be [batch, classes] or [batch, token, vocab], got {tuple(logits.shape)}; pass logits=")
    shape = logits.shape[:-1]
    if positions is None:
        positions = None if logits.ndim == 2 else _default_positions(model, batch, shape)
    if positions is None:
        return torch.ones(shape, dtype=torch.bool, device=logits.device)
    if positions.shape != shape:
        raise RelevanceError(f"positions must have the shape {tuple(shape)} of the predictions, got {tuple(positions.shape)}")
    return positions.to(logits.device).bool()


def _default_positions(model: nn.Module, batch: Batch, shape: torch.Size) -> Tensor | None:
    labels = batch.get("labels")
    encodes = bool(getattr(model.config, "is_encoder_decoder", False))
    if isinstance(labels, Tensor) and labels.shape == shape:
        labelled = labels != -100
        # A causal model predicts at each token the label of the next.
        shifts = not encodes and hasattr(model, "can_generate") and model.can_generate()  # pyright: ignore[reportCallIssue]
        return torch.cat([labelled[:, 1:], torch.zeros_like(labelled[:, :1])], dim=1) if shifts else labelled
    mask = batch.get("decoder_attention_mask" if encodes else "attention_mask")
    return mask.bool() if isinstance(mask, Tensor) and mask.shape == shape else None
