"""How relevance goes back through operations without weights: activations, sums, products, and what only moves entries."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_map

from headcount.importance.relevance.passing import Given, Shares, Walk, bounded, first, fit, is_slot, share
from headcount.importance.relevance.rules import share_sum
from headcount.importance.relevance.tape import Node, Slot

FILLS = {"masked_fill", "constant_pad_nd"}
"""Moving operations that fill entries with a number."""


def unchanged(walk: Walk, node: Node, given: Given) -> Shares:
    """Activations, softmax and copies: relevance passes whole."""
    slots = [(name, leaf) for name, leaf in node.arguments.items() if isinstance(leaf, Slot)]
    if len(slots) != 1 or slots[0][0] not in ("self", "input"):
        raise node.refuse("reads several activations where one was expected")
    slot = slots[0][1]
    return [(slot.index, fit(first(given), walk.value(slot)))]


def added(walk: Walk, node: Node, given: Given) -> Shares:
    """A sum or a difference of two: shared among the terms."""
    relevance, sign = first(given), {"add": 1, "sub": -1, "rsub": 1}[node.name]
    left, right = node.arguments["self"], node.arguments["other"]
    scale = node.arguments.get("alpha", 1)
    terms = [bounded(_tensor(walk.value(left), relevance)), bounded(_tensor(walk.value(right), relevance)) * (sign * scale)]
    if node.name == "rsub":
        terms[0] = terms[0] * -scale
    return share(walk, node, relevance, [left, right], terms)


def _tensor(value: Any, like: Tensor) -> Tensor:
    return value if isinstance(value, Tensor) else torch.tensor(value, dtype=like.dtype, device=like.device)


def multiplied(walk: Walk, node: Node, given: Given) -> Shares:
    """A product: whole to the one factor that is no constant, or shared among two."""
    relevance, factors = first(given), [node.arguments["self"], node.arguments["other"]]
    if all(map(is_slot, factors)):
        return share(walk, node, relevance, factors, [bounded(walk.value(factor)) for factor in factors])
    factor = factors[0] if is_slot(factors[0]) else factors[1]
    return [(factor.index, fit(relevance, walk.value(factor)))]


def divided(walk: Walk, node: Node, given: Given) -> Shares:
    """A quotient by a constant, or by a sum over an axis that makes its parts add up to 1: whole to the numerator."""
    source, other = node.arguments["self"], node.arguments["other"]
    if is_slot(other):
        value = walk.value(source)
        if not is_slot(source) or walk.value(other).numel() >= value.numel():
            raise node.refuse("divides by an activation that is no statistic of a normalisation")
        return [(source.index, first(given))]
    return multiplied(walk, node, given)


def gated(walk: Walk, node: Node, given: Given) -> Shares:
    """A gated linear unit u σ(w), u and w being halves of one input: shared among the two factors."""
    source, axis = node.arguments["self"], node.arguments.get("dim", -1)
    left, right = walk.value(source).chunk(2, axis)
    (of_left, of_right), lost = share_sum(walk.rule, [left, right.sigmoid()])
    walk.leak(node, first(given) * lost)
    return [(source.index, torch.cat([first(given) * of_left, first(given) * of_right], axis))]


def summed(walk: Walk, node: Node, given: Given) -> Shares:
    """A linear operation whose weights are not negative (sum, mean, pooling): shared among the terms."""
    relevance = first(given)
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


def accumulated(walk: Walk, node: Node, given: Given) -> Shares:
    """Terms added to some entries of a tensor, as experts add to their tokens: shared there, whole to the tensor where nothing was added."""
    assert node.function is not None
    relevance, target = first(given), node.arguments["self"]
    leaves, _ = _floating(walk, node)
    marks = [torch.zeros_like(leaves[0]), *map(torch.ones_like, leaves[1:])]
    rest = torch.where(node.function(**_refilled(node, marks)) > 0, 0.0, relevance)
    shares = summed(walk, node, [relevance - rest])
    if is_slot(target):
        return [*shares, (target.index, rest)]
    walk.leak(node, rest)
    return shares


def moved(walk: Walk, node: Node, given: Given) -> Shares:
    """An operation that only moves, copies or picks entries: relevance goes back to where each entry came from."""
    assert node.function is not None
    if node.arguments.get("accumulate"):
        return accumulated(walk, node, given)
    leaves, slots = _floating(walk, node)
    grown = [leaf.requires_grad_(slot is not None) for leaf, slot in zip(map(torch.clone, leaves), slots, strict=True)]
    wanted = [leaf for leaf in grown if leaf.requires_grad]
    with torch.enable_grad():
        result = node.function(**_refilled(node, grown))
    results = result if isinstance(result, list | tuple) else [result]
    pairs = [(out, part) for out, part in zip(results, given, strict=True) if part is not None]
    back = torch.autograd.grad([out for out, _ in pairs], wanted, [part for _, part in pairs], allow_unused=True, materialize_grads=True)
    _leak_fill(walk, node, leaves, slots, given)
    return list(zip((slot for slot in slots if slot is not None), back, strict=True))


def _leak_fill(walk: Walk, node: Node, leaves: list[Tensor], slots: list[int | None], given: Given) -> None:
    """Books the relevance of entries that a moving operation filled from constants."""
    if node.name not in FILLS and all(slot is not None for slot in slots):
        return
    assert node.function is not None
    marks = [torch.zeros_like(leaf) if slot is not None else torch.ones_like(leaf) for leaf, slot in zip(leaves, slots, strict=True)]
    call = _refilled(node, marks)
    if node.name in FILLS and not isinstance(call.get("value"), Tensor):
        call["value"] = 1.0
    walk.leak(node, first(given) * node.function(**call))


def copied(walk: Walk, node: Node, given: Given) -> Shares:
    """A tensor filled with the entries of another."""
    source = node.arguments["src"]
    if is_slot(source):
        return [(source.index, fit(first(given), walk.value(source)))]
    walk.leak(node, first(given))
    return []


def reshaped(walk: Walk, node: Node, given: Given) -> Shares:
    """A view of the same entries in the same order."""
    slot = node.arguments["self"]
    return [(slot.index, first(given).reshape(walk.value(slot).shape))]


def restrided(walk: Walk, node: Node, given: Given) -> Shares:
    """A tensor laid out in memory in another way, entries in their places."""
    value = walk.value(node.arguments["self"])
    steps = zip(value.shape, value.stride(), node.arguments["stride"], strict=False)
    if list(value.shape) != list(node.arguments["size"]) or any(n > 1 and old != new for n, old, new in steps):
        raise node.refuse("reads memory in an order of its own")
    return reshaped(walk, node, given)


def _floating(walk: Walk, node: Node) -> tuple[list[Tensor], list[int | None]]:
    """The floating tensors among the arguments in order, and their slots (None for constants)."""
    found = [leaf for leaf in tree_flatten(node.arguments)[0] if _is_float(leaf)]
    return [walk.value(leaf) for leaf in found], [leaf.index if isinstance(leaf, Slot) else None for leaf in found]


def _is_float(leaf: Any) -> bool:
    return isinstance(leaf, Slot) or (isinstance(leaf, Tensor) and leaf.is_floating_point())


def _refilled(node: Node, leaves: Sequence[Tensor]) -> dict[str, Any]:
    """The node's arguments with other floating tensors."""
    rest = iter(leaves)
    return tree_map(lambda leaf: next(rest) if _is_float(leaf) else leaf, node.arguments)


def _apply(node: Node, leaves: Sequence[Tensor]) -> tuple[Tensor, Callable[[Tensor], Sequence[Tensor]]]:
    """(the operation on other floating tensors, its transpose)."""
    assert node.function is not None
    grown = [leaf.detach().requires_grad_() for leaf in leaves]
    with torch.enable_grad():
        result = node.function(**_refilled(node, grown))
    return result.detach(), lambda back: torch.autograd.grad(result, grown, back)
