"""The change without each head alone on several tasks, and how these agree."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Float

from headcount.core.errors import DataError, StatisticsError
from headcount.core.evaluation import Evaluation
from headcount.core.heads import Head
from headcount.core.stats.agreement import Correlated, correlate
from headcount.core.stats.resampling import pseudovalues
from headcount.core.stats.samples import Samples
from headcount.data.task import Task
from headcount.studies._base import StudyContext
from headcount.studies._measure.single_heads import evaluate_without_each_head
from headcount.studies._results import describe_study_run

if TYPE_CHECKING:
    from headcount.studies.task_transfer import TaskTransfer


@dataclass(frozen=True, slots=True)
class Changes:
    """The change of the metric and the rise of the loss without each head on one task, with the samples of both over its examples."""

    task: str
    metric: str
    heads: tuple[str, ...]
    metric_changes: tuple[float, ...]
    rises: tuple[float, ...]
    samples: Mapping[str, Samples]


@dataclass(frozen=True, slots=True)
class ChangeCorrelation:
    """The correlation over heads of the changes of one quantity on two tasks; None where it is not defined, and then `reason` says why."""

    task: str
    other: str
    quantity: str
    n_heads: int
    pearson: Correlated | None
    spearman: Correlated | None
    reason: str = ""


def measure_tasks_and_correlate_with_first(study: TaskTransfer, context: StudyContext) -> tuple[list[Changes], list[ChangeCorrelation]]:
    """Returns the changes on every task, and the correlation of those on the first with those on each other one."""
    describe_study_run(context, context.loaded, {"study": study.name, "other_tasks": list(study.other_tasks), "limit": context.limit})
    tasks = [context.task, *(replace(context.sources.open_task(context.loaded, name), name=name) for name in study.other_tasks)]
    changes = [measure_head_changes(task, *evaluate_without_each_head(context, task, study.how)) for task in tasks]
    rows = []
    for other in changes[1:]:
        for quantity in changes[0].samples:
            if quantity in other.samples:
                rows.append(_correlate_changes(changes[0], other, quantity, context.seed))
    return changes, rows


def measure_head_changes(task: Task, dense: Evaluation, without_head: Mapping[Head, Evaluation]) -> Changes:
    """Returns the changes of a task from the evaluations of the dense model and of the model without each head."""
    losses = Samples.of(np.stack([evaluation.losses - dense.losses for evaluation in without_head.values()], axis=1))
    samples = {"loss": losses}
    metric = task.metric
    if metric is not None and dense.parts is not None:
        n, width = dense.n_examples, dense.parts.shape[1]
        parts = []
        for head, evaluation in without_head.items():
            if evaluation.parts is None:
                raise DataError(f"{task.name} without {head} was not measured by {dense.metric} example by example; evaluate it again")
            parts.append(np.hstack([dense.parts, evaluation.parts]))

        def metric_after_minus_before(mean_parts_before_and_after: Float[np.ndarray, "*samples parts"]) -> Float[np.ndarray, "*samples"]:
            return metric.total(n * mean_parts_before_and_after[..., width:]) - metric.total(n * mean_parts_before_and_after[..., :width])

        samples = {"metric": pseudovalues(Samples.of(np.stack(parts, axis=1)), metric_after_minus_before), **samples}
    heads = tuple(map(str, without_head))
    values = tuple(evaluation.score - dense.score for evaluation in without_head.values()) if "metric" in samples else ()
    return Changes(task.name, dense.metric, heads, values, tuple(losses.means().tolist()), samples)


def _correlate_changes(first: Changes, other: Changes, quantity: str, seed: int) -> ChangeCorrelation:
    samples = first.samples[quantity], other.samples[quantity]
    try:
        pearson, spearman = (correlate(*samples, seed=seed, by=by) for by in ("pearson", "spearman"))
    except StatisticsError as error:
        return ChangeCorrelation(first.task, other.task, quantity, len(first.heads), None, None, str(error))
    return ChangeCorrelation(first.task, other.task, quantity, len(first.heads), pearson, spearman)
