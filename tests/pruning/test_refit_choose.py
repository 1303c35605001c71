"""Laws of the repair-aware choice: its running sums equal direct refits, and its order the cheapest removal at every step."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
import torch
from torch import Tensor

from headcount.pruning.repair.removal_order import Surgeon

SIZE, UNITS, OUT, N = 2, 4, 5, 80


def problem(seed: int, *, ones: bool = True) -> tuple[Tensor, Tensor]:
    """Inputs, the last of them one, and the weights that the block has."""
    generator = torch.Generator().manual_seed(seed)
    mixing = 2 * torch.eye(SIZE * UNITS).double() + 0.4 * torch.randn(SIZE * UNITS, SIZE * UNITS, generator=generator).double()
    x = torch.randn(N, SIZE * UNITS, generator=generator).double() @ mixing
    x = torch.cat([x + 1, torch.ones(N, 1).double()], 1) if ones else x
    return x, torch.randn(x.shape[1], OUT, generator=generator).double()


def surgeon(x: Tensor, w: Tensor, metric: Tensor | None = None, n: int = 1) -> Surgeon:
    return Surgeon.before_any_removal(
        x.T @ x, w, torch.eye(OUT).double() if metric is None else metric, [[SIZE * u, SIZE * u + 1] for u in range(UNITS)], n
    )


def residual(x: Tensor, w: Tensor, removed_heads: tuple[int, ...]) -> np.ndarray:
    """What the best refit of the other inputs leaves of the block's output."""
    remaining = [i for i in range(x.shape[1]) if i // SIZE not in removed_heads or i == SIZE * UNITS]
    aim = (x @ w).numpy()
    return aim - x[:, remaining].numpy() @ np.linalg.lstsq(x[:, remaining].numpy(), aim, rcond=None)[0]


@pytest.mark.parametrize("ones", [True, False])
@pytest.mark.parametrize("seed", range(5))
def test_the_cost_so_far_is_the_error_of_a_direct_refit(seed: int, ones: bool) -> None:
    x, w = problem(seed, ones=ones)
    plan, removed_heads = surgeon(x, w), ()
    for unit in np.random.default_rng(seed).permutation(UNITS).tolist():
        messages = plan.cost_of_removing_each_unit()[unit]
        assert plan.remove_unit(unit) == messages >= 0
        removed_heads = (*removed_heads, unit)
        remaining = residual(x, w, removed_heads)
        assert plan.total_cost == pytest.approx(float((remaining**2).sum()), rel=1e-5, abs=1e-6)
        np.testing.assert_allclose((x @ w - x @ plan.weights).numpy(), remaining, atol=1e-4)
    assert not plan.cost_of_removing_each_unit()
    if ones:
        np.testing.assert_allclose(plan.weights[-1].numpy(), (x @ w).mean(0).numpy(), rtol=1e-6, atol=1e-6)
        assert float(plan.inverse[-1, -1]) == pytest.approx(1 / N, rel=1e-6)


@pytest.mark.parametrize("seed", range(5))
def test_the_first_removal_is_the_best_and_later_ones_the_best_after_it(seed: int) -> None:
    x, w = problem(seed)
    made = torch.randn(OUT, OUT, generator=torch.Generator().manual_seed(seed)).double()
    metric = made @ made.T
    plan, removed_heads = surgeon(x, w, metric, N), ()
    while len(removed_heads) < UNITS:
        costs = plan.cost_of_removing_each_unit()
        for unit, cost in costs.items():
            by_unit = residual(x, w, (*removed_heads, unit))
            direct = float(np.einsum("to,op,tp->", by_unit, metric.numpy(), by_unit)) / N
            assert plan.total_cost + cost == pytest.approx(direct, rel=1e-5, abs=1e-7)
        best = min(costs, key=costs.__getitem__)
        by_unit = {unit: residual(x, w, (*removed_heads, unit)) for unit in costs}
        assert best == min(by_unit, key=lambda unit: np.einsum("to,op,tp->", by_unit[unit], metric.numpy(), by_unit[unit]))
        plan.remove_unit(best)
        removed_heads = (*removed_heads, best)


def test_one_of_two_equal_units_costs_nothing() -> None:
    x, w = problem(0)
    x[:, 2:4] = x[:, 0:2]
    plan = surgeon(x, w)
    costs = plan.cost_of_removing_each_unit()
    total = float((x @ w).pow(2).sum())
    assert max(costs[0], costs[1]) < 1e-6 * total < min(costs[2], costs[3])
    plan.remove_unit(0)
    assert plan.cost_of_removing_each_unit()[1] > 1e-3 * total
    np.testing.assert_allclose((x @ plan.weights).numpy(), (x @ w).numpy(), atol=1e-3)


def test_costs_are_never_negative_where_inputs_are_fewer_than_they_look() -> None:
    x, w = problem(3)
    x[:, :SIZE] = 0
    x[:, 4:8] = x[:, 2:3]
    plan = surgeon(x, w)
    assert plan.cost_of_removing_each_unit()[0] == pytest.approx(0, abs=1e-4)
    while plan.units:
        costs = plan.cost_of_removing_each_unit()
        assert all(np.isfinite(cost) and cost >= 0 for cost in costs.values())
        plan.remove_unit(min(costs, key=costs.__getitem__))
    assert torch.isfinite(plan.weights).all()


def test_pairs_that_are_cheap_together_by_brute_force() -> None:
    """Two removals, greedily, on a problem whose units hardly overlap, are the best two of all."""
    generator = torch.Generator().manual_seed(11)
    x = torch.cat([torch.randn(400, SIZE * UNITS, generator=generator).double(), torch.ones(400, 1).double()], 1)
    w = torch.randn(SIZE * UNITS + 1, OUT, generator=generator).double() * torch.tensor([3, 3, 1, 1, 2, 2, 0.5, 0.5, 1]).double()[:, None]
    plan = surgeon(x, w)
    removed_heads = []
    for _ in range(2):
        costs = plan.cost_of_removing_each_unit()
        removed_heads.append(min(costs, key=costs.__getitem__))
        plan.remove_unit(removed_heads[-1])
    assert (
        set(removed_heads) == set(min(combinations(range(UNITS), 2), key=lambda pair: float((residual(x, w, pair) ** 2).sum()))) == {1, 3}
    )
