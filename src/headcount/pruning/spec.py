"""The request of a pruned model as one object, checked when it is made. No torch here: a method's class is imported when its text is parsed."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, Literal, get_args

from headcount.core.budget import Budget
from headcount.core.errors import OptionError, PlanError, unknown_name_error
from headcount.core.heads import Head, HeadIndex
from headcount.core.options import convert_to_declared_types, format_value, option, options_of
from headcount.core.plan import Plan
from headcount.core.registry import PRUNERS
from headcount.pruning.recipe import Length, Recipe, format_length, parse_length

if TYPE_CHECKING:
    from headcount.pruning.base import Pruner
else:
    Pruner = object  # the type that `options_of` reads; the class itself imports torch

PruningAblation = Literal["zero", "mean"]
"""What replaces the output of a removed head: nothing, or its mean."""
ZERO: PruningAblation = "zero"
"""What replaces a removed head unless something else is named."""
SCRATCH_RATE = 5e-4
"""Learning rate of the control from scratch."""
DEFAULT_METHOD = "surgeon"
"""The pruner where neither a method nor a plan is named."""
NAMED_HEADS = 4
"""A label names up to this many protected heads; of more, their number and a hash."""


@dataclass(frozen=True)
class PruneSpec:
    """One pruned model: the method with its options, how much stays, and what happens to the model afterwards.

    Equal requests are equal objects, whatever text they were made from. `budget` is None where an option of the method alone decides how many heads
    stay. `PruneSpec.of` takes plain arguments.

    Raises:
        PlanError: two arguments contradict each other, or nothing says how many heads stay.
        OptionError: a value has the wrong type or is out of range.
    """

    method: Pruner = option(help="A pruner of `headcount ls pruners`, or an importance to rank by.")
    budget: Budget | None = option(None, "How much stays.")
    kinds: tuple[str, ...] = option((), "Attention that may lose heads (encoder-self, decoder-self, cross); keep counts these.")
    ablation: PruningAblation = option(ZERO, "What replaces a removed head: nothing (zero), or its mean output, in the bias (mean).")
    repair: bool | None = option(None, "Refit output projections in closed form; by default unless training follows.")
    recover: Length | None = option(None, "Fine-tune the cut model: a number of epochs, or of steps (300steps), or auto.")
    scratch: Length | None = option(
        None, "The control: draw the weights of the smaller model anew and train them for a length as of recover."
    )
    scratch_rate: float = option(SCRATCH_RATE, "Learning rate of the control from scratch.", minimum=0)
    recipe: Recipe = option(Recipe(), "How methods that train do so.")
    seed: int = option(0, "Seed of the method and of its training.", minimum=0)

    def __post_init__(self) -> None:
        for name in ("recover", "scratch"):
            length = getattr(self, name)
            object.__setattr__(self, name, length if length is None else parse_length(length, name))
        kinds: object = self.kinds
        object.__setattr__(self, "kinds", (kinds,) if isinstance(kinds, str) else tuple(kinds) if isinstance(kinds, Iterable) else kinds)
        object.__setattr__(self, "budget", None if self.budget == Budget() else self.budget)
        if not callable(getattr(self.method, "choose", None)):
            raise OptionError(f"method must be a Pruner, or a text that PruneSpec.of parses; got {self.method!r}")
        if self.ablation not in get_args(PruningAblation):
            raise _ablation_error(self.ablation)
        convert_to_declared_types(self, options_of(PruneSpec), "a pruning")
        self._check_size()
        self._check_stages()

    def _check_size(self) -> None:
        size, option_text = self.limits.size, self.method.sizing_option_text
        if option_text and size is not None:
            raise PlanError(
                f"{self.method} with {option_text} decides itself how many heads stay, so that {size[0]}={size[1]} cannot be promised; "
                "leave one of them out"
            )
        if not option_text and size is None:
            raise PlanError("nothing says how many heads stay; name keep, or a Budget with exactly one of keep and fraction, or a limit")
        if self.limits.limit is not None and self.method.info.trains:
            raise PlanError(
                f"{self.method} trains for a number of heads; name keep, or prune by {self.limits.limit[0]} with a method that does not train"
            )
        self.method.check_budget(self.limits)

    def _check_stages(self) -> None:
        """Raises PlanError where ablation, repair, recovery and control exclude each other."""
        if self.scratch is not None and (self.recover is not None or self.repair):
            raise PlanError("weights that are drawn anew for the control (scratch) have nothing to repair or to recover; name one of them")
        if self.scratch is not None and self.ablation != "zero":
            raise PlanError(
                f"weights that are drawn anew for the control (scratch) hold no {self.ablation} of removed heads; leave ablation out"
            )
        if self.ablation == "mean" and self.repair:
            raise PlanError("repair refits the bias too, which holds what means would put there; leave ablation or repair out")
        if self.ablation == "mean" and self.method.info.trains:
            raise PlanError(
                f"{self.method} trains for heads that give nothing once they are gone; leave ablation=mean out, or choose a method that does "
                "not train"
            )

    @classmethod
    def of(  # noqa: PLR0913 - every argument is explicit
        cls,
        method: str | Pruner | None = None,
        keep: int | float | str | Budget | None = None,
        *,
        plan: Plan | None = None,
        kinds: str | Iterable[str] = (),
        protected: str | Head | Iterable[str | Head] | None = None,
        floor: int | None = None,
        unit: Literal["kv_group", "even"] | None = None,
        ablation: PruningAblation = ZERO,
        repair: bool | None = None,
        recover: Length | None = None,
        scratch: Length | None = None,
        scratch_rate: float = SCRATCH_RATE,
        recipe: Recipe | None = None,
        seed: int = 0,
    ) -> PruneSpec:
        """Returns the request that plain arguments describe.

        `keep` is a number of heads, a share as a float or a text such as "25%", or a Budget, whose own floor, protected heads and unit then hold.
        A `plan` made elsewhere says alone which heads go.
        """
        from headcount.pruning.base import Pruner

        limits = {name: value for name, value in (("protected", protected), ("floor", floor), ("unit", unit)) if value is not None}
        if isinstance(keep, Budget):
            for name, value in limits.items():
                if getattr(Budget(**{name: value}), name) not in (getattr(Budget(), name), getattr(keep, name)):  # pyright: ignore[reportArgumentType]
                    raise PlanError(f"{name} is given twice, by the Budget and as an argument; leave one of them out")
            budget = keep
        else:
            budget = Budget(keep=keep, **limits)  # pyright: ignore[reportArgumentType]
        if plan is not None:
            _check_plan_decides_alone(method, budget, kinds)
            pruner_class: Any = PRUNERS.get("plan")  # importing it by name would import torch
            method = pruner_class(removed=plan.list_removed())
        return cls(
            method=Pruner.parse(DEFAULT_METHOD if method is None else method),
            budget=budget,
            kinds=kinds,  # pyright: ignore[reportArgumentType]
            ablation=ablation,
            repair=repair,
            recover=recover,
            scratch=scratch,
            scratch_rate=scratch_rate,
            recipe=Recipe() if recipe is None else recipe,
            seed=seed,
        )

    @property
    def limits(self) -> Budget:
        """The budget; one without a size where the method decides how many heads stay."""
        return self.budget if self.budget is not None else Budget()

    @property
    def scratch_recipe(self) -> Recipe | None:
        """How the control is trained whose weights are drawn anew; None where there is no control."""
        return None if self.scratch is None else replace(self.recipe, rate=self.scratch_rate, distil=0.0).with_length(self.scratch)

    @property
    def label(self) -> str:
        """The method in tables, with every option that differs from its default, without size and seed."""
        limits = self.limits
        words = [f"floor {limits.floor}"] if limits.floor else []
        words += [f"unit {limits.unit}"] if limits.unit != "kv_group" else []
        text = self.method.label
        text += f" of {'+'.join(self.kinds)}" if self.kinds else ""
        text += f" sparing {_label_heads(limits.protected)}" if limits.protected else ""
        text += f" with {' and '.join(words)}" if words else ""
        text += f" + {self.ablation}" if self.ablation != "zero" else ""
        text += "" if self.repair is None else " + repair" if self.repair else " without repair"
        text += f" + recover {format_length(self.recover)}" if self.recover is not None else ""
        rate = format_value(self.scratch_rate)
        return text + (f", from scratch {format_length(self.scratch)} at {rate}" if self.scratch is not None else "")

    @property
    def name(self) -> str:
        """The label with size and seed: the name of the artifact."""
        size = self.limits.size
        if size is None:
            size_label = "heads by its option"
        elif size[0] == "keep":
            size_label = f"{size[1]} heads"
        else:
            size_label = f"{format_value(100 * size[1])}% of heads" if size[0] == "fraction" else f"{size[0]} {format_value(size[1])}"
        return ", ".join([self.label, size_label, *([f"seed {self.seed}"] if self.seed else [])])

    def n_steps_by_stage(self, n_examples: int) -> list[int]:
        """Returns the number of optimiser steps of every stage that trains, on so many training examples."""
        recipes = [self.recipe] if self.method.info.trains else []
        recipes += [self.recipe.with_length(self.recover)] if self.recover is not None else []
        recipes += [self.scratch_recipe] if self.scratch_recipe is not None else []
        return [recipe.n_steps(n_examples) for recipe in recipes]

    def n_steps(self, n_examples: int) -> int:
        """Returns the number of optimiser steps of all stages together, on so many training examples."""
        return sum(self.n_steps_by_stage(n_examples))

    def resized(self, keep: int | float | str) -> PruneSpec:
        """Returns the request with another number or share of heads."""
        return replace(self, budget=self.limits.resized(keep))

    def resolve_share(self, heads: HeadIndex) -> PruneSpec:
        """Returns the request with a number of heads in place of a share, so that both are one request for this model."""
        if self.limits.fraction is None:
            return self
        n_heads = sum(block.n_heads for block in heads.blocks if not self.kinds or block.kind in self.kinds)
        return self.resized(self.limits.heads(n_heads))

    def arguments(self) -> dict[str, Any]:
        """Returns the arguments of `headcount.prune` or its command that make this request, as plain data: those that differ from their defaults.

        Fields of the budget and of the recipe stand beside those of the request.
        """
        values: dict[str, Any] = {"method": str(self.method)}
        for owner in (self.limits, self, self.recipe):
            for field in fields(owner):
                value = getattr(owner, field.name)
                if field.name not in ("method", "budget", "recipe") and value != field.default:
                    values[field.name] = sorted(map(str, value)) if isinstance(value, frozenset | tuple) else value
        return values

    def to_dict(self) -> dict[str, Any]:
        """Returns the request as plain data, defaults included."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        budget = None if self.budget is None else self.budget.to_dict()
        return values | {"method": self.method.to_dict(), "budget": budget, "kinds": list(self.kinds), "recipe": self.recipe.to_dict()}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> PruneSpec:
        """Returns the request that `to_dict` described."""
        method: Any = PRUNERS.get(values["method"]["name"]).from_dict(values["method"])
        budget = None if values["budget"] is None else Budget.from_dict(values["budget"])
        return cls(**{**values, "method": method, "budget": budget, "recipe": Recipe.from_dict(values["recipe"])})

    def budget_for(self, heads: HeadIndex) -> Budget:
        """Returns the budget over all heads of a model: heads of other kinds of attention than `kinds` are counted and protected.

        Raises:
            UnknownName: the model has no attention of such a kind.
            PlanError: the number of heads is no number of this model.
        """
        budget = self.limits
        if self.method.sizing_option_text:
            budget = budget.resized(len(heads))
        known = tuple(dict.fromkeys(block.kind for block in heads.blocks))
        for kind in self.kinds:
            if kind not in known:
                raise unknown_name_error("kind of attention of this model", kind, known)
        if not self.kinds:
            return budget
        free = [head for block in heads.blocks if block.kind in self.kinds for head in block.heads]
        other_kinds = frozenset(heads).difference(free)
        budget = replace(budget, protected=budget.protected | other_kinds)
        if budget.limit is not None or self.method.sizing_option_text:
            return budget
        return budget.resized(budget.heads(len(free)) + len(other_kinds))

    def check(self, heads: HeadIndex) -> None:
        """Raises PlanError or UnknownName where the heads of a model cannot be pruned as requested: kinds, sizes, KV groups, protected heads."""
        budget = self.budget_for(heads)
        self.method.check_heads(heads)
        if budget.limit is not None:
            if budget.unit != "kv_group" and any(len(unit) > 1 for unit in heads.units()):
                raise PlanError(
                    f"a budget of {budget.limit[0]} is filled with whole KV groups; unit={budget.unit!r} goes with keep or fraction"
                )
            return
        from headcount.core.scores import Scores  # imports numpy, which help texts do without

        Plan.keep_top(Scores(heads.heads, (0.0,) * len(heads), units=heads.units()), budget)


