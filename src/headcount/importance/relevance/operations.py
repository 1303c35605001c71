"""Relevance rules of operations without weights: activations, sums, products, and operations that only move entries."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_map

from headcount.importance.relevance.passing import Shares, Upstream, Walk, clamp_finite, first, fit, is_slot, share
from headcount.importance.relevance.rules import share_sum
from headcount.importance.relevance.tape import Node, Slot

FILLS = {"masked_fill", "constant_pad_nd"}
"""Moving operations that fill entries with a number."""


def pass_whole(walk: Walk, node: Node, upstream: Upstream) -> Shares:
    """Activations, softmax and copies: all relevance goes to the input."""
    slots = [(name, leaf) for name, leaf in node.arguments.items() if isinstance(leaf, Slot)]
    if len(slots) != 1 or slots[0][0] not in ("self", "input"):
        raise node.refuse("reads several activations where one was expected")
    slot = slots[0][1]
    return [(slot.index, fit(first(upstream), walk.value(slot)))]


def pass_addition(walk: Walk, node: Node, upstream: Upstream) -> Shares:
    """A sum or a difference of two: shared among the terms."""
    relevance, sign = first(upstream), {"add": 1, "sub": -1, "rsub": 1}[node.name]
    lhs, rhs = node.arguments["self"], node.arguments["other"]
    scale = node.arguments.get("alpha", 1)
    terms = [clamp_finite(_tensor(walk.value(lhs), relevance)), clamp_finite(_tensor(walk.value(rhs), relevance)) * (sign * scale)]
    if node.name == "rsub":
        terms[0] = terms[0] * -scale
    return share(walk, node, relevance, [lhs, rhs], terms)


def _tensor(value: Any, like: Tensor) -> Tensor:
    return value if isinstance(value, Tensor) else torch.tensor(value, dtype=like.dtype, device=like.device)


def pass_product(walk: Walk, node: Node, upstream: Upstream) -> Shares:
    """A product: all relevance goes to the one factor that is not constant, or is shared among two."""
    relevance, factors = first(upstream), [node.arguments["self"], node.arguments["other"]]
    if all(map(is_slot, factors)):
        return share(walk, node, relevance, factors, [clamp_finite(walk.value(factor)) for factor in factors])
    factor = factors[0] if is_slot(factors[0]) else factors[1]
    return [(factor.index, fit(relevance, walk.value(factor)))]


def pass_quotient(walk: Walk, node: Node, upstream: Upstream) -> Shares:
    """A quotient by a constant, or by a sum over an axis that makes its parts add up to 1: all relevance goes to the numerator."""
    source, divisor = node.arguments["self"], node.arguments["other"]
    if is_slot(divisor):
        value = walk.value(source)
        if not is_slot(source) or walk.value(divisor).numel() >= value.numel():
            raise node.refuse("divides by an activation that is no statistic of a normalisation")
        return [(source.index, first(upstream))]
    return pass_product(walk, node, upstream)


def pass_glu(walk: Walk, node: Node, upstream: Upstream) -> Shares:
    """A gated linear unit u σ(w), u and w being halves of one input: shared among the two factors."""
    source, axis = node.arguments["self"], node.arguments.get("dim", -1)
    signal, gate = walk.value(source).chunk(2, axis)
    (of_signal, of_gate), lost = share_sum(walk.rule, [signal, gate.sigmoid()])
    walk.leak(node, first(upstream) * lost)
    return [(source.index, torch.cat([first(upstream) * of_signal, first(upstream) * of_gate], axis))]


def pass_sum(walk: Walk, node: Node, upstream: Upstream) -> Shares:
    """A linear operation whose weights are not negative (sum, mean, pooling): shared among the terms."""
    relevance = first(upstream)
    leaves, slots = _floating(walk, node)
    ups, downs = [leaf.clamp(min=0) for leaf in leaves], [leaf.clamp(max=0) for leaf in leaves]
    (positive, raise_up), (negative, raise_down) = _apply(node, ups), _apply(node, downs)
    factors = walk.rule.factors(positive, negative)
    high, low = relevance * factors.positive, relevance * factors.negative
    fixed_up, fixed_down = (_apply(node, _constants(parts, slots))[0] for parts in (ups, downs))
    walk.leak(node, relevance * factors.lost + fixed_up * high + fixed_down * low)
    terms = zip(slots, ups, raise_up(high), downs, raise_down(low), strict=True)
    return [(slot, up * of_up + down * of_down) for slot, up, of_up, down, of_down in terms if slot is not None]


def _constants(parts: list[Tensor], slots: list[int | None]) -> list[Tensor]:
    return [part if slot is None else torch.zeros_like(part) for part, slot in zip(parts, slots, strict=True)]


def pass_accumulation(walk: Walk, node: Node, upstream: Upstream) -> Shares:
    """Terms added to some entries of a tensor, as experts add to their tokens: shared there; elsewhere all relevance goes to the tensor."""
    assert node.function is not None
    relevance, target = first(upstream), node.arguments["self"]
    leaves, _ = _floating(walk, node)
    marks = [torch.zeros_like(leaves[0]), *map(torch.ones_like, leaves[1:])]
    untouched = torch.where(node.function(**_replace_leaves(node, marks)) > 0, 0.0, relevance)
    shares = pass_sum(walk, node, [relevance - untouched])
    if is_slot(target):
        return [*shares, (target.index, untouched)]
    walk.leak(node, untouched)
    return shares


def pass_move(walk: Walk, node: Node, upstream: Upstream) -> Shares:
    """An operation that only moves, copies or picks entries: relevance goes back to where each entry came from."""
    assert node.function is not None
    if node.arguments.get("accumulate"):
        return pass_accumulation(walk, node, upstream)
    leaves, slots = _floating(walk, node)
    grown = [leaf.requires_grad_(slot is not None) for leaf, slot in zip(map(torch.clone, leaves), slots, strict=True)]
    sources = [leaf for leaf in grown if leaf.requires_grad]
    with torch.enable_grad():
        result = node.function(**_replace_leaves(node, grown))
    results = result if isinstance(result, list | tuple) else [result]
    pairs = [(out, part) for out, part in zip(results, upstream, strict=True) if part is not None]
    back = torch.autograd.grad([out for out, _ in pairs], sources, [part for _, part in pairs], allow_unused=True, materialize_grads=True)
    _leak_fill(walk, node, leaves, slots, upstream)
    return list(zip((slot for slot in slots if slot is not None), back, strict=True))


def _leak_fill(walk: Walk, node: Node, leaves: list[Tensor], slots: list[int | None], upstream: Upstream) -> None:
    """Books the relevance of entries that a moving operation filled from constants."""
    if node.name not in FILLS and all(slot is not None for slot in slots):
        return
    assert node.function is not None
    marks = [torch.zeros_like(leaf) if slot is not None else torch.ones_like(leaf) for leaf, slot in zip(leaves, slots, strict=True)]
    call = _replace_leaves(node, marks)
    if node.name in FILLS and not isinstance(call.get("value"), Tensor):
        call["value"] = 1.0
    walk.leak(node, first(upstream) * node.function(**call))


def pass_copy(walk: Walk, node: Node, upstream: Upstream) -> Shares:
    """A tensor filled with the entries of another."""
    source = node.arguments["src"]
    if is_slot(source):
        return [(source.index, fit(first(upstream), walk.value(source)))]
    walk.leak(node, first(upstream))
    return []


def pass_view(walk: Walk, node: Node, upstream: Upstream) -> Shares:
    """A view of the same entries in the same order."""
    slot = node.arguments["self"]
    return [(slot.index, first(upstream).reshape(walk.value(slot).shape))]


def pass_restride(walk: Walk, node: Node, upstream: Upstream) -> Shares:
    """A tensor with another memory layout and the same entries."""
    value = walk.value(node.arguments["self"])
    steps = zip(value.shape, value.stride(), node.arguments["stride"], strict=False)
    if list(value.shape) != list(node.arguments["size"]) or any(n > 1 and old != new for n, old, new in steps):
        raise node.refuse("reads memory in an order of its own")
    return pass_view(walk, node, upstream)


def _floating(walk: Walk, node: Node) -> tuple[list[Tensor], list[int | None]]:
    """Returns the floating tensors among the arguments in order, and their slots (None for constants)."""
    leaves = [leaf for leaf in tree_flatten(node.arguments)[0] if _is_float(leaf)]
    return [walk.value(leaf) for leaf in leaves], [leaf.index if isinstance(leaf, Slot) else None for leaf in leaves]


def _is_float(leaf: Any) -> bool:
    return isinstance(leaf, Slot) or (isinstance(leaf, Tensor) and leaf.is_floating_point())


def _replace_leaves(node: Node, leaves: Sequence[Tensor]) -> dict[str, Any]:
    """Returns the node's arguments with its floating tensors replaced, in order."""
    replacements = iter(leaves)
    return tree_map(lambda leaf: next(replacements) if _is_float(leaf) else leaf, node.arguments)


def _apply(node: Node, leaves: Sequence[Tensor]) -> tuple[Tensor, Callable[[Tensor], Sequence[Tensor]]]:
    """Returns the result of the operation on other floating tensors, and its transpose."""
    assert node.function is not None
    grown = [leaf.detach().requires_grad_() for leaf in leaves]
    with torch.enable_grad():
        result = node.function(**_replace_leaves(node, grown))
    return result.detach(), lambda back: torch.autograd.grad(result, grown, back)
