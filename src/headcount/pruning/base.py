"""Pruners: what a method of choosing heads is given, what it declares, and what it returns.

A pruner never cuts: `headcount.pruning.prune` repairs, cuts, verifies and recovers after it, in the same way for all. A pruner that ranks heads makes
`Scores` and lets `Plan.keep_top` choose, which respects KV groups, floors and protected heads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal, TypeVar

import numpy as np
from torch import nn

from headcount.core.budget import Budget
from headcount.core.errors import DataError, unknown_name_error
from headcount.core.heads import HeadIndex
from headcount.core.options import Configurable, expand_alternatives, format_value
from headcount.core.plan import Plan
from headcount.core.registry import IMPORTANCES, PRUNERS
from headcount.core.scores import Scores
from headcount.data.stream import Progress
from headcount.data.task import Data, Task
from headcount.models.head_map import HeadMap
from headcount.pruning.recipe import Recipe
from headcount.pruning.repair.repair import Repaired

Value = TypeVar("Value")
__all__ = ["Budget", "Choice", "HeadMap", "Plan", "PruneContext", "Pruner", "PrunerInfo", "Scores"]


@dataclass(frozen=True, slots=True)
class PrunerInfo:
    """What a pruner declares about itself."""

    source: str
    """The paper, or where else the method comes from."""
    trains: Literal["", "gates", "weights"] = ""
    """What the method trains: nothing, gates alone, or weights (and perhaps gates)."""
    draws: bool = False
    """Whether chance decides which heads stay, so that a comparison runs the method by several seeds."""
    size_option: str = ""
    """The option that, unless it is 0, decides how many heads stay."""


@dataclass(frozen=True, slots=True)
class PruneContext:
    """What a pruner works with. The model must not be changed; a pruner that trains copies it."""

    model: nn.Module
    heads: HeadMap
    data: Data
    budget: Budget
    seed: int = 0
    recipe: Recipe = field(default_factory=Recipe)
    folder: Path | None = None
    progress: Progress | None = None
    shared: dict[Any, Any] = field(default_factory=dict)
    """Measurements of the dense model, shared by all pruners that work on the same model and data."""

    def once(self, key: tuple[Any, ...], measure: Callable[[], Value]) -> Value:
        """Returns `measure()`, computed once for all pruners and sizes that share this cache."""
        if key not in self.shared:
            self.shared[key] = measure()
        return self.shared[key]

    @property
    def keep(self) -> int:
        """The number of heads that stay."""
        return self.budget.heads(len(self.heads))

    @property
    def task(self) -> Task:
        """The data as a Task, for pruners that train.

        Raises:
            DataError: the data are no Task.
        """
        if not isinstance(self.data, Task):
            raise DataError("a pruner that trains needs a Task: examples, a way to batch them, and a loss (see docs/tasks.md)")
        return self.data

    def plan(self, values: Sequence[float] | np.ndarray, name: str) -> Plan:
        """Returns the plan that keeps the heads with the highest values."""
        return Plan.keep_top(self.scores(values, name), self.budget)

    def scores(self, values: Sequence[float] | np.ndarray, name: str) -> Scores:
        """Returns one value per head as scores; higher means keep."""
        return Scores(self.heads.heads, tuple(float(value) for value in values), method=name, units=self.heads.units(), seed=self.seed)

    def random(self) -> np.random.Generator:
        """Returns a generator of random numbers that depend on the seed alone, not on the machine."""
        return np.random.Generator(np.random.Philox(key=np.array([self.seed % 2**64, 0x6865616473], dtype=np.uint64)))


@dataclass(frozen=True, slots=True)
class Choice:
    """What a pruner returns."""

    plan: Plan
    model: nn.Module | None = None
    """The model, uncut, where the pruner changed weights."""
    gates: Sequence[float] | None = None
    """The values of the gates of all heads, where they differ from one."""
    history: list[dict[str, Any]] = field(default_factory=list)
    scores: Scores | None = None
    repaired: Repaired | None = None
    """The repair of the plan by its default settings, where the pruner made it to compare plans."""
    steps: int = 0
    """Optimiser steps of the pruner's own training."""


@dataclass(frozen=True)
class Pruner(Configurable):
    """A method of choosing the heads that stay. Its fields are its options; `choose` is what it must have.

    Example:
        >>> Pruner.parse("dsp:straight(tau=2)").tau
        2.0
    """

    info: ClassVar[PrunerInfo]

    @classmethod
    def parse(cls, method: str | Pruner) -> Pruner:
        """Returns the pruner that a text describes; the name of an importance stands for ranking by it.

        Raises:
            UnknownName: neither a pruner nor an importance has that name, or the pruner has no such option.
            OptionError: an option has the wrong type or is out of range.
        """
        if isinstance(method, str):
            name, parenthesis, options = method.strip().partition("(")
            base = name.partition(":")[0].strip()
            if base not in PRUNERS.names():
                if base not in IMPORTANCES.names():
                    raise unknown_name_error("method of pruning", base, {*PRUNERS.names(), *IMPORTANCES.names()})
                method = f"rank(by={name.strip()};{options}" if parenthesis else f"rank(by={name})"
        return PRUNERS.parse(method, Pruner)

    @classmethod
    def parse_grid(cls, methods: Iterable[str | Pruner]) -> list[Pruner]:
        """Returns the pruners of several texts, each once; a text with alternatives, `dsp(tau=1|10;rate=0.1|0.5)`, stands for all combinations."""
        texts = [text for method in methods for text in (expand_alternatives(method) if isinstance(method, str) else [method])]
        return list(dict.fromkeys(map(cls.parse, texts)))

    @property
    def sizing_option_text(self) -> str:
        """The option by which the pruner itself decides how many heads stay, as `name=value`; empty where the budget decides."""
        value = getattr(self, self.info.size_option) if self.info.size_option else 0
        return f"{self.info.size_option}={format_value(value)}" if value else ""

    @property
    def label(self) -> str:
        """The pruner in tables: its text."""
        return str(self)

    def count_passes(self, n_heads: int) -> float:
        """Returns about how many forward passes over the calibration examples a choice takes, training left out, for estimates of time."""
        del n_heads
        return 0.0 if self.info.draws else 3.0

    def check_heads(self, heads: HeadIndex) -> None:
        """Raises PlanError where the pruner cannot choose among the heads of a model. By default it can."""

    def check_budget(self, budget: Budget) -> None:
        """Raises PlanError where the pruner cannot keep what a budget promises. By default every budget will do."""

    def choose(self, context: PruneContext) -> Choice:
        """Returns the plan, with the model or the gates where the pruner trained them."""
        raise NotImplementedError(f"{type(self).__name__} has no choose(context)")
