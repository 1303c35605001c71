from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import NamedTuple, TypedDict

from headcount.core.options import option
from headcount.core.study_result import Column, Table
from headcount.studies._paper import Item, Paper, PaperInfo, PaperSubject
from headcount.studies._pruned_models import PrunedModels
from headcount.studies.kept import Kept
from headcount.studies.penalty_sweep import PenaltySweep
from headcount.studies.pruning_curve import PruningCurve
from headcount.studies.speed import Speed
from headcount.studies.training_log import TrainingLog

QUICK_STEPS = 20
PENALTIES = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1)


class ComparedMethods(NamedTuple):
    """The pruners that the paper compares: three ways to train head importances, and two earlier methods."""

    joint: str
    pipelined: str
    straight: str
    gates: str
    gradient: str


class TrainingLength(TypedDict):
    """How long every training lasts."""

    steps: int | None
    train_batch: int


@dataclass(frozen=True)
class Li2021(Paper):
    """Differentiable subset pruning: exactly K heads are drawn at every step, and gates and weights learn together which K to keep.

    Li, Cotterell and Sachan 2021. All methods train for the same number of steps; below 200 steps labels say so.
    """

    _: KW_ONLY
    steps: int | None = option(None, "Optimiser steps of every training; by default those of one epoch, and at least 300", minimum=1)
    train_batch: int = option(32, "Examples per training step", minimum=1)
    keep: tuple[int | float | str, ...] = option((), "How many heads stay: numbers or shares; by default 90%, 80%, …, 10%")
    seeds: int = option(3, "Seeds of every training", minimum=1)
    penalties: tuple[float, ...] = option(PENALTIES, "The values of λ of the comparison with exactly K heads")
    penalty_rate: float = option(
        0.1, "The learning rate of the gates that λ closes; with few steps, they close only at a larger one", minimum=0
    )
    set_by_quick = ("train_batch", "keep", "seeds", "penalties", "penalty_rate")
    info = PaperInfo(
        title="Differentiable Subset Pruning of Transformer Heads",
        authors=("Li, Jiaoda", "Cotterell, Ryan", "Sachan, Mrinmaya"),
        year=2021,
        venue="Transactions of the Association for Computational Linguistics",
        entry="article",
        details={"volume": "9", "pages": "1442--1459", "doi": "10.1162/tacl_a_00436"},
    )

    def items(self, subject: PaperSubject) -> list[Item]:
        """Returns the experiments of the paper."""
        joint, pipelined, straight, gates, gradient = self._compared_methods()
        translates = "cross" in subject.kinds
        n_steps = self.steps or (QUICK_STEPS if self.quick else None)
        pipelined_curve = self._pruned_models_study(PruningCurve, (pipelined,), recover="auto" if n_steps is None else f"{n_steps}steps")
        comparison = self._pruning_curve_study(joint, pipelined, straight, gates, gradient)
        only_other = "the model translates: L7 is the figure for such models" if translates else "the model has no cross-attention: see L6"
        return [
            Item("L1", "Joint training of weights and head importances", "section 4.3", self._pruning_curve_study(joint)),
            Item("L2", "Pipelined: head importances on frozen weights, then a fine-tune", "section 4.3", pipelined_curve),
            Item("L3", "Straight-through estimation", "section 4", self._pruning_curve_study(straight)),
            Item(
                "L4", "Baseline: L0 gates of Voita et al. 2019 at the same number of heads", "section 5", self._pruning_curve_study(gates)
            ),
            Item("L5", "Baseline: gradient importance of Michel et al. 2019", "section 5", self._pruning_curve_study(gradient)),
            Item(
                "L6",
                "Classification: score by the number of heads, all methods",
                "Fig. 2",
                None if translates else comparison,
                reason=only_other if translates else "",
                published=METHODS,
            ),
            Item(
                "L7",
                "Translation: score by the number of heads, all methods",
                "Fig. 3",
                comparison if translates else None,
                reason="" if translates else only_other,
                published=METHODS,
            ),
            Item("L8", "Exactly K heads against the heads that λ leaves", "section 5", self._penalty_sweep_study(joint)),
            Item("L9", "Sensitivity to the temperature, its cooling and the rate", "Appendix", self._sensitivity_study()),
            Item("L10", "Speed-up and size by the number of heads", "section 6", self._speed_study(), published=SPEED),
            Item("L11", "Survivors by layer as K shrinks", "section 6", self._pruned_models_study(Kept, (joint,))),
            Item("L12", "Gates and temperature during training", "section 3", self._training_log_study(joint)),
            Item(
                "L13",
                "The published schedule of the temperature",
                "Appendix A",
                self._pruning_curve_study(_method_with_published_schedule(translates), joint),
            ),
        ]

    def _training_options(self) -> TrainingLength:
        return {"steps": self.steps, "train_batch": self.train_batch}

    def _compared_methods(self) -> ComparedMethods:
        if self.quick:
            return ComparedMethods("dsp(limit=64)", "dsp:pipelined(limit=64)", "dsp:straight(limit=64)", "l0", "rank(by=gradient;limit=64)")
        return ComparedMethods("dsp", "dsp:pipelined", "dsp:straight", "l0", "gradient")

    def _pruned_models_study(self, study_class: type[PrunedModels], methods: tuple[str, ...], recover: str | None = None) -> PrunedModels:
        if self.quick:
            steps = self.steps or QUICK_STEPS
            return study_class(methods=methods, keep=("50%", "25%"), seeds=2, steps=steps, train_batch=8, recover=recover)
        return study_class(methods=methods, keep=self.keep, seeds=self.seeds, recover=recover, **self._training_options())

    def _pruning_curve_study(self, *methods: str) -> PrunedModels:
        return self._pruned_models_study(PruningCurve, methods)

    def _penalty_sweep_study(self, exact_method: str) -> PenaltySweep:
        if self.quick:
            return PenaltySweep((0.05, 1.0), exact=exact_method, seeds=1, steps=self.steps or QUICK_STEPS, gate_rate=0.5, train_batch=8)
        return PenaltySweep(self.penalties, exact=exact_method, seeds=self.seeds, gate_rate=self.penalty_rate, **self._training_options())

    def _sensitivity_study(self) -> PrunedModels:
        """Returns the curve of DSP as it is, and with one of its options changed at a time."""
        grid = {"tau": (0.1, 10), "tau_end": (1e-4, 1e-2), "cool": (0.1, 0.25), "rate": (0.01, 1)}
        chosen = [f"{name}={value:g}" for name, values in grid.items() for value in (values[1:] if self.quick else values)]
        limit = ";limit=64" if self.quick else ""
        return self._pruning_curve_study(self._compared_methods().joint, *(f"dsp({option}{limit})" for option in chosen))

    def _speed_study(self) -> Speed:
        if self.quick:
            return Speed(method="rank(by=gradient;limit=64)", keep=("50%", "25%"), batches=(1, 4), length=16, rounds=15)
        return Speed(keep=tuple(f"{share}%" for share in range(90, 0, -10)))

    def _training_log_study(self, method: str) -> TrainingLog:
        if self.quick:
            return TrainingLog(method=method, steps=self.steps or QUICK_STEPS, train_batch=8)
        return TrainingLog(method=method, **self._training_options())


def _method_with_published_schedule(is_translator: bool) -> str:
    """Returns the pruner of the published schedule: τ falls to 1e-8 over two thirds of the steps, from 1000 (classification) or 0.1."""
    tau, rate = (0.1, 0.2) if is_translator else (1000, 0.5)
    return f"dsp(tau={tau};tau_end=1e-08;cool=0.6667;rate={rate};init=none;settle=0)"


METHODS = Table(
    "published",
    (Column("finding"), Column("value")),
    (
        ("heads that can go with little loss", "about 90 %"),
        ("methods at high sparsity, best first", "joint DSP ≥ L0 gates ≫ pipelined DSP > gradient importance"),
    ),
    "The order of the methods in Li et al. 2021",
)
SPEED = Table(
    "published",
    (Column("heads"), Column("of"), Column("smaller by", format=".0%"), Column("faster by", format=".0%")),
    ((12, 144, 0.25, 0.33),),
    "About a quarter smaller and a third faster",
)
