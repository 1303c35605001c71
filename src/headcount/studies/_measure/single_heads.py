"""The model without each of its heads alone."""

from __future__ import annotations

from dataclasses import dataclass

from headcount.core.evaluation import Evaluation, rise_of_loss
from headcount.core.heads import Head
from headcount.core.stats.corrected_rows import add_q_values
from headcount.core.stats.means import MeanDifference
from headcount.data.task import Task
from headcount.studies._base import StudyAblation, StudyContext
from headcount.studies._gated import evaluate_without, measure_means_for_ablation
from headcount.studies._results import describe_study_run
from headcount.studies._rows import DifferenceRow
from headcount.workflows.grid import evaluation_minus_baseline


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadRow(DifferenceRow):
    """The model without one head: its metric, or its loss where there is none, the change of that, and the rise of the loss."""

    head: str
    block: str
    kind: str
    layer: int
    index: int
    score: float
    rise: MeanDifference


def evaluate_without_each_head(
    context: StudyContext, task: Task, ablation: StudyAblation = "zero"
) -> tuple[Evaluation, dict[Head, Evaluation]]:
    """Returns the dense model on the report split of a task, and the model without each head; a run keeps every evaluation."""
    model, heads, limit, batch_size = context.loaded.model, context.loaded.heads, context.limit, context.batch_size
    dense = evaluate_without(context.run, f"{task.name}: dense", model, task, (), limit=limit, batch_size=batch_size)
    means, evaluations = measure_means_for_ablation(model, task, ablation, limit), {}
    with context.progress(f"{task.name} without each head", "heads") as advance:
        for number, head in enumerate(heads, 1):
            name = f"{task.name}: without {head}, {ablation}"
            evaluations[head] = evaluate_without(
                context.run, name, model, task, [head], ablation=ablation, means=means, limit=limit, batch_size=batch_size
            )
            advance(number, len(heads))
    return dense, evaluations


def measure_removal_of_each_head(context: StudyContext, study_name: str, ablation: StudyAblation) -> tuple[Evaluation, list[HeadRow]]:
    """Returns the dense model on the report split, and a row for every head that is removed alone."""
    describe_study_run(context, context.loaded, {"study": study_name, "how": ablation, "limit": context.limit})
    heads, task = context.loaded.heads, context.task
    dense, evaluations = evaluate_without_each_head(context, task, ablation)
    rows = []
    for head, evaluation in evaluations.items():
        block = heads.block_of(head)
        rows.append(
            HeadRow(
                head=str(head),
                block=block.name,
                kind=block.kind,
                layer=head.layer,
                index=head.index,
                score=evaluation.score,
                change=evaluation_minus_baseline(dense, evaluation, task, seed=context.seed),
                rise=rise_of_loss(dense, evaluation),
            )
        )
    return dense, add_q_values(rows)
