"""Relevance rules of operations without weights: activations, sums, products, and operations that only move entries.

A rule of an operation takes the walk, the node and `upstream`, the relevance of the node's results (None for a result that no relevance
reached). It returns the relevance of each slot that the node read, and books what constants and ε take with `walk.leak`, shaped like the result.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeGuard

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_map

from headcount.importance.relevance.rules import Rule, share_sum, sum_tensors
from headcount.importance.relevance.tape import Arguments, Slot, TapeNode

ELEMENTWISE = (
    "gelu", "silu", "relu", "relu6", "tanh", "sigmoid", "elu", "celu", "selu", "leaky_relu", "mish", "softplus", "hardtanh", "hardswish",
    "hardsigmoid", "hardshrink", "erf", "exp", "log", "log1p", "pow", "square", "abs", "neg", "clamp", "clamp_min", "clamp_max", "sin",
    "cos", "_softmax", "_log_softmax", "_to_copy", "clone", "alias", "detach", "lift_fresh", "contiguous", "nan_to_num",
)  # fmt: skip
"""Activations, softmax and copies."""

MOVES = (
    "permute", "transpose", "t", "unsqueeze", "squeeze", "slice", "select", "expand", "cat", "stack", "split", "split_with_sizes", "unbind",
    "index", "gather", "index_select", "flip", "roll", "repeat", "constant_pad_nd", "masked_fill", "where", "tril", "triu", "unfold",
    "diagonal", "index_put", "overwrite", "masked_scatter", "slice_scatter", "select_scatter", "masked_select", "max", "min", "topk", "amax",
    "pixel_unshuffle", "pixel_shuffle",
)  # fmt: skip
"""Operations that move, copy or pick entries."""

FILLS = ("masked_fill", "constant_pad_nd")
"""Those among them that fill entries with a number."""

VIEWS = ("view", "_unsafe_view", "reshape", "_reshape_alias")
"""Operations that keep the entries in their order."""

SUMS = (
    "sum", "mean", "cumsum", "index_add", "scatter_add", "avg_pool2d", "avg_pool1d", "adaptive_avg_pool2d", "_adaptive_avg_pool2d",
)  # fmt: skip
"""Linear operations whose weights are not negative."""

MATRIX_PRODUCTS = ("mm", "bmm", "addmm", "baddbmm")

NORMALISATIONS = (
    "native_layer_norm", "native_group_norm", "native_batch_norm", "_native_batch_norm_legit_no_training", "cudnn_batch_norm",
)  # fmt: skip
"""Normalisations, whose statistics are constants."""


class Walk(Protocol):
    """The walk down the tape as a rule sees it."""

    rule: Rule

    def value(self, argument: Any) -> Any:
        """Returns the tensor of an argument, in the precision of the walk; other arguments as they are."""
        ...

    def leak(self, node: TapeNode, amount: Tensor) -> None:
        """Books relevance, shaped like the node's result, as taken by constants or ε."""
        ...


Upstream = Sequence[Tensor | None]
"""The relevance of each result of a node."""
Shares = list[tuple[int, Tensor]]
"""(slot, relevance) for each slot that a node read."""
OperationRule = Callable[[Walk, TapeNode, Upstream], Shares]


def is_slot(argument: Any) -> TypeGuard[Slot]:
    """Whether an argument carries relevance."""
    return isinstance(argument, Slot)


def undo_broadcast(relevance: Tensor, operand: Tensor) -> Tensor:
    """Sums relevance over the axes along which an operand was broadcast."""
    return relevance.sum_to_size(operand.shape) if relevance.shape != operand.shape else relevance


def first_relevance(upstream: Upstream) -> Tensor:
    """Returns the relevance of a node's first result."""
    assert upstream[0] is not None
    return upstream[0]


def clamp_finite(term: Tensor) -> Tensor:
    """Clamps infinities to large finite numbers: a mask of minus infinity would give 0 times infinity."""
    limit = torch.finfo(term.dtype).max / 8
    return term.clamp(min=-limit, max=limit)


def share_among_terms(walk: Walk, node: TapeNode, relevance: Tensor, arguments: list[Any], terms: list[Tensor]) -> Shares:
    """Shares relevance among the terms of an elementwise sum, one for each argument; those of constants leak."""
    fractions, lost = share_sum(walk.rule, terms)
    for position, argument in enumerate(arguments):
        if not is_slot(argument) and len(terms) == 2:  # nothing was added where a constant, say a mask, is 0: no ε is due there
            absent = terms[position] == 0
            fractions[1 - position] = torch.where(absent, 1.0, fractions[1 - position])
            lost = torch.where(absent, 0.0, lost)
    amounts = [(argument, relevance * fraction) for argument, fraction in zip(arguments, fractions, strict=True)]
    walk.leak(node, sum_tensors([relevance * lost, *(amount for argument, amount in amounts if not is_slot(argument))]))
    return [(argument.index, undo_broadcast(amount, walk.value(argument))) for argument, amount in amounts if is_slot(argument)]


