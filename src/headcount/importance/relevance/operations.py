"""Relevance rules of operations without weights: activations, sums, products, and operations that only move entries.

A rule of an operation takes the walk, the node and `result_relevances`, the relevance of the node's results (None for a result that no
relevance reached). It returns the relevance of each slot that the node read, and books what constants and ε take with `walk.book_leakage`, shaped
like the result.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol, TypeGuard

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_map

from headcount.importance.relevance.rules import Rule, share_of_each_term, sum_tensors
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

    def value_of(self, argument: Any) -> Any:
        """Returns the tensor of an argument, in the precision of the walk; other arguments as they are."""
        ...

    def book_leakage(self, node: TapeNode, relevance: Tensor) -> None:
        """Books relevance, shaped like the node's result, as taken by constants or ε."""
        ...


ResultRelevances = Sequence[Tensor | None]
"""The relevance of each result of a node."""
SlotRelevances = list[tuple[int, Tensor]]
"""(slot, relevance) for each slot that a node read."""
OperationRule = Callable[[Walk, TapeNode, ResultRelevances], SlotRelevances]


def is_slot(argument: Any) -> TypeGuard[Slot]:
    """Whether an argument carries relevance."""
    return isinstance(argument, Slot)


def undo_broadcast(relevance: Tensor, operand: Tensor) -> Tensor:
    """Sums relevance over the axes along which an operand was broadcast."""
    return relevance.sum_to_size(operand.shape) if relevance.shape != operand.shape else relevance


def relevance_of_first_result(result_relevances: ResultRelevances) -> Tensor:
    """Returns the relevance of a node's first result."""
    assert result_relevances[0] is not None
    return result_relevances[0]


def clamp_finite(term: Tensor) -> Tensor:
    """Clamps infinities to large finite numbers: a mask of minus infinity would give 0 times infinity."""
    limit = torch.finfo(term.dtype).max / 8
    return term.clamp(min=-limit, max=limit)


def share_among_terms(walk: Walk, node: TapeNode, relevance: Tensor, arguments: list[Any], terms: list[Tensor]) -> SlotRelevances:
    """Shares relevance among the terms of an elementwise sum, one for each argument; those of constants leak."""
    shares = share_of_each_term(walk.rule, terms)
    fractions, lost = shares.of_terms, shares.lost
    for position, argument in enumerate(arguments):
        if not is_slot(argument) and len(terms) == 2:  # nothing was added where a constant, say a mask, is 0: no ε is due there
            absent = terms[position] == 0
            fractions[1 - position] = torch.where(absent, 1.0, fractions[1 - position])
            lost = torch.where(absent, 0.0, lost)
    amounts = [(argument, relevance * fraction) for argument, fraction in zip(arguments, fractions, strict=True)]
    walk.book_leakage(node, sum_tensors([relevance * lost, *(amount for argument, amount in amounts if not is_slot(argument))]))
    return [(argument.index, undo_broadcast(amount, walk.value_of(argument))) for argument, amount in amounts if is_slot(argument)]


def pass_to_input(walk: Walk, node: TapeNode, result_relevances: ResultRelevances) -> SlotRelevances:
    """Activations, softmax and copies: all relevance goes to the input."""
    slots = [(name, leaf) for name, leaf in node.arguments.items() if isinstance(leaf, Slot)]
    if len(slots) != 1 or slots[0][0] not in ("self", "input"):
        raise node.error("reads several activations where one was expected")
    slot = slots[0][1]
    return [(slot.index, undo_broadcast(relevance_of_first_result(result_relevances), walk.value_of(slot)))]


def pass_addition(walk: Walk, node: TapeNode, result_relevances: ResultRelevances) -> SlotRelevances:
    """A sum or a difference of two: shared among the terms."""
    relevance, sign = relevance_of_first_result(result_relevances), {"add": 1, "sub": -1, "rsub": 1}[node.name]
    operands = [node.arguments["self"], node.arguments["other"]]
    scale = node.arguments.get("alpha", 1)
    values = [walk.value_of(operand) for operand in operands]
    lhs, rhs = (
        clamp_finite(value if isinstance(value, Tensor) else torch.tensor(value, dtype=relevance.dtype, device=relevance.device))
        for value in values
    )
    return share_among_terms(walk, node, relevance, operands, [lhs * -scale if node.name == "rsub" else lhs, rhs * (sign * scale)])


