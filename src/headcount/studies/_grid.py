"""The pruned models of a study, of several methods, sizes and seeds, made in its run. Imports torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from headcount.core.budget import Budget
from headcount.core.evaluation import Evaluation
from headcount.data.task import Task
from headcount.pruning.base import Pruner
from headcount.pruning.spec import PruneSpec
from headcount.runs.results import unpack_pruned
from headcount.runs.sweep import sweep
from headcount.studies._base import StudyContext
from headcount.studies._tuning import note_training
from headcount.workflows.grid import Grid, average_evaluations
from headcount.workflows.prune import Pruning, check_requests, prune_all


def make_pruning(context: StudyContext, task: Task | None = None) -> Pruning:
    """Returns the pruning of the model of a study into its run, on the task of the study or another one."""
    return Pruning(context.required_run, context.loaded.model, task or context.task, limit=context.limit, command=context.command)


def run_grid(context: StudyContext, pruning: Pruning, specs: Sequence[PruneSpec], *, keep_models: bool = False) -> Grid:
    """Makes and evaluates every request, those that the run holds already not again. Requests that differ in their seed alone are one point.

    With `keep_models` the run also keeps the models whose weights were trained, so that `Pruning.make` need not train them again.

    Raises:
        HeadcountError: a request is refused, before any work, or one of them fails.
    """
    specs = [train_new_head(spec) for spec in specs] if context.new_head else specs
    check_requests(pruning, specs)
    note_training(context, pruning, specs)
    with context.progress("pruning", "models") as advance:
        dense, artifacts, failed = prune_all(pruning, specs, save_models=lambda spec: keep_models and spec.n_steps(1) > 0, progress=advance)
    for error in failed.values():
        raise error
    return Grid.of(pruning, evaluate_dense(context, pruning, specs) if context.new_head else dense, artifacts)


def train_new_head(spec: PruneSpec) -> PruneSpec:
    """Returns a request that trains the head of the model: where nothing else does, by as long a recovery as methods that train have."""
    if spec.method.info.trains == "weights" or spec.recover is not None or spec.scratch is not None:
        return spec
    return replace(spec, recover=spec.recipe.length)


def evaluate_dense(context: StudyContext, pruning: Pruning, specs: Sequence[PruneSpec]) -> Evaluation:
    """Returns the dense model that some requests are compared with; where its head is new, its mean over seeds after the training alone."""
    if not context.new_head:
        return pruning.evaluate_dense()
    first = specs[0]
    training = {"recover": first.recover or first.recipe.length, "scratch": None, "scratch_rate": PruneSpec.scratch_rate}
    template = replace(first, method=Pruner.parse("random"), kinds=(), budget=Budget(keep=len(pruning.heads)), **training)
    trained = [replace(template, seed=seed) for seed in dict.fromkeys(spec.seed for spec in specs)]
    artifacts, failed = sweep(pruning.run, [pruning.job(spec) for spec in trained], provenance=pruning.provenance)
    for error in failed.values():
        raise error
    evaluations = [unpack_pruned(artifact) for artifact in artifacts]
    return evaluations[0] if len(evaluations) == 1 else average_evaluations(evaluations, pruning.task)
