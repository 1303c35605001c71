"""Repair-aware choice: which heads can go at the least cost once the rest of the block has been refitted (structured optimal brain surgeon).

    cost of unit u = tr( [(G⁻¹)_uu]⁻¹ W_u M W_uᵀ ) / N,   then   W ← W − G⁻¹_{:,u} [(G⁻¹)_uu]⁻¹ W_u,   G⁻¹ ← G⁻¹ − G⁻¹_{:,u} [(G⁻¹)_uu]⁻¹ G⁻¹_{u,:}

G = Σ xᵀx over the tokens of N examples, x the inputs of the output projection and a one, which is never removed; M = Σ g gᵀ / tokens, g the gradient
of an example's loss with respect to the block's output. With δ what the block's output changes by, the cost is the mean over examples of
Σ_tokens (g·δ)², if g and δ are independent: twice the rise of the loss, to second order, in the same unit for all blocks. With M = I and N = 1 the
accumulated cost is the squared error of a direct refit. Hassibi & Stork 1993; second moments of gradients as in Kwon et al. 2022.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

JITTER = 1e-8


@dataclass(slots=True)
class Surgeon:
    """One block on its way: the inverse of G and the refitted weights, for the inputs that are left."""

    inverse: Float[Tensor, "inputs inputs"]
    weights: Float[Tensor, "inputs outputs"]
    metric: Float[Tensor, "outputs outputs"]
    units: dict[int, list[int]]
    n: int
    spent: float = 0.0

    @classmethod
    def of(
        cls,
        gram: Float[Tensor, "inputs inputs"],
        weights: Float[Tensor, "inputs outputs"],
        metric: Float[Tensor, "outputs outputs"],
        units: Sequence[Sequence[int]],
        n: int,
    ) -> Surgeon:
        """The state before anything is removed; `units` are the inputs that go together."""
        gram = gram.double()
        mean = float(gram.diagonal().mean())
        held = torch.eye(len(gram), dtype=torch.float64, device=gram.device) * (mean * JITTER if mean > 0 else 1.0)
        inverse = torch.cholesky_inverse(torch.linalg.cholesky(gram + held))
        return cls(inverse, weights.double().clone(), metric.double(), {i: list(unit) for i, unit in enumerate(units)}, n)

    def costs(self) -> dict[int, float]:
        """What the removal of each unit that is left would cost now."""
        return {unit: self._cost(rows) for unit, rows in self.units.items()}

    def _cost(self, rows: list[int]) -> float:
        part = torch.linalg.solve(self.inverse[rows][:, rows], self.weights[rows])
        return max(float((part * (self.weights[rows] @ self.metric)).sum()) / self.n, 0.0)

    def remove(self, unit: int) -> float:
        """Removes a unit and refits the others; what it cost."""
        rows = self.units.pop(unit)
        cost = self._cost(rows)
        solved = torch.linalg.solve(self.inverse[rows][:, rows], torch.cat([self.weights[rows], self.inverse[rows]], dim=1))
        column = self.inverse[:, rows]
        outputs = self.weights.shape[1]
        self.weights -= column @ solved[:, :outputs]
        self.inverse -= column @ solved[:, outputs:]
        self.weights[rows] = 0
        self.inverse[rows] = 0
        self.inverse[:, rows] = 0
        self.spent += cost
        return cost
