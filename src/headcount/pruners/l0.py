"""L0 gates: hard-concrete gates learn with the weights under a penalty on the expected number of open ones, then the surest K stay.

    s = σ((ln u − ln(1 − u) + log a) / β),   g = clip(1.2 s − 0.1, 0, 1),   P(g ≠ 0) = σ(log a − β ln(0.1 / 1.1)),   β = 0.33

The penalty is λ Σ P(g ≠ 0) over heads against the mean loss. Without λ (`penalty` 0) a Lagrangian drives the expected number to K: the multiplier
grows with what is open beyond K. Gates start open (`start` = log a) and the penalty warms up, since half-open gates shock a trained model. `frozen`
keeps the weights of the decoder, or of everything, as they are; `kinds` names the attention that is gated (encoder-self, decoder-self, cross).
Voita et al. 2019, Louizos et al. 2018.
"""

from __future__ import annotations

import copy
import math
from typing import Any

import torch
from torch import Tensor

from headcount.errors import PlanError
from headcount.pruners._contract import About, Choice, Work
from headcount.pruners._gating import by_head, top, unit_index, units_kept
from headcount.registry import unknown
from headcount.training import GateCallback, fine_tune, noise

BETA, LOW, HIGH, EPSILON = 0.33, -0.1, 1.1, 1e-6
KINDS = ("encoder-self", "decoder-self", "cross")
ABOUT = About(
    source="Voita et al. 2019; Louizos, Welling & Kingma 2018",
    trains="weights",
    options={"penalty": 0.0, "rate": 0.1, "start": 2.5, "warmup": 0.1, "reach": 0.6, "kinds": "all", "frozen": "none"},
)


def sample(log_a: Tensor, u: Tensor) -> Tensor:
    """Stochastic gates for uniform noise."""
    s = torch.sigmoid((u.log() - (-u).log1p() + log_a) / BETA)
    return (s * (HIGH - LOW) + LOW).clamp(0, 1)


def expected(log_a: Tensor) -> Tensor:
    """The gates of evaluation: exactly 0 from log a ≤ −2.398 on, exactly 1 from 2.398 on."""
    return (torch.sigmoid(log_a) * (HIGH - LOW) + LOW).clamp(0, 1)


def p_open(log_a: Tensor) -> Tensor:
    """The probability that a gate is not zero."""
    return torch.sigmoid(log_a - BETA * math.log(-LOW / HIGH))


class HardConcrete:
    """The gates and their multiplier."""

    def __init__(self, work: Work, number: int) -> None:
        self.index, self.number, self.options, self.seed = unit_index(work), number, work.options, work.seed
        self.free = torch.tensor([work.heads.block_of(unit[0]).kind in kinds_of(work) for unit in work.heads.units()])
        self.log_a = torch.full((len(self.free),), float(work.options["start"]), dtype=torch.float64, requires_grad=True)
        self.multiplier = torch.zeros(2, dtype=torch.float64, requires_grad=True)

    @property
    def parameters(self) -> dict[str, Tensor]:
        """What learns."""
        return {"log_a": self.log_a, "multiplier": self.multiplier}

    def sample(self, step: int, _steps: int) -> Tensor:
        """Gates of one step."""
        u = noise(self.seed, step, len(self.log_a)) * (1 - 2 * EPSILON) + EPSILON
        return by_head(torch.where(self.free, sample(self.log_a, u), 1.0), self.index)

    def hard(self) -> Tensor:
        """The gates of evaluation."""
        return by_head(torch.where(self.free, expected(self.log_a), 1.0), self.index)

    def _open(self) -> Tensor:
        return torch.where(self.free, p_open(self.log_a), 1.0)[self.index].sum()

    def penalty(self, step: int, steps: int) -> Tensor:
        """λ times the expected number of open gates, or the Lagrangian of its distance from the target, which itself falls to K."""
        begin = self.options["warmup"] * steps
        warm = min(1.0, step / max(1.0, begin))
        total = len(self.index)
        if self.options["penalty"]:
            return self.options["penalty"] * warm * self._open()
        share = min(1.0, max(0.0, (step - begin) / max(1.0, (self.options["reach"] * steps - begin))))
        target = total - (total - self.number) * share
        gap = (self._open() - target) / total
        return self.multiplier[0] * gap + self.multiplier[1] * gap * gap

    def optimiser(self) -> torch.optim.Optimizer:
        """Gates go down their gradient, multipliers up."""
        rate = self.options["rate"]
        groups: Any = [{"params": [self.log_a], "lr": rate}, {"params": [self.multiplier], "lr": rate, "maximize": True}]
        return torch.optim.Adam(groups, betas=(0.9, 0.99))

    def told(self) -> dict[str, float]:
        """How many gates are open."""
        with torch.no_grad():
            return {"open expected": float(self._open()), "open": float((self.hard() > 0).sum()), "multiplier": float(self.multiplier[0])}


def kinds_of(work: Work) -> tuple[str, ...]:
    """The kinds of attention that are gated."""
    wanted = KINDS if work.options["kinds"] == "all" else tuple(kind.strip() for kind in work.options["kinds"].split(","))
    for kind in wanted:
        if kind not in KINDS:
            raise unknown("kind of attention", kind, (*KINDS, "all"))
    return wanted


def choose(work: Work, _variant: str) -> Choice:
    """The plan and the trained model."""
    number = units_kept(work)
    model = copy.deepcopy(work.model)
    _freeze(model, work.options["frozen"])
    gating = HardConcrete(work, work.keep)
    if int((~gating.free).sum()) > number:
        raise PlanError(
            f"{work.keep} heads may stay, fewer than those of the kinds of attention that are not gated; raise keep, or gate more kinds"
        )
    callback = GateCallback(model, gating)
    made = fine_tune(model, work.task, work.recipe, folder=work.folder, gates=callback, progress=work.progress)
    for parameter in model.parameters():
        parameter.requires_grad_(True)
    worth = torch.where(gating.free, gating.log_a.detach(), torch.inf)
    hard = by_head(top(worth, number), gating.index)
    finite = worth.clamp(max=float(gating.log_a.detach().max()) + 1)
    scores = work.scores(by_head(finite, gating.index).tolist(), "l0")
    gates = torch.where(hard > 0, gating.hard(), 1.0)
    return Choice(work.plan(scores.values, "l0"), model, gates.tolist(), made.history, scores)


def _freeze(model: Any, what: str) -> None:
    if what == "none":
        return
    parts = {"all": model, "decoder": model.get_decoder() if hasattr(model, "get_decoder") else None}
    if what not in parts or parts[what] is None:
        raise PlanError(f"frozen is none, all or decoder (of models that have one), got '{what}'")
    for parameter in parts[what].parameters():
        parameter.requires_grad_(False)
