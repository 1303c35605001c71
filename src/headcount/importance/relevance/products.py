"""Sums of products: linear layers and convolutions, where one factor is a constant, and attention's QKᵀ and PV, where none is.

The term a b of a sum gets its share of the sum's relevance. With a constant factor the other one takes it whole; otherwise the two share it
as a product does. The second kind has a share for every (row, inner, column) and is worked off in pieces.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from headcount.importance.relevance.rules import Rule

PIECE = 1 << 19
"""How many terms are in memory at a time; a piece should stay in the cache."""

Linear = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True, slots=True)
class Split:
    """A sum's relevance, given to two factors of its terms; `leaked` is shaped like the sum."""

    lhs: Tensor
    rhs: Tensor
    leaked: Tensor


def share_linear(rule: Rule, apply: Linear, x: Tensor, weight: Tensor, constant: Tensor, relevance: Tensor) -> tuple[Tensor, Tensor]:
    """(relevance of x, what leaked) for v = apply(x, weight) + constant, a map linear in both."""
    up, down = x.clamp(min=0), x.clamp(max=0)
    (up_pos, pull_pos), (up_neg, pull_neg) = (_transposable(apply, up, part) for part in (weight.clamp(min=0), weight.clamp(max=0)))
    positive = up_pos + apply(down, weight.clamp(max=0)) + constant.clamp(min=0)
    negative = up_neg + apply(down, weight.clamp(min=0)) + constant.clamp(max=0)
    factors = rule.factors(positive, negative)
    high, low = relevance * factors.positive, relevance * factors.negative
    share = up * (pull_pos(high) + pull_neg(low)) + down * (pull_neg(high) + pull_pos(low))
    return share, relevance * factors.lost + constant.clamp(min=0) * high + constant.clamp(max=0) * low


def _transposable(apply: Linear, x: Tensor, weight: Tensor) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
    """The map's result, and its transpose."""
    leaf = x.detach().requires_grad_()
    with torch.enable_grad():
        result = apply(leaf, weight)
    return result.detach(), lambda back: torch.autograd.grad(result, leaf, back, retain_graph=True)[0]


def share_product(
    rule: Rule,
    lhs: Float[Tensor, "n row inner"],
    rhs: Float[Tensor, "n inner column"],
    constant: Float[Tensor, "n row column"],
    relevance: Float[Tensor, "n row column"],
    scale: float = 1.0,
) -> Split:
    """The relevance of v = scale left @ right + constant, scale > 0, shared among the terms and, in each, among its two factors."""
    (a_up, a_down), (b_up, b_down) = ((t.clamp(min=0), t.clamp(max=0)) for t in (lhs, rhs))
    factors = rule.factors(
        (a_up @ b_up + a_down @ b_down) * scale + constant.clamp(min=0),
        (a_up @ b_down + a_down @ b_up) * scale + constant.clamp(max=0),
    )
    high, low = relevance * factors.positive, relevance * factors.negative
    split = Split(
        torch.zeros_like(lhs),
        torch.zeros_like(rhs),
        relevance * factors.lost + constant.clamp(min=0) * high + constant.clamp(max=0) * low,
    )
    columns, back = rhs.transpose(1, 2), split.rhs.transpose(1, 2)
    for n, rows in _pieces(lhs, rhs):
        to_lhs, to_rhs, lost = _piece(rule, lhs[n, rows], columns[n], scale * high[n, rows], scale * low[n, rows])
        split.lhs[n, rows] += to_lhs
        back[n] += to_rhs
        split.leaked[n, rows] += lost
    return split


def _pieces(lhs: Tensor, rhs: Tensor) -> Iterator[tuple[slice, slice]]:
    """Slices of (n, row) with at most PIECE terms each, or a single row."""
    count, n_rows, inner = lhs.shape
    per_row = max(1, inner * rhs.shape[2])
    rows = max(1, min(n_rows, PIECE // per_row))
    stacked = max(1, PIECE // (per_row * rows)) if rows == n_rows else 1
    for n in range(0, count, stacked):
        for row in range(0, n_rows, rows):
            yield slice(n, n + stacked), slice(row, row + rows)


def _piece(rule: Rule, lhs: Tensor, columns: Tensor, high: Tensor, low: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """One piece: relevance of the left rows, of the right columns, and what is lost per (row, column)."""
    a, b = lhs.unsqueeze(2), columns.unsqueeze(1)  # [n, row, 1, inner], [n, 1, column, inner]
    term = a * b
    term.mul_(torch.where(term > 0, high.unsqueeze(-1), low.unsqueeze(-1)))
    part, lost = rule.halves(a, b)
    to_lhs = part.mul_(term)
    missing = torch.zeros_like(high) if lost is None else lost.mul_(term)
    to_rhs = term - to_lhs if lost is None else term.sub_(to_lhs).sub_(missing)
    return to_lhs.sum(2), to_rhs.sum(1), missing if lost is None else missing.sum(3)
