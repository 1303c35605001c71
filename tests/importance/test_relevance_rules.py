"""Relevance on models small enough to know the answer."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from torch import Tensor, nn

from headcount.core.errors import UnknownName, UnsupportedModel
from headcount.importance.relevance import layers
from headcount.importance.relevance.layers import share_relevance_of_matrix_product
from headcount.importance.relevance.owners import Owners
from headcount.importance.relevance.propagate import BackwardWalk, operation_rule_of
from headcount.importance.relevance.record import record_forward
from headcount.importance.relevance.rules import AlphaBeta, Epsilon, RelevanceError, Rule, make_rule, share_of_each_term
from headcount.models.head_map import HeadMap

RULES = [Epsilon(1e-3), AlphaBeta(0.5), AlphaBeta(0.8)]


@dataclass(frozen=True)
class Result:
    inputs: Tensor
    leaked: Tensor
    arrived: Tensor


class Net(nn.Module):
    def __init__(self, function, **modules: nn.Module) -> None:
        super().__init__()
        self.parts = nn.ModuleDict(modules)
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x, **self.parts)


def propagate(net: nn.Module, x: Tensor, rule: Rule, start: Tensor) -> Result:
    recorded = record_forward(net, HeadMap(()), {"x": x}, lambda output: output)
    for node in recorded.tape.nodes:
        operation_rule_of(node)
    owners = Owners(recorded.tape, len(x))
    source = recorded.tape.sources[0]
    with torch.no_grad():
        result = BackwardWalk(recorded.tape, owners, rule).run(recorded.logits_slot, start, frozenset([source]))
    return Result(result.by_slot[source], result.leaked, result.arrived)


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def linear(weight: list[list[float]], bias: list[float] | None = None) -> nn.Linear:
    layer = nn.Linear(len(weight[0]), len(weight), bias=bias is not None, dtype=torch.float64)
    layer.weight.data = torch.tensor(weight, dtype=torch.float64)
    if bias is not None:
        layer.bias.data = torch.tensor(bias, dtype=torch.float64)
    return layer


def row_of(*values: float) -> Tensor:
    return torch.tensor([values], dtype=torch.float64)


def test_linear_layer_by_hand() -> None:
    # v = 1*2 + 3*(-1) + 1*4 - 1 = 2
    net, x = Net(lambda x, layer: layer(x), layer=linear([[1.0, 3.0, 1.0]], [-1.0])), row_of(2.0, -1.0, 4.0)
    propagated = propagate(net, x, Epsilon(1e-12), row_of(1.0))
    torch.testing.assert_close(propagated.inputs, row_of(1.0, -1.5, 2.0))
    torch.testing.assert_close(propagated.leaked, torch.tensor([-0.5], dtype=torch.float64))
    propagated = propagate(net, x, AlphaBeta(0.5), row_of(1.0))
    torch.testing.assert_close(propagated.inputs, row_of(0.5 * 2 / 6, 0.5 * 3 / 4, 0.5 * 4 / 6))
    torch.testing.assert_close(propagated.leaked, torch.tensor([0.5 / 4], dtype=torch.float64))


def test_epsilon_takes_its_part() -> None:
    net = Net(lambda x, layer: layer(x), layer=linear([[1.0, 1.0]]))
    propagated = propagate(net, row_of(2.0, 1.0), Epsilon(1.0), row_of(1.0))
    torch.testing.assert_close(propagated.inputs, row_of(0.5, 0.25))
    torch.testing.assert_close(propagated.leaked, torch.tensor([0.25], dtype=torch.float64))


def test_one_sign_takes_the_whole_weight() -> None:
    net = Net(lambda x, layer: layer(x), layer=linear([[1.0, 3.0]]))
    for x, expected in (
        (row_of(1.0, 1.0), row_of(0.25, 0.75)),
        (row_of(-1.0, -1.0), row_of(0.25, 0.75)),
        (row_of(1.0, -1.0), row_of(0.5, 0.5)),
    ):
        torch.testing.assert_close(propagate(net, x, AlphaBeta(0.5), row_of(1.0)).inputs, expected)


def relu_net() -> Net:
    layers = {name: nn.Linear(6, 6, bias=False, dtype=torch.float64) for name in "abc"}
    for seed, layer in enumerate(layers.values()):
        layer.weight.data = normal(6, 6, seed=seed)
    return Net(lambda x, a, b, c: c(torch.relu(b(torch.relu(a(x))))), **layers)


def test_network_without_biases_conserves_under_epsilon() -> None:
    start = normal(4, 6, seed=9)
    propagated = propagate(relu_net(), normal(4, 6, seed=5), Epsilon(1e-15), start)
    torch.testing.assert_close(propagated.inputs.sum(1), start.sum(1), rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(propagated.leaked, torch.zeros(4, dtype=torch.float64), rtol=0, atol=1e-9)


def test_relu_network_is_gradient_times_input_under_epsilon() -> None:
    net, x = relu_net(), normal(4, 6, seed=5).requires_grad_()
    output = net(x)
    (gradient,) = torch.autograd.grad(output[:, 2].sum(), x)
    start = torch.zeros(4, 6, dtype=torch.float64)
    start[:, 2] = output[:, 2].detach()  # relevance starts at the logit's value, so shares are gradient x input
    propagated = propagate(net, x.detach(), Epsilon(1e-15), start)
    torch.testing.assert_close(propagated.inputs, (gradient * x).detach(), rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("rule", RULES, ids=str)
def test_leak_is_booked_to_its_example(rule: Rule) -> None:
    net = Net(lambda x, layer: torch.relu(layer(x.transpose(0, 1))).transpose(0, 1).mean(1), layer=nn.Linear(5, 3, dtype=torch.float64))
    net.parts["layer"].weight.data, net.parts["layer"].bias.data = normal(3, 5), normal(3, seed=1)
    x, start = normal(4, 7, 5, seed=2), normal(4, 3, seed=3)
    propagated = propagate(net, x, rule, start)
    torch.testing.assert_close(propagated.arrived + propagated.leaked, start.sum(1))
    alone = propagate(net, x[2:3], rule, start[2:3])
    torch.testing.assert_close(alone.leaked, propagated.leaked[2:3])


def test_product_shares_among_its_factors() -> None:
    net = Net(lambda x: x[:, :1] * x[:, 1:])
    torch.testing.assert_close(propagate(net, row_of(3.0, 1.0), Epsilon(1e-12), row_of(1.0)).inputs, row_of(0.75, 0.25))
    torch.testing.assert_close(propagate(net, row_of(3.0, -1.0), AlphaBeta(0.8), row_of(1.0)).inputs, row_of(0.8, 0.2))
    torch.testing.assert_close(propagate(net, row_of(-3.0, -1.0), AlphaBeta(0.8), row_of(1.0)).inputs, row_of(0.75, 0.25))


def brute(rule: Rule, a: Tensor, b: Tensor, start: Tensor) -> tuple[Tensor, Tensor]:
    """The relevance of both factors of a matrix product, term by term."""
    to_a, to_b = torch.zeros_like(a), torch.zeros_like(b)
    for i in range(a.shape[0]):
        for j in range(b.shape[1]):
            shares, _ = share_of_each_term(rule, list(a[i] * b[:, j]))
            for k, share in enumerate(shares):
                (remaining, right), _ = share_of_each_term(rule, [a[i, k], b[k, j]])
                to_a[i, k] += start[i, j] * share * remaining
                to_b[k, j] += start[i, j] * share * right
    return to_a, to_b


@pytest.mark.parametrize("rule", RULES, ids=str)
@pytest.mark.parametrize("piece", [1, 30, 1 << 19])
def test_matrix_product_equals_its_terms(rule: Rule, piece: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layers, "PIECE", piece)
    a, b, start = normal(2, 3, 4), normal(2, 4, 5, seed=1), normal(2, 3, 5, seed=2)
    a[0, 1, 2] = b[1, 2, 3] = 0.0
    split = share_relevance_of_matrix_product(rule, a, b, torch.zeros_like(start), start)
    for n in range(2):
        to_a, to_b = brute(rule, a[n], b[n], start[n])
        torch.testing.assert_close(split.lhs[n], to_a)
        torch.testing.assert_close(split.rhs[n], to_b)
    torch.testing.assert_close(split.lhs.sum((1, 2)) + split.rhs.sum((1, 2)) + split.leaked.sum((1, 2)), start.sum((1, 2)))


def test_scale_of_a_product_is_no_factor() -> None:
    a, b, start, bias = (
        normal(2, 3, 4),
        normal(2, 4, 5, seed=1),
        normal(2, 3, 5, seed=2),
        normal(2, 3, 5, seed=3),
    )
    scaled = share_relevance_of_matrix_product(AlphaBeta(0.5), a, b, bias, start, scale=0.1)
    plain = share_relevance_of_matrix_product(AlphaBeta(0.5), a, b, bias * 10, start)
    torch.testing.assert_close(scaled.lhs, plain.lhs)
    torch.testing.assert_close(scaled.leaked, plain.leaked)


@pytest.mark.parametrize("rule", RULES, ids=str)
def test_shares_add_up_to_one(rule: Rule) -> None:
    terms = [normal(1000, seed=seed) * 10 ** normal(1000, seed=seed + 10) for seed in range(3)]
    shares, lost = share_of_each_term(rule, terms)
    torch.testing.assert_close(sum(shares) + lost, torch.ones(1000, dtype=torch.float64), rtol=1e-7, atol=1e-7)


def test_layer_norm_is_linear_with_a_constant_part() -> None:
    norm = nn.LayerNorm(4, eps=0.0, dtype=torch.float64)
    norm.weight.data, norm.bias.data = row_of(2.0, 1.0, 1.0, 1.0)[0], row_of(1.0, 0.0, 0.0, 0.0)[0]
    # mean 1, deviation 2: entry 0 is 2 * (5 - 1) / d + 1, of which x has 2 * 5 / d
    x = row_of(5.0, 1.0, -1.0, -1.0)
    deviation = x.var(unbiased=False).sqrt().item()
    propagated = propagate(Net(lambda x, n: n(x), n=norm), x, Epsilon(1e-12), row_of(1.0, 0.0, 0.0, 0.0))
    total = 2 * 4 / deviation + 1
    torch.testing.assert_close(propagated.inputs, row_of(10 / deviation / total, 0.0, 0.0, 0.0))
    torch.testing.assert_close(propagated.leaked, torch.tensor([1 - 10 / deviation / total], dtype=torch.float64))


def test_root_mean_square_norm_passes_whole() -> None:
    propagated = propagate(Net(lambda x, n: n(x), n=nn.RMSNorm(4, dtype=torch.float64)), normal(2, 4), AlphaBeta(0.5), normal(2, 4, seed=1))
    torch.testing.assert_close(propagated.inputs, normal(2, 4, seed=1))


@pytest.mark.parametrize("rule", RULES, ids=str)
@pytest.mark.parametrize("masked", [float("-inf"), torch.finfo(torch.float64).min])
def test_masks_make_no_nan(rule: Rule, masked: float) -> None:
    mask = torch.tensor([0.0, 0.0, masked], dtype=torch.float64)
    net = Net(lambda x: (torch.softmax(x + mask, -1).unsqueeze(1) @ x.unsqueeze(2)).flatten(1))
    propagated = propagate(net, normal(3, 3), rule, torch.ones(3, 1, dtype=torch.float64))
    assert torch.isfinite(propagated.inputs).all()
    assert (propagated.inputs[:, 2] == 0).all()
    torch.testing.assert_close(propagated.arrived + propagated.leaked, torch.ones(3, dtype=torch.float64))


def test_in_place_operations_equal_the_others() -> None:
    def in_place(x: Tensor) -> Tensor:
        y = x * 2
        first = y.relu()
        y += x.flip(1)
        y.mul_(3.0)
        return y + first

    plain = Net(lambda x: (x * 2 + x.flip(1)) * 3.0 + (x * 2).relu())
    arguments = (normal(2, 4), AlphaBeta(0.5), normal(2, 4, seed=1))
    torch.testing.assert_close(propagate(Net(in_place), *arguments).inputs, propagate(plain, *arguments).inputs)


@pytest.mark.parametrize("rule", RULES, ids=str)
def test_adding_to_some_tokens_leaves_the_others(rule: Rule) -> None:
    net = Net(lambda x: x.index_add(1, torch.tensor([2]), 3 * x[:, :1]))
    start = normal(2, 4, seed=1)
    propagated = propagate(net, normal(2, 4), rule, start)
    torch.testing.assert_close(propagated.inputs[:, [1, 3]], start[:, [1, 3]])
    torch.testing.assert_close(propagated.arrived + propagated.leaked, start.sum(1))


@pytest.mark.parametrize("rule", RULES, ids=str)
def test_writing_through_views_equals_concatenation(rule: Rule) -> None:
    def through_views(x: Tensor) -> Tensor:
        y = torch.zeros_like(x)
        row = y[:, 1:]
        y[:, :2] = x[:, 2:]
        y[:, 1] = x[:, 0] * 2
        y[:, 3] += 1
        old = row * 1  # sees every write to y
        row[:, 1:].zero_()
        return torch.cat([y, old], 1)

    def plain(x: Tensor) -> Tensor:
        zero = torch.zeros(len(x), 1, dtype=x.dtype)
        first = x[:, 2:3]
        return torch.cat([first, x[:, :1] * 2, zero, zero, x[:, :1] * 2, zero, zero + 1], 1)

    x, start = normal(2, 4), normal(2, 7, seed=1)
    torch.testing.assert_close(through_views(x), plain(x))
    remaining, right = (propagate(Net(function), x, rule, start) for function in (through_views, plain))
    torch.testing.assert_close(remaining.inputs, right.inputs)
    torch.testing.assert_close(remaining.leaked, right.leaked)


def test_what_is_not_known_is_refused() -> None:
    with pytest.raises(UnsupportedModel, match=r"aten\.cumprod in module"):
        propagate(Net(lambda x: x.cumprod(1)), normal(2, 4), AlphaBeta(0.5), normal(2, 4))
    with pytest.raises(UnsupportedModel, match="divides by an activation"):
        propagate(Net(lambda x: x / x.flip(1)), normal(2, 4), AlphaBeta(0.5), normal(2, 4))
    with pytest.raises(UnsupportedModel, match="do not descend"):
        propagate(Net(lambda x: torch.ones(2, 4)), normal(2, 4), AlphaBeta(0.5), normal(2, 4))


def test_wrong_arguments_are_named() -> None:
    with pytest.raises(UnknownName, match="alpha-beta, epsilon"):
        make_rule("gamma", 1e-6, 0.5)  # pyright: ignore[reportArgumentType]
    with pytest.raises(RelevanceError, match="alpha must lie between 0 and 1, got 2"):
        make_rule("alpha-beta", 1e-6, 2)
    with pytest.raises(RelevanceError, match="epsilon must be a positive number, got 0"):
        make_rule("epsilon", 0, 0.5)
