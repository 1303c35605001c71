"""The arithmetic of roles without a model: uniform attention scores 1, perfect attention its maximum, invisible keys do not count."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from headcount.behaviour.bias import (
    Sieved,
    count_sieve_pairs_by_offset,
    count_strongest_key_hits,
    expected_chance_hits,
    max_entropy_weighted_bias,
    mean_sieve_biases,
)


def visible_of(batch: int, n: int, *, causal: bool, seed: int) -> torch.Tensor:
    random = torch.Generator().manual_seed(seed)
    length = torch.randint(2, n + 1, (batch,), generator=random)
    keys = torch.arange(n)[None, None, :] < length[:, None, None]
    observed = keys.expand(batch, n, n)
    return observed & torch.ones(n, n, dtype=torch.bool).tril() if causal else observed


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10_000), st.booleans(), st.integers(2, 9), st.integers(1, 4))
def test_uniform_attention_scores_one_on_every_sieve(seed: int, causal: bool, n: int, roles: int) -> None:
    visible = visible_of(3, n, causal=causal, seed=seed)
    sieves = torch.rand(3, n, n, roles, generator=torch.Generator().manual_seed(seed)) < 0.3
    sieved = Sieved.from_sieves_and_mask(sieves, visible)
    uniform = (visible / visible.sum(-1, keepdim=True).clamp(min=1))[:, None].expand(3, 2, n, n)
    actual = mean_sieve_biases(uniform, sieved)
    has = (sieved.tokens > 0)[:, None, :].expand_as(actual)
    torch.testing.assert_close(actual[has], torch.ones_like(actual[has]))
    assert (actual[~has] == 0).all()
    assert (sieved.maximum[sieved.tokens > 0] >= 1).all()


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10_000), st.booleans(), st.integers(2, 9))
def test_all_attention_inside_the_sieve_scores_the_maximum(seed: int, causal: bool, n: int) -> None:
    visible = visible_of(3, n, causal=causal, seed=seed)
    sieves = (torch.rand(3, n, n, 1, generator=torch.Generator().manual_seed(seed)) < 0.5) & visible[..., None]
    sieved = Sieved.from_sieves_and_mask(sieves, visible)
    inside = sieved.inside[..., 0]
    perfect = (inside / inside.sum(-1, keepdim=True).clamp(min=1))[:, None]
    mean_sieve_biase = mean_sieve_biases(perfect, sieved)[:, 0, 0]
    torch.testing.assert_close(mean_sieve_biase, sieved.maximum[:, 0] * (sieved.tokens[:, 0] > 0))
    free = torch.tensor([True])
    torch.testing.assert_close(
        count_strongest_key_hits(perfect, sieved, torch.ones(3, n, dtype=torch.bool), free)[:, 0, 0], sieved.tokens[:, 0]
    )


def test_a_bias_by_hand() -> None:
    """Two queries; the first sees three keys and puts .5 on its one sieve key: .5 / (1/3); the second has no sieve and drops out."""
    attention = torch.tensor([[[[0.5, 0.3, 0.2], [1.0, 0.0, 0.0]]]])
    sieves = torch.tensor([[[True, False, False], [False, False, False]]])[..., None]
    sieved = Sieved.from_sieves_and_mask(sieves, torch.ones(1, 2, 3, dtype=torch.bool))
    assert mean_sieve_biases(attention, sieved).item() == pytest.approx(1.5)
    assert sieved.maximum.item() == pytest.approx(3.0)
    assert sieved.tokens.item() == 1


WEIGHTED = torch.tensor([False, True])


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10_000), st.booleans(), st.integers(2, 9))
def test_legacy_roles_score_ln_n_on_uniform_attention(seed: int, causal: bool, n: int) -> None:
    """The same sieve twice, plain and weighted: 1, and the mean of ln N over its tokens, which is what `level` says."""
    visible = visible_of(3, n, causal=causal, seed=seed)
    sieves = (torch.rand(3, n, n, 1, generator=torch.Generator().manual_seed(seed)) < 0.3).expand(3, n, n, 2)
    sieved = Sieved.from_sieves_and_mask(sieves, visible, WEIGHTED)
    uniform = (visible / visible.sum(-1, keepdim=True).clamp(min=1))[:, None]
    mean_sieve_biase = mean_sieve_biases(uniform, sieved)[:, 0]
    asks = sieved.sizes[..., 0] > 0
    means = [visible[b].sum(-1)[asks[b]].float().log().mean() if asks[b].any() else torch.tensor(0.0) for b in range(3)]
    torch.testing.assert_close(mean_sieve_biase, torch.stack([asks.any(1).float(), torch.stack(means)], -1))
    torch.testing.assert_close(mean_sieve_biase, sieved.level)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10_000), st.floats(0.05, 5))
def test_no_attention_beats_the_maximum_of_a_legacy_role(seed: int, sharp: float) -> None:
    """Nor of a plain one; a head with an even share m inside reaches it for the best of a thousand m."""
    random = torch.Generator().manual_seed(seed)
    visible = visible_of(3, 9, causal=bool(seed % 2), seed=seed)
    sieved = Sieved.from_sieves_and_mask((torch.rand(3, 9, 9, 1, generator=random) < 0.4).expand(3, 9, 9, 2), visible, WEIGHTED)
    scores = (sharp * torch.randn(3, 4, 9, 9, generator=random)).masked_fill(~visible[:, None], -1e9)
    assert (mean_sieve_biases(scores.softmax(-1), sieved) <= sieved.maximum[:, None] * (1 + 1e-5) + 1e-6).all()


@pytest.mark.parametrize(("n", "s"), [(2, 1), (12, 1), (30, 13), (30, 29), (30, 30), (1, 1), (512, 250)])
def test_the_maximum_of_a_legacy_role_is_reached(n: int, s: int) -> None:
    shares = torch.linspace(s / n, 1, 20_001, dtype=torch.float64) if s < n else torch.ones(1, dtype=torch.float64)
    attention = torch.cat([shares[:, None] / s * torch.ones(s), (1 - shares)[:, None] / max(n - s, 1) * torch.ones(n - s)], 1)
    sieves = (torch.arange(n) < s)[None, None, :, None].expand(len(shares), 1, n, 1)
    sieved = Sieved.from_sieves_and_mask(sieves, torch.ones(len(shares), 1, n, dtype=torch.bool), torch.tensor([True]))
    best = max_entropy_weighted_bias(torch.tensor([n]), torch.tensor([s])).item()
    assert mean_sieve_biases(attention[:, None, None], sieved).max().item() == pytest.approx(best, rel=1e-5, abs=1e-6)
    assert sieved.maximum[0].item() == pytest.approx(best)
    assert best <= n / s * math.log(n) + 1e-6 and best >= math.log(n) - 1e-6
    assert max_entropy_weighted_bias(torch.tensor([n]), torch.tensor([0])).item() == 0


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10_000))
def test_chance_is_the_accuracy_of_random_keys(seed: int) -> None:
    """The mean over all keys that may be strongest, for roles about all keys and for those about no delimiters."""
    random = torch.Generator().manual_seed(seed)
    visible = visible_of(2, 6, causal=True, seed=seed)
    sieved = Sieved.from_sieves_and_mask(torch.rand(2, 6, 6, 2, generator=random) < 0.4, visible)
    allowed, free = torch.rand(2, 6, generator=random) < 0.7, torch.tensor([True, False])
    uniform = (visible / visible.sum(-1, keepdim=True).clamp(min=1))[:, None]
    torch.testing.assert_close(expected_chance_hits(sieved, allowed, free), count_strongest_key_hits(uniform, sieved, allowed, free)[:, 0])
    by_hand = [
        sum(
            sum(float(sieved.inside[0, q, k, role]) for k in keys) / max(len(keys), 1)
            for q in range(6)
            for keys in [[k for k in range(6) if visible[0, q, k] and (role or allowed[0, k])]]
        )
        for role in range(2)
    ]
    assert expected_chance_hits(sieved, allowed, free)[0].tolist() == pytest.approx(by_hand, abs=1e-5)


def test_the_strongest_key_is_sought_where_it_may_be() -> None:
    attention = torch.tensor([[[[0.6, 0.3, 0.1]]]])
    sieved = Sieved.from_sieves_and_mask(torch.tensor([[[[False], [True], [False]]]]), torch.ones(1, 1, 3, dtype=torch.bool))
    allowed = torch.tensor([[False, True, True]])
    assert count_strongest_key_hits(attention, sieved, allowed, torch.tensor([True])).item() == 1
    assert count_strongest_key_hits(attention, sieved, allowed, torch.tensor([False])).item() == 0


def test_keys_that_are_equally_strong_share_the_hit() -> None:
    """Two of four keys are strongest, one of them in the sieve: half a hit. Keys that are hidden or not allowed are none of them."""
    attention = torch.tensor([[[[0.4, 0.4, 0.1, 0.1]]]])
    sieved = Sieved.from_sieves_and_mask(torch.tensor([[[[False], [True], [False], [False]]]]), torch.ones(1, 1, 4, dtype=torch.bool))
    complete, part = torch.ones(1, 4, dtype=torch.bool), torch.tensor([[False, True, True, True]])
    assert count_strongest_key_hits(attention, sieved, complete, torch.tensor([True])).item() == pytest.approx(0.5)
    assert count_strongest_key_hits(attention, sieved, part, torch.tensor([True])).item() == 1
    hidden = Sieved.from_sieves_and_mask(sieved.inside.bool(), torch.tensor([[[False, True, True, True]]]))
    assert count_strongest_key_hits(attention, hidden, complete, torch.tensor([False])).item() == 1


def test_a_head_whose_weight_is_all_on_delimiters_prefers_no_other_token() -> None:
    """The keys that are allowed are all at 0, so none of them is the strongest; with no allowed key at all there is no hit."""
    attention = torch.tensor([[[[1.0, 0.0, 0.0]]]])
    sieved = Sieved.from_sieves_and_mask(torch.tensor([[[[False], [True], [False]]]]), torch.ones(1, 1, 3, dtype=torch.bool))
    free = torch.tensor([True])
    assert count_strongest_key_hits(attention, sieved, torch.tensor([[False, True, True]]), free).item() == pytest.approx(0.5)
    assert count_strongest_key_hits(attention, sieved, torch.zeros(1, 3, dtype=torch.bool), free).item() == 0


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10_000), st.booleans())
def test_hits_are_those_of_a_count_by_hand(seed: int, rounded: bool) -> None:
    """With weights of one digit there are ties, without there are none: both ways of counting."""
    random = torch.Generator().manual_seed(seed)
    visible = visible_of(2, 6, causal=True, seed=seed)
    attention = torch.rand(2, 3, 6, 6, generator=random)
    attention = (attention * 10).round() / 10 if rounded else attention
    sieved = Sieved.from_sieves_and_mask(torch.rand(2, 6, 6, 2, generator=random) < 0.4, visible)
    allowed = torch.rand(2, 6, generator=random) < 0.7
    strongest_key_hits = count_strongest_key_hits(attention, sieved, allowed, torch.tensor([True, False]))
    for b in range(2):
        for h in range(3):
            for role in range(2):
                total = 0.0
                for q in range(6):
                    keys = [k for k in range(6) if visible[b, q, k] and (role or allowed[b, k])]
                    top = [k for k in keys if attention[b, h, q, k] == max(attention[b, h, q, j] for j in keys)]
                    total += sum(float(sieved.inside[b, q, k, role]) for k in top) / max(len(top), 1)
                assert strongest_key_hits[b, h, role].item() == pytest.approx(total, abs=1e-5)


def test_offsets_count_queries() -> None:
    inside = torch.zeros(1, 4, 4, 1)
    for q in range(1, 4):
        inside[0, q, q - 1] = 1
    assert count_sieve_pairs_by_offset(inside, 2)[0, :, 0].tolist() == [0, 3, 0, 0, 0]
    assert count_sieve_pairs_by_offset(inside, 6).shape == (1, 13, 1)
