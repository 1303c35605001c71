"""Relevance rules of layers: linear maps, convolutions, normalisations, and attention's matrix products QKᵀ and PV.

All but normalisations are sums of products. The term a b of a sum gets its share of the sum's relevance. In a layer with weights the input
takes it all; in a product of two activations the factors share it as those of a product do. The latter has a share for every (row, inner,
column), so it is computed in pieces.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F
from torch.utils._pytree import tree_map

from headcount.importance.relevance.operations import (
    ResultRelevances,
    SlotRelevances,
    Walk,
    clamp_finite,
    is_slot,
    relevance_of_first_result,
    share_among_terms,
)
from headcount.importance.relevance.rules import Rule
from headcount.importance.relevance.tape import Arguments, TapeNode

PIECE = 1 << 19
"""How many terms are in memory at a time; a piece should stay in the cache."""

LinearMap = Callable[[Tensor, Tensor], Tensor]
"""(input, weight) -> result, linear in both."""


def pass_matrix_product(walk: Walk, node: TapeNode, result_relevances: ResultRelevances) -> SlotRelevances:
    """A matrix product, plus an addend where there is one, scaled by alpha and beta."""
    names = {"mm": ("self", "mat2"), "bmm": ("self", "mat2"), "addmm": ("mat1", "mat2"), "baddbmm": ("batch1", "batch2")}[node.name]
    lhs, rhs = (node.arguments[name] for name in names)
    relevance = relevance_of_first_result(result_relevances)
    constant = torch.zeros((), dtype=relevance.dtype, device=relevance.device)
    if "add" in node.name:
        if is_slot(node.arguments["self"]):
            raise node.error("adds an activation to a matrix product in one operation")
        constant = clamp_finite(walk.value_of(node.arguments["self"])) * node.arguments.get("beta", 1)
    constant = constant.expand(relevance.shape)
    a, b, scale = walk.value_of(lhs), walk.value_of(rhs), node.arguments.get("alpha", 1)
    if scale <= 0:
        raise node.error(f"scales a product by {scale}, which is not positive")
    if is_slot(lhs) and is_slot(rhs):
        batched = (t if t.ndim == 3 else t.unsqueeze(0) for t in (a, b, constant, relevance))
        shares = share_relevance_of_matrix_product(walk.rule, *batched, scale=scale)
        walk.book_leakage(node, shares.leaked.view(relevance.shape))
        return [(lhs.index, shares.lhs.view(a.shape)), (rhs.index, shares.rhs.view(b.shape))]
    if is_slot(lhs):
        shares = share_relevance_of_linear(walk.rule, torch.matmul, a, b * scale, constant, relevance)
    else:
        shares = share_relevance_of_linear(walk.rule, lambda x, weight: weight @ x, b, a * scale, constant, relevance)
    walk.book_leakage(node, shares.leaked)
    return [((lhs if is_slot(lhs) else rhs).index, shares.x)]


def pass_linear(walk: Walk, node: TapeNode, result_relevances: ResultRelevances) -> SlotRelevances:
    """A linear layer: the bias is a term of the same sum."""
    _check_constant_weights(node)
    source, relevance = node.arguments["input"], relevance_of_first_result(result_relevances)
    bias = walk.value_of(node.arguments["bias"])
    constant = relevance.new_zeros(()) if bias is None else bias
    weight = walk.value_of(node.arguments["weight"])
    shares = share_relevance_of_linear(walk.rule, F.linear, walk.value_of(source), weight, constant.expand(relevance.shape), relevance)
    walk.book_leakage(node, shares.leaked)
    return [(source.index, shares.x)]


def _check_constant_weights(node: TapeNode) -> None:
    """Raises UnsupportedModel if weight or bias of a layer descend from the model's inputs."""
    if is_slot(node.arguments["weight"]) or is_slot(node.arguments["bias"]):
        raise node.error("has weights that depend on the input")


