"""The arithmetic of roles without a model: uniform attention scores 1, perfect attention its maximum, invisible keys do not count."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from headcount.roles._bias import Sieved, biases, hits, offsets


def visible_of(batch: int, n: int, *, causal: bool, seed: int) -> torch.Tensor:
    random = torch.Generator().manual_seed(seed)
    length = torch.randint(2, n + 1, (batch,), generator=random)
    keys = torch.arange(n)[None, None, :] < length[:, None, None]
    seen = keys.expand(batch, n, n)
    return seen & torch.ones(n, n, dtype=torch.bool).tril() if causal else seen


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10_000), st.booleans(), st.integers(2, 9), st.integers(1, 4))
def test_uniform_attention_scores_one_on_every_sieve(seed: int, causal: bool, n: int, roles: int) -> None:
    visible = visible_of(3, n, causal=causal, seed=seed)
    sieves = torch.rand(3, n, n, roles, generator=torch.Generator().manual_seed(seed)) < 0.3
    sieved = Sieved.of(sieves, visible)
    uniform = (visible / visible.sum(-1, keepdim=True).clamp(min=1))[:, None].expand(3, 2, n, n)
    found = biases(uniform, sieved)
    has = (sieved.tokens > 0)[:, None, :].expand_as(found)
    torch.testing.assert_close(found[has], torch.ones_like(found[has]))
    assert (found[~has] == 0).all()
    assert (sieved.maximum[sieved.tokens > 0] >= 1).all()


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10_000), st.booleans(), st.integers(2, 9))
def test_all_attention_inside_the_sieve_scores_the_maximum(seed: int, causal: bool, n: int) -> None:
    visible = visible_of(3, n, causal=causal, seed=seed)
    sieves = (torch.rand(3, n, n, 1, generator=torch.Generator().manual_seed(seed)) < 0.5) & visible[..., None]
    sieved = Sieved.of(sieves, visible)
    inside = sieved.inside[..., 0]
    perfect = (inside / inside.sum(-1, keepdim=True).clamp(min=1))[:, None]
    found = biases(perfect, sieved)[:, 0, 0]
    torch.testing.assert_close(found, sieved.maximum[:, 0] * (sieved.tokens[:, 0] > 0))
    free = torch.tensor([True])
    assert torch.equal(hits(perfect, sieved, torch.ones(3, n, dtype=torch.bool), free)[:, 0, 0], sieved.tokens[:, 0])


def test_a_bias_by_hand() -> None:
    """Two queries; the first sees three keys and puts .5 on its one sieve key: .5 / (1/3); the second has no sieve and drops out."""
    attention = torch.tensor([[[[0.5, 0.3, 0.2], [1.0, 0.0, 0.0]]]])
    sieves = torch.tensor([[[True, False, False], [False, False, False]]])[..., None]
    sieved = Sieved.of(sieves, torch.ones(1, 2, 3, dtype=torch.bool))
    assert biases(attention, sieved).item() == pytest.approx(1.5)
    assert sieved.maximum.item() == pytest.approx(3.0)
    assert sieved.tokens.item() == 1


def test_the_strongest_key_is_sought_where_it_may_be() -> None:
    attention = torch.tensor([[[[0.6, 0.3, 0.1]]]])
    sieved = Sieved.of(torch.tensor([[[[False], [True], [False]]]]), torch.ones(1, 1, 3, dtype=torch.bool))
    allowed = torch.tensor([[False, True, True]])
    assert hits(attention, sieved, allowed, torch.tensor([True])).item() == 1
    assert hits(attention, sieved, allowed, torch.tensor([False])).item() == 0


def test_offsets_count_queries() -> None:
    inside = torch.zeros(1, 4, 4, 1)
    for q in range(1, 4):
        inside[0, q, q - 1] = 1
    assert offsets(inside, 2)[0, :, 0].tolist() == [0, 3, 0, 0, 0]
    assert offsets(inside, 6).shape == (1, 13, 1)
