"""Hard-concrete gates and relaxed subsets: what the papers say of them, in numbers."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

from headcount.pruning.gating import logits_with_sigmoid_sum, mark_highest
from headcount.pruning.methods import dsp, l0
from headcount.pruning.training.gates import uniform_noise

TAUS = [10.0**power for power in range(3, -9, -1)]
DRAWS = {"subset": dsp.sample_relaxed_subset, "fast": dsp.sample_relaxed_subset_by_shift}


def numbers(n: int, seed: int = 0, spread: float = 2.0) -> Tensor:
    return torch.from_numpy(np.random.default_rng(seed).normal(0, spread, n))


def slopes(of: Callable[[Tensor], Tensor], at: Tensor, step: float = 1e-6) -> Tensor:
    """Central differences."""
    actual = torch.empty_like(at)
    for index in range(len(at)):
        shift = torch.zeros_like(at)
        shift[index] = step
        actual[index] = (of(at + shift) - of(at - shift)) / (2 * step)
    return actual


# Hard concrete.


def test_known_values_of_hard_concrete_gates() -> None:
    at = torch.tensor([0.0, -2.398, 2.398, -2.397, 2.397, -9.0, 9.0], dtype=torch.float64)
    assert float(l0.open_probability(at[:1])) == pytest.approx(0.688, abs=5e-4)
    assert float(l0.open_probability(at[:1])) == 1 / (1 + math.exp(0.33 * math.log(0.1 / 1.1)))
    gates = l0.evaluation_gates(at)
    assert gates[0] == pytest.approx(0.5) and gates[1] == 0 and gates[2] == 1 and 0 < gates[3] < 1e-3 and 1 - 1e-3 < gates[4] < 1
    assert gates[5] == 0 and gates[6] == 1


@pytest.mark.parametrize("log_a", [-3.0, -1.0, 0.0, 0.7, 2.5])
def test_samples_are_open_as_often_as_p_open_says(log_a: float) -> None:
    u = uniform_noise(5, 0, 200_000) * (1 - 2 * l0.EPSILON) + l0.EPSILON
    at = torch.full_like(u, log_a)
    gates = l0.sample_gates(at, u)
    p = float(l0.open_probability(at[:1]))
    assert float((gates != 0).double().mean()) == pytest.approx(p, abs=4 * math.sqrt(p * (1 - p) / len(u)))
    closed = float((gates == 1).double().mean())  # by symmetry P(g = 1) is P(g ≠ 0) of −log a taken from one
    assert closed == pytest.approx(1 - float(l0.open_probability(-at[:1])), abs=0.005)
    assert bool(((gates >= 0) & (gates <= 1)).all())


def test_gradient_of_a_sample_is_that_of_finite_differences() -> None:
    u = uniform_noise(3, 7, 40)
    at = numbers(40, 1).requires_grad_(True)
    weight = numbers(40, 2)
    (gradient,) = torch.autograd.grad((l0.sample_gates(at, u) * weight).sum(), at)
    assert torch.allclose(gradient, slopes(lambda x: (l0.sample_gates(x, u) * weight).sum(), at.detach()), atol=1e-6)
    assert bool((gradient != 0).any()) and bool((gradient == 0).any()), "gates beyond their ends have no gradient, others have"


# Noise.


def test_noise_depends_on_seed_and_step_alone() -> None:
    first = uniform_noise(3, 5, 9)
    torch.manual_seed(1), np.random.seed(1)
    assert torch.equal(first, uniform_noise(3, 5, 9)) and torch.equal(first[:4], uniform_noise(3, 5, 4))
    assert not torch.equal(first, uniform_noise(3, 6, 9)) and not torch.equal(first, uniform_noise(4, 5, 9))
    assert first[:3].tolist() == [0.08910064623458391, 0.33189185276481004, 0.16520897668188295], (
        "another machine, another version: the same"
    )
    assert uniform_noise(-1, 0, 1000).min() > 0 and uniform_noise(2**70, 0, 1000).max() < 1


# Relaxed subsets.


def by_definition(w: list[float], number: int, tau: float, u: list[float]) -> list[float]:
    """The recursion of the paper, number by number."""
    r = [a - math.log(-math.log(b)) for a, b in zip(w, u, strict=True)]
    total = [0.0] * len(w)
    p = [0.0] * len(w)
    for turn in range(number):
        if turn:
            r = [a + math.log(max(1 - b, 2.2250738585072014e-308)) for a, b in zip(r, p, strict=True)]
        most = max(r)
        powers = [math.exp((a - most) / tau) for a in r]
        p = [power / math.fsum(powers) for power in powers]
        total = [a + b for a, b in zip(total, p, strict=True)]
    return total


@pytest.mark.parametrize("tau", [1000.0, 1.0, 0.1, 1e-3, 1e-8])
@pytest.mark.parametrize("number", [1, 5, 11])
def test_the_recursion_is_that_of_the_paper(number: int, tau: float) -> None:
    w, u = numbers(12), uniform_noise(1, 2, 12)
    expected = by_definition(w.tolist(), number, tau, u.tolist())
    assert dsp.sample_relaxed_subset(w, number, tau, u).tolist() == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize("draw", DRAWS)
@pytest.mark.parametrize("number", [1, 7, 23, 24])
def test_gates_sum_to_k_and_become_one_hot(draw: str, number: int) -> None:
    w = numbers(24).requires_grad_(True)
    for tau in TAUS:
        for step in range(5):
            u = uniform_noise(0, step, 24)
            gates = DRAWS[draw](w, number, tau, u)
            assert float(gates.detach().sum()) == pytest.approx(number, abs=1e-9), tau
            (gradient,) = torch.autograd.grad((gates * numbers(24, 9)).sum(), w)
            assert bool(torch.isfinite(gradient).all()) and bool(torch.isfinite(gates).all()), tau
        if tau >= 1000 and number < 24:
            assert torch.allclose(gates, torch.full_like(gates, number / 24), atol=0.02)
    r = w.detach() - torch.log(-torch.log(u))
    assert torch.equal(gates.detach().round(), mark_highest(r, number, range(24))) and torch.allclose(
        gates.detach(), mark_highest(r, number, range(24)), atol=1e-12
    )


@pytest.mark.parametrize("draw", DRAWS)
def test_ties_share_and_nothing_is_nan(draw: str) -> None:
    """All alike, noise too: nothing distinguishes them, at no temperature."""
    u = torch.full((10,), 0.5, dtype=torch.float64)
    for tau in TAUS:
        w = torch.zeros(10, dtype=torch.float64, requires_grad=True)
        gates = DRAWS[draw](w, 4, tau, u)
        assert torch.allclose(gates, torch.full_like(gates, 0.4), atol=1e-9)
        gates[0].backward()
        assert w.grad is not None and bool(torch.isfinite(w.grad).all())
    pair = torch.tensor([1.0, 1.0, 0.0, 0.0, -5.0], dtype=torch.float64)
    gates = DRAWS[draw](pair, 3, 1e-8, u[:5])
    assert gates.tolist() == pytest.approx([1, 1, 0.5, 0.5, 0], abs=1e-9)


def test_extreme_noise_is_no_nan() -> None:
    w = numbers(6, spread=300).requires_grad_(True)
    u = uniform_noise(0, 0, 6).clone()
    u[0], u[1] = torch.finfo(torch.float64).tiny, 1 - 1e-16
    for tau in TAUS:
        for draw in DRAWS.values():
            gates = draw(w, 3, tau, u)
            (gradient,) = torch.autograd.grad((gates * numbers(6)).sum(), w)
            assert bool(torch.isfinite(gates).all()) and bool(torch.isfinite(gradient).all())


@pytest.mark.parametrize("draw", DRAWS)
@pytest.mark.parametrize("tau", [3.0, 0.7, 0.2])
def test_gradient_of_a_subset_is_that_of_finite_differences(draw: str, tau: float) -> None:
    w, u, weight = numbers(15).requires_grad_(True), uniform_noise(2, 2, 15), numbers(15, 4)
    (gradient,) = torch.autograd.grad((DRAWS[draw](w, 6, tau, u) * weight).sum(), w)
    expected = slopes(lambda x: (DRAWS[draw](x, 6, tau, u) * weight).sum(), w.detach())
    assert torch.allclose(gradient, expected, atol=1e-6)


def test_both_forms_choose_the_same_heads_when_cold() -> None:
    for step in range(20):
        w, u = numbers(40, step), uniform_noise(1, step, 40)
        both = [draw(w, 9, 1e-8, u) for draw in DRAWS.values()]
        assert torch.allclose(*both, atol=1e-6)


def test_the_fast_form_takes_thousands() -> None:
    w, u = numbers(10_000).requires_grad_(True), uniform_noise(0, 0, 10_000)
    start = time.process_time()
    gates = dsp.sample_relaxed_subset_by_shift(w, 2500, 0.5, u)
    gates.sum().backward()
    assert time.process_time() - start < 0.5, "0.01 s when the machine is free"
    assert float(gates.detach().sum()) == pytest.approx(2500, abs=1e-7)


@pytest.mark.parametrize("number", [0.05, 0.5, 3.7, 11.9])
def test_levels_hold_a_sum_that_is_no_whole_number(number: float) -> None:
    w = numbers(12).requires_grad_(True)
    assert float(torch.sigmoid(logits_with_sigmoid_sum(w.detach(), number)).sum()) == pytest.approx(number, abs=1e-9)
    (gradient,) = torch.autograd.grad(torch.sigmoid(logits_with_sigmoid_sum(w, number)).sum(), w)
    assert torch.allclose(gradient, torch.zeros_like(w), atol=1e-12), "the sum does not move"
