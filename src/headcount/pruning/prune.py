"""`prune`: ask for K heads, get the best K-head model by any method: choose → fold gates or means → repair → cut and verify → recover."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypedDict, Unpack

import torch
from torch import nn

from headcount.core.errors import DataError, PlanError, unknown
from headcount.core.plan import Budget, Plan
from headcount.core.registry import IMPORTANCES, PRUNERS, Variant
from headcount.core.scores import Scores
from headcount.data.checks import check_weights
from headcount.data.stream import Progress
from headcount.data.task import Data, Task
from headcount.models.head_map import HeadMap
from headcount.models.modules import unwrap
from headcount.models.ownership import holds
from headcount.models.state import copy_model
from headcount.pruning.allocate import check_unit, plan_within
from headcount.pruning.base import About, Choice, Work, check_size, read_options, size_option
from headcount.pruning.kl_to_dense import better
from headcount.pruning.repair.least_squares import Fitted
from headcount.pruning.repair.means import Ablation, check_ablation, fold_means
from headcount.pruning.repair.projection import projection, read, write
from headcount.pruning.repair.repair import refit
from headcount.pruning.scope import only
from headcount.pruning.training.fine_tune import Recipe, fine_tune
from headcount.surgery.cut import cut


class Method(Variant):
    """A pruner by its name and variant; `module` is its file."""

    __slots__ = ()

    @classmethod
    def parse(cls, text: str) -> Method:
        """The method that `name` or `name:variant` names."""
        return cls.find(PRUNERS, text)

    @property
    def about(self) -> About:
        """What the method declares."""
        return self.module.ABOUT


def parse_method(text: str) -> tuple[str, dict[str, str]]:
    """A method and its options: `name`, `name:variant`, or `name(option=value;…)`; the name of an importance stands for rank by it."""
    name, _, rest = text.strip().partition("(")
    options: dict[str, str] = {}
    if rest:
        if not rest.endswith(")"):
            raise PlanError(f"options of a method stand in brackets, as in rank(by=fisher;again=true); got {text}")
        for pair in filter(None, (part.strip() for part in rest[:-1].split(";"))):
            key, equals, value = pair.partition("=")
            if not equals:
                raise PlanError(f"an option of a method is name=value, got '{pair}'")
            options[key.strip()] = value.strip()
    base = name.partition(":")[0]
    if base not in PRUNERS.names() and base in IMPORTANCES.names():
        return "rank", {"by": name, **options}
    if base not in PRUNERS.names():
        raise unknown("method of pruning", base, {*PRUNERS.names(), *IMPORTANCES.names()})
    return name, options


@dataclass(frozen=True, slots=True)
class Pruned:
    """What a pruner returns: the plan, the cut and verified model, what happened on the way, and what the repair did to each block."""

    plan: Plan
    model: nn.Module
    history: list[dict[str, Any]] = field(default_factory=list)
    repaired: dict[str, Fitted] = field(default_factory=dict)
    scores: Scores | None = None
    method: str = ""
    gates: tuple[float, ...] | None = None
    """The values that the gates which stay were tuned to, in the weights by now."""
    changed_weights: bool = False
    """Whether choosing or recovering changed weights: else plan and gates say all, and `carry_out` makes the model of them again."""
    steps: dict[str, int] = field(default_factory=dict)
    """Optimiser steps by stage: `choose`, `recover`; a stage that trained nothing is missing."""


class Options(TypedDict, total=False):
    """All keyword arguments of `prune` beside the method, the budget and the method's own options."""

    kinds: Sequence[str]
    ablation: Ablation
    repair: bool | None
    recover: float | str | None
    recipe: Recipe
    seed: int
    folder: Path | None
    progress: Progress | None
    shared: dict[Any, Any]


