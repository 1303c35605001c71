"""Layer-wise relevance propagation of the predicted logit to the heads, for any transformers model (Voita et al. 2019).

One forward pass is recorded on a tape, then relevance walks the tape backwards: for v = Σ W u the input u gets the share W u / Σ W u'; for a
product u / Σ u'; activations and softmax pass it on; the statistics of a normalisation are constants. See `rules` for the ε and the αβ rule.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from headcount.importance.relevance.noise import RoundingNoise
from headcount.importance.relevance.owners import Owners
from headcount.importance.relevance.propagate import Descent
from headcount.importance.relevance.record import Recording, record
from headcount.importance.relevance.rules import RelevanceError, RuleName, make_rule
from headcount.importance.relevance.start import choose_positions, find_logits, start_relevance
from headcount.importance.relevance.table import rule_of
from headcount.importance.relevance.tape import Tape
from headcount.models.head_map import HeadMap
from headcount.models.modules import Batch, unwrap
from headcount.models.observe import model_inputs

__all__ = ["Relevance", "RelevanceError", "RuleName", "relevance"]


@dataclass(frozen=True, slots=True)
class Relevance:
    """Relevance per example: of every head in flat order, put in at the top, taken by constants and ε, and come to the inputs.

    started = arrived + leaked. A head's relevance is what arrives at the input of its block's output projection, summed over tokens and
    head_dim; it is neither normalised nor made positive.
    """

    heads: Float[Tensor, "batch heads"]
    started: Float[Tensor, " batch"]
    leaked: Float[Tensor, " batch"]
    arrived: Float[Tensor, " batch"]


def relevance(  # noqa: PLR0913 - two arguments, the rest are options by name
    model: nn.Module,
    batch: Batch,
    *,
    rule: RuleName = "alpha-beta",
    epsilon: float = 1e-3,
    alpha: float = 0.5,
    logits: Callable[[Any], Tensor] | None = None,
    positions: Bool[Tensor, "batch token"] | None = None,
    noise_seed: int | None = None,
) -> Relevance:
    """Returns the relevance of every head for the model's own predictions on a batch; `epsilon` is of the ε rule, `alpha` of the αβ rule.

    `logits` finds the logits in the model's output; `positions` chooses the predictions of a [batch, token, vocab] output, by default those
    with a label, or without one those that are no padding. All predictions are propagated together. Memory holds the values of one forward
    pass; attention costs batch x heads x q x k x head_dim operations, in pieces.

    Shares of the ε rule have either sign and are divided by sums that may nearly cancel, so they can grow large, and rounding with them:
    look whether arrived + leaked is started, and if not take a larger epsilon. The default keeps single precision to 1e-4 in small models.
    With `noise_seed` every result is rounded at random (see `noise`): the difference from a pass without it is the effect of rounding alone.
    """
    chosen, inner = make_rule(rule, epsilon, alpha), unwrap(model)
    heads, inputs = HeadMap.of(inner), model_inputs(batch, inner)
    noise = None if noise_seed is None else RoundingNoise(noise_seed)
    recording = record(inner, heads, inputs, logits or find_logits, noise)
    for node in recording.tape.nodes:
        rule_of(node)
    with torch.no_grad():
        start = start_relevance(recording.logits, choose_positions(inner, inputs, recording.logits, positions))
        owners = Owners(recording.tape, recording.n_examples)
        marked = frozenset(slot for _, slot in recording.marks)
        arrival = Descent(recording.tape, owners, chosen, noise).run(recording.top, start, marked)
        per_head = _per_head(heads, recording, owners, arrival.by_slot)
    if not bool(per_head.isfinite().all()):
        raise RelevanceError(f"relevance is not finite: {_first_fault(recording.tape)}")
    return Relevance(per_head, start.flatten(1).sum(1).cpu(), arrival.leaked, arrival.arrived)


def _first_fault(tape: Tape) -> str:
    """Returns where the forward pass first computed NaN, in words."""
    for node in tape.nodes:
        if any(slot is not None and bool(tape.values[slot].isnan().any()) for slot in node.outputs):
            return f"the model's own forward pass gives NaN, first in operation {node.name} of module '{node.module}'"
    return "it grew beyond the range of floats; take a larger epsilon, or the αβ rule"


def _per_head(heads: HeadMap, recording: Recording, owners: Owners, by_slot: Mapping[int, Tensor]) -> Float[Tensor, "batch heads"]:
    """Returns the relevance that reached each head; a block that runs several times gets the sum."""
    total = torch.zeros(recording.n_examples, len(heads), dtype=torch.float64)
    for block, slot in dict.fromkeys(recording.marks):
        if slot not in by_slot:
            continue
        size = (block.n_heads, block.value_dim)
        per_row = by_slot[slot].double().unflatten(-1, size).sum(-1).reshape(-1, block.n_heads)
        owner = owners[slot].unflatten(-1, size)[..., 0].reshape(-1, block.n_heads)[:, 0]
        total[:, heads.positions(block)].index_add_(0, owner.clamp(min=0).cpu(), per_row.cpu())
    return total