def pass_product(walk: Walk, node: TapeNode, result_relevances: ResultRelevances) -> SlotRelevances:
    """A product: all relevance goes to the factor that is no constant; if none is, it is shared among the two."""
    relevance, factors = relevance_of_first_result(result_relevances), [node.arguments["self"], node.arguments["other"]]
    if all(map(is_slot, factors)):
        return share_among_terms(walk, node, relevance, factors, [clamp_finite(walk.value_of(factor)) for factor in factors])
    factor = factors[0] if is_slot(factors[0]) else factors[1]
    return [(factor.index, undo_broadcast(relevance, walk.value_of(factor)))]


def pass_quotient(walk: Walk, node: TapeNode, result_relevances: ResultRelevances) -> SlotRelevances:
    """A quotient by a constant, or by a sum over an axis that makes its parts add up to 1: all relevance goes to the numerator."""
    source, divisor = node.arguments["self"], node.arguments["other"]
    if is_slot(divisor):
        value = walk.value_of(source)
        if not is_slot(source) or walk.value_of(divisor).numel() >= value.numel():
            raise node.error("divides by an activation that is no statistic of a normalisation")
        return [(source.index, relevance_of_first_result(result_relevances))]
    return pass_product(walk, node, result_relevances)


def pass_glu(walk: Walk, node: TapeNode, result_relevances: ResultRelevances) -> SlotRelevances:
    """A gated linear unit u σ(w), u and w being halves of one input: shared among the two factors."""
    source, axis, relevance = node.arguments["self"], node.arguments.get("dim", -1), relevance_of_first_result(result_relevances)
    signal, gate = walk.value_of(source).chunk(2, axis)
    shares = share_of_each_term(walk.rule, [signal, gate.sigmoid()])
    walk.book_leakage(node, relevance * shares.lost)
    return [(source.index, torch.cat([relevance * share for share in shares.of_terms], axis))]


def pass_sum_or_pooling(walk: Walk, node: TapeNode, result_relevances: ResultRelevances) -> SlotRelevances:
    """A linear operation whose weights are not negative (sum, mean, pooling): shared among the terms."""
    relevance = relevance_of_first_result(result_relevances)
    leaves, slots = _float_arguments(walk, node)
    ups, downs = [leaf.clamp(min=0) for leaf in leaves], [leaf.clamp(max=0) for leaf in leaves]
    (positive, transpose_up), (negative, transpose_down) = _apply_with_transpose(node, ups), _apply_with_transpose(node, downs)
    factors = walk.rule.sharing_factors(positive, negative)
    high, low = relevance * factors.positive, relevance * factors.negative
    constant_up, constant_down = (  # what constants add to the positive and to the negative part
        _apply_with_transpose(node, [part if slot is None else torch.zeros_like(part) for part, slot in zip(parts, slots, strict=True)])[0]
        for parts in (ups, downs)
    )
    walk.book_leakage(node, relevance * factors.lost + constant_up * high + constant_down * low)
    terms = zip(slots, ups, transpose_up(high), downs, transpose_down(low), strict=True)
    return [(slot, up * of_up + down * of_down) for slot, up, of_up, down, of_down in terms if slot is not None]


def pass_indexed_addition(walk: Walk, node: TapeNode, result_relevances: ResultRelevances) -> SlotRelevances:
    """Terms added to some entries of a tensor, as experts add to their tokens: shared there; elsewhere all relevance goes to the tensor."""
    assert node.function is not None
    relevance, target = relevance_of_first_result(result_relevances), node.arguments["self"]
    leaves, _ = _float_arguments(walk, node)
    marks = [torch.zeros_like(leaves[0]), *map(torch.ones_like, leaves[1:])]
    untouched = torch.where(node.function(**_replace_floats(node, marks)) > 0, 0.0, relevance)
    shares = pass_sum_or_pooling(walk, node, [relevance - untouched])
    if is_slot(target):
        return [*shares, (target.index, untouched)]
    walk.book_leakage(node, untouched)
    return shares


