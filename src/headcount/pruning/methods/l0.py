"""L0 gates: hard-concrete gates learn with the weights while the expected number of open ones falls to K, then the surest K stay and weights settle.

    s = σ((ln u − ln(1 − u) + log a) / β),   g = clip(1.2 s − 0.1, 0, 1),   P(g ≠ 0) = σ(log a − β ln(0.1 / 1.1)),   β = 0.33

"target" holds Σ P(g ≠ 0) at a number that falls from nearly all to K, by one shift of log a for all gates that is solved for at every step: the exact
multiplier of that constraint. "lagrange" learns the multiplier by gradient ascent. With λ (`penalty`) the loss has λ Σ P(g ≠ 0) over heads in it, as
published: the heads that stay are those whose gate is not exactly 0 in evaluation (log a > −2.398), as many as λ leaves open, and no number can be
asked for. Gates start open (`start` = log a), in the order of an importance if `init` names one, and the
penalty warms up, since half-open gates shock a trained model. `frozen` keeps the weights of the decoder, or of everything, as they are. Heads that
are protected, or of kinds of attention that lose none, have no gate. Voita et al. 2019, Louizos et al. 2018.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from headcount.core.errors import PlanError
from headcount.core.plan import Plan
from headcount.models.state import copy_model
from headcount.pruning.base import About, Choice, Work
from headcount.pruning.gating import by_head, check_shares, free_units, is_settled, levelled, start_from, stay, unit_index, units_kept
from headcount.pruning.training.fine_tune import fine_tune
from headcount.pruning.training.gates import GateCallback, noise

BETA, LOW, HIGH, EPSILON = 0.33, -0.1, 1.1, 1e-6
EDGE = BETA * math.log(-LOW / HIGH)
ABOUT = About(
    source="Voita et al. 2019; Louizos, Welling & Kingma 2018",
    trains="weights",
    variants=("target", "lagrange"),
    options={
        "penalty": 0.0,
        "rate": 0.1,
        "start": 2.5,
        "warmup": 0.1,
        "reach": 0.8,
        "settle": 0.4,
        "init": "none",
        "spread": 2.0,
        "limit": 512,
        "frozen": "none",
    },
    size_option="penalty",
)


def check(options: Mapping[str, Any]) -> None:
    """Refuses options that cannot be carried out, before any work."""
    check_shares({name: options[name] for name in ("warmup", "reach", "settle")})
    if not 0 <= options["penalty"] < math.inf:
        raise PlanError(f"penalty is λ, a finite number of 0 or more; got {options['penalty']}")


def sample(log_a: Tensor, u: Tensor) -> Tensor:
    """Stochastic gates for uniform noise."""
    s = torch.sigmoid((u.log() - (-u).log1p() + log_a) / BETA)
    return (s * (HIGH - LOW) + LOW).clamp(0, 1)


def expected(log_a: Tensor) -> Tensor:
    """The gates of evaluation: exactly 0 from log a ≤ −2.398 on, exactly 1 from 2.398 on."""
    return (torch.sigmoid(log_a) * (HIGH - LOW) + LOW).clamp(0, 1)


def p_open(log_a: Tensor) -> Tensor:
    """The probability that a gate is not zero."""
    return torch.sigmoid(log_a - EDGE)


class HardConcrete:
    """The gates, one per unit; those of units that cannot go stay at one."""

    def __init__(self, work: Work, variant: str, number: int) -> None:
        self.work, self.variant, self.options, self.index = work, variant, work.options, unit_index(work)
        self.free = free_units(work)
        self.number, self.wanted = number, number - int((~self.free).sum())
        order = start_from(work, self.options["init"], self.options["limit"], self.options["spread"])
        self.log_a = (order + float(self.options["start"])).requires_grad_(True)
        self.multiplier = torch.zeros(2, dtype=torch.float64, requires_grad=True)
        self._now = (0, 1)

    @property
    def parameters(self) -> dict[str, Tensor]:
        """What learns."""
        return {"log_a": self.log_a, "multiplier": self.multiplier}

    def target(self, step: int, steps: int) -> float:
        """How many of the gates that are free should be open: those of the start during the warm-up, K from `reach` on."""
        last = (1 - self.options["settle"]) * steps
        begin, end = self.options["warmup"] * last, self.options["reach"] * last
        share = min(1.0, max(0.0, (step - begin) / max(1.0, end - begin)))
        full = int(self.free.sum()) * float(p_open(torch.tensor(self.options["start"])))
        return full + (min(full, max(self.wanted, 0.05)) - full) * share

    def level(self) -> Tensor:
        """log a as it acts at the present step."""
        if self.variant == "lagrange" or self.options["penalty"]:
            return self.log_a
        return self.log_a.masked_scatter(self.free, levelled(self.log_a[self.free], self.target(*self._now)) + EDGE)

    def sample(self, step: int, steps: int) -> Tensor:
        """Gates of one step."""
        self._now = (step, steps)
        if is_settled(step, steps, self.options["settle"]):
            return self.hard()
        u = noise(self.work.seed, step, len(self.log_a)) * (1 - 2 * EPSILON) + EPSILON
        return by_head(torch.where(self.free, sample(self.level(), u), 1.0), self.index)

    def hard(self) -> Tensor:
        """The gates of evaluation; once the plan is fixed, ones and zeros."""
        if is_settled(*self._now, self.options["settle"]):
            return by_head(self.chosen(), self.index)
        return by_head(torch.where(self.free, expected(self.level().detach()), 1.0), self.index)

    def worth(self) -> Tensor:
        """What units are chosen by: log a; those that are not gated come first."""
        values = self.log_a.detach()
        return torch.where(self.free, values, values.max() + 1)

    def chosen(self) -> Tensor:
        """Ones for the units that stay: the surest K, or with λ those whose gate is open in evaluation."""
        if self.options["penalty"]:
            return torch.where(self.free, (expected(self.log_a.detach()) > 0).double(), 1.0)
        return stay(self.work, self.worth(), self.number)

    def _open(self) -> Tensor:
        return p_open(self.level()[self.free]).sum()

    def penalty(self, step: int, steps: int) -> Tensor | None:
        """λ times the expected number of open heads, or the Lagrangian of its distance from the target; None where the target is kept exactly."""
        if self.options["penalty"]:
            warm = min(1.0, step / max(1.0, self.options["warmup"] * (1 - self.options["settle"]) * steps))
            return self.options["penalty"] * warm * self._open() * (len(self.index) / len(self.log_a))
        if self.variant != "lagrange":
            return None
        gap = (self._open() - self.target(step, steps)) / len(self.log_a)
        return self.multiplier[0] * gap + self.multiplier[1] * gap * gap

    def optimiser(self) -> torch.optim.Optimizer:
        """Gates go down their gradient, multipliers up."""
        rate = self.options["rate"]
        groups: Any = [{"params": [self.log_a], "lr": rate}, {"params": [self.multiplier], "lr": rate, "maximize": True}]
        return torch.optim.Adam(groups, betas=(0.9, 0.99))

    def told(self) -> dict[str, float]:
        """How many gates are open."""
        with torch.no_grad():
            return {
                "open expected": float(self._open() + (~self.free).sum()) * len(self.index) / len(self.log_a),
                "open": float((self.hard() > 0).sum()),
                "multiplier": float(self.multiplier[0]),
            }


def choose(work: Work, variant: str) -> Choice:
    """The plan and the trained model."""
    by_penalty = bool(work.options["penalty"])
    if by_penalty and variant == "lagrange":
        raise PlanError("l0:lagrange learns λ for a number of heads; leave penalty out, or use l0 (l0:target)")
    if by_penalty and work.budget.floor:
        raise PlanError(
            f"with a penalty the heads that stay are those that λ leaves open; a floor of {work.budget.floor} cannot be promised"
        )
    number = units_kept(work)
    model: Any = copy_model(work.model)
    learning = [parameter.requires_grad for parameter in model.parameters()]
    _freeze(model, work.options["frozen"])
    gating = HardConcrete(work, variant, number)
    made = fine_tune(model, work.task, work.recipe, folder=work.folder, gates=GateCallback(model, gating), progress=work.progress)
    for parameter, before in zip(model.parameters(), learning, strict=True):
        parameter.requires_grad_(before)
    scores = work.scores(by_head(gating.worth(), gating.index).tolist(), "l0")
    trained = None if work.options["frozen"] == "all" else model
    plan = _open_plan(work, gating) if by_penalty else work.plan(scores.values, "l0")
    return Choice(plan, trained, None, made.history, scores, steps=made.steps)


def _open_plan(work: Work, gating: HardConcrete) -> Plan:
    """The plan that removes the heads whose gates λ closed."""
    is_open = by_head(gating.chosen(), gating.index)
    if not bool(is_open.any()):
        raise PlanError(f"penalty={work.options['penalty']:g} closed the gates of all {len(work.heads)} heads; name a smaller λ")
    removed = [head for head, on in zip(work.heads, is_open.tolist(), strict=True) if not on]
    return Plan.removing(removed, protected=work.budget.protected)


def _freeze(model: Any, what: str) -> None:
    """Weights of the decoder with its output layer, or all of them, keep their values."""
    if what == "none":
        return
    decoder = [model.get_decoder(), model.get_output_embeddings()] if getattr(model.config, "is_encoder_decoder", False) else None
    parts = {"all": [model], "decoder": decoder}.get(what)
    if parts is None:
        raise PlanError(
            f"frozen is none, all, or decoder for a model with an encoder and a decoder; got '{what}' for {type(model).__name__}"
        )
    for part in filter(None, parts):
        part.requires_grad_(False)