@holds("pruning")
def prune(
    model: nn.Module,
    data: Data,
    method: str = "surgeon",
    keep: int | float | Budget | None = None,
    *,
    fraction: float | None = None,
    options: dict[str, Any] | None = None,
    **how: Unpack[Options],
) -> Pruned:
    """The model with `keep` heads (or a `fraction` of them, or a Budget) that a method makes of it; the model given stays as it is.

    `keep` is a whole number of heads, or a float above 0 and below 1, a share of them; 1.0, which could be one head or all, is refused.
    `headcount ls pruners` lists the methods, the name of an importance stands for rank by it; `options` are those of the method. `kinds` names the
    attention that may lose heads (encoder-self, decoder-self, cross): `keep` then counts heads of these, and all others stay. `ablation` says what
    stands in for a removed head: nothing ("zero"), or its mean output ("mean", in the bias of the output projection). `repair` refits the output
    projections in closed form, bias included (on unless training follows or means stand in; dropped, as the history tells, where predictions on the
    selection split are nearer to the dense model's without it), `recover` fine-tunes the cut model by the `recipe`, as every method that trains
    uses it, for a number of epochs, "300steps", or "auto" (one epoch, and at least 300 steps, as methods that train take too unless the recipe says
    otherwise). Where an option of the method decides how many heads stay (`penalty` of l0, `stop` of rank), no budget may be given. With a `folder`,
    training that was stopped goes on. Calls with the same model and data find the same scores: a dict given as `shared` to all of them holds what one
    has found for the others.
    """
    inner = unwrap(model)
    name, named = parse_method(method)
    made, options = Method.parse(name), {**named, **(options or {})}
    heads = HeadMap.of(inner)
    own = size_option(made.about, read_options(made.module, options, str(made)))
    budget = _budget(keep, fraction)
    check_size(made, own, budget)
    budget = only(budget, heads, how.get("kinds", ()))
    if own:
        budget = replace(budget, keep=len(heads))
    limited = budget.limit is not None
    check_unit(heads, budget)
    if budget.limit is not None and made.about.trains:
        raise PlanError(f"{made} trains for a number of heads; name keep, or prune by {budget.limit[0]} with a method that does not train")
    if not limited:
        budget.heads(len(heads))
    recover = how.get("recover")
    if recover is not None:
        how.get("recipe", Recipe()).lasting(recover, "recover")
    if (recover or made.about.trains) and not isinstance(data, Task):
        raise DataError(
            f"{made} with recovery={recover} trains, which needs a Task: examples, a way to batch them, and a loss (see docs/tasks.md)"
        )
    check_stand_in(inner, made, how.get("ablation", "zero"), how.get("repair"), how.get("kinds", ()))
    check_weights(inner)
    counted = _half(budget, heads) if limited else budget
    work = _work(inner, heads, data, counted, made, options, how)
    if not limited:
        Plan.keep_top(work.scores([0.0] * len(heads), "check"), budget)
    choice = made.module.choose(work, made.variant)
    if limited:
        if choice.scores is None:
            raise PlanError(f"{made} gives no scores, so that it cannot fill a budget of {budget.limit}")
        choice = Choice(plan_within(inner, heads, choice.scores, budget), history=choice.history, scores=choice.scores)
    return _finish(work, made, choice, how)


