"""Labels of files to class numbers, by the names in the model's configuration or as numbers; never by guessing."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from headcount.core.errors import DataError
from headcount.data.checks import config_of
from headcount.data.metrics import ACCURACY, BY_NAME, PEARSON, Metric
from headcount.data.readers.tables import ClassLabel, Source, TableRow, source_label
from headcount.data.task_builder import TaskRequest

PositionAndLabel = tuple[str, Any]
"""The position of a label in the data, and the label."""


def n_labels(request: TaskRequest) -> int:
    """Returns how many classes the model knows; one class means regression."""
    return int(config_of(request.model).num_labels)


def to_class_numbers(request: TaskRequest, labels: Sequence[PositionAndLabel]) -> list[int]:
    """Returns the class of each label.

    Raises:
        DataError: unless all labels are names of classes (in small or capital letters), or all are numbers of classes.
    """
    names = {int(number): str(name) for number, name in config_of(request.model).id2label.items()}
    are_unnamed = all(name == f"LABEL_{number}" for number, name in names.items())
    labels = [
        (position, (value.number if are_unnamed else value.name) if isinstance(value, ClassLabel) else value) for position, value in labels
    ]
    by_name = {name.casefold(): number for number, name in names.items()}
    if len(by_name) < len(names) or not any(_label_as_written(value).casefold() in by_name for _, value in labels):
        by_name = {str(number): number for number in range(n_labels(request))}
    for position, value in labels:
        if _label_as_written(value).casefold() not in by_name:
            raise DataError(
                f"{position}: label {value!r} is neither a name nor a number of the model's {n_labels(request)} classes: id2label is {names}. "
                "Correct the labels, set the names in model.config, or, if this line is a header, name its columns"
            )
    return [by_name[_label_as_written(value).casefold()] for _, value in labels]


def distinct_class_names(request: TaskRequest, labels: Iterable[Any]) -> tuple[str, ...]:
    """Returns the names of all classes among some labels: in the order of their numbers where these are known, else sorted.

    Raises:
        DataError: the labels are decimal numbers, which have no classes, or all labels are equal.
    """
    numbers: dict[str, int | None] = {}
    for label in labels:
        numbers[label.name if isinstance(label, ClassLabel) else _label_as_written(label)] = (
            label.number if isinstance(label, ClassLabel) else None
        )
    are_numeric = all(name.removeprefix("-").replace(".", "", 1).isdecimal() for name in numbers)
    if numbers and are_numeric and any("." in name for name in numbers):
        raise DataError(f"the labels of task '{request.name}' are decimal numbers (regression), so that there are no classes")
    if len(numbers) < 2:
        raise DataError(f"the data of task '{request.name}' hold {len(numbers)} different labels; a new head needs two or more")
    if all(name.isdecimal() for name in numbers):
        return tuple(sorted(numbers, key=int))
    return tuple(sorted(numbers, key=lambda name: (numbers[name] is None, numbers[name] or 0, name)))


def _label_as_written(value: Any) -> str:
    return str(int(value)) if isinstance(value, bool) else str(value).strip()


def to_regression_values(labels: Sequence[PositionAndLabel]) -> list[float]:
    """Returns the value of each label, for a model with one output.

    Raises:
        DataError: a label is no finite number, or all are whole numbers, which look like classes.
    """
    if not any(isinstance(value, float) or "." in _label_as_written(value) for _, value in labels):
        raise DataError(
            f"the model has num_labels=1, which means regression, but the labels are no decimal numbers (the first is {labels[0][1]!r}, "
            f"{labels[0][0]}); load the model with as many labels as there are classes, or write values as 3.0"
        )
    return [_to_finite_number(position, value) for position, value in labels]


def _to_finite_number(position: str, value: Any) -> float:
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = math.nan
    if not math.isfinite(number):
        raise DataError(f"{position}: label {value!r} is no finite number, which a model with num_labels=1 (regression) needs")
    return number


class LabelledRows:
    """Reads rows and counts the labels of each source, of all rows that are read, also those that a limited task drops."""

    def __init__(self, read: Callable[[Source], Iterable[TableRow]], labels_of: Callable[[TableRow], Iterable[Any]]) -> None:
        self._read, self._labels_of = read, labels_of
        self._counts: dict[str, Counter[str]] = {}

    def __call__(self, source: Source) -> Iterator[TableRow]:
        """Yields the rows of a source."""
        counts = self._counts[source_label(source)] = Counter()
        for row in self._read(source):
            for label in self._labels_of(row):
                text = _label_as_written(label.name if isinstance(label, ClassLabel) else label).casefold()
                if len(counts) < 2 or text in counts:
                    counts[text] += 1
            yield row

    def check_labels_vary(self) -> None:
        """Raises DataError where all labels of a source are equal, so that a constant answer is right."""
        for source, counts in self._counts.items():
            if len(counts) == 1:
                raise DataError(
                    f"all {counts.total()} examples taken from {source} have the label {next(iter(counts))}, so there is nothing to tell "
                    "apart; give examples of every label"
                )


def choose_metric(request: TaskRequest, metric_name: str, default_metric: Metric = ACCURACY) -> Metric:
    """Returns the metric with this name; for "auto" the default one, or Pearson's correlation for regression.

    Raises:
        DataError: the metric does not fit the number of labels of the model.
    """
    is_regression = n_labels(request) == 1
    if metric_name == "auto":
        return PEARSON if is_regression else default_metric
    if (metric_name == "pearson") != is_regression or (metric_name == "f1" and n_labels(request) != 2):
        raise DataError(f"metric '{metric_name}' does not fit a model with {n_labels(request)} labels: f1 takes 2, pearson 1 (regression)")
    return BY_NAME[metric_name]