def pass_moved_entries(walk: Walk, node: TapeNode, result_relevances: ResultRelevances) -> SlotRelevances:
    """An operation that only moves, copies or picks entries: relevance goes back to where each entry came from."""
    assert node.function is not None
    if node.arguments.get("accumulate"):
        return pass_indexed_addition(walk, node, result_relevances)
    floats = _float_arguments(walk, node)
    tracked = [leaf.clone().requires_grad_(slot is not None) for leaf, slot in zip(*floats, strict=True)]
    sources = [leaf for leaf in tracked if leaf.requires_grad]
    with torch.enable_grad():
        result = node.function(**_replace_floats(node, tracked))
    results = result if isinstance(result, list | tuple) else [result]
    pairs = [(out, part) for out, part in zip(results, result_relevances, strict=True) if part is not None]
    back = torch.autograd.grad([out for out, _ in pairs], sources, [part for _, part in pairs], allow_unused=True, materialize_grads=True)
    _leak_filled_entries(walk, node, floats, result_relevances)
    return list(zip((slot for slot in floats.slots if slot is not None), back, strict=True))


def _leak_filled_entries(walk: Walk, node: TapeNode, floats: _FloatArguments, result_relevances: ResultRelevances) -> None:
    """Books the relevance of entries that a moving operation filled from constants."""
    if node.name not in FILLS and all(slot is not None for slot in floats.slots):
        return
    assert node.function is not None
    marks = [torch.zeros_like(leaf) if slot is not None else torch.ones_like(leaf) for leaf, slot in zip(*floats, strict=True)]
    arguments = _replace_floats(node, marks)
    if node.name in FILLS and not isinstance(arguments.get("value"), Tensor):
        arguments["value"] = 1.0
    walk.book_leakage(node, relevance_of_first_result(result_relevances) * node.function(**arguments))


def pass_copy_into_tensor(walk: Walk, node: TapeNode, result_relevances: ResultRelevances) -> SlotRelevances:
    """A tensor filled with the entries of another."""
    source = node.arguments["src"]
    if is_slot(source):
        return [(source.index, undo_broadcast(relevance_of_first_result(result_relevances), walk.value_of(source)))]
    walk.book_leakage(node, relevance_of_first_result(result_relevances))
    return []


def pass_view(walk: Walk, node: TapeNode, result_relevances: ResultRelevances) -> SlotRelevances:
    """A view of the same entries in the same order."""
    slot = node.arguments["self"]
    return [(slot.index, relevance_of_first_result(result_relevances).reshape(walk.value_of(slot).shape))]


def pass_as_strided(walk: Walk, node: TapeNode, result_relevances: ResultRelevances) -> SlotRelevances:
    """A tensor with another memory layout and the same entries."""
    value = walk.value_of(node.arguments["self"])
    steps = zip(value.shape, value.stride(), node.arguments["stride"], strict=False)
    if list(value.shape) != list(node.arguments["size"]) or any(n > 1 and old != new for n, old, new in steps):
        raise node.error("reads memory in an order of its own")
    return pass_view(walk, node, result_relevances)


class _FloatArguments(NamedTuple):
    """The floating-point tensors among the arguments of an operation, in order, and their slots (None for constants)."""

    values: list[Tensor]
    slots: list[int | None]


def _float_arguments(walk: Walk, node: TapeNode) -> _FloatArguments:
    """Returns the floating-point arguments of an operation, as the walk sees them."""
    leaves = [leaf for leaf in tree_flatten(node.arguments)[0] if _is_float_or_slot(leaf)]
    return _FloatArguments([walk.value_of(leaf) for leaf in leaves], [leaf.index if isinstance(leaf, Slot) else None for leaf in leaves])


def _is_float_or_slot(leaf: Any) -> bool:
    return isinstance(leaf, Slot) or (isinstance(leaf, Tensor) and leaf.is_floating_point())


def _replace_floats(node: TapeNode, float_values: Sequence[Tensor]) -> Arguments:
    """Returns the node's arguments with its floating-point tensors replaced, in order."""
    replacements = iter(float_values)
    return tree_map(lambda leaf: next(replacements) if _is_float_or_slot(leaf) else leaf, node.arguments)


def _apply_with_transpose(node: TapeNode, float_values: Sequence[Tensor]) -> tuple[Tensor, Callable[[Tensor], Sequence[Tensor]]]:
    """Returns the result of a linear operation on other floating-point tensors, and its transpose."""
    assert node.function is not None
    tracked = [value.detach().requires_grad_() for value in float_values]
    with torch.enable_grad():
        result = node.function(**_replace_floats(node, tracked))
    return result.detach(), lambda back: torch.autograd.grad(result, tracked, back)
