from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING

from headcount.core.figure import Axis, Line, LineFigure, Reference
from headcount.core.options import option
from headcount.core.study_result import Column, StudyResult, Table, interval_columns
from headcount.studies import _measure
from headcount.studies._base import SIGNIFICANT, Effort, StudyContext, StudyInfo
from headcount.studies._labels import ShortLabels, shorten_labels
from headcount.studies._pruned_models import PrunedModels
from headcount.studies._rows import describe_better_and_worse

if TYPE_CHECKING:
    from headcount.workflows.grid import MethodDifference, MethodRow


@dataclass(frozen=True)
class PruningCurve(PrunedModels):
    """How much does the model lose as heads go? Every method at every number of heads, over seeds, in pairs with random heads and with each other.

    Michel et al. 2019 (Fig. 3 and 4) and Li et al. 2021 (Fig. 2, 3). The metric is the mean over seeds; a difference is paired over the examples
    of the report split, by Tango's score method where every example is right or wrong, else by a bootstrap. The interval of a mean over seeds is
    Student's t, from three seeds on. With `each_kind` one kind of attention at a time loses heads, and shares are those of its heads; with
    `other_tasks` the curves of several tasks stand in one figure, and in another the share that is left of each dense model's score above chance.
    """

    _: KW_ONLY
    each_kind: bool = option(False, "Prune each kind of attention alone, one curve for each")
    other_tasks: tuple[str, ...] = option((), "Further curves: TASK for this model, or MODEL=TASK for another one")
    info = StudyInfo(paper="Michel et al. 2019, Fig. 3 and 4; Li et al. 2021, Fig. 2 and 3", needs=frozenset({"model", "task", "run"}))

    def effort(self, context: StudyContext) -> Effort:
        """Returns the evaluations and trainings of all models."""
        return _measure.pruning_curve.estimate_curves(self, context)

    def check_inputs(self, context: StudyContext) -> None:
        """Raises an error where the model cannot be pruned as requested, or another task or model cannot be opened."""
        super().check_inputs(context)
        _measure.pruning_curve.open_models_and_tasks(self, context)

    def measure(self, context: StudyContext) -> StudyResult:
        """Returns a row for every method and number of heads, and one for every pair of methods at each number."""
        measured = _measure.pruning_curve.measure_pruning_curves(self, context)
        rows, tasks = measured.rows, list(measured.dense)
        first = next(iter(measured.dense.values()))
        metrics = dict.fromkeys(dense.metric or "loss" for dense in measured.dense.values())
        metric = "score" if len(metrics) > 1 else next(iter(metrics))
        figures = [
            _score_by_share_removed_figure(rows, metric, n_examples=first.n_examples),
            _difference_from_dense_figure(rows, metric, n_examples=first.n_examples),
        ]
        if len(tasks) > 1:
            figures.append(_share_left_figure(rows, metric, n_examples=first.n_examples))
        reasons = {row.task: row.share.reason for row in rows if row.share is not None and row.share.reason}
        return StudyResult(
            study=str(self),
            tables=(_method_table(rows, metric), *([_method_difference_table(measured.pairs, metric)] if measured.pairs else [])),
            sentence=_summary_sentence(rows, higher_is_better=first.value is not None and first.higher_is_better),
            notes=tuple(
                f"Dense model: {dense.metric or 'loss'} {dense.score:.4g} on {dense.n_examples} examples{f' of {task}' if len(tasks) > 1 else ''}."
                for task, dense in measured.dense.items()
            )
            + tuple(f"No share of the dense model's score is defined for {task}: {reason}." for task, reason in reasons.items()),
            figures=tuple(figures),
            measurements={
                "model": context.model_name,
                "task": context.task.name,
                "dense": {"loss": first.loss, "metric": first.metric, "value": first.value},
                "rows": [row.to_dict() for row in rows],
                "pairs": [pair.to_dict() for pair in measured.pairs],
            },
        )


def _method_table(rows: Sequence[MethodRow], metric: str) -> Table:
    kinds_of_rows = dict.fromkeys(kind for row in rows for kind in row.kept_by_kind)
    kinds = list(kinds_of_rows) if len(kinds_of_rows) > 1 else []
    has_tasks = len({row.task for row in rows}) > 1
    columns = (
        *([Column("task")] if has_tasks else []),
        Column("method"),
        Column("heads"),
        *(Column(f"{kind} heads", format=".3g") for kind in kinds),
        Column("removed", format=".0%"),
        Column("seeds"),
        Column("steps"),
        *interval_columns(metric, ".4g"),
        *(interval_columns("share left", ".1%") if has_tasks else ()),
        *interval_columns("mean over seeds", ".4g"),
        Column("sd", format=".2g"),
        *interval_columns("against the dense model", "+.3g", metric),
        Column("p", format=".2g"),
        *interval_columns("against random", "+.3g", metric),
        Column("q", format=".2g"),
    )
    cells = [
        (
            *([row.task] if has_tasks else []),
            row.method,
            row.n_kept,
            *(row.kept_by_kind.get(kind) for kind in kinds),
            row.share_removed,
            row.n_seeds,
            row.steps,
            row.mean,
            *row.band,
            *(_share_left_with_interval(row) if has_tasks else ()),
            row.mean,
            *row.interval,
            row.deviation,
            row.joint.difference,
            row.joint.low,
            row.joint.high,
            row.joint.p,
            *((row.against_random.difference, row.against_random.low, row.against_random.high) if row.against_random else (None,) * 3),
            row.q,
        )
        for row in rows
    ]
    title = (
        f"{metric} by the number of heads that stay, with paired intervals that hold for all sizes of a method together; p is of one size by "
        "itself, and q corrects the differences from random heads"
    )
    return Table("curve", columns, tuple(cells), title)


