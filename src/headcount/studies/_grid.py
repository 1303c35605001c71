"""The pruned models of a study, of several methods, sizes and seeds, made in its run. Imports torch."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import replace

from headcount.core.budget import Budget
from headcount.core.evaluation import Evaluation
from headcount.data.task import Task
from headcount.pruning.base import Pruner
from headcount.pruning.spec import PruneSpec
from headcount.runs.layout import ARTIFACTS
from headcount.runs.results import PRUNED, unpack_pruned_evaluation
from headcount.runs.sweep import sweep
from headcount.studies._base import STEP_BATCH, Effort, StudyContext
from headcount.studies._tuning import announce_training
from headcount.workflows.grid import Grid, average_evaluations
from headcount.workflows.prune import Pruning, check_requests, prune_all

RANKED = 512
"""Calibration examples that rankings are measured on by default."""


def make_pruning(context: StudyContext, task: Task | None = None) -> Pruning:
    """Returns the pruning of the model of a study into its run, on the task of the study or another one."""
    return Pruning(
        context.required_run, context.loaded.model, task or context.task, limit=context.limit, command=context.command, seed=context.seed
    )


def run_grid(context: StudyContext, pruning: Pruning, specs: Sequence[PruneSpec], *, keep_models: bool = False) -> Grid:
    """Makes and evaluates every request, those that the run holds already not again. Requests that differ in their seed alone are one point.

    With `keep_models` the run also keeps the models whose weights were trained, so that `Pruning.load_or_make_model` need not train them again.

    Raises:
        HeadcountError: a request is refused, before any work, or one of them fails.
    """
    specs = [with_new_head_training(spec) for spec in specs] if context.new_head else specs
    check_requests(pruning, specs)
    announce_training(context, pruning, specs)
    with context.progress("pruning", "models") as advance:
        dense, artifacts, failed = prune_all(pruning, specs, saves_model=lambda spec: keep_models and spec.n_steps(1) > 0, progress=advance)
    for error in failed.values():
        raise error
    return Grid.from_artifacts(pruning, evaluate_dense_reference(context, pruning, specs) if context.new_head else dense, artifacts)


def with_new_head_training(spec: PruneSpec) -> PruneSpec:
    """Returns a request that trains the head of the model: where nothing else does, by as long a recovery as methods that train have."""
    if spec.method.info.trains == "weights" or spec.recover is not None or spec.scratch is not None:
        return spec
    return replace(spec, recover=spec.recipe.length)


def evaluate_dense_reference(context: StudyContext, pruning: Pruning, specs: Sequence[PruneSpec]) -> Evaluation:
    """Returns the dense model that some requests are compared with; where its head is new, its mean over seeds after the training alone."""
    if not context.new_head:
        return pruning.evaluate_dense()
    first = specs[0]
    training = {"recover": first.recover or first.recipe.length, "scratch": None, "scratch_rate": PruneSpec.scratch_rate}
    template = replace(first, method=Pruner.parse("random"), kinds=(), budget=Budget(keep=len(pruning.heads)), **training)
    trained = [replace(template, seed=seed) for seed in dict.fromkeys(spec.seed for spec in specs)]
    artifacts, failed = sweep(pruning.run, [pruning.make_job(spec) for spec in trained], provenance=pruning.provenance)
    for error in failed.values():
        raise error
    evaluations = [unpack_pruned_evaluation(artifact) for artifact in artifacts]
    return evaluations[0] if len(evaluations) == 1 else average_evaluations(evaluations, pruning.task)


def estimate_grid_effort(context: StudyContext, specs: Sequence[PruneSpec], *, other_subject: str = "") -> Effort:
    """Returns the work of `run_grid`: the dense model, and the choice, training and evaluation on two splits of every request that the run
    does not hold yet.

    `other_subject` names the model or task where these are not those of the study.
    """
    task = context.task
    n_train, n_report, n_selection = (
        min(len(split), context.limit or len(split)) for split in (task.calibration, task.report, task.selection)
    )
    evaluation = Effort(passes=n_report + n_selection)
    shared: dict[Hashable, Effort] = {("dense", other_subject): Effort(passes=n_report)}
    has_models = not other_subject and (context.required_run.folder / ARTIFACTS / PRUNED).is_dir()
    pruning = make_pruning(context) if has_models else None
    for spec in specs:
        request = (with_new_head_training(spec) if context.new_head else spec).resolve_share(context.loaded.heads)
        if pruning is not None and pruning.is_finished(request):
            continue
        n_steps = request.n_steps(n_train)
        if request.scratch is not None and request.repair is False and request.recover is None:  # the choice is that of the request without
            choice = replace(request, scratch=None, scratch_rate=PruneSpec.scratch_rate)
            shared |= estimate_grid_effort(context, [choice], other_subject=other_subject).shared
            n_steps -= choice.n_steps(n_train)
        shared["pruned", other_subject, request] = evaluation + Effort(steps=n_steps * request.recipe.train_batch / STEP_BATCH)
        if not request.method.info.draws:
            n_ranked = request.method.to_dict().get("limit") or RANKED
            shared["choice", other_subject, request.method] = Effort(passes=3 * min(n_train, n_ranked))
        if context.new_head:
            n_dense = (request.recipe.with_length(request.recover or request.recipe.length)).n_steps(n_train)
            shared["dense", other_subject, request.seed] = evaluation + Effort(steps=n_dense * request.recipe.train_batch / STEP_BATCH)
    return Effort(shared=shared)