def pass_convolution(walk: Walk, node: TapeNode, result_relevances: ResultRelevances) -> SlotRelevances:
    """A convolution with a constant kernel."""
    _check_constant_weights(node)
    source, relevance, function = node.arguments["input"], relevance_of_first_result(result_relevances), node.function
    assert function is not None
    options = {name: value for name, value in node.arguments.items() if name not in ("input", "weight", "bias")}
    bias = walk.value_of(node.arguments["bias"])
    constant = relevance.new_zeros(relevance.shape[1]) if bias is None else bias
    constant = constant.view(-1, *(1,) * (relevance.ndim - 2)).expand(relevance.shape)
    apply = lambda x, weight: function(input=x, weight=weight, bias=None, **options)  # noqa: E731
    shares = share_relevance_of_linear(
        walk.rule, apply, walk.value_of(source), walk.value_of(node.arguments["weight"]), constant, relevance
    )
    walk.book_leakage(node, shares.leaked)
    return [(source.index, shares.x)]


def pass_normalisation(walk: Walk, node: TapeNode, result_relevances: ResultRelevances) -> SlotRelevances:
    """A normalisation v = k x + c: its statistics, hence k and c, are constants; c takes its share as leakage."""
    source = node.arguments["input"]
    x = walk.value_of(source)
    assert node.function is not None
    arguments = tree_map(walk.value_of, node.arguments)
    result = node.function(**arguments)[0]
    linear_part = x * _normalisation_slope(node, x, arguments)
    return share_among_terms(walk, node, relevance_of_first_result(result_relevances), [source, None], [linear_part, result - linear_part])


def _normalisation_slope(node: TapeNode, x: Tensor, arguments: Arguments) -> Tensor:
    """Returns k of a normalisation v = k (x − mean) + bias: the weight over the standard deviation."""
    weight = arguments.get("weight")
    if node.name == "native_layer_norm":
        axes = list(range(x.ndim - len(arguments["normalized_shape"]), x.ndim))
        rate = (x.var(axes, unbiased=False, keepdim=True) + arguments["eps"]).rsqrt()
        return rate if weight is None else rate * weight
    per_channel = [1, -1] + [1] * (x.ndim - 2)
    scale = x.new_ones(x.shape[1]) if weight is None else weight
    if node.name == "native_group_norm":
        grouped = x.reshape(x.shape[0], arguments["group"], -1)
        rate = (grouped.var(-1, unbiased=False, keepdim=True) + arguments["eps"]).rsqrt().expand_as(grouped).reshape(x.shape)
        return rate * scale.view(per_channel)
    if arguments.get("training"):
        raise node.error("normalises over the batch, so examples are not independent")
    return ((arguments["running_var"] + arguments["eps"]).rsqrt() * scale).view(per_channel)


@dataclass(frozen=True, slots=True)
class ProductShares:
    """The relevance of a matrix product, shared among its two factors; `leaked` is shaped like the result."""

    lhs: Tensor
    rhs: Tensor
    leaked: Tensor


@dataclass(frozen=True, slots=True)
class LinearShares:
    """The relevance of a linear map, shared between its input x and leakage to constants and ε; `leaked` is shaped like the result."""

    x: Tensor
    leaked: Tensor


def share_relevance_of_linear(rule: Rule, apply: LinearMap, x: Tensor, weight: Tensor, constant: Tensor, relevance: Tensor) -> LinearShares:
    """Returns what x gets of the relevance of v = apply(x, weight) + constant, and what leaks."""
    up, down = x.clamp(min=0), x.clamp(max=0)
    weight_up, weight_down = weight.clamp(min=0), weight.clamp(max=0)
    (of_weight_up, transpose_up), (of_weight_down, transpose_down) = (_apply_with_transpose(apply, up, w) for w in (weight_up, weight_down))
    positive = of_weight_up + apply(down, weight_down) + constant.clamp(min=0)
    negative = of_weight_down + apply(down, weight_up) + constant.clamp(max=0)
    factors = rule.sharing_factors(positive, negative)
    high, low = relevance * factors.positive, relevance * factors.negative
    share = up * (transpose_up(high) + transpose_down(low)) + down * (transpose_down(high) + transpose_up(low))
    return LinearShares(share, relevance * factors.lost + constant.clamp(min=0) * high + constant.clamp(max=0) * low)


