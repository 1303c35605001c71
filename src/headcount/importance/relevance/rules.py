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
from typing import Literal, NamedTuple, Protocol

import torch
from torch import Tensor

from headcount.core.errors import HeadcountError, UnknownName

RuleName = Literal["epsilon", "alpha-beta"]


class RelevanceError(HeadcountError, ValueError):
    """An argument of relevance propagation is out of range, or relevance is not finite."""


@dataclass(frozen=True, slots=True)
class SharingFactors:
    """The factors q⁺ and q⁻ of positive and negative terms, and the fraction of the relevance that no term gets."""

    positive: Tensor
    negative: Tensor
    lost: Tensor

    def share_of_term(self, term: Tensor) -> Tensor:
        """Returns the share of a term."""
        return term * torch.where(term > 0, self.positive, self.negative)


class FactorShare(NamedTuple):
    """The share that the first factor of a product of two gets, and the share that neither gets; None if nothing is lost."""

    of_first: Tensor
    lost: Tensor | None


class SumShares(NamedTuple):
    """The share of every term of an elementwise sum, and the share that no term gets; together they are 1."""

    of_terms: list[Tensor]
    lost: Tensor


class Rule(Protocol):
    """A way to share the relevance of a sum."""

    def sharing_factors(self, positive_sum: Tensor, negative_sum: Tensor) -> SharingFactors:
        """Returns the factors of a sum from the sums of its positive and of its negative terms; always finite."""
        ...

    def share_of_first_factor(self, lhs: Tensor, rhs: Tensor) -> FactorShare:
        """Returns the share of the first factor of a product of two, and the share that is lost (None: nothing); not both factors may be 0."""
        ...


@dataclass(frozen=True, slots=True)
class Epsilon:
    """The ε rule: shares keep their sign; ε takes ε / (|z| + ε)."""

    epsilon: float

    def sharing_factors(self, positive_sum: Tensor, negative_sum: Tensor) -> SharingFactors:
        """Returns q⁺ = q⁻ = 1 / (z + ε sign z)."""
        total = positive_sum + negative_sum
        push = torch.where(total < 0, -self.epsilon, self.epsilon).to(total.dtype)
        factor = 1 / (total + push)
        return SharingFactors(factor, factor, push * factor)

    def share_of_first_factor(self, lhs: Tensor, rhs: Tensor) -> FactorShare:
        """Returns a / (a + b + ε sign (a + b)), and what ε takes."""
        total = lhs + rhs
        push = torch.where(total < 0, -self.epsilon, self.epsilon).to(total.dtype)
        factor = (total + push).reciprocal_()
        return FactorShare(lhs * factor, push.mul_(factor))


@dataclass(frozen=True, slots=True)
class AlphaBeta:
    """The αβ rule: every share is at least 0; a sum of nothing but zeros loses all."""

    alpha: float

    def sharing_factors(self, positive_sum: Tensor, negative_sum: Tensor) -> SharingFactors:
        """Returns q⁺ = α / z⁺ and q⁻ = β / z⁻."""
        # Below this a sum counts as absent, since relevance divided by it would overflow.
        floor = torch.finfo(positive_sum.dtype).tiny * 1e8
        above, below = positive_sum > floor, negative_sum < -floor
        up = torch.where(below, self.alpha, 1.0).to(positive_sum.dtype) / torch.where(above, positive_sum, torch.inf)
        down = torch.where(above, 1 - self.alpha, 1.0).to(positive_sum.dtype) / torch.where(below, negative_sum, -torch.inf)
        return SharingFactors(up, down, (~(above | below)).to(positive_sum.dtype))

    def share_of_first_factor(self, lhs: Tensor, rhs: Tensor) -> FactorShare:
        """Returns |a| / (|a| + |b|) if the signs agree, else α if the first factor is positive and β if it is negative."""
        floor = torch.finfo(lhs.dtype).tiny
        part = lhs.abs() / (lhs.abs() + rhs.abs().clamp(min=floor))
        signs_differ = (lhs < 0) != (rhs < 0)
        return FactorShare(torch.where(signs_differ, torch.where(lhs < 0, 1 - self.alpha, self.alpha).to(lhs.dtype), part), None)


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


def share_of_each_term(rule: Rule, terms: Sequence[Tensor]) -> SumShares:
    """Returns the share of every term of an elementwise sum, and the share that is lost; together they are 1."""
    factors = rule.sharing_factors(sum_tensors(t.clamp(min=0) for t in terms), sum_tensors(t.clamp(max=0) for t in terms))
    return SumShares([factors.share_of_term(term) for term in terms], factors.lost)


def sum_tensors(terms: Iterable[Tensor]) -> Tensor:
    """Returns the sum of tensors, broadcast."""
    total, *further = terms
    for term in further:
        total = total + term
    return total
