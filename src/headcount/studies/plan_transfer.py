from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING

from headcount.core.figure import Axis, BarFigure, Bars
from headcount.core.options import option
from headcount.core.study_result import Column, StudyResult, Table, format_interval, interval_columns
from headcount.studies import _measure
from headcount.studies._base import Effort, Study, StudyContext, StudyInfo
from headcount.studies._checks import check_same_heads_as_other_model
from headcount.studies._rows import dense_sentence, difference_with_interval, format_significance, seed_cells, seed_columns

if TYPE_CHECKING:
    from headcount.studies._measure.plan_transfer import PlanTransferResult, PlanTransferRow, TransferTest


@dataclass(frozen=True)
class PlanTransfer(Study):
    """Do the heads of one task serve another? Heads chosen on another task, against the task's own choice and random heads of the same number.

    Budhraja et al. 2020. The other task is read by the same model, or by another one of the same heads (`other_model`). Heads are chosen on the
    calibration split of each task; models are compared on the report split of this one, in pairs over its examples, the differences from the
    dense model by intervals that hold for all sizes of a choice together. How many heads both choices remove stands beside how many they would by
    chance.
    """

    other_task: str = option(help="The task that heads are chosen on, such as glue/mnli")
    _: KW_ONLY
    other_model: str = option("", "A model with a head for the other task, of the same heads; by default the model itself")
    method: str = option("gradient", "The importance or pruner that chooses on both tasks, without training")
    keep: tuple[int | float | str, ...] = option(("75%", "50%", "25%"), "How many heads stay: numbers or shares")
    seeds: int = option(3, "Draws of random heads, and trainings of every choice", minimum=1)
    repair: bool | None = option(False, "Refit output projections in closed form; none does so unless training follows")
    recover: float | str | None = option(
        None, "How long models are fine-tuned on this task: a number of epochs, or of steps (300steps), or auto"
    )
    rate: float = option(5e-5, "The learning rate of the fine-tuning", minimum=0)
    train_batch: int = option(32, "Examples per training step", minimum=1)
    info = StudyInfo(paper="Budhraja et al. 2020, section 5", needs=frozenset({"model", "task", "run"}))

    def effort(self, context: StudyContext) -> Effort:
        """Returns the evaluations and trainings of all models."""
        return _measure.plan_transfer.estimate_effort(self, context)

    def check_inputs(self, context: StudyContext) -> None:
        """Raises an error where the other task cannot be opened, or its model has other heads."""
        if self.other_model:
            check_same_heads_as_other_model(context, self.other_model)
        else:
            context.sources.open_task(context.loaded, self.other_task)

    def measure(self, context: StudyContext) -> StudyResult:
        """Returns a row for every choice and number of heads, and the tests of the transferred choice."""
        transfer = _measure.plan_transfer.measure_plan_transfer(self, context)
        metric = transfer.dense.metric or "loss"
        return StudyResult(
            study=str(self),
            tables=(_table_of_choices_by_size(transfer, metric), _transferred_choice_test_table(transfer.tests, metric)),
            sentence=_summary_sentence(transfer),
            notes=(dense_sentence(transfer.dense),),
            figures=(_change_by_task_figure(transfer, metric),),
            measurements={
                "model": context.model_name,
                "task": context.task.name,
                "other task": transfer.other_task,
                "dense": {"metric": metric, "value": transfer.dense.score},
                **transfer.to_dict(),
            },
        )


def _choice_label(row: PlanTransferRow, transfer: PlanTransferResult) -> str:
    return (
        f"chosen on {transfer.other_task}"
        if row.choice == "other task"
        else "chosen on this task"
        if row.choice == "own task"
        else "random"
    )


def _table_of_choices_by_size(transfer: PlanTransferResult, metric: str) -> Table:
    columns = (
        Column("heads"),
        Column("choice"),
        Column("steps"),
        *seed_columns(metric),
        Column("removed as by this task", format=".3g"),
        Column("by chance", format=".3g"),
        *interval_columns("against the dense model", "+.3g", metric),
        *interval_columns("against this task's choice", "+.3g", metric),
        *interval_columns("against random", "+.3g", metric),
    )
    cells = [
        (
            row.n_kept,
            _choice_label(row, transfer),
            row.scores.steps,
            *seed_cells(row.scores),
            row.n_shared,
            row.n_expected,
            *difference_with_interval(row.change),
            *difference_with_interval(row.against_own),
            *difference_with_interval(row.against_random),
        )
        for row in transfer.rows
    ]
    title = (
        f"{metric} by the task that heads are chosen on; the heads removed by both choices, and as many by chance; intervals against the dense "
        "model hold for all sizes of a choice together, the others for their row alone"
    )
    return Table("transfer", columns, tuple(cells), title)


def _transferred_choice_test_table(tests: Sequence[TransferTest], metric: str) -> Table:
    columns = (
        Column("heads"),
        Column("against"),
        *interval_columns("difference", "+.3g", metric),
        Column("p", format=".2g"),
        Column("q", format=".2g"),
    )
    cells = tuple((test.n_kept, test.control, *difference_with_interval(test.change), test.p, test.q) for test in tests)
    return Table("tests", columns, cells, f"Difference of {metric} of the heads chosen on the other task, on the same examples")


def _change_by_task_figure(transfer: PlanTransferResult, metric: str) -> BarFigure:
    sizes, bars = list(dict.fromkeys(row.n_kept for row in transfer.rows)), []
    for choice in dict.fromkeys(row.choice for row in transfer.rows):
        rows = [next(row for row in transfer.rows if (row.n_kept, row.choice) == (size, choice)) for size in sizes]
        y, low, high = (tuple(getattr(row.change, end) for row in rows) for end in ("difference", "low", "high"))
        bars.append(Bars(_choice_label(rows[0], transfer), y, low, high))
    return BarFigure(
        name="transfer",
        title=f"Change of {metric} from the dense model by the task that heads are chosen on, 95 % for all sizes together",
        x=Axis("heads that stay"),
        y=Axis(f"change of {metric}"),
        table="transfer",
        n=transfer.dense.n_examples,
        categories=tuple(map(str, sizes)),
        bars=tuple(bars),
    )


def _summary_sentence(transfer: PlanTransferResult) -> str:
    size = min(test.n_kept for test in transfer.tests)
    parts = [
        f"{format_interval(test.change.difference, test.change.low, test.change.high)} against {test.control} ({format_significance('q', test.q)})"
        for test in transfer.tests
        if test.n_kept == size and test.q is not None and test.change is not None
    ]
    return f"With {size} heads, those chosen on {transfer.other_task} differ by {' and '.join(parts)}."