def _check_plan_decides_alone(method: str | Pruner | None, budget: Budget, kinds: str | Iterable[str]) -> None:
    """Raises PlanError where another argument beside a plan says which heads go or stay."""
    values: dict[str, Any] = {"method": method, "kinds": kinds if isinstance(kinds, str) else "+".join(kinds)}
    values |= {field.name: getattr(budget, field.name) for field in fields(budget) if getattr(budget, field.name) != field.default}
    values |= {"protected": "+".join(sorted(map(str, budget.protected)))}
    for name, value in values.items():
        if value:
            text = f"keep={format_value(100 * value)}%" if name == "fraction" else f"{name}={value}"
            raise PlanError(f"plan says which heads go, so that {text} has nothing to decide; leave one of them out")


def _ablation_error(ablation: str) -> PlanError:
    if ablation == "uniform":
        return PlanError(
            "uniform attention depends on the input, so that it cannot be cut: ablation is zero or mean here, and uniform a gate "
            "(headcount.mask with how='uniform', or the study layers with how='uniform')"
        )
    return PlanError(f"ablation is zero or mean, got {ablation!r}")


def _label_heads(heads: Iterable[Head]) -> str:
    """Returns protected heads in a few words; other heads give other words."""
    names = sorted(map(str, heads))
    text = "+".join(names)
    return text if len(names) <= NAMED_HEADS else f"{len(names)} heads ({hashlib.sha256(text.encode()).hexdigest()[:4]})"
