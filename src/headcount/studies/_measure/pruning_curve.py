"""Models pruned by several methods to several sizes, over seeds, in pairs with random heads and with each other."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from headcount.core.budget import Budget
from headcount.core.evaluation import Evaluation
from headcount.core.stats.corrected_rows import add_q_values
from headcount.data.share_above_chance import score_of_best_constant_answer, share_above_chance_left
from headcount.data.task import Task
from headcount.models.head_map import HeadMap
from headcount.pruning.base import Pruner
from headcount.pruning.prune import check_request
from headcount.pruning.recipe import Recipe
from headcount.pruning.spec import PruneSpec
from headcount.studies._base import Effort, LoadedModel, StudyContext
from headcount.studies._gated import allow_other_model, list_kept_counts
from headcount.studies._grid import estimate_grid_effort, run_grid
from headcount.studies._results import describe_study_run
from headcount.workflows.grid import MethodDifference, MethodRow, compare_methods_in_pairs, summarise_methods
from headcount.workflows.prune import Pruning, build_grid

if TYPE_CHECKING:
    from headcount.studies._pruned_models import PrunedModels
    from headcount.studies.pruning_curve import PruningCurve

LEVELS = tuple(share / 10 for share in range(9, 0, -1))
RANDOM = "random"


@dataclass(frozen=True, slots=True)
class PruningCurves:
    """The dense model of every task by its label, a row for every method and size, and one for every pair of methods."""

    dense: Mapping[str, Evaluation]
    rows: list[MethodRow]
    pairs: list[MethodDifference]


@dataclass(frozen=True, slots=True)
class ModelAndTask:
    """A model and a task that are pruned, by methods over all kinds of attention or each of them alone; `label` names them in tables."""

    label: str
    loaded: LoadedModel
    task: Task


def build_study_requests(study: PrunedModels, context: StudyContext) -> list[PruneSpec]:
    """Returns the requests of all models of a study."""
    return build_requests_of_kinds(study, context.loaded.heads, study.kinds, first_seed=context.seed)


def check_study_requests(study: PrunedModels, context: StudyContext) -> None:
    """Raises an error where the model of a study cannot be pruned by a method or to a size."""
    for spec in build_study_requests(study, context):
        check_request(spec, context.loaded.model, context.loaded.heads)


def all_train_weights(pruner_names: Iterable[str]) -> bool:
    """Whether every one of these pruners trains the weights of its model."""
    return all(pruner.info.trains == "weights" for pruner in Pruner.parse_grid(pruner_names))


def build_requests_of_kinds(study: PrunedModels, heads: HeadMap, attention_kinds: Sequence[str], *, first_seed: int) -> list[PruneSpec]:
    """Returns the requests of all models of a study that lose heads of some kinds of attention, or of all where none is named."""
    n_free = sum(block.n_heads for block in heads.blocks if not attention_kinds or block.kind in attention_kinds)
    keeps = list_kept_counts(study.keep, heads, LEVELS) if not attention_kinds else list_kept_counts_of_kinds(study.keep, n_free)
    recipe = Recipe(steps=study.steps, rate=study.rate, train_batch=study.train_batch)
    template = PruneSpec.of(
        RANDOM, Budget(keep=1), kinds=attention_kinds, repair=study.repair, recover=study.recover, recipe=recipe, seed=first_seed
    )
    return build_grid(study.methods, keeps, study.seeds, template, first_seed=first_seed)


def list_kept_counts_of_kinds(counts_or_shares: Sequence[int | float | str], n_heads_of_kinds: int) -> list[int]:
    """Returns how many heads of some kinds of attention stay at each level, most first."""
    sizes = counts_or_shares or [f"{round(100 * share)}%" for share in LEVELS]
    return sorted({max(1, Budget(keep=size).heads(n_heads_of_kinds)) for size in sizes}, reverse=True)


def estimate_effort(study: PrunedModels, context: StudyContext) -> Effort:
    """Returns the choice, training and evaluation of all models."""
    return estimate_grid_effort(context, build_study_requests(study, context))


def estimate_curves(study: PruningCurve, context: StudyContext) -> Effort:
    """Returns the work of all models of a study, of every kind of attention and every task; those of other models as if they had as many heads."""
    effort, heads = Effort(), context.loaded.heads
    for kinds in list_attention_kind_groups(study, heads):
        specs = build_requests_of_kinds(study, heads, kinds, first_seed=context.seed)
        for subject in ("", *study.other_tasks):
            effort += estimate_grid_effort(context, specs, other_subject=subject)
    return effort


def list_attention_kind_groups(study: PruningCurve, heads: HeadMap) -> list[tuple[str, ...]]:
    """Returns the kinds of attention that lose heads in each grid of a study."""
    if not study.each_kind:
        return [study.kinds]
    return [(kind,) for kind in dict.fromkeys(block.kind for block in heads.blocks) if not study.kinds or kind in study.kinds]


def open_models_and_tasks(study: PruningCurve, context: StudyContext) -> list[ModelAndTask]:
    """Returns the model and task of a study, and those that `other_tasks` names as TASK or MODEL=TASK."""
    series = [ModelAndTask(context.task.name, context.loaded, context.task)]
    for text in study.other_tasks:
        model, separator, task = text.partition("=")
        if not separator or "(" in model:  # an equals sign within parentheses belongs to an option of the task
            series.append(ModelAndTask(text, context.loaded, context.sources.open_task(context.loaded, text)))
        else:
            loaded = context.sources.load_model(model)
            series.append(ModelAndTask(f"{task} ({model})", loaded, context.sources.open_task(loaded, task)))
    return series


def measure_pruning_curves(study: PruningCurve, context: StudyContext) -> PruningCurves:
    """Prunes the model of a study by every method to every size on every task, and compares the results.

    With several tasks each row has the share of its dense model's score above chance, as the scores themselves cannot be compared.
    """
    all_series = open_models_and_tasks(study, context)
    describe_study_run(context, context.loaded, {"study": study.name, "methods": list(study.methods), "seeds": study.seeds})
    dense: dict[str, Evaluation] = {}
    rows: list[MethodRow] = []
    pairs: list[MethodDifference] = []
    for series in all_series:
        allow_other_model(context.run, series.loaded.model)
        pruning = Pruning(
            context.required_run, series.loaded.model, series.task, limit=context.limit, command=context.command, seed=context.seed
        )
        for kinds in list_attention_kind_groups(study, series.loaded.heads):
            specs = build_requests_of_kinds(study, series.loaded.heads, kinds, first_seed=context.seed)
            grid = run_grid(context, pruning, specs, keep_models=study.keep_models)
            dense[series.label] = grid.dense
            measure_share = None
            if len(all_series) > 1:
                chance = score_of_best_constant_answer(series.loaded.model, series.task, context.limit)
                measure_share = partial(share_above_chance_left, grid.dense, task=series.task, chance=chance, seed=context.seed)
            summary = summarise_methods(grid, kinds, seed=context.seed, measure_share=measure_share)
            rows += [replace(row, task=series.label) for row in summary]
            pairs += [replace(row, task=series.label) for row in compare_methods_in_pairs(grid, kinds, seed=context.seed)]
    return PruningCurves(dense, add_q_values(rows), add_q_values(pairs))
