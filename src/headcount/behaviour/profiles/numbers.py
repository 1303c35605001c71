"""From attention to numbers: shares of attention on kinds of keys, and the Jensen–Shannon distance of heads. Pure functions; no model here.

    share of a kind = mean over queries of Σ_k a_qk [key k is of that kind to query q]
    distance of heads i, j = mean over queries of √JS(a_i, a_j),  JS(p, q) = H((p + q)/2) − (H(p) + H(q))/2  in bits

The distance is a metric for every query, 0 for the same attention and 1 for attention on different keys.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from headcount.models.modules import at_least_single

REACH = 5
"""Distances beyond this many words fall into the outer bins."""
NO_WORD = "no word"
DISTANCES = (f"≤ −{REACH}", *(f"−{n}" for n in range(REACH - 1, 0, -1)), "0", *(f"+{n}" for n in range(1, REACH)), f"≥ +{REACH}", NO_WORD)
STRONGEST = 3
"""Keys kept of an example."""
BUDGET = 3e8
"""Entropies that may be taken for the distances of all pairs of heads, about two seconds of work."""


def distance_bins(queries: Int[Tensor, "batch q"], keys: Int[Tensor, "batch k"]) -> Int[Tensor, "batch q k"]:
    """For every query and key the bin of `DISTANCES`, from the numbers of their words; -1 is no word."""
    apart = (keys[:, None, :] - queries[:, :, None]).clamp(-REACH, REACH) + REACH
    nowhere = (keys < 0)[:, None, :] | (queries < 0)[:, :, None]
    return torch.where(nowhere, len(DISTANCES) - 1, apart)


def one_hot(kinds: Int[Tensor, "batch q k"], n: int) -> Float[Tensor, "batch q k kinds"]:
    """Which kind every key is of to every query, as numbers."""
    return torch.nn.functional.one_hot(kinds, n).float()


def mass(attention: Float[Tensor, "batch heads q k"], kinds: Float[Tensor, "batch q k kinds"]) -> Float[Tensor, "batch heads kinds"]:
    """The attention of every head on every kind of key, summed over queries."""
    return attention.flatten(2).to(kinds.dtype) @ kinds.flatten(1, 2)


def even(visible: Bool[Tensor, "batch q k"]) -> Float[Tensor, "batch 1 q k"]:
    """Attention that is the same on all visible keys."""
    return (visible / visible.sum(-1, keepdim=True).clamp(min=1)).unsqueeze(1)


def strongest(
    attention: Float[Tensor, "batch heads q k"], asks: Bool[Tensor, "batch q"], ordinary: Bool[Tensor, "batch k"]
) -> tuple[Float[Tensor, "batch heads q"], Float[Tensor, "batch heads example"]]:
    """The largest weight on an ordinary key for every query, 0 where none asks; and of each example's surest query
    its place, its weight, and its strongest keys with their weights, -1 where there are fewer."""
    free = attention.masked_fill(~ordinary[:, None, None, :], 0.0)
    surest = torch.where(asks[:, None, :], free.amax(-1), 0.0)
    weight, place = surest.max(-1)
    return surest, torch.cat([place[..., None].to(weight.dtype), weight[..., None], _keys_of(attention, place)], -1)


def _keys_of(attention: Tensor, place: Tensor) -> Tensor:
    """The strongest keys of one query per example and head, and their weights."""
    rows = torch.gather(attention, 2, place[..., None, None].expand(-1, -1, 1, attention.shape[-1])).squeeze(2)
    number = min(STRONGEST, rows.shape[-1])
    weights, keys = rows.topk(number)
    none = torch.full((*weights.shape[:-1], STRONGEST - number), -1.0, dtype=weights.dtype, device=weights.device)
    return torch.cat([keys.to(weights.dtype), none, weights, none], -1)


def entropies(attention: Float[Tensor, "batch heads q k"]) -> Float[Tensor, "batch heads q"]:
    """−Σ a ln a of every row, in nats."""
    return torch.special.entr(at_least_single(attention)).sum(-1)


def how_many(n_heads: int, n_keys: int, most: int) -> int:
    """How many queries the distances of all pairs of heads can be taken over within `BUDGET`."""
    return int(min(most, max(4, BUDGET / (n_heads**2 * max(1, n_keys)))))


def distances(rows: Iterable[Float[np.ndarray, "heads k"]]) -> Float[np.ndarray, "heads heads"]:
    """The mean Jensen–Shannon distance of every pair of heads over queries; each of `rows` is one query's attention by every head."""
    total, number = None, 0
    for row in rows:
        p = torch.as_tensor(np.asarray(row), dtype=torch.float64)
        p = p / p.sum(-1, keepdim=True).clamp(min=1e-300)
        apart = torch.stack([_apart(p, i) for i in range(len(p))])
        total, number = apart if total is None else total + apart, number + 1
    if total is None:
        return np.zeros((0, 0))
    return (total / number).numpy()


def _apart(p: Tensor, i: int) -> Tensor:
    """√JS of one head and every head, in bits."""
    own = torch.special.entr(p).sum(-1)
    divergence = torch.special.entr((p + p[i]) / 2).sum(-1) - (own + own[i]) / 2
    return (divergence / np.log(2)).clamp(0, 1).sqrt()


def nearest(table: Float[np.ndarray, "heads heads"], places: Sequence[int], number: int) -> dict[int, list[tuple[int, float]]]:
    """For every head its nearest others, by the places that heads have in the model; ties fall to the earlier head."""
    found = {}
    for i, place in enumerate(places):
        order = sorted((j for j in range(len(places)) if j != i), key=lambda j: (round(float(table[i, j]), 12), j))
        found[place] = [(places[j], float(table[i, j])) for j in order[:number]]
    return found
