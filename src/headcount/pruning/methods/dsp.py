from __future__ import annotations

from dataclasses import KW_ONLY, dataclass, replace
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from headcount.core.errors import OptionError
from headcount.core.options import option
from headcount.models.state import copy_model
from headcount.pruning.base import Choice, PruneContext, Pruner, PrunerInfo
from headcount.pruning.gating import (
    TINY,
    UnitValues,
    check_starting_importance,
    count_kept_units,
    expand_to_heads,
    is_plan_fixed,
    logits_with_sigmoid_sum,
    mark_kept_units,
    mark_removable_units,
    ranks_as_starting_values,
    train_gates_and_unfrozen_weights,
    unit_of_each_head,
)
from headcount.pruning.training.gates import uniform_noise


def sample_relaxed_subset(w: UnitValues, n_chosen: int, tau: float, uniform: UnitValues) -> UnitValues:
    """Returns a relaxed sample of exactly `n_chosen` of the entries of w: it sums to `n_chosen`, and becomes ones and zeros as τ falls."""
    if n_chosen in (0, len(w)):
        return torch.full_like(w, float(n_chosen > 0)) + 0.0 * w
    r = w - torch.log(-torch.log(uniform))
    total = torch.zeros_like(w)
    p = torch.zeros_like(w)
    for turn in range(n_chosen):
        if turn:
            r = r + torch.log((1 - p).clamp(min=TINY))
        p = torch.softmax(r / tau, dim=0)
        total = total + p
    return total


def sample_relaxed_subset_by_shift(w: UnitValues, n_chosen: int, tau: float, uniform: UnitValues) -> UnitValues:
    """Returns such a sample by one shift of all entries, in a time that does not grow with `n_chosen`."""
    if n_chosen in (0, len(w)):
        return torch.full_like(w, float(n_chosen > 0)) + 0.0 * w
    return torch.sigmoid(logits_with_sigmoid_sum(w - torch.log(-torch.log(uniform)), n_chosen, tau))


@dataclass(frozen=True)
class DSP(Pruner):
    """Differentiable subset pruning: weights and head importances w train together; each step draws exactly K heads.

    The draws get harder as the temperature τ falls.

        r¹ = w − ln(−ln u),   p¹ = softmax(r¹/τ),   r^j = r^{j−1} + ln max(1 − p^{j−1}, tiny),   p^j = softmax(r^j/τ),   g = Σ_{j ≤ K} p^j

    in float64; τ falls geometrically from `tau` to `tau_end` over the first share `cool` of all steps, then
    stays; in the last share `settle` the plan is fixed and weights learn on. "joint" trains weights and w,
    "pipelined" w alone on frozen weights, "straight" sends the hard top K of w forward and the gradient
    straight back. "fast" replaces the K rounds by g = σ((r − θ)/τ) with θ such that Σ g = K, for models with
    thousands of heads. The published schedule starts at τ = 1000, where every gate is about K/N; by default it
    starts warmer, from gradient importance (`init`). Li, Cotterell & Sachan 2021.
    """

    variant: Literal["joint", "pipelined", "straight", "fast"] = option("joint", "What is trained, and how subsets are drawn")
    _: KW_ONLY
    tau: float = option(1.0, "Temperature of the first step", above=0)
    tau_end: float = option(1e-8, "Temperature once it has fallen", above=0)
    cool: float = option(0.5, "Share of the steps over which the temperature falls", above=0, maximum=1)
    rate: float = option(0.1, "Learning rate of w", minimum=0)
    init: str = option("gradient", "Importance that w starts from, or none")
    spread: float = option(2.0, "Standard deviation of w at the start", minimum=0)
    limit: int = option(512, "Calibration examples that the starting importance is measured on", minimum=1)
    settle: float = option(0.5, "Share of the steps at the end in which the plan is fixed and weights train on", minimum=0, below=1)
    info = PrunerInfo("Li, Cotterell & Sachan 2021", trains="weights")

    def __post_init__(self) -> None:
        super().__post_init__()
        check_starting_importance(self.init)
        if self.tau_end > self.tau:
            raise OptionError(
                f"tau_end of dsp must be at most tau, to which the temperature falls; got tau={self.tau} and tau_end={self.tau_end}"
            )
        if self.cool + self.settle > 1 + 1e-9:
            raise OptionError(
                f"cool={self.cool} and settle={self.settle} of dsp are more than all steps, so that the temperature would not have fallen when "
                "the plan is fixed; lower one of them"
            )

    def temperature(self, step: int, n_steps: int) -> float:
        """Returns the temperature of a step."""
        share = min(1.0, step / max(1.0, self.cool * n_steps))
        return self.tau * (self.tau_end / self.tau) ** share

    def choose(self, context: PruneContext) -> Choice:
        """Returns the plan and the trained model; of `pipelined`, the plan alone."""
        n_kept = count_kept_units(context)
        model = copy_model(context.model)
        is_frozen = self.variant == "pipelined"
        if is_frozen:
            model.requires_grad_(False)
        gates = SubsetGates(context, replace(self, settle=0.0) if is_frozen else self, n_kept)  # frozen weights need no time to settle
        trained = train_gates_and_unfrozen_weights(context, model, gates)
        values = expand_to_heads(gates.w.detach(), gates.index).tolist()
        return Choice(
            context.plan(values, "dsp"),
            None if is_frozen else model,
            history=trained.history,
            scores=context.scores(values, "dsp"),
            steps=trained.steps,
        )


