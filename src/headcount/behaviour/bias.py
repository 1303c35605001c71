"""From attention and sieves to numbers per sentence: the sieve bias, its attainable maximum, and how often the strongest key is in the sieve.

    β_t = (mean attention on S_t) / (mean attention on the N_t keys that t sees),   β_s = the mean of β_t over tokens with a sieve

S_t holds visible keys only, so uniform attention gives β = 1 in encoders and decoders alike; the maximum is N_t / |S_t|. Legacy roles multiply
β_t by the entropy H_t of the token's attention over visible keys: uniform attention then gives ln N_t. Pande et al. 2021. Pure tensor functions;
no model here.
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

    Attributes:
        inside: Visible keys in the sieve.
        sizes: How many these are.
        n_visible: How many keys each query can attend to.
        tokens: How many queries have a sieve.
        maximum: The largest bias that attention could reach.
        level: The bias of uniform attention.
        offsets: How many queries have each offset from -16 to 16 in their sieve.
        visible: The attention mask.
        is_entropy_weighted: Roles whose bias is β_t · H_t.
    """

    inside: Float[Tensor, "batch q k roles"]
    sizes: Float[Tensor, "batch q roles"]
    n_visible: Float[Tensor, "batch q"]
    tokens: Float[Tensor, "batch roles"]
    maximum: Float[Tensor, "batch roles"]
    level: Float[Tensor, "batch roles"]
    offsets: Float[Tensor, "batch offsets roles"]
    visible: Bool[Tensor, "batch q k"]
    is_entropy_weighted: Bool[Tensor, " roles"]

    def count_pairs_shared_by_sieves(self) -> Float[Tensor, "roles roles"]:
        """Returns how many pairs of query and key are in the sieves of each two roles."""
        pairs = self.inside.flatten(0, 2)
        return pairs.T @ pairs

    @classmethod
    def from_sieves_and_mask(
        cls,
        sieves: Bool[Tensor, "batch q k roles"],
        visible: Bool[Tensor, "batch q k"],
        is_entropy_weighted: Bool[Tensor, " roles"] | None = None,
    ) -> Sieved:
        """Returns the sieves without keys that the mask hides."""
        inside = (sieves & visible[..., None]).float()
        sizes, n_visible = inside.sum(2), visible.sum(-1)
        is_entropy_weighted = (
            torch.zeros(sieves.shape[-1], dtype=torch.bool, device=sieves.device) if is_entropy_weighted is None else is_entropy_weighted
        )
        best, uniform = n_visible[..., None] / sizes.clamp(min=1), torch.ones_like(sizes)
        if is_entropy_weighted.any():
            best[..., is_entropy_weighted] = max_entropy_weighted_bias(n_visible[..., None], sizes[..., is_entropy_weighted])
            uniform[..., is_entropy_weighted] = n_visible.clamp(min=1).log()[..., None]
        tokens = (sizes > 0).sum(1)
        maximum, level = (torch.where(sizes > 0, value, 0.0).sum(1) / tokens.clamp(min=1) for value in (best, uniform))
        return cls(
            inside,
            sizes,
            n_visible.float(),
            tokens.float(),
            maximum,
            level,
            count_sieve_pairs_by_offset(inside, REACH),
            visible,
            is_entropy_weighted,
        )


def mean_sieve_biases(attention: Float[Tensor, "batch heads q k"], sieved: Sieved) -> Float[Tensor, "batch heads roles"]:
    """Returns β_s of every sentence, head and role; 0 where a sentence has no token with a sieve."""
    by_query = attention.float().transpose(1, 2)  # [batch, q, heads, k]
    mass = by_query @ sieved.inside  # [batch, q, heads, roles]
    on_visible = torch.where(sieved.visible.unsqueeze(2), by_query, 0.0)  # [batch, q, heads, k]
    mean_attention = on_visible.sum(-1) / sieved.n_visible.clamp(min=1)[..., None]  # [batch, q, heads]
    ratio = mass / sieved.sizes.clamp(min=1)[:, :, None, :] / mean_attention.clamp(min=1e-30)[..., None]
    if sieved.is_entropy_weighted.any():
        entropy = torch.special.entr(on_visible / on_visible.sum(-1, keepdim=True).clamp(min=1e-30)).sum(-1)  # −Σ p ln p over visible keys
        ratio[..., sieved.is_entropy_weighted] *= entropy[..., None]
    return ratio.sum(1) / sieved.tokens.clamp(min=1)[:, None, :]


