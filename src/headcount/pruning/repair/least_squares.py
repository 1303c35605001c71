"""The mathematics of repair: least squares on sums of products, in float64. Pure tensor functions; no model here.

    W' = (G_KK + λ I)⁻¹ (X_Kᵀ Y + λ W_K),   G = Σ XᵀX,   λ = share · mean diagonal of G

X are the outputs of the heads that stay, with a column of ones where there is a bias, Y is what the dense block gives. λ does not hold the bias back.
W' has at most the error of W on the data of the fit, whatever λ is, since it minimises error + λ ‖W' − W‖².
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

SHARES = (1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1, 1.0)
UNCHECKED = 1e-3
"""The share where no data are left to choose it by: the data of the fit would always take the smallest."""


@dataclass(slots=True)
class Products:
    """Sums over tokens: G = XᵀX, C = XᵀY, and Σ Y²; `n` tokens."""

    gram: Float[Tensor, "inputs inputs"]
    cross: Float[Tensor, "inputs outputs"]
    square: float = 0.0
    n: int = 0

    @classmethod
    def empty(cls, n_inputs: int, n_outputs: int, device: torch.device | None = None) -> Products:
        """No token yet."""
        made = {"dtype": torch.float64, "device": device}
        return cls(torch.zeros(n_inputs, n_inputs, **made), torch.zeros(n_inputs, n_outputs, **made))

    def add(self, inputs: Float[Tensor, "tokens inputs"], outputs: Float[Tensor, "tokens outputs"]) -> None:
        """Adds tokens."""
        x, y = inputs.double(), outputs.double()
        self.gram.addmm_(x.T, x)
        self.cross.addmm_(x.T, y)
        self.square += float((y * y).sum())
        self.n += len(x)

    def error(self, weights: Float[Tensor, "inputs outputs"]) -> float:
        """Σ ‖x W − y‖² over the tokens."""
        fitted = (weights * (self.gram @ weights - 2 * self.cross)).sum()
        return max(float(fitted) + self.square, 0.0)


def with_ones(inputs: Float[Tensor, "tokens inputs"]) -> Float[Tensor, "tokens inputs+1"]:
    """The inputs and a column of ones behind them."""
    return torch.cat([inputs, inputs.new_ones(len(inputs), 1)], dim=1)


def _held(diagonal: Float[Tensor, " inputs"], share: float) -> float:
    """λ, a share of the mean diagonal; where all of that is zero data say nothing, and any λ keeps what there is."""
    mean = float(diagonal.mean()) if len(diagonal) else 0.0
    return mean * share if mean * share > 0 else 1.0


def solve(products: Products, weights: Float[Tensor, "inputs outputs"], share: float, *, bias: bool) -> Float[Tensor, "inputs outputs"]:
    """The weights with the least error, held near the old ones by a `share` of G's mean diagonal; the last row is the bias, if there is one."""
    held = _held(products.gram.diagonal()[: len(weights) - bias], share)
    ridge = torch.full((len(weights),), held, dtype=torch.float64, device=products.gram.device)
    if bias:
        ridge[-1] = products.gram.diagonal()[-1] * 1e-12
    old = weights.double()
    missing = products.cross - products.gram @ old  # solving for the change alone leaves weights that fit exactly as they are
    return old + torch.linalg.solve(products.gram + torch.diag(ridge), missing)


@dataclass(frozen=True, slots=True)
class Fitted:
    """What came of a fit: weights, and mean squared errors per token before and after, on the fit's data and the check's.

    `share` is what λ was, None where the old weights did better on the check's data than any refit, and were kept.
    """

    weights: Tensor
    share: float | None
    before: float
    after: float
    check_before: float
    check_after: float
    n: int


def solve_gates(
    products: Products, weights: Float[Tensor, "inputs outputs"], share: float, *, bias: bool, size: int
) -> Float[Tensor, "inputs outputs"]:
    """The weights with each head's part, `size` inputs, multiplied by one number: the least error, held near one by a share of the mean diagonal."""
    rows = weights[: len(weights) - bias]
    n_heads = len(rows) // size
    if not n_heads:
        return weights.clone()
    parts = rows.unflatten(0, (n_heads, size))
    gram = products.gram[: len(rows), : len(rows)].unflatten(0, (n_heads, size)).unflatten(2, (n_heads, size))
    felt = torch.einsum("ipjq,jqo->ijpo", gram, parts)  # what head j adds to the products of head i's inputs
    matrix = torch.einsum("ijpo,ipo->ij", felt, parts)
    wanted = products.cross[: len(rows)]
    if bias:
        wanted = wanted - products.gram[: len(rows), -1:] * weights[-1:]
    aim = (wanted.unflatten(0, (n_heads, size)) * parts).sum((1, 2))
    held = _held(matrix.diagonal(), share)
    gates = torch.linalg.solve(matrix + held * torch.eye(n_heads, dtype=matrix.dtype, device=matrix.device), aim + held)
    scaled = (parts * gates[:, None, None]).flatten(0, 1)
    return torch.cat([scaled, weights[-1:]]) if bias else scaled


def fit(
    fitting: Products,
    checking: Products | None,
    weights: Float[Tensor, "inputs outputs"],
    *,
    bias: bool,
    share: float | None = None,
    per_head: int | None = None,
) -> Fitted:
    """The best refit: λ is the one with the least error on the check's data, or the `share` that is given.

    The old weights are kept where they have the least error there. With `per_head`, the number of a head's inputs, only one number per head is
    fitted.
    """
    old = weights.double()
    shares = (share,) if share is not None else (UNCHECKED,) if checking is None else SHARES
    judge = fitting if checking is None else checking

    def solved(one: float) -> Tensor:
        if per_head is not None:
            return solve_gates(fitting, old, one, bias=bias, size=per_head)
        return solve(fitting, old, one, bias=bias)

    made: dict[float | None, Tensor] = {one: solved(one) for one in shares}
    if share is None and checking is not None:
        made[None] = old
    best = min(made, key=lambda one: judge.error(made[one]))
    return Fitted(
        weights=made[best],
        share=best,
        before=fitting.error(old) / fitting.n,
        after=fitting.error(made[best]) / fitting.n,
        check_before=judge.error(old) / judge.n,
        check_after=judge.error(made[best]) / judge.n,
        n=fitting.n,
    )
