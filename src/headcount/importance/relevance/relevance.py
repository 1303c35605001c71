"""Layer-wise relevance propagation (LRP) of the predicted logits to the heads of any transformers model (Voita et al. 2019).

One forward pass is recorded on a tape: every operation that the kernels of torch run on a value that descends from the inputs (`record`,
`tape`). Then relevance walks down the tape, from 1 at each predicted logit to the inputs (`propagate`). At every operation the relevance of the
result is given to the operands:

    v = Σ W u + b       the term W u gets its share of the sum by the ε or the αβ rule (`rules`); the share of b leaks         `layers`
    v = Q Kᵀ, v = P V   the same for every term; its two factors share as if they were terms, u / Σ u'                        `layers`
    v = k x + c         a normalisation: its statistics, hence k and c, are constants; the share of c leaks                   `layers`
    v = u + u'          each term gets its share of the sum                                                                   `operations`
    v = u u'            the factors share as if they were terms; all goes to u if u' is a constant                            `operations`
    v = f(u)            an activation, softmax, or moved or picked entries: all goes to u, or where the entries came from     `operations`

The relevance of a head is what arrives at its outputs, the input of its block's output projection. Nothing is lost unseen: what starts either
arrives at the inputs or is booked as leaked, example by example (`owners`).
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
from headcount.importance.relevance.propagate import (
    BackwardWalk,
    find_logits,
    mask_counted_predictions,
    operation_rule_of,
    relevance_of_best_logits,
)
from headcount.importance.relevance.record import RecordedPass, record_forward
from headcount.importance.relevance.rules import RelevanceError, RuleName, make_rule
from headcount.importance.relevance.tape import Tape
from headcount.models.head_map import HeadMap
from headcount.models.modules import Batch, unwrap
from headcount.models.observe import model_inputs


@dataclass(frozen=True, slots=True)
class Relevance:
    """Relevance per example; started = arrived + leaked up to rounding.

    Attributes:
        heads: What arrives at the outputs of every head, in flat order, summed over tokens and head_dim; neither normalised nor made positive.
        started: What starts at the logits.
        leaked: What constants and ε take.
        arrived: What arrives at the inputs.
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
    """Returns the relevance of every head for the model's own predictions on a batch. All predictions are propagated together.

    Memory holds the values of one forward pass; attention costs batch x heads x q x k x head_dim operations, in pieces.

    Shares of the ε rule have either sign and are divided by sums that may nearly cancel, so they can grow large, and rounding with them: check
    that arrived + leaked is started, and if not take a larger epsilon. The default keeps single precision to 1e-4 in small models.

    Args:
        model: A transformers model; it stays as it was.
        batch: Inputs of the model.
        rule: How the relevance of a sum is shared among its terms.
        epsilon: The ε of the ε rule.
        alpha: The α of the αβ rule.
        logits: Finds the logits in the model's output; by default the usual attributes are tried.
        positions: Which predictions of a [batch, token, vocab] output count; by default those with a label, or without labels those that are no
            padding.
        noise_seed: Seed of random rounding (see `noise`) of every result: the difference from a pass without it is the effect of rounding alone.

    Raises:
        UnknownName: there is no such rule.
        RelevanceError: an argument is out of range, or the relevance is not finite.
        UnsupportedModel: the model has an operation without a rule, or no logits.
    """
    sharing_rule, inner = make_rule(rule, epsilon, alpha), unwrap(model)
    heads, inputs = HeadMap.of(inner), model_inputs(batch, inner)
    noise = None if noise_seed is None else RoundingNoise(noise_seed)
    recorded = record_forward(inner, heads, inputs, logits or find_logits, noise)
    for node in recorded.tape.nodes:
        operation_rule_of(node)  # raises before the walk if an operation has no rule
    with torch.no_grad():
        start = relevance_of_best_logits(recorded.logits, mask_counted_predictions(inner, inputs, recorded.logits, positions))
        owners = Owners(recorded.tape, recorded.n_examples)
        walk = BackwardWalk(recorded.tape, owners, sharing_rule, noise)
        result = walk.run(recorded.logits_slot, start, frozenset(slot for _, slot in recorded.head_slots))
        per_head = _sum_relevance_by_head(heads, recorded, owners, result.by_slot)
    if not bool(per_head.isfinite().all()):
        raise RelevanceError(f"relevance is not finite: {_explain_nonfinite(recorded.tape)}")
    return Relevance(per_head, start.flatten(1).sum(1).cpu(), result.leaked, result.arrived)


def _explain_nonfinite(tape: Tape) -> str:
    """Returns why relevance is not finite: the operation of the forward pass that first gave NaN, or that it grew too large."""
    for node in tape.nodes:
        if any(slot is not None and bool(tape.values[slot].isnan().any()) for slot in node.outputs):
            return f"the model's own forward pass gives NaN, first in operation {node.name} of module '{node.module}'"
    return "it grew beyond the range of floats; take a larger epsilon, or the αβ rule"


def _sum_relevance_by_head(
    heads: HeadMap, recorded: RecordedPass, owners: Owners, relevance_by_slot: Mapping[int, Tensor]
) -> Float[Tensor, "batch heads"]:
    """Returns the relevance that reached each head; a block that runs several times gets the sum."""
    total = torch.zeros(recorded.n_examples, len(heads), dtype=torch.float64)
    for block, slot in dict.fromkeys(recorded.head_slots):
        if slot not in relevance_by_slot:
            continue
        size = (block.n_heads, block.value_dim)
        per_row = relevance_by_slot[slot].double().unflatten(-1, size).sum(-1).reshape(-1, block.n_heads)
        owner = owners[slot].unflatten(-1, size)[..., 0].reshape(-1, block.n_heads)[:, 0]
        total[:, heads.positions(block)].index_add_(0, owner.clamp(min=0).cpu(), per_row.cpu())
    return total
