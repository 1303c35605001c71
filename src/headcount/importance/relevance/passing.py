"""What the rules of the operations share.

A rule takes the walk, the node and the relevance of its results (None where nothing reached one), and returns the relevance of each slot
that the node read; what constants and ε take it hands to `walk.leak`, shaped like the result.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from headcount.importance.relevance.rules import Rule, share_sum, sum_of
from headcount.importance.relevance.tape import Node, Slot


class Walk(Protocol):
    """What a rule needs to know of the walk."""

    rule: Rule

    def value(self, argument: Any) -> Any:
        """The tensor that an argument stands for, in the precision of the walk; other arguments as they are."""
        ...

    def leak(self, node: Node, amount: Tensor) -> None:
        """Books relevance, shaped like the node's result, as taken by constants or ε."""
        ...


Given = Sequence[Tensor | None]
Shares = list[tuple[int, Tensor]]
Passing = Callable[[Walk, Node, Given], Shares]


def is_slot(argument: Any) -> bool:
    """Whether an argument carries relevance."""
    return isinstance(argument, Slot)


def fit(relevance: Tensor, like: Tensor) -> Tensor:
    """Relevance summed over the axes along which an operand was broadcast."""
    return relevance.sum_to_size(like.shape) if relevance.shape != like.shape else relevance


def first(given: Given) -> Tensor:
    """The relevance of the main result."""
    assert given[0] is not None
    return given[0]


def bounded(term: Tensor) -> Tensor:
    """A term without infinities: a mask of minus infinity would make 0 times infinity."""
    limit = torch.finfo(term.dtype).max / 8
    return term.clamp(min=-limit, max=limit)


def share(walk: Walk, node: Node, relevance: Tensor, arguments: list[Any], terms: list[Tensor]) -> Shares:
    """Shares relevance among elementwise terms; those of constants leak."""
    fractions, lost = share_sum(walk.rule, terms)
    for place, argument in enumerate(arguments):
        if not is_slot(argument) and len(terms) == 2:  # nothing was added where a constant, say a mask, is 0: no ε is due there
            absent = terms[place] == 0
            fractions[1 - place] = torch.where(absent, 1.0, fractions[1 - place])
            lost = torch.where(absent, 0.0, lost)
    taken = [(argument, relevance * fraction) for argument, fraction in zip(arguments, fractions, strict=True)]
    walk.leak(node, sum_of([relevance * lost, *(amount for argument, amount in taken if not is_slot(argument))]))
    return [(argument.index, fit(amount, walk.value(argument))) for argument, amount in taken if is_slot(argument)]
