"""Numbers of a head profile: shares of attention on kinds of keys, and the Jensen–Shannon distance of heads. Pure functions; no model here.

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

from headcount.models.modules import in_float32_or_float64

REACH = 5
"""Distances beyond this many words fall into the outer bins."""
NO_WORD = "no word"
DISTANCES = (f"≤ −{REACH}", *(f"−{n}" for n in range(REACH - 1, 0, -1)), "0", *(f"+{n}" for n in range(1, REACH)), f"≥ +{REACH}", NO_WORD)
STRONGEST = 3
"""Keys shown of an example."""
BUDGET = 3e8
"""How many entropies may be computed for the distances of all pairs of heads, about two seconds of work."""


def word_distance_bins(query_words: Int[Tensor, "batch q"], key_words: Int[Tensor, "batch k"]) -> Int[Tensor, "batch q k"]:
    """Returns the bin of `DISTANCES` of every query and key, from the numbers of their words; -1 is no word."""
    apart = (key_words[:, None, :] - query_words[:, :, None]).clamp(-REACH, REACH) + REACH
    has_no_word = (key_words < 0)[:, None, :] | (query_words < 0)[:, :, None]
    return torch.where(has_no_word, len(DISTANCES) - 1, apart)


def one_hot_kinds(kinds: Int[Tensor, "batch q k"], n_kinds: int) -> Float[Tensor, "batch q k kinds"]:
    """Returns the kind of every key for every query, one-hot."""
    return torch.nn.functional.one_hot(kinds, n_kinds).float()


def sum_attention_by_kind(
    attention: Float[Tensor, "batch heads q k"], is_of_kind: Float[Tensor, "batch q k kinds"]
) -> Float[Tensor, "batch heads kinds"]:
    """Returns the attention of every head on every kind of key, summed over queries."""
    return attention.flatten(2).to(is_of_kind.dtype) @ is_of_kind.flatten(1, 2)


def uniform_attention(visible: Bool[Tensor, "batch q k"]) -> Float[Tensor, "batch 1 q k"]:
    """Returns attention that is the same on all visible keys."""
    return (visible / visible.sum(-1, keepdim=True).clamp(min=1)).unsqueeze(1)


def confidences_and_top_query(
    attention: Float[Tensor, "batch heads q k"], is_query: Bool[Tensor, "batch q"], is_ordinary_key: Bool[Tensor, "batch k"]
) -> tuple[Float[Tensor, "batch heads q"], Float[Tensor, "batch heads query_weight_keys_weights"]]:
    """Returns the largest weight on an ordinary key for every query, and the query of each example where it is largest.

    The first is 0 for tokens that are no queries. The second holds the position of that query, its weight, and its strongest keys with their
    weights, -1 where there are fewer.
    """
    on_ordinary = attention.masked_fill(~is_ordinary_key[:, None, None, :], 0.0)
    confidence = torch.where(is_query[:, None, :], on_ordinary.amax(-1), 0.0)
    weight, query = confidence.max(-1)
    rows = torch.gather(attention, 2, query[..., None, None].expand(-1, -1, 1, attention.shape[-1])).squeeze(2)  # [batch, heads, k]
    n_keys = min(STRONGEST, rows.shape[-1])
    weights, keys = rows.topk(n_keys)
    fill = torch.full((*weights.shape[:-1], STRONGEST - n_keys), -1.0, dtype=weights.dtype, device=weights.device)
    example = [query[..., None].to(weight.dtype), weight[..., None], keys.to(weights.dtype), fill, weights, fill]
    return confidence, torch.cat(example, -1)


def row_entropies_in_nats(attention: Float[Tensor, "batch heads q k"]) -> Float[Tensor, "batch heads q"]:
    """Returns −Σ a ln a of every row, in nats."""
    return torch.special.entr(in_float32_or_float64(attention)).sum(-1)


def n_affordable_queries(n_heads: int, n_keys: int, max_queries: int) -> int:
    """Returns over how many queries, at most `max_queries`, the distances of all pairs of heads can be computed within `BUDGET`."""
    return int(min(max_queries, max(4, BUDGET / (n_heads**2 * max(1, n_keys)))))


def mean_jensen_shannon_distances(attention_by_query: Iterable[Float[np.ndarray, "heads k"]]) -> Float[np.ndarray, "heads heads"]:
    """Returns the mean Jensen–Shannon distance of every pair of heads over queries; for each query the attention of all heads is given."""
    total, number = None, 0
    for row in attention_by_query:
        p = torch.as_tensor(np.asarray(row), dtype=torch.float64)
        p = p / p.sum(-1, keepdim=True).clamp(min=1e-300)
        entropy = torch.special.entr(p).sum(-1)
        divergence = torch.stack([torch.special.entr((p + p[i]) / 2).sum(-1) - (entropy + entropy[i]) / 2 for i in range(len(p))])
        pairwise = (divergence / np.log(2)).clamp(0, 1).sqrt()  # √JS in bits
        total, number = pairwise if total is None else total + pairwise, number + 1
    if total is None:
        return np.zeros((0, 0))
    return (total / number).numpy()


def nearest_heads(
    distances: Float[np.ndarray, "heads heads"], head_indices: Sequence[int], n_nearest: int
) -> dict[int, list[tuple[int, float]]]:
    """Returns the nearest other heads of every head with their distance, by their indices in the model; ties fall to the earlier head."""
    neighbours = {}
    for i, head in enumerate(head_indices):
        order = sorted((j for j in range(len(head_indices)) if j != i), key=lambda j: (round(float(distances[i, j]), 12), j))
        neighbours[head] = [(head_indices[j], float(distances[i, j])) for j in order[:n_nearest]]
    return neighbours
