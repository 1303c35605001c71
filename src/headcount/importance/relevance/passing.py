"""Helpers of the relevance rules of operations.

A rule takes the walk, the node and `upstream`, the relevance of the node's results (None for results that nothing reached). It returns the
relevance of each slot that the node read, and passes what constants and ε take to `walk.leak`, shaped like the result.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from headcount.importance.relevance.rules import Rule, share_sum, sum_of
from headcount.importance.relevance.tape import Node, Slot


class Walk(Protocol):
    """The walk as a rule sees it."""

    rule: Rule

    def value(self, argument: Any) -> Any:
        """The tensor that an argument stands for, in the precision of the walk; other arguments as they are."""
        ...

    def leak(self, node: Node, amount: Tensor) -> None:
        """Books relevance, shaped like the node's result, as taken by constants or ε."""
        ...


Upstream = Sequence[Tensor | None]
Shares = list[tuple[int, Tensor]]
Passing = Callable[[Walk, Node, Upstream], Shares]


def is_slot(argument: Any) -> bool:
    """Whether an argument carries relevance."""
    return isinstance(argument, Slot)


def fit(relevance: Tensor, like: Tensor) -> Tensor:
    """Sums relevance over the axes along which an operand was broadcast."""
    return relevance.sum_to_size(like.shape) if relevance.shape != like.shape else relevance


def first(upstream: Upstream) -> Tensor:
    """Returns the relevance of the first result."""
    assert upstream[0] is not None
    return upstream[0]


def clamp_finite(term: Tensor) -> Tensor:
    """Clamps infinities to large finite numbers: a mask of minus infinity would give 0 times infinity."""
    limit = torch.finfo(term.dtype).max / 8
    return term.clamp(min=-limit, max=limit)


def share(walk: Walk, node: Node, relevance: Tensor, arguments: list[Any], terms: list[Tensor]) -> Shares:
    """Shares relevance among elementwise terms; those of constants leak."""
    fractions, lost = share_sum(walk.rule, terms)
    for position, argument in enumerate(arguments):
        if not is_slot(argument) and len(terms) == 2:  # nothing was added where a constant, say a mask, is 0: no ε is due there
            absent = terms[position] == 0
            fractions[1 - position] = torch.where(absent, 1.0, fractions[1 - position])
            lost = torch.where(absent, 0.0, lost)
    taken = [(argument, relevance * fraction) for argument, fraction in zip(arguments, fractions, strict=True)]
    walk.leak(node, sum_of([relevance * lost, *(amount for argument, amount in taken if not is_slot(argument))]))
    return [(argument.index, fit(amount, walk.value(argument))) for argument, amount in taken if is_slot(argument)]