def _apply_with_transpose(apply: LinearMap, x: Tensor, weight: Tensor) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
    """Returns the result of a linear map, and its transpose."""
    leaf = x.detach().requires_grad_()
    with torch.enable_grad():
        result = apply(leaf, weight)
    return result.detach(), lambda back: torch.autograd.grad(result, leaf, back, retain_graph=True)[0]


def share_relevance_of_matrix_product(
    rule: Rule,
    lhs: Float[Tensor, "n row inner"],
    rhs: Float[Tensor, "n inner column"],
    constant: Float[Tensor, "n row column"],
    relevance: Float[Tensor, "n row column"],
    scale: float = 1.0,
) -> ProductShares:
    """Shares the relevance of v = scale lhs @ rhs + constant, scale > 0, among its terms and, in each term, among its two factors."""
    (a_up, a_down), (b_up, b_down) = ((t.clamp(min=0), t.clamp(max=0)) for t in (lhs, rhs))
    factors = rule.sharing_factors(
        (a_up @ b_up + a_down @ b_down) * scale + constant.clamp(min=0),
        (a_up @ b_down + a_down @ b_up) * scale + constant.clamp(max=0),
    )
    high, low = relevance * factors.positive, relevance * factors.negative
    shares = ProductShares(
        torch.zeros_like(lhs),
        torch.zeros_like(rhs),
        relevance * factors.lost + constant.clamp(min=0) * high + constant.clamp(max=0) * low,
    )
    columns, column_shares = rhs.transpose(1, 2), shares.rhs.transpose(1, 2)
    for n, rows in _split_batch_and_rows(lhs, rhs):
        piece = _share_product_piece(rule, lhs[n, rows], columns[n], scale * high[n, rows], scale * low[n, rows])
        shares.lhs[n, rows] += piece.lhs
        column_shares[n] += piece.rhs
        shares.leaked[n, rows] += piece.leaked
    return shares


def _split_batch_and_rows(lhs: Tensor, rhs: Tensor) -> Iterator[tuple[slice, slice]]:
    """Yields slices of (n, row) with at most PIECE terms each, or a single row."""
    count, n_rows, inner = lhs.shape
    per_row = max(1, inner * rhs.shape[2])
    rows = max(1, min(n_rows, PIECE // per_row))
    stacked = max(1, PIECE // (per_row * rows)) if rows == n_rows else 1
    for n in range(0, count, stacked):
        for row in range(0, n_rows, rows):
            yield slice(n, n + stacked), slice(row, row + rows)


def _share_product_piece(
    rule: Rule,
    lhs: Float[Tensor, "n row inner"],
    rhs_columns: Float[Tensor, "n column inner"],
    positive_factor: Float[Tensor, "n row column"],
    negative_factor: Float[Tensor, "n row column"],
) -> ProductShares:
    """Returns the relevance of the left rows, of the right columns, and what leaks for each (row, column), of one piece."""
    a, b = lhs.unsqueeze(2), rhs_columns.unsqueeze(1)  # [n, row, 1, inner], [n, 1, column, inner]
    term = a * b
    term.mul_(torch.where(term > 0, positive_factor.unsqueeze(-1), negative_factor.unsqueeze(-1)))
    share = rule.share_of_first_factor(a, b)
    to_lhs, lost = share.of_first.mul_(term), share.lost
    missing = torch.zeros_like(positive_factor) if lost is None else lost.mul_(term)
    to_rhs = term - to_lhs if lost is None else term.sub_(to_lhs).sub_(missing)
    return ProductShares(to_lhs.sum(2), to_rhs.sum(1), missing if lost is None else missing.sum(3))