def pass_to_input(walk: Walk, node: TapeNode, upstream: Upstream) -> Shares:
    """Activations, softmax and copies: all relevance goes to the input."""
    slots = [(name, leaf) for name, leaf in node.arguments.items() if isinstance(leaf, Slot)]
    if len(slots) != 1 or slots[0][0] not in ("self", "input"):
        raise node.error("reads several activations where one was expected")
    slot = slots[0][1]
    return [(slot.index, undo_broadcast(first_relevance(upstream), walk.value(slot)))]


def pass_addition(walk: Walk, node: TapeNode, upstream: Upstream) -> Shares:
    """A sum or a difference of two: shared among the terms."""
    relevance, sign = first_relevance(upstream), {"add": 1, "sub": -1, "rsub": 1}[node.name]
    operands = [node.arguments["self"], node.arguments["other"]]
    scale = node.arguments.get("alpha", 1)
    values = [walk.value(operand) for operand in operands]
    lhs, rhs = (
        clamp_finite(value if isinstance(value, Tensor) else torch.tensor(value, dtype=relevance.dtype, device=relevance.device))
        for value in values
    )
    return share_among_terms(walk, node, relevance, operands, [lhs * -scale if node.name == "rsub" else lhs, rhs * (sign * scale)])


def pass_product(walk: Walk, node: TapeNode, upstream: Upstream) -> Shares:
    """A product: all relevance goes to the factor that is no constant; if none is, it is shared among the two."""
    relevance, factors = first_relevance(upstream), [node.arguments["self"], node.arguments["other"]]
    if all(map(is_slot, factors)):
        return share_among_terms(walk, node, relevance, factors, [clamp_finite(walk.value(factor)) for factor in factors])
    factor = factors[0] if is_slot(factors[0]) else factors[1]
    return [(factor.index, undo_broadcast(relevance, walk.value(factor)))]


def pass_quotient(walk: Walk, node: TapeNode, upstream: Upstream) -> Shares:
    """A quotient by a constant, or by a sum over an axis that makes its parts add up to 1: all relevance goes to the numerator."""
    source, divisor = node.arguments["self"], node.arguments["other"]
    if is_slot(divisor):
        value = walk.value(source)
        if not is_slot(source) or walk.value(divisor).numel() >= value.numel():
            raise node.error("divides by an activation that is no statistic of a normalisation")
        return [(source.index, first_relevance(upstream))]
    return pass_product(walk, node, upstream)


def pass_glu(walk: Walk, node: TapeNode, upstream: Upstream) -> Shares:
    """A gated linear unit u σ(w), u and w being halves of one input: shared among the two factors."""
    source, axis, relevance = node.arguments["self"], node.arguments.get("dim", -1), first_relevance(upstream)
    signal, gate = walk.value(source).chunk(2, axis)
    (signal_share, gate_share), lost = share_sum(walk.rule, [signal, gate.sigmoid()])
    walk.leak(node, relevance * lost)
    return [(source.index, torch.cat([relevance * signal_share, relevance * gate_share], axis))]


def pass_sum(walk: Walk, node: TapeNode, upstream: Upstream) -> Shares:
    """A linear operation whose weights are not negative (sum, mean, pooling): shared among the terms."""
    relevance = first_relevance(upstream)
    leaves, slots = _float_arguments(walk, node)
    ups, downs = [leaf.clamp(min=0) for leaf in leaves], [leaf.clamp(max=0) for leaf in leaves]
    (positive, transpose_up), (negative, transpose_down) = _apply_with_transpose(node, ups), _apply_with_transpose(node, downs)
    factors = walk.rule.factors(positive, negative)
    high, low = relevance * factors.positive, relevance * factors.negative
    constant_up, constant_down = (  # what constants add to the positive and to the negative part
        _apply_with_transpose(node, [part if slot is None else torch.zeros_like(part) for part, slot in zip(parts, slots, strict=True)])[0]
        for parts in (ups, downs)
    )
    walk.leak(node, relevance * factors.lost + constant_up * high + constant_down * low)
    terms = zip(slots, ups, transpose_up(high), downs, transpose_down(low), strict=True)
    return [(slot, up * of_up + down * of_down) for slot, up, of_up, down, of_down in terms if slot is not None]


