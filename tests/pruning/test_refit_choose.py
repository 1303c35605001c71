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
    made = torch.Generator().manual_seed(seed)
    mixing = 2 * torch.eye(SIZE * UNITS).double() + 0.4 * torch.randn(SIZE * UNITS, SIZE * UNITS, generator=made).double()
    x = torch.randn(N, SIZE * UNITS, generator=made).double() @ mixing
    x = torch.cat([x + 1, torch.ones(N, 1).double()], 1) if ones else x
    return x, torch.randn(x.shape[1], OUT, generator=made).double()


def surgeon(x: Tensor, w: Tensor, metric: Tensor | None = None, n: int = 1) -> Surgeon:
    return Surgeon.before_any_removal(
        x.T @ x, w, torch.eye(OUT).double() if metric is None else metric, [[SIZE * u, SIZE * u + 1] for u in range(UNITS)], n
    )


def residual(x: Tensor, w: Tensor, gone: tuple[int, ...]) -> np.ndarray:
    """What the best refit of the other inputs leaves of the block's output."""
    kept = [i for i in range(x.shape[1]) if i // SIZE not in gone or i == SIZE * UNITS]
    aim = (x @ w).numpy()
    return aim - x[:, kept].numpy() @ np.linalg.lstsq(x[:, kept].numpy(), aim, rcond=None)[0]


@pytest.mark.parametrize("ones", [True, False])
@pytest.mark.parametrize("seed", range(5))
def test_the_cost_so_far_is_the_error_of_a_direct_refit(seed: int, ones: bool) -> None:
    x, w = problem(seed, ones=ones)
    one, gone = surgeon(x, w), ()
    for unit in np.random.default_rng(seed).permutation(UNITS).tolist():
        told = one.cost_of_removing_each_unit()[unit]
        assert one.remove_unit(unit) == told >= 0
        gone = (*gone, unit)
        left = residual(x, w, gone)
        assert one.total_cost == pytest.approx(float((left**2).sum()), rel=1e-5, abs=1e-6)
        np.testing.assert_allclose((x @ w - x @ one.weights).numpy(), left, atol=1e-4)
    assert not one.cost_of_removing_each_unit()
    if ones:
        np.testing.assert_allclose(one.weights[-1].numpy(), (x @ w).mean(0).numpy(), rtol=1e-6, atol=1e-6)
        assert float(one.inverse[-1, -1]) == pytest.approx(1 / N, rel=1e-6)


@pytest.mark.parametrize("seed", range(5))
def test_the_first_removal_is_the_best_and_later_ones_the_best_after_it(seed: int) -> None:
    x, w = problem(seed)
    made = torch.randn(OUT, OUT, generator=torch.Generator().manual_seed(seed)).double()
    metric = made @ made.T
    one, gone = surgeon(x, w, metric, N), ()
    while len(gone) < UNITS:
        costs = one.cost_of_removing_each_unit()
        for unit, cost in costs.items():
            left = residual(x, w, (*gone, unit))
            direct = float(np.einsum("to,op,tp->", left, metric.numpy(), left)) / N
            assert one.total_cost + cost == pytest.approx(direct, rel=1e-5, abs=1e-7)
        best = min(costs, key=costs.__getitem__)
        left = {unit: residual(x, w, (*gone, unit)) for unit in costs}
        assert best == min(left, key=lambda unit: np.einsum("to,op,tp->", left[unit], metric.numpy(), left[unit]))
        one.remove_unit(best)
        gone = (*gone, best)


def test_one_of_two_equal_units_costs_nothing() -> None:
    x, w = problem(0)
    x[:, 2:4] = x[:, 0:2]
    one = surgeon(x, w)
    costs = one.cost_of_removing_each_unit()
    total = float((x @ w).pow(2).sum())
    assert max(costs[0], costs[1]) < 1e-6 * total < min(costs[2], costs[3])
    one.remove_unit(0)
    assert one.cost_of_removing_each_unit()[1] > 1e-3 * total
    np.testing.assert_allclose((x @ one.weights).numpy(), (x @ w).numpy(), atol=1e-3)


def test_costs_are_never_negative_where_inputs_are_fewer_than_they_look() -> None:
    x, w = problem(3)
    x[:, :SIZE] = 0
    x[:, 4:8] = x[:, 2:3]
    one = surgeon(x, w)
    assert one.cost_of_removing_each_unit()[0] == pytest.approx(0, abs=1e-4)
    while one.units:
        costs = one.cost_of_removing_each_unit()
        assert all(np.isfinite(cost) and cost >= 0 for cost in costs.values())
        one.remove_unit(min(costs, key=costs.__getitem__))
    assert torch.isfinite(one.weights).all()


def test_pairs_that_are_cheap_together_by_brute_force() -> None:
    """Two removals, greedily, on a problem whose units hardly overlap, are the best two of all."""
    generator = torch.Generator().manual_seed(11)
    x = torch.cat([torch.randn(400, SIZE * UNITS, generator=generator).double(), torch.ones(400, 1).double()], 1)
    w = torch.randn(SIZE * UNITS + 1, OUT, generator=generator).double() * torch.tensor([3, 3, 1, 1, 2, 2, 0.5, 0.5, 1]).double()[:, None]
    one = surgeon(x, w)
    gone = []
    for _ in range(2):
        costs = one.cost_of_removing_each_unit()
        gone.append(min(costs, key=costs.__getitem__))
        one.remove_unit(gone[-1])
    assert set(gone) == set(min(combinations(range(UNITS), 2), key=lambda pair: float((residual(x, w, pair) ** 2).sum()))) == {1, 3}
