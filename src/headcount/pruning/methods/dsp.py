"""Differentiable subset pruning: exactly K heads are drawn at every step, ever harder, while weights and the importance w of heads learn together.

    r¹ = w − ln(−ln u),   p¹ = softmax(r¹/τ),   r^j = r^{j−1} + ln max(1 − p^{j−1}, tiny),   p^j = softmax(r^j/τ),   g = Σ_{j ≤ K} p^j

in float64; τ falls geometrically from `tau` to `tau_end` over the first share `cool` of all steps, then stays; in the last share `settle` the plan
is fixed and weights learn on. "joint" trains weights and w, "pipelined" w alone on
frozen weights, "straight" sends the hard top K of w forward and the gradient straight back. "fast" replaces the K rounds by g = σ((r − θ)/τ) with θ
such that Σ g = K, for models with thousands of heads. The published schedule starts at τ = 1000, where every gate is about K/N; by default it starts
warmer, from gradient importance (`init`). Li, Cotterell & Sachan 2021.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from headcount.core.errors import PlanError
from headcount.models.state import copy_model
from headcount.pruning.base import About, Choice, Work
from headcount.pruning.gating import TINY, by_head, check_shares, free_units, is_settled, levelled, start_from, stay, unit_index, units_kept
from headcount.pruning.training.fine_tune import fine_tune
from headcount.pruning.training.gates import GateCallback, noise

ABOUT = About(
    source="Li, Cotterell & Sachan 2021",
    trains="weights",
    variants=("joint", "pipelined", "straight", "fast"),
    options={
        "tau": 1.0,
        "tau_end": 1e-8,
        "cool": 0.5,
        "rate": 0.1,
        "init": "gradient",
        "spread": 2.0,
        "limit": 512,
        "settle": 0.5,
    },
)


def subset(w: Tensor, number: int, tau: float, u: Tensor) -> Tensor:
    """A relaxed sample of exactly `number` of the entries of w: sums to it, and becomes ones and zeros as τ falls."""
    if number in (0, len(w)):
        return torch.full_like(w, float(number > 0)) + 0.0 * w
    r = w - torch.log(-torch.log(u))
    total = torch.zeros_like(w)
    p = torch.zeros_like(w)
    for turn in range(number):
        if turn:
            r = r + torch.log((1 - p).clamp(min=TINY))
        p = torch.softmax(r / tau, dim=0)
        total = total + p
    return total


def subset_fast(w: Tensor, number: int, tau: float, u: Tensor) -> Tensor:
    """The same for many entries at once, in a time that does not grow with `number`."""
    if number in (0, len(w)):
        return torch.full_like(w, float(number > 0)) + 0.0 * w
    return torch.sigmoid(levelled(w - torch.log(-torch.log(u)), number, tau))


def check(options: Mapping[str, Any]) -> None:
    """Refuses options that cannot be carried out, before any work."""
    check_shares({name: options[name] for name in ("cool", "settle")})
    if not 0 < options["tau_end"] <= options["tau"] or not options["cool"] > 0:
        raise PlanError(
            f"tau must fall to tau_end over a share of the steps: got tau {options['tau']}, tau_end {options['tau_end']}, cool {options['cool']}"
        )
    if options["cool"] + options["settle"] > 1 + 1e-9:
        raise PlanError(
            f"cool={options['cool']} and settle={options['settle']} are more than all steps, so that τ would not have fallen when the plan is "
            "fixed; lower one of them"
        )


class Subset:
    """The importance of every unit, and how it is drawn."""

    def __init__(self, work: Work, variant: str, number: int) -> None:
        options = work.options
        self.work, self.index, self.number, self.variant, self.options = work, unit_index(work), number, variant, options
        self.w = start_from(work, options["init"], options["limit"], options["spread"]).requires_grad_(True)
        self.free = free_units(work)
        self._tau = options["tau"]

    @property
    def parameters(self) -> dict[str, Tensor]:
        """What learns."""
        return {"w": self.w}

    def tau(self, step: int, steps: int) -> float:
        """The temperature of a step."""
        share = min(1.0, step / max(1.0, self.options["cool"] * steps))
        return self.options["tau"] * (self.options["tau_end"] / self.options["tau"]) ** share

    def sample(self, step: int, steps: int) -> Tensor:
        """Gates of one step."""
        self._tau = self.tau(step, steps)
        if is_settled(step, steps, self.options["settle"]):
            return self.hard()
        if self.variant == "straight":
            return self.hard() + by_head(self.w - self.w.detach(), self.index)
        draw = subset_fast if self.variant == "fast" else subset
        wanted = self.number - int((~self.free).sum())
        drawn = draw(self.w[self.free], wanted, self._tau, noise(self.work.seed, step, len(self.w))[self.free])
        return by_head(torch.ones_like(self.w).masked_scatter(self.free, drawn), self.index)

    def hard(self) -> Tensor:
        """The top K of w, without noise."""
        return by_head(stay(self.work, self.w.detach(), self.number), self.index)

    def penalty(self, _step: int, _steps: int) -> None:
        """None: the number is exact."""

    def optimiser(self) -> torch.optim.Optimizer:
        """Adam on w."""
        return torch.optim.Adam([self.w], lr=self.options["rate"])

    def told(self) -> dict[str, float]:
        """The temperature, and how far apart the last head in and the first out are."""
        ordered = self.w.detach()[self.free].sort(descending=True).values
        wanted = self.number - int((~self.free).sum())
        gap = float(ordered[wanted - 1] - ordered[wanted]) if 0 < wanted < len(ordered) else 0.0
        return {"tau": self._tau, "gap": gap}


def choose(work: Work, variant: str) -> Choice:
    """The plan and the trained model."""
    number = units_kept(work)
    model = copy_model(work.model)
    frozen = variant == "pipelined"
    if frozen:
        model.requires_grad_(False)
        work = replace(work, options={**work.options, "settle": 0.0})  # nothing is there to settle
    gating = Subset(work, variant, number)
    made = fine_tune(model, work.task, work.recipe, folder=work.folder, gates=GateCallback(model, gating), progress=work.progress)
    values = by_head(gating.w.detach(), gating.index).tolist()
    return Choice(work.plan(values, "dsp"), None if frozen else model, None, made.history, work.scores(values, "dsp"), steps=made.steps)