def pass_accumulation(walk: Walk, node: TapeNode, upstream: Upstream) -> Shares:
    """Terms added to some entries of a tensor, as experts add to their tokens: shared there; elsewhere all relevance goes to the tensor."""
    assert node.function is not None
    relevance, target = first_relevance(upstream), node.arguments["self"]
    leaves, _ = _float_arguments(walk, node)
    marks = [torch.zeros_like(leaves[0]), *map(torch.ones_like, leaves[1:])]
    untouched = torch.where(node.function(**_replace_floats(node, marks)) > 0, 0.0, relevance)
    shares = pass_sum(walk, node, [relevance - untouched])
    if is_slot(target):
        return [*shares, (target.index, untouched)]
    walk.leak(node, untouched)
    return shares


def pass_move(walk: Walk, node: TapeNode, upstream: Upstream) -> Shares:
    """An operation that only moves, copies or picks entries: relevance goes back to where each entry came from."""
    assert node.function is not None
    if node.arguments.get("accumulate"):
        return pass_accumulation(walk, node, upstream)
    leaves, slots = _float_arguments(walk, node)
    tracked = [leaf.requires_grad_(slot is not None) for leaf, slot in zip(map(torch.clone, leaves), slots, strict=True)]
    sources = [leaf for leaf in tracked if leaf.requires_grad]
    with torch.enable_grad():
        result = node.function(**_replace_floats(node, tracked))
    results = result if isinstance(result, list | tuple) else [result]
    pairs = [(out, part) for out, part in zip(results, upstream, strict=True) if part is not None]
    back = torch.autograd.grad([out for out, _ in pairs], sources, [part for _, part in pairs], allow_unused=True, materialize_grads=True)
    _leak_filled_entries(walk, node, leaves, slots, upstream)
    return list(zip((slot for slot in slots if slot is not None), back, strict=True))


def _leak_filled_entries(walk: Walk, node: TapeNode, leaves: list[Tensor], slots: list[int | None], upstream: Upstream) -> None:
    """Books the relevance of entries that a moving operation filled from constants."""
    if node.name not in FILLS and all(slot is not None for slot in slots):
        return
    assert node.function is not None
    marks = [torch.zeros_like(leaf) if slot is not None else torch.ones_like(leaf) for leaf, slot in zip(leaves, slots, strict=True)]
    arguments = _replace_floats(node, marks)
    if node.name in FILLS and not isinstance(arguments.get("value"), Tensor):
        arguments["value"] = 1.0
    walk.leak(node, first_relevance(upstream) * node.function(**arguments))


def pass_copy(walk: Walk, node: TapeNode, upstream: Upstream) -> Shares:
    """A tensor filled with the entries of another."""
    source = node.arguments["src"]
    if is_slot(source):
        return [(source.index, undo_broadcast(first_relevance(upstream), walk.value(source)))]
    walk.leak(node, first_relevance(upstream))
    return []


def pass_view(walk: Walk, node: TapeNode, upstream: Upstream) -> Shares:
    """A view of the same entries in the same order."""
    slot = node.arguments["self"]
    return [(slot.index, first_relevance(upstream).reshape(walk.value(slot).shape))]


def pass_restride(walk: Walk, node: TapeNode, upstream: Upstream) -> Shares:
    """A tensor with another memory layout and the same entries."""
    value = walk.value(node.arguments["self"])
    steps = zip(value.shape, value.stride(), node.arguments["stride"], strict=False)
    if list(value.shape) != list(node.arguments["size"]) or any(n > 1 and old != new for n, old, new in steps):
        raise node.error("reads memory in an order of its own")
    return pass_view(walk, node, upstream)


def _float_arguments(walk: Walk, node: TapeNode) -> tuple[list[Tensor], list[int | None]]:
    """Returns the floating-point tensors among the arguments in order, and their slots (None for constants)."""
    leaves = [leaf for leaf in tree_flatten(node.arguments)[0] if _is_float_or_slot(leaf)]
    return [walk.value(leaf) for leaf in leaves], [leaf.index if isinstance(leaf, Slot) else None for leaf in leaves]


def _is_float_or_slot(leaf: Any) -> bool:
    return isinstance(leaf, Slot) or (isinstance(leaf, Tensor) and leaf.is_floating_point())


def _replace_floats(node: TapeNode, leaves: Sequence[Tensor]) -> Arguments:
    """Returns the node's arguments with its floating-point tensors replaced, in order."""
    replacements = iter(leaves)
    return tree_map(lambda leaf: next(replacements) if _is_float_or_slot(leaf) else leaf, node.arguments)


def _apply_with_transpose(node: TapeNode, leaves: Sequence[Tensor]) -> tuple[Tensor, Callable[[Tensor], Sequence[Tensor]]]:
    """Returns the result of a linear operation on other floating-point tensors, and its transpose."""
    assert node.function is not None
    tracked = [leaf.detach().requires_grad_() for leaf in leaves]
    with torch.enable_grad():
        result = node.function(**_replace_floats(node, tracked))
    return result.detach(), lambda back: torch.autograd.grad(result, tracked, back)