def max_entropy_weighted_bias(n_visible_keys: Tensor, n_sieve_keys: Tensor) -> Tensor:
    """Returns the largest β · H that attention over N keys can reach on a sieve of s of them; 0 without a sieve.

    With mass m on the sieve, β = m N/s, and H is largest where attention is uniform inside and outside: H = h(m) + m ln s + (1 − m) ln(N − s).
    m H is log-concave, so the zero of its derivative between s/N, where it rises, and 1 is found by bisection.
    """
    n, s = torch.broadcast_tensors(n_visible_keys.double(), n_sieve_keys.double())
    inner, outer = s.clamp(min=1).log(), (n - s).clamp(min=1).log()
    low, high = s / n.clamp(min=1), torch.ones_like(s)
    for _ in range(50):
        m = (low + high) / 2
        rises = -2 * torch.xlogy(m, m) + torch.xlogy(2 * m - 1, 1 - m) + 2 * m * inner + (1 - 2 * m) * outer > 0
        low, high = torch.where(rises, m, low), torch.where(rises, high, m)
    low = torch.where(s < n, low, 1.0)
    entropy = torch.special.entr(low) + torch.special.entr(1 - low) + low * inner + (1 - low) * outer
    return torch.where(s > 0, low * n / s.clamp(min=1) * entropy, 0.0).float()


def expected_chance_hits(
    sieved: Sieved, allowed_keys: Bool[Tensor, "batch k"], is_restricted_to_allowed: Bool[Tensor, " roles"]
) -> Float[Tensor, "batch roles"]:
    """Returns how many queries would have a random key in the sieve: Σ |S_t ∩ keys| / |keys|, keys as in `count_strongest_key_hits`."""
    counts = torch.zeros_like(sieved.tokens)
    for roles, keys in ((is_restricted_to_allowed, sieved.visible & allowed_keys[:, None, :]), (~is_restricted_to_allowed, sieved.visible)):
        if roles.any():
            share = keys / keys.sum(-1, keepdim=True).clamp(min=1)
            counts[:, roles] = (share.flatten(1).unsqueeze(1) @ sieved.inside.flatten(1, 2)).squeeze(1)[:, roles]
    return counts


def count_strongest_key_hits(
    attention: Float[Tensor, "batch heads q k"],
    sieved: Sieved,
    allowed_keys: Bool[Tensor, "batch k"],
    is_restricted_to_allowed: Bool[Tensor, " roles"],
) -> Float[Tensor, "batch heads roles"]:
    """Returns how many queries with a sieve have their strongest key in it.

    For roles that are restricted the strongest key is sought among `allowed_keys`, for the others among all. Of keys that are equally strong
    each counts by its share, so a head that prefers none hits no more than chance.
    """
    inside = sieved.inside.flatten(1, 2)  # [batch, q · k, roles]
    counts = torch.zeros(*attention.shape[:2], inside.shape[-1], device=attention.device)
    for roles, keys in ((is_restricted_to_allowed, sieved.visible & allowed_keys[:, None, :]), (~is_restricted_to_allowed, sieved.visible)):
        if roles.any():
            weights = attention.masked_fill(~keys[:, None], -1.0)
            strongest = ((weights == weights.amax(-1, keepdim=True)) & keys[:, None]).float()
            share = strongest / strongest.sum(-1, keepdim=True).clamp(min=1)
            counts[..., roles] = (share.flatten(2) @ inside)[..., roles]
    return counts


def count_sieve_pairs_by_offset(inside_sieve: Float[Tensor, "batch q k roles"], max_offset: int) -> Float[Tensor, "batch offsets roles"]:
    """Returns, for every offset from −reach to +reach, how many queries of each sentence have the key at that offset in their sieve."""
    n_queries, n_keys = inside_sieve.shape[1:3]
    empty = torch.zeros_like(inside_sieve[:, 0, 0])
    inside_of = {
        o: torch.diagonal(inside_sieve, o, dim1=1, dim2=2).sum(-1) for o in range(-max_offset, max_offset + 1) if -n_queries < o < n_keys
    }
    return torch.stack([inside_of.get(offset, empty) for offset in range(-max_offset, max_offset + 1)], dim=1)
