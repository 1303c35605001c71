"""How the relevance of a sum is shared among its terms.

A sum z = z⁺ + z⁻ of positive and negative terms gives the term c the share c⁺ q⁺ + c⁻ q⁻ of its relevance, with

    ε rule (Bach et al. 2015; Ding et al. 2017):   q⁺ = q⁻ = 1 / (z + ε sign z)
    αβ rule (Bach et al. 2015; Voita et al. 2019): q⁺ = α / z⁺, q⁻ = β / z⁻, β = 1 - α; where one sign is absent, the other has weight 1

A product shares among its factors as if they were terms: u / Σu'.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Literal, Protocol

import torch
from torch import Tensor

from headcount.core.errors import HeadcountError, UnknownName

RuleName = Literal["epsilon", "alpha-beta"]


class RelevanceError(HeadcountError, ValueError):
    """An argument of relevance propagation is out of range, or relevance is not finite."""


@dataclass(frozen=True, slots=True)
class Factors:
    """The factors q⁺ and q⁻ of positive and negative terms, and the fraction of the relevance that no term gets."""

    positive: Tensor
    negative: Tensor
    lost: Tensor

    def share_of(self, term: Tensor) -> Tensor:
        """Returns the share of a term."""
        return term * torch.where(term > 0, self.positive, self.negative)


class Rule(Protocol):
    """A way to share the relevance of a sum."""

    def factors(self, positive: Tensor, negative: Tensor) -> Factors:
        """Returns the factors of a sum from the sums of its positive and of its negative terms; always finite."""
        ...

    def first_factor_share(self, lhs: Tensor, rhs: Tensor) -> tuple[Tensor, Tensor | None]:
        """Returns the share of the first factor of a product of two, and the share that is lost (None: nothing); not both factors may be 0."""
        ...


@dataclass(frozen=True, slots=True)
class Epsilon:
    """The ε rule: shares keep their sign; ε takes ε / (|z| + ε)."""

    epsilon: float

    def factors(self, positive: Tensor, negative: Tensor) -> Factors:
        """Returns q⁺ = q⁻ = 1 / (z + ε sign z)."""
        total = positive + negative
        push = torch.where(total < 0, -self.epsilon, self.epsilon).to(total.dtype)
        factor = 1 / (total + push)
        return Factors(factor, factor, push * factor)

    def first_factor_share(self, lhs: Tensor, rhs: Tensor) -> tuple[Tensor, Tensor | None]:
        """Returns a / (a + b + ε sign (a + b)), and what ε takes."""
        total = lhs + rhs
        push = torch.where(total < 0, -self.epsilon, self.epsilon).to(total.dtype)
        factor = (total + push).reciprocal_()
        return lhs * factor, push.mul_(factor)


@dataclass(frozen=True, slots=True)
class AlphaBeta:
    """The αβ rule: every share is at least 0; a sum of nothing but zeros loses all."""

    alpha: float

    def factors(self, positive: Tensor, negative: Tensor) -> Factors:
        """Returns q⁺ = α / z⁺ and q⁻ = β / z⁻."""
        # Below this a sum counts as absent, since relevance divided by it would overflow.
        floor = torch.finfo(positive.dtype).tiny * 1e8
        above, below = positive > floor, negative < -floor
        up = torch.where(below, self.alpha, 1.0).to(positive.dtype) / torch.where(above, positive, torch.inf)
        down = torch.where(above, 1 - self.alpha, 1.0).to(positive.dtype) / torch.where(below, negative, -torch.inf)
        return Factors(up, down, (~(above | below)).to(positive.dtype))

    def first_factor_share(self, lhs: Tensor, rhs: Tensor) -> tuple[Tensor, Tensor | None]:
        """Returns |a| / (|a| + |b|) if the signs agree, else α if the first factor is positive and β if it is negative."""
        floor = torch.finfo(lhs.dtype).tiny
        part = lhs.abs() / (lhs.abs() + rhs.abs().clamp(min=floor))
        signs_differ = (lhs < 0) != (rhs < 0)
        return torch.where(signs_differ, torch.where(lhs < 0, 1 - self.alpha, self.alpha).to(lhs.dtype), part), None


def make_rule(name: RuleName, epsilon: float, alpha: float) -> Rule:
    """Returns the rule of a name.

    Raises:
        UnknownName: there is no such rule.
        RelevanceError: epsilon or alpha is out of range.
    """
    if name == "epsilon":
        if not (isfinite(epsilon) and epsilon > 0):
            raise RelevanceError(f"epsilon must be a positive number, got {epsilon}; 1e-3 is the default")
        return Epsilon(epsilon)
    if name == "alpha-beta":
        if not 0 <= alpha <= 1:
            raise RelevanceError(f"alpha must lie between 0 and 1, got {alpha}; beta is 1 - alpha, and Voita et al. 2019 take 0.5")
        return AlphaBeta(alpha)
    raise UnknownName(f"no relevance rule {name!r}. Known: alpha-beta, epsilon")


def share_sum(rule: Rule, terms: Sequence[Tensor]) -> tuple[list[Tensor], Tensor]:
    """Returns the share of every term of an elementwise sum, and the share that is lost; together they are 1."""
    factors = rule.factors(sum_tensors(t.clamp(min=0) for t in terms), sum_tensors(t.clamp(max=0) for t in terms))
    return [factors.share_of(term) for term in terms], factors.lost


def sum_tensors(terms: Iterable[Tensor]) -> Tensor:
    """Returns the sum of tensors, broadcast."""
    total, *further = terms
    for term in further:
        total = total + term
    return total
