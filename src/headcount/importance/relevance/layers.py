"""Relevance rules of layers with weights: linear maps, convolutions, normalisations, and products of activations."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils._pytree import tree_map

from headcount.importance.relevance.passing import Shares, Upstream, Walk, clamp_finite, first, is_slot, share
from headcount.importance.relevance.products import share_linear, share_product
from headcount.importance.relevance.tape import Node


def pass_matrix_product(walk: Walk, node: Node, upstream: Upstream) -> Shares:
    """A matrix product, plus an addend where there is one, scaled by alpha and beta."""
    names = {"mm": ("self", "mat2"), "bmm": ("self", "mat2"), "addmm": ("mat1", "mat2"), "baddbmm": ("batch1", "batch2")}[node.name]
    lhs, rhs = (node.arguments[name] for name in names)
    relevance, constant = first(upstream), _addend(walk, node, first(upstream))
    a, b, scale = walk.value(lhs), walk.value(rhs), node.arguments.get("alpha", 1)
    if scale <= 0:
        raise node.refuse(f"scales a product by {scale}, which is not positive")
    if is_slot(lhs) and is_slot(rhs):
        split = share_product(walk.rule, *(t if t.ndim == 3 else t.unsqueeze(0) for t in (a, b, constant, relevance)), scale=scale)
        walk.leak(node, split.leaked.view(relevance.shape))
        return [(lhs.index, split.lhs.view(a.shape)), (rhs.index, split.rhs.view(b.shape))]
    if is_slot(lhs):
        taken, leaked = share_linear(walk.rule, torch.matmul, a, b * scale, constant, relevance)
    else:
        taken, leaked = share_linear(walk.rule, lambda x, weight: weight @ x, b, a * scale, constant, relevance)
    walk.leak(node, leaked)
    return [((lhs if is_slot(lhs) else rhs).index, taken)]


def _addend(walk: Walk, node: Node, like: Tensor) -> Tensor:
    if "add" not in node.name:
        return torch.zeros((), dtype=like.dtype, device=like.device).expand(like.shape)
    if is_slot(node.arguments["self"]):
        raise node.refuse("adds an activation to a matrix product in one operation")
    return (clamp_finite(walk.value(node.arguments["self"])) * node.arguments.get("beta", 1)).expand(like.shape)


def pass_linear(walk: Walk, node: Node, upstream: Upstream) -> Shares:
    """A linear layer: the bias is a term of the same sum."""
    _refuse_moving_weights(node)
    source, relevance = node.arguments["input"], first(upstream)
    bias = walk.value(node.arguments["bias"])
    constant = relevance.new_zeros(()) if bias is None else bias
    weight = walk.value(node.arguments["weight"])
    taken, leaked = share_linear(walk.rule, F.linear, walk.value(source), weight, constant.expand(relevance.shape), relevance)
    walk.leak(node, leaked)
    return [(source.index, taken)]


def _refuse_moving_weights(node: Node) -> None:
    if is_slot(node.arguments["weight"]) or is_slot(node.arguments["bias"]):
        raise node.refuse("has weights that depend on the input")


def pass_convolution(walk: Walk, node: Node, upstream: Upstream) -> Shares:
    """A convolution with a constant kernel."""
    _refuse_moving_weights(node)
    source, relevance, function = node.arguments["input"], first(upstream), node.function
    assert function is not None
    options = {name: value for name, value in node.arguments.items() if name not in ("input", "weight", "bias")}
    bias = walk.value(node.arguments["bias"])
    constant = relevance.new_zeros(relevance.shape[1]) if bias is None else bias
    constant = constant.view(-1, *(1,) * (relevance.ndim - 2)).expand(relevance.shape)
    apply = lambda x, weight: function(input=x, weight=weight, bias=None, **options)  # noqa: E731
    taken, leaked = share_linear(walk.rule, apply, walk.value(source), walk.value(node.arguments["weight"]), constant, relevance)
    walk.leak(node, leaked)
    return [(source.index, taken)]


def pass_normalisation(walk: Walk, node: Node, upstream: Upstream) -> Shares:
    """A normalisation v = k x + c: its statistics, hence k and c, are constants; c takes its share as leakage."""
    source = node.arguments["input"]
    x = walk.value(source)
    assert node.function is not None
    call = tree_map(walk.value, node.arguments)
    result, slope = node.function(**call)[0], _slope(node, x, call)
    part = x * slope
    return share(walk, node, first(upstream), [source, None], [part, result - part])


def _slope(node: Node, x: Tensor, call: dict[str, Any]) -> Tensor:
    """k, from the normalisation of x without its bias: where x has mean m, that is k (x - m)."""
    weight = call.get("weight")
    if node.name == "native_layer_norm":
        axes = list(range(x.ndim - len(call["normalized_shape"]), x.ndim))
        rate = (x.var(axes, unbiased=False, keepdim=True) + call["eps"]).rsqrt()
        return rate if weight is None else rate * weight
    per_channel = [1, -1] + [1] * (x.ndim - 2)
    scale = x.new_ones(x.shape[1]) if weight is None else weight
    if node.name == "native_group_norm":
        grouped = x.reshape(x.shape[0], call["group"], -1)
        rate = (grouped.var(-1, unbiased=False, keepdim=True) + call["eps"]).rsqrt().expand_as(grouped).reshape(x.shape)
        return rate * scale.view(per_channel)
    if call.get("training"):
        raise node.refuse("normalises over the batch, so examples are not independent")
    return ((call["running_var"] + call["eps"]).rsqrt() * scale).view(per_channel)
