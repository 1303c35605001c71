"""The mathematics of repair: least squares on sums of products, in float64. Pure tensor functions; no model here.

    W' = (G_KK + λ I)⁻¹ (X_Kᵀ Y + λ W_K),   G = Σ XᵀX,   λ = ridge · mean diagonal of G

X are the outputs of the heads that stay, with a column of ones where there is a bias, Y is what the dense block gives. λ does not hold the bias back.
W' has at most the error of W on the data of the fit, whatever λ is, since it minimises error + λ ‖W' − W‖².
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

RIDGES = (1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1, 1.0)
"""The candidates for `ridge` where there are data to check a fit on."""
UNCHECKED_RIDGE = 1e-3
"""The ridge where no data are left to choose it by: the data of the fit would always take the smallest."""


@dataclass(slots=True)
class Products:
    """Sums over tokens: G = XᵀX, C = XᵀY, and Σ Y²."""

    gram: Float[Tensor, "inputs inputs"]
    cross: Float[Tensor, "inputs outputs"]
    square: float = 0.0
    n_tokens: int = 0

    @classmethod
    def empty(cls, n_inputs: int, n_outputs: int, device: torch.device | None = None) -> Products:
        """Returns the sums over no token."""
        gram = torch.zeros(n_inputs, n_inputs, dtype=torch.float64, device=device)
        return cls(gram, torch.zeros(n_inputs, n_outputs, dtype=torch.float64, device=device))

    def add(self, inputs: Float[Tensor, "tokens inputs"], outputs: Float[Tensor, "tokens outputs"]) -> None:
        """Adds tokens to the sums."""
        x, y = inputs.double(), outputs.double()
        self.gram.addmm_(x.T, x)
        self.cross.addmm_(x.T, y)
        self.square += float((y * y).sum())
        self.n_tokens += len(x)

    def squared_error(self, weights: Float[Tensor, "inputs outputs"]) -> float:
        """Returns Σ ‖x W − y‖² over the tokens."""
        quadratic = (weights * (self.gram @ weights - 2 * self.cross)).sum()
        return max(float(quadratic) + self.square, 0.0)

    def mean_squared_error(self, weights: Float[Tensor, "inputs outputs"]) -> float:
        """Returns ‖x W − y‖², averaged over the tokens."""
        return self.squared_error(weights) / self.n_tokens


def append_ones(inputs: Float[Tensor, "tokens inputs"]) -> Float[Tensor, "tokens inputs+1"]:
    """Returns the inputs with a last column of ones, which stands for a bias."""
    return torch.cat([inputs, inputs.new_ones(len(inputs), 1)], dim=1)


def _absolute_ridge(diagonal: Float[Tensor, " inputs"], ridge: float) -> float:
    """Returns λ, `ridge` times the mean diagonal; 1 where that is zero: the data say nothing, and any λ leaves the weights as they are."""
    mean = float(diagonal.mean()) if len(diagonal) else 0.0
    return mean * ridge if mean * ridge > 0 else 1.0


def refit_weights(
    products: Products, old_weights: Float[Tensor, "inputs outputs"], ridge: float, *, has_bias: bool
) -> Float[Tensor, "inputs outputs"]:
    """Returns the weights with the least error, held near the old ones by `ridge` times G's mean diagonal; the last row is the bias, if any."""
    damping = _absolute_ridge(products.gram.diagonal()[: len(old_weights) - has_bias], ridge)
    penalties = torch.full((len(old_weights),), damping, dtype=torch.float64, device=products.gram.device)
    if has_bias:
        penalties[-1] = products.gram.diagonal()[-1] * 1e-12
    old = old_weights.double()
    residual = products.cross - products.gram @ old  # solving for the change alone leaves weights that fit exactly as they are
    return old + torch.linalg.solve(products.gram + torch.diag(penalties), residual)


def rescale_heads(
    products: Products, old_weights: Float[Tensor, "inputs outputs"], ridge: float, *, has_bias: bool, inputs_per_head: int
) -> Float[Tensor, "inputs outputs"]:
    """Returns the weights with each head's rows multiplied by one number: the least error, held near one by `ridge` times the mean diagonal."""
    rows = old_weights[: len(old_weights) - has_bias]
    n_heads = len(rows) // inputs_per_head
    if not n_heads:
        return old_weights.clone()
    shape = (n_heads, inputs_per_head)
    parts = rows.unflatten(0, shape)
    gram = products.gram[: len(rows), : len(rows)].unflatten(0, shape).unflatten(2, shape)
    effects = torch.einsum("ipjq,jqo->ijpo", gram, parts)  # what head j adds to the products of head i's inputs
    matrix = torch.einsum("ijpo,ipo->ij", effects, parts)
    cross = products.cross[: len(rows)]
    if has_bias:
        cross = cross - products.gram[: len(rows), -1:] * old_weights[-1:]
    target = (cross.unflatten(0, shape) * parts).sum((1, 2))
    damping = _absolute_ridge(matrix.diagonal(), ridge)
    gates = torch.linalg.solve(matrix + damping * torch.eye(n_heads, dtype=matrix.dtype, device=matrix.device), target + damping)
    scaled = (parts * gates[:, None, None]).flatten(0, 1)
    return torch.cat([scaled, old_weights[-1:]]) if has_bias else scaled


@dataclass(frozen=True, slots=True)
class FitResult:
    """The refitted weights of one projection, and mean squared errors per token before and after, on the data of the fit and of the check.

    `ridge` is None where the old weights did better on the check's data than any refit, and stay.
    """

    weights: Tensor
    ridge: float | None
    error_before: float
    error_after: float
    check_error_before: float
    check_error_after: float
    n_tokens: int


def fit_best_ridge(
    fitting: Products,
    checking: Products | None,
    old_weights: Float[Tensor, "inputs outputs"],
    *,
    has_bias: bool,
    ridge: float | None = None,
    inputs_per_head: int | None = None,
) -> FitResult:
    """Returns the best refit: that of the given `ridge`, or of the ridge with the least error on the check's data.

    The old weights stay where they have the least error there. With `inputs_per_head` only one number per head is fitted.
    """
    old = old_weights.double()
    ridges = (ridge,) if ridge is not None else (UNCHECKED_RIDGE,) if checking is None else RIDGES
    judge = fitting if checking is None else checking
    candidates: dict[float | None, Tensor] = {}
    for candidate in ridges:
        if inputs_per_head is None:
            candidates[candidate] = refit_weights(fitting, old, candidate, has_bias=has_bias)
        else:
            candidates[candidate] = rescale_heads(fitting, old, candidate, has_bias=has_bias, inputs_per_head=inputs_per_head)
    if ridge is None and checking is not None:
        candidates[None] = old
    best = min(candidates, key=lambda candidate: judge.squared_error(candidates[candidate]))
    return FitResult(
        weights=candidates[best],
        ridge=best,
        error_before=fitting.mean_squared_error(old),
        error_after=fitting.mean_squared_error(candidates[best]),
        check_error_before=judge.mean_squared_error(old),
        check_error_after=judge.mean_squared_error(candidates[best]),
        n_tokens=fitting.n_tokens,
    )