def _half(budget: Budget, heads: HeadMap) -> Budget:
    """A number of heads in place of a limit, for methods that score heads on the way to one: half of the units that may go."""
    free = [unit for unit in heads.units() if budget.protected.isdisjoint(unit)]
    gone = sum(len(unit) for unit in free[: len(free) // 2])
    return replace(budget, parameters=None, kv_bytes=None, latency=None, keep=len(heads) - gone, floor=0)


def check_stand_in(model: nn.Module, method: Method, ablation: str, repair: bool | None, kinds: Sequence[str] = ()) -> None:
    """Refuses what cannot stand in for removed heads in a model, or not beside this method and a repair."""
    check_ablation(model, ablation, kinds)
    if ablation == "mean" and repair:
        raise PlanError("repair refits the bias too, which holds what means would put there; leave ablation or repair out")
    if ablation == "mean" and method.about.trains:
        raise PlanError(
            f"{method} trains for heads that give nothing once they are gone; leave ablation=mean out, or choose a method that does not train"
        )


def carry_out(model: nn.Module, data: Data, method: str, choice: Choice, **how: Unpack[Options]) -> Pruned:
    """The model of a choice that `method` made before and that changed no weights, as `prune` made it then."""
    inner, made = unwrap(model), Method.parse(method)
    heads = HeadMap.of(inner)
    kept = Budget(keep=len(heads) - len(choice.plan.removed))
    return _finish(_work(inner, heads, data, kept, made, {}, how), made, choice, how)


def _work(model: nn.Module, heads: HeadMap, data: Data, budget: Budget, method: Method, options: dict[str, Any], how: Options) -> Work:
    folder, seed = how.get("folder"), how.get("seed", 0)
    return Work(
        model,
        heads,
        data,
        budget,
        seed,
        read_options(method.module, options, str(method)),
        replace(how.get("recipe", Recipe()), seed=seed),
        folder / "choose" if folder else None,
        how.get("progress"),
        how.get("shared", {}),
    )


def _budget(keep: int | float | Budget | None, fraction: float | None) -> Budget:
    if isinstance(keep, Budget):
        if fraction is not None:
            raise PlanError("a Budget says how much stays; leave fraction out")
        return keep
    return Budget(keep=keep, fraction=fraction)


def _finish(work: Work, method: Method, choice: Choice, how: Options) -> Pruned:
    """Folds gates or means, repairs, cuts and recovers what was chosen.

    Weights that a method trained for the heads that stay are not refitted: the removed ones do nothing there that could be made up for. Where a
    method tuned gates alone, the repair of the dense model is weighed against what it made.
    """
    by_means = how.get("ablation") == "mean"
    if by_means:  # in place of gates or weights that a method tuned for heads that give nothing
        choice = replace(choice, model=None, gates=None)
    source = choice.model if choice.model is not None else work.model
    if choice.gates is not None:
        source = fold(source, choice.gates)
    if by_means:
        source = fold_means(source, choice.plan, work.data)
    repaired: dict[str, Fitted] = {}
    history, steps = list(choice.history), {"choose": choice.steps} if choice.steps else {}
    wanted, recover = how.get("repair"), how.get("recover")
    is_trained = choice.model is not None and method.about.trains == "weights"
    if (wanted if wanted is not None else not (recover or by_means)) and not is_trained and choice.plan.removed:
        made, entry = better(work, choice.plan, source, choice.repaired or refit(work.model, choice.plan, work.data))
        source, repaired = made.model, made.blocks
        history.append(entry)
    small = cut(source, choice.plan)
    if recover:
        folder = how.get("folder")
        again = work.recipe.lasting(recover, "recover")
        teacher = work.model if again.distil else None
        made = fine_tune(
            small, work.task, again, folder=folder / "recover" if folder else None, teacher=teacher, progress=how.get("progress")
        )
        history += [{"stage": "recover", **entry} for entry in made.history]
        steps["recover"] = made.steps
    gates = None if choice.gates is None else tuple(map(float, choice.gates))
    changed = choice.model is not None or bool(recover)
    return Pruned(choice.plan, small, history, repaired, choice.scores, str(method), gates, changed, steps)


@torch.no_grad()
def fold(model: nn.Module, gates: Any) -> nn.Module:
    """A copy of a model whose output projections have the gates in them."""
    made = copy_model(unwrap(model))
    heads = HeadMap.of(made)
    for block in heads.blocks:
        if block.n_heads:
            module = projection(made, block)
            matrix = read(module)
            values = torch.as_tensor(list(gates)[heads.positions(block)], dtype=torch.float64, device=matrix.device)
            width = block.n_heads * block.value_dim
            matrix[:width] *= values.repeat_interleave(block.value_dim)[:, None]
            write(module, matrix)
    return made
