"""From attention and sieves to numbers per sentence: the sieve bias, its attainable maximum, and how often the strongest key is in the sieve.

    β_t = (mean attention on S_t) / (mean attention on the N_t keys that t sees),   β_s = the mean of β_t over tokens with a sieve

S_t holds visible keys only, so uniform attention gives β = 1 in encoders and decoders alike; the maximum is N_t / |S_t|.
Pande et al. 2021. Pure tensor functions; no model here.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

REACH = 16
"""Offsets up to here are candidates for the positional baseline."""


@dataclass(frozen=True, slots=True, eq=False)
class Sieved:
    """Sieves of several roles on one batch, with what does not depend on attention.

    `inside` [batch, q, k, roles] are visible keys in the sieve, `tokens` [batch, roles] the queries with any, `maximum` [batch, roles] the largest
    bias that attention could reach, `offsets` how many queries have each offset from -16 to 16 in their sieve.
    """

    inside: Float[Tensor, "batch q k roles"]
    sizes: Float[Tensor, "batch q roles"]
    seen: Float[Tensor, "batch q"]
    tokens: Float[Tensor, "batch roles"]
    maximum: Float[Tensor, "batch roles"]
    offsets: Float[Tensor, "batch offsets roles"]
    visible: Bool[Tensor, "batch q k"]

    @classmethod
    def of(cls, sieves: Bool[Tensor, "batch q k roles"], visible: Bool[Tensor, "batch q k"]) -> Sieved:
        """The sieves, without keys that cannot be seen."""
        inside = sieves & visible[..., None]
        sizes, seen = inside.sum(2), visible.sum(-1)
        tokens = (sizes > 0).sum(1)
        best = torch.where(sizes > 0, seen[..., None] / sizes.clamp(min=1), 0.0).sum(1) / tokens.clamp(min=1)
        held = inside.float()
        return cls(held, sizes.float(), seen.float(), tokens.float(), best, offsets(held, REACH), visible)


def biases(attention: Float[Tensor, "batch heads q k"], sieved: Sieved) -> Float[Tensor, "batch heads roles"]:
    """β_s of every sentence, head and role; 0 where a sentence has no token with a sieve."""
    by_query = attention.float().transpose(1, 2)  # [batch, q, heads, k]
    mass = by_query @ sieved.inside  # [batch, q, heads, roles]
    whole = torch.where(sieved.visible.unsqueeze(2), by_query, 0.0).sum(-1) / sieved.seen.clamp(min=1)[..., None]  # [batch, q, heads]
    ratio = mass / sieved.sizes.clamp(min=1)[:, :, None, :] / whole.clamp(min=1e-30)[..., None]
    return ratio.sum(1) / sieved.tokens.clamp(min=1)[:, None, :]


def hits(
    attention: Float[Tensor, "batch heads q k"], sieved: Sieved, allowed: Bool[Tensor, "batch k"], roles: Bool[Tensor, " roles"]
) -> Float[Tensor, "batch heads roles"]:
    """How many queries with a sieve have their strongest key in it: the key is sought among `allowed` ones, or, for the other roles, among all.

    Of keys that are equally strong each counts by its share, so a head that prefers none hits no more than chance.
    """
    inside = sieved.inside.flatten(1, 2)  # [batch, q · k, roles]
    found = torch.zeros(*attention.shape[:2], inside.shape[-1], device=attention.device)
    for chosen, keys in ((roles, sieved.visible & allowed[:, None, :]), (~roles, sieved.visible)):
        if chosen.any():
            weights = attention.masked_fill(~keys[:, None], -1.0)
            strongest = (weights == weights.amax(-1, keepdim=True)) & keys[:, None]
            share = strongest / strongest.sum(-1, keepdim=True).clamp(min=1)
            found[..., chosen] = (share.flatten(2) @ inside)[..., chosen]
    return found


def offsets(inside: Float[Tensor, "batch q k roles"], reach: int) -> Float[Tensor, "batch offsets roles"]:
    """For every offset from −reach to +reach, how many queries of each sentence have the key at that offset in their sieve."""
    n_queries, n_keys = inside.shape[1:3]
    empty = torch.zeros_like(inside[:, 0, 0])
    inside_of = {o: torch.diagonal(inside, o, dim1=1, dim2=2).sum(-1) for o in range(-reach, reach + 1) if -n_queries < o < n_keys}
    return torch.stack([inside_of.get(offset, empty) for offset in range(-reach, reach + 1)], dim=1)
