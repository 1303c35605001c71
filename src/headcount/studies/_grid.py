"""The pruned models of a study, of several methods, sizes and seeds, made in its run. Imports torch."""

from __future__ import annotations

from collections.abc import Sequence

from headcount.data.task import Task
from headcount.pruning.spec import PruneSpec
from headcount.studies._base import StudyContext
from headcount.studies._tuning import note_training
from headcount.workflows.grid import Grid
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
    check_requests(pruning, specs)
    note_training(context, pruning, specs)
    with context.progress("pruning", "models") as advance:
        dense, artifacts, failed = prune_all(pruning, specs, save_models=lambda spec: keep_models and spec.n_steps(1) > 0, progress=advance)
    for error in failed.values():
        raise error
    return Grid.of(pruning, dense, artifacts)
