from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, asdict, dataclass
from typing import TYPE_CHECKING

from headcount.core.errors import OptionError
from headcount.core.figure import Axis, Points, ScatterFigure
from headcount.core.options import option
from headcount.core.study_result import Column, StudyResult, Table, format_interval, interval_columns
from headcount.studies import _measure
from headcount.studies._base import Effort, Study, StudyAblation, StudyContext, StudyInfo

if TYPE_CHECKING:
    from headcount.studies._measure.task_transfer import ChangeCorrelation, Changes


@dataclass(frozen=True)
class TaskTransfer(Study):
    """Do the same heads matter on another task? The change without each head alone on two tasks, for the metric and the loss, and their correlation.

    Michel et al. 2019 (section 3.4) publish Pearson correlations of 0.56 to 0.68 between domains. The model is evaluated on the report split of its
    task and of every other one. The interval and p are those of the observed correlation when the examples of both are drawn again; the correlation
    without the noise of few examples stands beside it under that name. `transfer` compares the scores of finished runs.
    """

    other_tasks: tuple[str, ...] = option(help="Further tasks that the model can be scored on, one or more")
    _: KW_ONLY
    how: StudyAblation = option("zero", "What stands in for the removed head: nothing, its mean output, or uniform attention")
    info = StudyInfo(paper="Michel et al. 2019, section 3.4", needs=frozenset({"model", "task"}))

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.other_tasks:
            raise OptionError("task-transfer compares tasks: name one or more in other_tasks")

    def effort(self, context: StudyContext) -> Effort:
        """Returns one evaluation for every head on every task."""
        n_report = len(context.task.report)
        return Effort(passes=(1 + len(self.other_tasks)) * (len(context.loaded.heads) + 1) * min(n_report, context.limit or n_report))

    def check_inputs(self, context: StudyContext) -> None:
        """Raises an error where another task cannot be opened for the model."""
        for name in self.other_tasks:
            context.sources.open_task(context.loaded, name)

    def measure(self, context: StudyContext) -> StudyResult:
        """Returns the correlation of the changes on the task and on every other one."""
        tasks, rows = _measure.task_transfer.measure_tasks_and_correlate_with_first(self, context)
        return StudyResult(
            study=str(self),
            tables=(_task_correlation_table(rows), _changes_by_task_and_head_table(tasks)),
            sentence=_summary_sentence(rows),
            notes=tuple(f"{row.other}, {row.quantity}: {row.reason}." for row in rows if row.reason),
            figures=tuple(
                _two_task_scatter(tasks[0], other, row, number)
                for number, other in enumerate(tasks[1:], 1)
                for row in rows
                if row.other == other.task
            ),
            measurements={"model": context.model_name, "task": context.task.name, "how": self.how, "rows": [asdict(row) for row in rows]},
        )


def _task_correlation_table(rows: Sequence[ChangeCorrelation]) -> Table:
    columns = (
        Column("task"),
        Column("other task"),
        Column("change of"),
        Column("heads"),
        *interval_columns("Pearson", ".2f"),
        Column("p", format=".2g"),
        Column("Pearson without noise", format=".2f"),
        *interval_columns("Spearman", ".2f"),
        Column("p of Spearman", format=".2g"),
    )
    cells = []
    for row in rows:
        numbers: list[float | None] = [None] * 9
        if row.pearson is not None and row.spearman is not None:
            numbers = [row.pearson.value, row.pearson.low, row.pearson.high, row.pearson.p, row.pearson.without_noise]
            numbers += [row.spearman.value, row.spearman.low, row.spearman.high, row.spearman.p]
        cells.append((row.task, row.other, row.quantity, row.n_heads, *numbers))
    return Table("correlations", columns, tuple(cells), "Correlation over heads of the changes on two tasks; intervals over examples")


def _changes_by_task_and_head_table(tasks: Sequence[Changes]) -> Table:
    columns = (
        Column("task"),
        Column("head"),
        Column("metric"),
        Column("change of the metric", format="+.3g"),
        Column("rise of the loss", format="+.3g"),
    )
    cells = [
        (changes.task, head, changes.metric or None, metric, loss)
        for changes in tasks
        for head, metric, loss in zip(changes.heads, changes.metric_changes or (None,) * len(changes.heads), changes.rises, strict=True)
    ]
    return Table("heads", columns, tuple(cells), "Change without each head alone, on every task", is_printed=False)


def _two_task_scatter(first: Changes, other: Changes, row: ChangeCorrelation, figure_number: int) -> ScatterFigure:
    is_loss = row.quantity == "loss"
    x, y = (changes.rises if is_loss else changes.metric_changes for changes in (first, other))
    labels = [f"{'rise of the loss' if is_loss else f'change of {changes.metric}'} on {changes.task}" for changes in (first, other)]
    n_examples = " and ".join(f"{changes.samples[row.quantity].n:,}" for changes in (first, other))
    note = "Pearson is not defined"
    if row.pearson is not None:
        note = f"Pearson r {format_interval(row.pearson.value, row.pearson.low, row.pearson.high, '.2f')}, 95 % over examples"
    return ScatterFigure(
        name=f"{row.quantity} {figure_number}",
        title=f"{'Rise of the loss' if is_loss else 'Change of the metric'} without each head, on two tasks",
        x=Axis(labels[0]),
        y=Axis(labels[1]),
        table="heads",
        n=len(first.heads),
        n_unit=f"heads, on {n_examples} examples",
        groups=(Points("heads", x, y, first.heads),),
        note=note,
    )


def _summary_sentence(rows: Sequence[ChangeCorrelation]) -> str:
    parts = [
        f"{format_interval(row.pearson.value, row.pearson.low, row.pearson.high, '.2f')} for the {row.quantity} on {row.other}"
        for row in rows
        if row.pearson is not None
    ]
    if not parts:
        return "No correlation is defined, because no head changes the score of a task."
    return f"The changes without each head correlate (Pearson) by {', '.join(parts)}."