class SubsetGates:
    """The importance w of every unit, and how subsets are drawn by it."""

    def __init__(self, context: PruneContext, pruner: DSP, n_kept: int) -> None:
        self.context, self.pruner, self.n_kept, self.index = context, pruner, n_kept, unit_of_each_head(context)
        self.w = ranks_as_starting_values(context, pruner.init, pruner.limit, pruner.spread).requires_grad_(True)
        self.removable = mark_removable_units(context)
        self.n_draws = n_kept - int((~self.removable).sum())  # how many of the removable units stay
        self._tau = pruner.tau

    @property
    def parameters(self) -> dict[str, Tensor]:
        """The trained parameters by name."""
        return {"w": self.w}

    def sample(self, step: int, n_steps: int) -> Float[Tensor, " heads"]:
        """Returns the gates of one step."""
        self._tau = self.pruner.temperature(step, n_steps)
        if is_plan_fixed(step, n_steps, self.pruner.settle):
            return self.gates_for_evaluation()
        if self.pruner.variant == "straight":
            return self.gates_for_evaluation() + expand_to_heads(self.w - self.w.detach(), self.index)
        draw = sample_relaxed_subset_by_shift if self.pruner.variant == "fast" else sample_relaxed_subset
        u = uniform_noise(self.context.seed, step, len(self.w))
        subset = draw(self.w[self.removable], self.n_draws, self._tau, u[self.removable])
        return expand_to_heads(torch.ones_like(self.w).masked_scatter(self.removable, subset), self.index)

    def gates_for_evaluation(self) -> Float[Tensor, " heads"]:
        """Returns ones for the K units with the highest w."""
        return expand_to_heads(mark_kept_units(self.context, self.w.detach(), self.n_kept), self.index)

    def penalty(self, _step: int, _n_steps: int) -> None:
        """Adds nothing to the loss: the number of heads is exact."""

    def gate_optimiser(self) -> torch.optim.Optimizer:
        """Returns Adam on w."""
        return torch.optim.Adam([self.w], lr=self.pruner.rate)

    def log_numbers(self) -> dict[str, float]:
        """Returns the temperature, the gap in w between the last head that stays and the first that goes, and how many heads are open.

        K are expected to be: the gates of every draw sum to it.
        """
        ordered = self.w.detach()[self.removable].sort(descending=True).values
        gap = float(ordered[self.n_draws - 1] - ordered[self.n_draws]) if 0 < self.n_draws < len(ordered) else 0.0
        n_expected = float(self.n_kept * len(self.index) / len(self.w))
        return {"tau": self._tau, "gap": gap, "open expected": n_expected, "open": float((self.gates_for_evaluation() > 0).sum())}
