from __future__ import annotations

import math
from dataclasses import KW_ONLY, dataclass
from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor

from headcount.core.budget import Budget
from headcount.core.errors import OptionError, PlanError
from headcount.core.options import option
from headcount.core.plan import Plan
from headcount.models.state import copy_model
from headcount.pruning.base import Choice, PruneContext, Pruner, PrunerInfo
from headcount.pruning.gating import (
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
from headcount.pruning.training.fine_tune import reset_weights
from headcount.pruning.training.gates import uniform_noise

BETA, LOW, HIGH, EPSILON = 0.33, -0.1, 1.1, 1e-6
EDGE = BETA * math.log(-LOW / HIGH)


def sample_gates(log_a: UnitValues, uniform: UnitValues) -> UnitValues:
    """Returns stochastic gates for uniform noise."""
    s = torch.sigmoid((uniform.log() - (-uniform).log1p() + log_a) / BETA)
    return (s * (HIGH - LOW) + LOW).clamp(0, 1)


def evaluation_gates(log_a: UnitValues) -> UnitValues:
    """Returns the gates of evaluation: exactly 0 from log a ≤ −2.398 on, exactly 1 from 2.398 on."""
    return (torch.sigmoid(log_a) * (HIGH - LOW) + LOW).clamp(0, 1)


def open_probability(log_a: UnitValues) -> UnitValues:
    """Returns the probability that a gate is not zero."""
    return torch.sigmoid(log_a - EDGE)


@dataclass(frozen=True)
class L0(Pruner):
    """L0 gates: hard-concrete gates train with the weights until K heads are expected to stay open.

    Then the K heads that are most probably open stay, and the weights settle.

        s = σ((ln u − ln(1 − u) + log a) / β),   g = clip(1.2 s − 0.1, 0, 1),   P(g ≠ 0) = σ(log a − β ln(0.1 / 1.1)),   β = 0.33

    "target" holds Σ P(g ≠ 0) at a number that falls from nearly all to K, by one shift of log a for all gates
    that is solved for at every step: the exact multiplier of that constraint. "lagrange" learns the multiplier
    by gradient ascent. With λ (`penalty`) the loss has λ Σ P(g ≠ 0) over heads in it, as published: the heads
    that stay are those whose gate is not exactly 0 in evaluation (log a > −2.398), as many as λ leaves open,
    and no number can be asked for. Gates start open (`start` = log a), in the order of an importance if `init`
    names one, and the penalty warms up, since half-open gates shock a trained model. `frozen` keeps the weights
    of the decoder, or of everything, as they are. With `weights`="scratch" the weights are drawn anew before the
    gates train, the control of a model that was never trained: name a rate of the recipe that suits it. Heads
    that are protected, or of kinds of attention that lose none, have no gate. Voita et al. 2019, Louizos et al. 2018.
    """

    variant: Literal["target", "lagrange"] = option("target", "How the number of open gates is held")
    _: KW_ONLY
    penalty: float = option(0.0, "λ of the published loss; unless it is 0, it decides how many heads stay", minimum=0)
    rate: float = option(0.1, "Learning rate of the gates", minimum=0)
    start: float = option(2.5, "log a of every gate at the start")
    warmup: float = option(
        0.1, "Share of the steps before the plan is fixed in which the penalty rises, or the target stays", minimum=0, maximum=1
    )
    reach: float = option(0.8, "Share of the steps before the plan is fixed after which the target is K", minimum=0, maximum=1)
    settle: float = option(0.4, "Share of the steps at the end in which the plan is fixed and weights train on", minimum=0, below=1)
    init: str = option("none", "Importance that the order of log a starts from, or none")
    spread: float = option(2.0, "Standard deviation of log a at the start, where init names an importance", minimum=0)
    limit: int = option(512, "Calibration examples that the starting importance is measured on", minimum=1)
    frozen: Literal["none", "decoder", "all"] = option("none", "Weights that are not trained")
    weights: Literal["trained", "scratch"] = option("trained", "Weights that training starts from: the model's, or drawn anew by the seed")
    info = PrunerInfo("Voita et al. 2019; Louizos, Welling & Kingma 2018", trains="weights", size_option="penalty")

    def __post_init__(self) -> None:
        super().__post_init__()
        check_starting_importance(self.init)
        if self.penalty and self.variant == "lagrange":
            raise OptionError("l0:lagrange learns λ for a number of heads; leave penalty out, or use l0 (l0:target)")
        if self.weights == "scratch" and (self.frozen != "none" or self.init != "none"):
            raise OptionError(
                "weights=scratch draws all weights anew: none of them can be frozen, and no importance of them is known (init)"
            )

    def check_budget(self, budget: Budget) -> None:
        """Raises PlanError for a floor beside a penalty: the heads that stay are those that λ leaves open."""
        if self.penalty and budget.floor:
            raise PlanError(
                f"with a penalty the heads that stay are those that λ leaves open; a floor of {budget.floor} cannot be promised"
            )

    def choose(self, context: PruneContext) -> Choice:
        """Returns the plan and the trained model; with all weights frozen, the plan alone."""
        n_kept = count_kept_units(context)
        model: Any = copy_model(context.model)
        if self.weights == "scratch":
            reset_weights(model, context.seed)
        trainable = [parameter.requires_grad for parameter in model.parameters()]
        _freeze_weights(model, self.frozen)
        gates = HardConcrete(context, self, n_kept)
        trained = train_gates_and_unfrozen_weights(context, model, gates)
        for parameter, requires_grad in zip(model.parameters(), trainable, strict=True):
            parameter.requires_grad_(requires_grad)
        scores = context.scores(expand_to_heads(gates.log_a_for_ranking(), gates.index).tolist(), "l0")
        plan = self._plan_keeping_open_heads(context, gates) if self.penalty else context.plan(scores.values, "l0")
        return Choice(plan, None if self.frozen == "all" else model, history=trained.history, scores=scores, steps=trained.steps)

    def _plan_keeping_open_heads(self, context: PruneContext, gates: HardConcrete) -> Plan:
        is_open = expand_to_heads(gates.mark_kept_units(), gates.index)
        if not bool(is_open.any()):
            raise PlanError(f"penalty={self.penalty:g} closed the gates of all {len(context.heads)} heads; name a smaller λ")
        removed = [head for head, on in zip(context.heads, is_open.tolist(), strict=True) if not on]
        return Plan.removing(removed, protected=context.budget.protected)


class HardConcrete:
    """The gates, one per unit; those of units that cannot go stay at one."""

    def __init__(self, context: PruneContext, pruner: L0, n_kept: int) -> None:
        self.context, self.pruner, self.index = context, pruner, unit_of_each_head(context)
        self.removable = mark_removable_units(context)
        self.n_kept, self.n_removable_kept = n_kept, n_kept - int((~self.removable).sum())
        offsets = ranks_as_starting_values(context, pruner.init, pruner.limit, pruner.spread)
        self.log_a = (offsets + pruner.start).requires_grad_(True)
        self.multiplier = torch.zeros(2, dtype=torch.float64, requires_grad=True)
        self._progress = (0, 1)  # the present step, and all of them
        self._step_multiplier = 0.0  # the first multiplier in the present step, which the optimiser then moves

    @property
    def parameters(self) -> dict[str, Tensor]:
        """The trained parameters by name."""
        return {"log_a": self.log_a, "multiplier": self.multiplier}

    def target_n_open_units(self, step: int, n_steps: int) -> float:
        """Returns how many removable units should be open: those of the start during the warm-up, K from `reach` on."""
        n_unsettled = (1 - self.pruner.settle) * n_steps
        begin, end = self.pruner.warmup * n_unsettled, self.pruner.reach * n_unsettled
        share = min(1.0, max(0.0, (step - begin) / max(1.0, end - begin)))
        full = int(self.removable.sum()) * float(open_probability(torch.tensor(self.pruner.start)))
        return full + (min(full, max(self.n_removable_kept, 0.05)) - full) * share

    def _log_a_at_present_step(self) -> UnitValues:
        """Returns log a as it acts at the present step."""
        if self.pruner.variant == "lagrange" or self.pruner.penalty:
            return self.log_a
        return self.log_a.masked_scatter(
            self.removable, logits_with_sigmoid_sum(self.log_a[self.removable], self.target_n_open_units(*self._progress)) + EDGE
        )

    def sample(self, step: int, n_steps: int) -> Float[Tensor, " heads"]:
        """Returns the gates of one step."""
        self._progress = (step, n_steps)
        self._step_multiplier = float(self.multiplier.detach()[0])
        if is_plan_fixed(step, n_steps, self.pruner.settle):
            return self.gates_for_evaluation()
        u = uniform_noise(self.context.seed, step, len(self.log_a)) * (1 - 2 * EPSILON) + EPSILON
        return expand_to_heads(torch.where(self.removable, sample_gates(self._log_a_at_present_step(), u), 1.0), self.index)

    def gates_for_evaluation(self) -> Float[Tensor, " heads"]:
        """Returns the gates of evaluation; once the plan is fixed, ones and zeros."""
        if is_plan_fixed(*self._progress, self.pruner.settle):
            return expand_to_heads(self.mark_kept_units(), self.index)
        return expand_to_heads(torch.where(self.removable, evaluation_gates(self._log_a_at_present_step().detach()), 1.0), self.index)

    def log_a_for_ranking(self) -> UnitValues:
        """Returns the values that units are chosen by: log a; units that cannot go come first."""
        values = self.log_a.detach()
        return torch.where(self.removable, values, values.max() + 1)

    def mark_kept_units(self) -> UnitValues:
        """Returns ones for the units that stay: the surest K, or with λ those whose gate is open in evaluation."""
        if self.pruner.penalty:
            return torch.where(self.removable, (evaluation_gates(self.log_a.detach()) > 0).double(), 1.0)
        return mark_kept_units(self.context, self.log_a_for_ranking(), self.n_kept)

    def _expected_n_open_units(self) -> Float[Tensor, ""]:
        return open_probability(self._log_a_at_present_step()[self.removable]).sum()

    def penalty_weight(self, step: int, n_steps: int) -> float:
        """Returns λ at a step: it rises to `penalty` during the warm-up."""
        return self.pruner.penalty * min(1.0, step / max(1.0, self.pruner.warmup * (1 - self.pruner.settle) * n_steps))

    def penalty(self, step: int, n_steps: int) -> Tensor | None:
        """Returns λ times the expected number of open heads, or the Lagrangian of its distance from the target.

        None where the target is kept exactly.
        """
        if self.pruner.penalty:
            return self.penalty_weight(step, n_steps) * self._expected_n_open_units() * (len(self.index) / len(self.log_a))
        if self.pruner.variant != "lagrange":
            return None
        gap = (self._expected_n_open_units() - self.target_n_open_units(step, n_steps)) / len(self.log_a)
        return self.multiplier[0] * gap + self.multiplier[1] * gap * gap

    def gate_optimiser(self) -> torch.optim.Optimizer:
        """Returns Adam: gates go down their gradient, multipliers up."""
        rate = self.pruner.rate
        groups: Any = [{"params": [self.log_a], "lr": rate}, {"params": [self.multiplier], "lr": rate, "maximize": True}]
        return torch.optim.Adam(groups, betas=(0.9, 0.99))

    def log_numbers(self) -> dict[str, float]:
        """Returns how many gates are open, the multiplier, and λ, the weight of the penalty, until the plan is fixed."""
        weight = {}
        if not is_plan_fixed(*self._progress, self.pruner.settle):
            if self.pruner.penalty:
                weight = {"lambda": self.penalty_weight(*self._progress)}
            elif self.pruner.variant == "lagrange":
                weight = {"lambda": self._step_multiplier}
        with torch.no_grad():
            return {
                **weight,
                "open expected": float(self._expected_n_open_units() + (~self.removable).sum()) * len(self.index) / len(self.log_a),
                "open": float((self.gates_for_evaluation() > 0).sum()),
                "multiplier": float(self.multiplier[0]),
            }


def _freeze_weights(model: Any, frozen: Literal["none", "decoder", "all"]) -> None:
    """Freezes the weights of the decoder with its output layer, or all of them."""
    if frozen == "none":
        return
    decoder = [model.get_decoder(), model.get_output_embeddings()] if getattr(model.config, "is_encoder_decoder", False) else None
    parts = {"all": [model], "decoder": decoder}.get(frozen)
    if parts is None:
        raise PlanError(f"frozen=decoder needs a model with an encoder and a decoder, and {type(model).__name__} is none; use none or all")
    for part in filter(None, parts):
        part.requires_grad_(False)
