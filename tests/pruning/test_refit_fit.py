"""Laws of the closed-form refit: it is least squares, whatever λ is, and never worse than what it starts from."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from headcount.pruning.repair.least_squares import (
    RIDGES,
    UNCHECKED_RIDGE,
    Products,
    append_ones,
    fit_best_ridge,
    refit_weights,
    rescale_heads,
)

WIDTH, OUT = 6, 4


def draw(seed: int, n: int = 60, width: int = WIDTH) -> tuple[Tensor, Tensor, Tensor]:
    """Inputs, outputs and old weights."""
    generator = torch.Generator().manual_seed(seed)
    x, w = torch.randn(n, width, generator=generator).double(), torch.randn(width, OUT, generator=generator).double()
    return x, x @ w + torch.randn(n, OUT, generator=generator).double() + 2, w + 0.5 * torch.randn(width, OUT, generator=generator).double()


def sums(x: Tensor, y: Tensor, chunks: int = 3) -> Products:
    products = Products.empty(x.shape[1], y.shape[1])
    for one, other in zip(x.chunk(chunks), y.chunk(chunks), strict=True):
        products.add(one, other)
    return products


def oracle(x: Tensor, y: Tensor, old: Tensor, ridge: np.ndarray) -> np.ndarray:
    """min ‖xW − y‖² + Σ ridge ‖W − old‖², as one least-squares problem of numpy."""
    rows = np.concatenate([x.numpy(), np.diag(np.sqrt(ridge))])
    aims = np.concatenate([y.numpy(), np.sqrt(ridge)[:, None] * old.numpy()])
    return np.linalg.lstsq(rows, aims, rcond=None)[0]


@pytest.mark.parametrize("share", RIDGES)
@pytest.mark.parametrize("bias", [False, True])
def test_solve_is_ridge_least_squares_towards_the_old_weights(share: float, bias: bool) -> None:
    x, y, old = draw(1)
    if bias:
        x, old = append_ones(x), torch.cat([old, torch.zeros(1, OUT).double()])
    ridge = np.full(x.shape[1], float((x[:, :WIDTH] ** 2).sum(0).mean()) * share)
    if bias:
        ridge[-1] = len(x) * 1e-12
    weights = refit_weights(sums(x, y), old, share, has_bias=bias)
    np.testing.assert_allclose(weights.numpy(), oracle(x, y, old, ridge), rtol=1e-8, atol=1e-9)


def test_error_is_the_direct_residual() -> None:
    x, y, old = draw(2)
    assert sums(x, y).squared_error(old) == pytest.approx(float(((x @ old - y) ** 2).sum()), rel=1e-12)


@given(seed=st.integers(0, 10**6), share=st.floats(1e-9, 1e6), bias=st.booleans(), n=st.integers(2, 40), copies=st.booleans())
@settings(deadline=None, max_examples=150)
def test_repair_never_raises_the_error(seed: int, share: float, bias: bool, n: int, copies: bool) -> None:
    """For any λ, also where tokens are fewer than inputs and where inputs repeat each other or never change."""
    x, y, old = draw(seed, n)
    if copies:
        x[:, 1], x[:, 2] = x[:, 0], 3.0
    if bias:
        x, old = append_ones(x), torch.cat([old, torch.ones(1, OUT).double()])
    products = sums(x, y, 1)
    for made in (
        fit_best_ridge(products, None, old, has_bias=bias, ridge=share),
        fit_best_ridge(products, None, old, has_bias=bias, ridge=share, inputs_per_head=2),
    ):
        slack = 1e-9 * (products.square + float((x @ old).pow(2).sum())) / n
        assert made.error_after <= made.error_before + slack
        assert torch.isfinite(made.weights).all()


def test_the_bias_takes_the_mean_of_what_went() -> None:
    x, _, old = draw(3)
    products = sums(append_ones(x[:, :0]), x @ old + 1)
    weights = refit_weights(products, torch.ones(1, OUT).double(), 1.0, has_bias=True)
    torch.testing.assert_close(weights, (x @ old + 1).mean(0, keepdim=True), rtol=1e-9, atol=1e-9)


def test_lambda_does_not_hold_the_bias_back() -> None:
    x, y, old = draw(4)
    weights = refit_weights(sums(append_ones(x), y), torch.cat([old, torch.zeros(1, OUT).double()]), 1e9, has_bias=True)
    torch.testing.assert_close(weights[:-1], old, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(weights[-1], (y - x @ old).mean(0), rtol=1e-4, atol=1e-4)


def test_a_constant_input_shares_its_work_with_the_bias() -> None:
    x, y, old = draw(5)
    x[:, 2] = 7.0
    weights = refit_weights(sums(append_ones(x), y), torch.cat([old, torch.zeros(1, OUT).double()]), 1e-6, has_bias=True)
    best = np.linalg.lstsq(append_ones(x).numpy(), y.numpy(), rcond=None)[0]
    np.testing.assert_allclose((append_ones(x) @ weights).numpy(), append_ones(x).numpy() @ best, atol=1e-3)
    assert float((weights[2] - old[2]).abs().max()) < 10


def test_equal_inputs_keep_their_difference() -> None:
    """Data cannot tell two equal inputs apart: what they differ by stays as it was."""
    x, y, old = draw(6)
    x[:, 1] = x[:, 0]
    weights = refit_weights(sums(x, y), old, 1e-6, has_bias=False)
    torch.testing.assert_close(weights[0] - weights[1], old[0] - old[1], rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("share", [1e-9, 0.1, 5.0])
def test_gates_are_least_squares_in_one_number_per_head(bias: bool, share: float) -> None:
    x, y, old = draw(7)
    if bias:
        x, old = append_ones(x), torch.cat([old, torch.full((1, OUT), 0.3).double()])
    parts = [(x[:, 2 * h : 2 * h + 2] @ old[2 * h : 2 * h + 2]).flatten().numpy() for h in range(3)]
    target = (y - (old[-1] if bias else 0)).flatten().numpy()
    columns = np.stack(parts, axis=1)
    held = np.mean([part @ part for part in parts]) * share
    gates = np.linalg.solve(columns.T @ columns + held * np.eye(3), columns.T @ target + held)
    actual = rescale_heads(sums(x, y), old, share, has_bias=bias, inputs_per_head=2)
    np.testing.assert_allclose(
        actual[:6].numpy(), (old[:6].unflatten(0, (3, 2)) * torch.tensor(gates)[:, None, None]).flatten(0, 1).numpy()
    )
    assert not bias or torch.equal(actual[-1], old[-1])


def test_lambda_is_the_best_on_the_check_and_old_weights_stay_where_they_are_better() -> None:
    x, y, old = draw(8, 12)
    other, aim, _ = draw(8, 500)
    best_ridge = fit_best_ridge(sums(x, y), sums(other, aim), old, has_bias=False)
    errors = {share: sums(other, aim).squared_error(refit_weights(sums(x, y), old, share, has_bias=False)) for share in RIDGES}
    assert best_ridge.ridge == min(errors, key=errors.__getitem__) and best_ridge.check_error_after == pytest.approx(
        min(errors.values()) / 500
    )
    lured = fit_best_ridge(sums(x, y), sums(other, other @ old), old, has_bias=False)
    assert lured.ridge is None and torch.equal(lured.weights, old) and lured.check_error_after == 0
    assert lured.error_after == lured.error_before


def test_without_a_check_lambda_is_not_the_smallest() -> None:
    x, y, old = draw(9)
    assert fit_best_ridge(sums(x, y), None, old, has_bias=False).ridge == UNCHECKED_RIDGE
