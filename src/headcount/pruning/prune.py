"""`prune`: choose the heads that stay, fold gates or means into the weights, repair, cut and verify, recover."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import torch
from torch import nn

from headcount.core.arguments import check_arguments
from headcount.core.budget import Budget
from headcount.core.certificate import TaskCertificate, TestedSize
from headcount.core.errors import DataError, PlanError, PluginError
from headcount.core.heads import Head
from headcount.core.margin import Margin
from headcount.core.plan import Plan
from headcount.core.progress import Progress, show_progress
from headcount.core.scores import Scores
from headcount.data.checks import check_finite_weights
from headcount.data.task import Data, Task
from headcount.models.head_map import HeadMap
from headcount.models.modules import unwrap
from headcount.models.ownership import holds_model
from headcount.models.state import copy_model
from headcount.pruning.allocate import plan_within_limit
from headcount.pruning.base import Choice, PruneContext, Pruner
from headcount.pruning.kl_to_dense import keep_repair_if_closer
from headcount.pruning.recipe import Length, Recipe
from headcount.pruning.repair.least_squares import FitResult
from headcount.pruning.repair.means import fold_means, require_biases
from headcount.pruning.repair.projection import output_projection, read_weight_and_bias, write_weight_and_bias
from headcount.pruning.repair.repair import refit
from headcount.pruning.spec import DEFAULT_METHOD, PruneSpec, PruningAblation
from headcount.pruning.training.fine_tune import fine_tune
from headcount.surgery.cut import cut


@dataclass(frozen=True, slots=True)
class Pruned:
    """A pruned model with its plan, the log of all stages, and what the repair did to each block."""

    plan: Plan
    model: nn.Module
    history: list[dict[str, Any]] = field(default_factory=list)
    repaired: dict[str, FitResult] = field(default_factory=dict)
    scores: Scores | None = None
    method: str = ""
    gates: tuple[float, ...] | None = None
    """The values of tuned gates, which are folded into the weights by now."""
    changed_weights: bool = False
    """Whether choosing or recovering changed weights. If not, plan and gates say all, and `rebuild` makes the model of them again."""
    steps: dict[str, int] = field(default_factory=dict)
    """Optimiser steps by stage: `choose`, `recover`; a stage that trained nothing is missing."""
    certificate: TaskCertificate | None = None
    """How much worse the model is on the report split, at most; None without a margin."""
    sizes: tuple[TestedSize, ...] = ()
    """The sizes that were tested from large to small, up to the first that failed; empty where the size was given."""


@check_arguments
def prune(  # noqa: PLR0913 - every argument is explicit
    model: nn.Module,
    data: Data,
    method: str | Pruner | None = None,
    keep: int | float | str | Budget | None = None,
    *,
    plan: Plan | str | Path | None = None,
    margin: str | Margin | None = None,
    kinds: str | Iterable[str] = PruneSpec.kinds,
    protected: str | Head | Iterable[str | Head] = (),
    floor: int = Budget.floor,
    unit: Literal["kv_group", "even"] = Budget.unit,
    ablation: PruningAblation = PruneSpec.ablation,
    repair: bool | None = PruneSpec.repair,
    recover: Length | None = PruneSpec.recover,
    recipe: Recipe | None = None,
    seed: int = PruneSpec.seed,
    folder: str | Path | None = None,
    progress: bool | Progress = True,
) -> Pruned:
    """Prunes a model to a number of heads, repairs, cuts and verifies it; the model given is not changed.

    Args:
        model: A live model of transformers.
        data: A Task, a datasets.Dataset of model inputs, or batches. Methods that train need a Task.
        method: A pruner or its text, `name:variant(option=value)`; `headcount ls pruners` lists them. The name of an importance stands for ranking
            by it. By default surgeon.
        keep: How many heads stay: a whole number, a share as a float above 0 and below 1 or as a text such as "25%", or a Budget. 1.0, which could
            be one head or all, is refused. None where an option of the method decides (`penalty` of l0, `stop` of rank), or a margin.
        plan: A plan made elsewhere, or its file, in place of `method` and `keep`: its heads go. `kinds`, `protected`, `floor` and `unit` are
            refused then; repair, recovery and the certificate of a margin follow as for any method.
        margin: How much worse the model may be on the report split, as "1%" of the dense model's metric or "0.5pt". Without `keep` the smallest
            certified model is returned: 90 %, 80 %, … 10 % of the heads, in whole KV groups, are tested in this order, up to the first that fails.
        kinds: Attention that may lose heads (encoder-self, decoder-self, cross); `keep` then counts heads of these, and all others stay.
        protected: Heads that stay whatever their score.
        floor: Heads that stay at least in every block.
        unit: What goes together where query heads share keys and values: whole groups ("kv_group"), or as many heads of each ("even").
        ablation: What replaces a removed head: nothing ("zero"), or its mean output, in the bias of the output projection ("mean").
        repair: Refit the output projections in closed form. By default unless training follows or means replace heads. Where predictions on the
            selection split are closer to the dense model's without the repair, it is dropped, as the history says.
        recover: Fine-tune the cut model for a number of epochs, "300steps", or "auto" (one epoch, and at least 300 steps).
        recipe: How methods that train, and the recovery, do so.
        seed: The seed of the method and of its training.
        folder: Where checkpoints of a training go; an interrupted training continues from there.
        progress: A bar on a terminal or in a notebook (True), nothing (False), or a function that is called with (done, total).

    Returns:
        The plan, the cut and verified model, and the log of what was done.

    Raises:
        UnknownName: no pruner, importance, option, or kind of attention has that name.
        OptionError: an argument has the wrong type or is out of range.
        PlanError: arguments contradict each other, or this model cannot be pruned so.
        ArtifactError: the file of `plan` holds no plan, or is damaged.
        DataError: training, or a margin, needs a Task.
        NotCertified: not even 90 % of the heads are certified to hold the margin.

    Example:
        >>> pruned = hc.prune(model, task, "gradient", keep="50%", protected=["L0H1"])
        >>> pruned.model.save_pretrained("smaller")
        >>> again = hc.prune(model, task, plan=pruned.plan)
    """
    parsed_margin, parsed_plan = None if margin is None else Margin.parse(margin), None if plan is None else Plan.parse(plan)
    method_decides = parsed_plan is not None or Pruner.parse(method or DEFAULT_METHOD).sizing_option_text
    margin_decides = parsed_margin is not None and keep is None and not method_decides
    spec = PruneSpec.of(
        method,
        1 if margin_decides else keep,
        plan=parsed_plan,
        kinds=kinds,
        protected=protected,
        floor=floor,
        unit=unit,
        ablation=ablation,
        repair=repair,
        recover=recover,
        recipe=recipe,
        seed=seed,
    )
    inner, checkpoints = unwrap(model), None if folder is None else Path(folder)
    heads = HeadMap.of(inner)
    if parsed_plan is not None:
        parsed_plan.check(heads)
    with show_progress(progress, "pruning", "sizes" if margin_decides else "examples") as advance:
        if parsed_margin is None:
            return prune_by_spec(inner, data, spec, heads=heads, folder=checkpoints, progress=advance)
        from headcount.pruning.certified import list_kept_counts_to_test, prune_to_margin  # imports this module

        sizes = list_kept_counts_to_test(spec, inner, heads) if margin_decides else None
        return prune_to_margin(inner, data, spec, parsed_margin, heads=heads, kept_counts=sizes, folder=checkpoints, progress=advance)


@holds_model("pruning")
def prune_by_spec(
    model: nn.Module,
    data: Data,
    spec: PruneSpec,
    *,
    heads: HeadMap,
    folder: Path | None = None,
    progress: Progress | None = None,
    shared: dict[Any, Any] | None = None,
) -> Pruned:
    """Prunes a model as a checked request says. Calls on the same model and data may share one `shared` dict, which caches measurements."""
    inner = unwrap(model)
    check_request(spec, inner, heads)
    if (spec.recover is not None or spec.method.info.trains) and not isinstance(data, Task):
        raise DataError(
            f"{spec.method} with recover={spec.recover} trains, which needs a Task: examples, a way to batch them, and a loss "
            "(see docs/tasks.md)"
        )
    check_finite_weights(inner)
    budget = spec.budget_for(heads)
    context = PruneContext(
        model=inner,
        heads=heads,
        data=data,
        budget=budget if budget.limit is None else _budget_of_half_the_free_units_without_floor(budget, heads),
        seed=spec.seed,
        recipe=replace(spec.recipe, distil=0.0),  # the predictions of the dense model are part of the recovery alone
        folder=folder / "choose" if folder else None,
        progress=progress,
        shared={} if shared is None else shared,
    )
    choice = spec.method.choose(context)
    if not isinstance(choice, Choice):
        raise PluginError(
            f"choose of {spec.method} must return a Choice, such as Choice(context.plan(values, name)); got {type(choice).__name__}"
        )
    if budget.limit is not None:
        if choice.scores is None:
            raise PlanError(f"{spec.method} gives no scores, so that it cannot fill a budget of {budget.limit}")
        choice = Choice(plan_within_limit(inner, heads, choice.scores, budget), history=choice.history, scores=choice.scores)
    return _repair_cut_and_recover(context, spec, choice, folder)


def check_request(spec: PruneSpec, model: nn.Module, heads: HeadMap) -> None:
    """Raises an error where a model cannot be pruned as requested, before any work.

    Raises:
        PlanError: the number of heads, the KV groups or the protected heads do not fit the model.
        UnknownName: the model has no attention of such a kind.
        UnsupportedModel: means shall replace heads, and an output projection has no bias to hold them.
    """
    spec.check(heads)
    if spec.ablation == "mean":
        require_biases(model, heads, spec.kinds)


def _budget_of_half_the_free_units_without_floor(budget: Budget, heads: HeadMap) -> Budget:
    """Returns a budget of heads in place of one with a limit, for methods that score heads on the way to a number: half of the free units go."""
    free = [unit for unit in heads.units() if budget.protected.isdisjoint(unit)]
    n_removed = sum(len(unit) for unit in free[: len(free) // 2])
    return replace(budget.resized(len(heads) - n_removed), floor=0)


def rebuild(model: nn.Module, data: Data, spec: PruneSpec, plan: Plan, gates: Sequence[float] | None, *, heads: HeadMap) -> Pruned:
    """Returns the model of a request again from the plan and the gates that were chosen for it before, without choosing."""
    context = PruneContext(unwrap(model), heads, data, Budget(keep=len(heads) - len(plan.removed)), spec.seed, spec.recipe)
    return _repair_cut_and_recover(context, spec, Choice(plan, gates=gates), None)


def _repair_cut_and_recover(context: PruneContext, spec: PruneSpec, choice: Choice, folder: Path | None) -> Pruned:
    """Folds gates or means into the weights, repairs, cuts and recovers.

    Weights that a method trained without the removed heads are not refitted: these heads do nothing there that a repair could replace. Where a
    method tuned gates alone, the repair of the dense model is compared with the tuned one.
    """
    uses_means = spec.ablation == "mean"
    if uses_means:  # in place of gates or weights that a method tuned for heads that give nothing
        choice = replace(choice, model=None, gates=None)
    source = choice.model if choice.model is not None else context.model
    if choice.gates is not None:
        source = fold_gates(source, choice.gates, context.heads)
    if uses_means:
        source = fold_means(source, choice.plan, context.data, context.heads)
    block_fits: dict[str, FitResult] = {}
    history, steps = list(choice.history), {"choose": choice.steps} if choice.steps else {}
    is_trained = choice.model is not None and spec.method.info.trains == "weights"
    repair = False if spec.scratch is not None else not (spec.recover or uses_means) if spec.repair is None else spec.repair
    if repair and not is_trained and choice.plan.removed:
        repaired = choice.repaired or refit(context.model, choice.plan, context.data)
        closest = keep_repair_if_closer(context, choice.plan, source, repaired)
        source, block_fits = closest.repaired.model, closest.repaired.blocks
        history.append(closest.log_entry)
    small = cut(source, choice.plan)
    if spec.recover is not None:
        recipe = spec.recipe.with_length(spec.recover)
        trained = fine_tune(
            small,
            context.task,
            recipe,
            seed=spec.seed,
            folder=folder / "recover" if folder else None,
            teacher=context.model if recipe.distil else None,
            progress=context.progress,
        )
        history += [{"stage": "recover", **entry} for entry in trained.history]
        steps["recover"] = trained.steps
    gates = None if choice.gates is None else tuple(map(float, choice.gates))
    changed_weights = choice.model is not None or spec.recover is not None
    return Pruned(choice.plan, small, history, block_fits, choice.scores, str(spec.method), gates, changed_weights, steps)


@torch.no_grad()
def fold_gates(model: nn.Module, gates: Sequence[float], heads: HeadMap) -> nn.Module:
    """Returns a copy of a model whose output projections are multiplied by the gates of their heads."""
    folded = copy_model(unwrap(model))
    for block in heads.blocks:
        if block.n_heads:
            module = output_projection(folded, block)
            matrix = read_weight_and_bias(module)
            values = torch.as_tensor(list(gates)[heads.positions(block)], dtype=torch.float64, device=matrix.device)
            width = block.n_heads * block.value_dim
            matrix[:width] *= values.repeat_interleave(block.value_dim)[:, None]
            write_weight_and_bias(module, matrix)
    return folded