def _method_difference_table(pairs: Sequence[MethodDifference], metric: str) -> Table:
    has_tasks = len({pair.task for pair in pairs}) > 1
    columns = (
        *([Column("task")] if has_tasks else []),
        Column("heads"),
        Column("method"),
        Column("other method"),
        *interval_columns("difference", "+.3g", metric),
        Column("p", format=".2g"),
        Column("q", format=".2g"),
    )
    cells = []
    for pair in pairs:
        task, change = [pair.task] if has_tasks else [], pair.change
        cells.append((*task, pair.n_kept, pair.method, pair.other, change.difference, change.low, change.high, change.p, pair.q))
    return Table(
        "pairs", columns, tuple(cells), f"Difference of {metric} between methods at the same number of heads, on the same examples"
    )


def _rows_by_task_and_method(rows: Sequence[MethodRow]) -> dict[tuple[str, str], list[MethodRow]]:
    """Returns the rows of every line by task and method, those with most heads first."""
    by_line: dict[tuple[str, str], list[MethodRow]] = {}
    for row in sorted(rows, key=lambda row: row.share_removed):
        by_line.setdefault((row.task, row.method), []).append(row)
    return {line: by_line[line] for line in dict.fromkeys((row.task, row.method) for row in rows)}


def _method_labels(rows: Sequence[MethodRow]) -> ShortLabels:
    """Returns the short labels of methods; of one method on several tasks the note has all, and lines bear the names of tasks."""
    methods = dict.fromkeys(method for _, method in _rows_by_task_and_method(rows))
    if len(methods) == 1 and len({row.task for row in rows}) > 1:
        return ShortLabels(dict.fromkeys(methods, ""), f"Pruned by {next(iter(methods))}.")
    return shorten_labels(methods)


def _lines_by_task_and_method(
    rows: Sequence[MethodRow],
    value_with_interval: Callable[[MethodRow], tuple[float | None, float | None, float | None]],
    dense_value: Callable[[MethodRow], float],
) -> tuple[Line, ...]:
    """Returns a line for every method, from the dense model on.

    `value_with_interval` takes a number and the ends of its interval from a row, None where they are undefined; `dense_value` takes that of its
    dense model.
    """
    lines, labels = [], _method_labels(rows).by_method
    has_tasks = len({row.task for row in rows}) > 1
    for (task, method), points in _rows_by_task_and_method(rows).items():
        y, low, high = zip(*map(value_with_interval, points), strict=True)
        x, start = tuple(row.share_removed for row in points), (0.0, dense_value(points[0]))
        label = labels[method] if not has_tasks else task if len(labels) == 1 else f"{task}, {labels[method]}"
        lines.append(Line(label, x, y, low, high, is_control=method.startswith("random"), start=start))
    return tuple(lines)


def _score_by_share_removed_figure(rows: Sequence[MethodRow], metric_name: str, *, n_examples: int) -> LineFigure:
    tasks = {row.task: row.dense for row in rows}
    return LineFigure(
        name="curve",
        title=f"{metric_name} by the share of heads removed, 95 % for all sizes of a method together",
        x=Axis("heads removed", is_share=True),
        y=Axis(metric_name),
        table="curve",
        n=n_examples,
        note=_method_labels(rows).note,
        lines=_lines_by_task_and_method(rows, lambda row: (row.mean, *row.band), lambda row: row.dense),
        references=tuple(Reference(f"dense model, {task}" if len(tasks) > 1 else "dense model", score) for task, score in tasks.items()),
    )


def _difference_from_dense_figure(rows: Sequence[MethodRow], metric_name: str, *, n_examples: int) -> LineFigure:
    """Returns the differences from the dense model, with paired intervals that hold for all sizes of a method together."""
    return LineFigure(
        name="difference",
        title=f"Difference of {metric_name} from the dense model on the same examples, 95 % for all sizes of a method together",
        x=Axis("heads removed", is_share=True),
        y=Axis(f"difference of {metric_name}"),
        table="curve",
        n=n_examples,
        note=_method_labels(rows).note,
        lines=_lines_by_task_and_method(rows, lambda row: (row.joint.difference, row.joint.low, row.joint.high), lambda row: 0.0),
        references=(Reference("dense model", 0.0),),
    )


def _share_left_figure(rows: Sequence[MethodRow], metric_name: str, *, n_examples: int) -> LineFigure:
    return LineFigure(
        name="relative",
        title=f"Share that is left of each dense model's {metric_name} above chance, 95 % for all sizes of a method together",
        x=Axis("heads removed", is_share=True),
        y=Axis(f"share left of {metric_name} above chance", is_share=True),
        table="curve",
        n=n_examples,
        note=_method_labels(rows).note,
        lines=_lines_by_task_and_method(rows, _share_left_with_interval, lambda row: 1.0),
        references=(Reference("dense model", 1.0),),
    )


def _share_left_with_interval(row: MethodRow) -> tuple[float | None, float | None, float | None]:
    return (None, None, None) if row.share is None else row.share.remaining_low_high


def _summary_sentence(rows: Sequence[MethodRow], *, higher_is_better: bool) -> str:
    tested = [row for row in rows if row.q is not None]
    if not tested:
        return "Random heads alone were removed, so that no method is compared with them."
    parts = []
    for method in dict.fromkeys(row.method for row in tested):
        own = [row for row in tested if row.method == method]
        tests = [(row.against_random.difference if row.against_random else None, row.q) for row in own]
        parts.append(f"{method} {describe_better_and_worse(tests, higher_is_better=higher_is_better)}")
    return f"Against random heads: {'; '.join(parts)} (q ≤ {SIGNIFICANT})."
