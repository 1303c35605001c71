"""What a pruner file holds: `ABOUT` and `choose(work, variant)`, which returns a Choice: the plan, and the model if its weights were trained; maybe
`check(options)`, which refuses options before any work.

A pruner never cuts: `prune` repairs, cuts, verifies and recovers after it, the same way for all. Everything that ranks heads makes `Scores` and lets
`Plan.keep_top` choose, which knows about units of heads that share keys and values, floors, and protected heads.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any, Literal, TypeVar

import numpy as np
from torch import nn

from headcount.core.errors import DataError, PlanError, unknown
from headcount.core.plan import Budget, Plan
from headcount.core.scores import Scores
from headcount.data.stream import Progress
from headcount.data.task import Data, Task
from headcount.models.head_map import HeadMap
from headcount.pruning.repair.repair import Repaired
from headcount.pruning.training.fine_tune import Recipe

Found = TypeVar("Found")
__all__ = ["About", "Budget", "Choice", "HeadMap", "Plan", "Scores", "Work"]


@dataclass(frozen=True, slots=True)
class About:
    """What a pruner declares: where it comes from, what it trains ("" for nothing, gates, or weights too), its variants, the options it takes.

    `draws` says that chance decides which heads stay, so that a comparison runs it by several seeds, as it does what trains.
    """

    source: str
    trains: Literal["", "gates", "weights"] = ""
    variants: tuple[str, ...] = ("",)
    options: Mapping[str, Any] = field(default_factory=dict)
    """The name of every option with its default."""
    draws: bool = False
    size_option: str = ""
    """The number among the options that, where it is not 0, decides how many heads stay."""


@dataclass(frozen=True, slots=True)
class Work:
    """What a pruner works with: the model (not to be changed unless it trains), its heads, the data, the budget, and the options of its file."""

    model: nn.Module
    heads: HeadMap
    data: Data
    budget: Budget
    seed: int
    options: Mapping[str, Any]
    recipe: Recipe
    folder: Path | None = None
    progress: Progress | None = None
    shared: dict[Any, Any] = field(default_factory=dict)
    """What was found out about the dense model, by all that prune it on the same data."""

    def once(self, what: tuple[Any, ...], make: Callable[[], Found]) -> Found:
        """What `make` finds out about the dense model, or found out for another pruner or another number of heads."""
        if what not in self.shared:
            self.shared[what] = make()
        return self.shared[what]

    @property
    def keep(self) -> int:
        """How many heads stay."""
        return self.budget.heads(len(self.heads))

    @property
    def task(self) -> Task:
        """The task, for pruners that train."""
        if not isinstance(self.data, Task):
            raise DataError("a pruner that trains needs a Task: examples, a way to batch them, and a loss (see docs/tasks.md)")
        return self.data

    def plan(self, values: Sequence[float] | np.ndarray, name: str) -> Plan:
        """The plan that keeps the heads with the highest values."""
        return Plan.keep_top(self.scores(values, name), self.budget)

    def scores(self, values: Sequence[float] | np.ndarray, name: str) -> Scores:
        """One value per head as scores; more means keep."""
        return Scores(self.heads.heads, tuple(float(value) for value in values), method=name, units=self.heads.units(), seed=self.seed)

    def random(self) -> np.random.Generator:
        """Random numbers of this work, the same on any machine."""
        return np.random.Generator(np.random.Philox(key=np.array([self.seed % 2**64, 0x6865616473], dtype=np.uint64)))


@dataclass(frozen=True, slots=True)
class Choice:
    """What a pruner chose: the plan; the model, uncut, if weights were changed; values of the gates that stay, if they are not one; history.

    `repaired` is the repair of the plan, by its defaults, where it had to be made for the choice.
    """

    plan: Plan
    model: nn.Module | None = None
    gates: Sequence[float] | None = None
    history: list[dict[str, Any]] = field(default_factory=list)
    scores: Scores | None = None
    repaired: Repaired | None = None
    steps: int = 0
    """Optimiser steps that were taken on the way."""


def size_option(about: About, options: Mapping[str, object]) -> str:
    """Returns the option, with its value, by which a pruner itself decides how many heads stay; "" where the budget does."""
    value = options.get(about.size_option)
    return f"{about.size_option}={value:g}" if isinstance(value, int | float) and value else ""


def check_size(method: object, option: str, budget: Budget) -> None:
    """Raises PlanError unless just one thing says how many heads stay: the budget, or an option of the method."""
    limits = {name: getattr(budget, name) for name in ("keep", "fraction", "parameters", "kv_bytes", "latency")}
    named = [f"{name}={value}" for name, value in limits.items() if value is not None]
    if option and named:
        raise PlanError(
            f"{method} with {option} decides itself how many heads stay, so that {named[0]} cannot be promised; leave one of them out"
        )


def read_options(module: ModuleType, given: Mapping[str, Any], name: str) -> dict[str, Any]:
    """The options of a pruner, with its defaults, in the type of these; refuses unknown names, wrong types, and what its `check` refuses."""
    about: About = module.ABOUT
    made = dict(about.options)
    for key, value in given.items():
        if key not in about.options:
            raise unknown(f"option of {name}", key, about.options)
        made[key] = _typed(about.options[key], value, f"option {key} of {name}")
    if hasattr(module, "check"):
        module.check(made)
    return made


def _typed(default: Any, value: Any, what: str) -> Any:
    kind: Callable[[Any], Any] = type(default) if default is not None else str
    if kind is bool:
        if value in (True, "true", "yes", "1"):
            return True
        if value in (False, "false", "no", "0"):
            return False
        raise PlanError(f"{what} must be true or false, got {value!r}")
    try:
        return kind(value) if value is not None else None
    except (TypeError, ValueError) as error:
        raise PlanError(f"{what} must be a {kind.__name__}, got {value!r}") from error  # pyright: ignore[reportFunctionMemberAccess]
