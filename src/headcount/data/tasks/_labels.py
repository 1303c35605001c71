"""Labels of files to numbers of classes, by the names in the model's configuration or as numbers; never by guessing."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from headcount.core.errors import DataError, unknown
from headcount.data.checks import config_of
from headcount.data.metrics import ACCURACY, BY_NAME, PEARSON, Metric
from headcount.data.open_task import Request
from headcount.data.readers.tables import Named, Row, Source
from headcount.data.tasks._splits import told

Labelled = tuple[str, Any]
"""Where a label stands, and what it is."""


def n_labels(request: Request) -> int:
    """How many classes the model knows; one class means regression."""
    return int(config_of(request.model).num_labels)


def class_names(request: Request) -> dict[int, str]:
    """The model's id2label."""
    return {int(number): str(name) for number, name in config_of(request.model).id2label.items()}


def unnamed(request: Request) -> bool:
    """Whether the model's classes have no names but LABEL_0, LABEL_1…"""
    return all(name == f"LABEL_{number}" for number, name in class_names(request).items())


def to_classes(request: Request, labels: Sequence[Labelled]) -> list[int]:
    """The class of each label. All are names (small and capital letters alike), or all are numbers in range; anything else is an error."""
    names = class_names(request)
    labels = [(where, _plain(value, unnamed(request))) for where, value in labels]
    by_name = {name.casefold(): number for number, name in names.items()}
    if len(by_name) < len(names) or not any(_text(value).casefold() in by_name for _, value in labels):
        by_name = {str(number): number for number in range(n_labels(request))}
    for where, value in labels:
        if _text(value).casefold() not in by_name:
            raise DataError(
                f"{where}: label {value!r} is neither a name nor a number of the model's {n_labels(request)} classes: id2label is {names}. "
                "Correct the labels, set the names in model.config, or, if this line is a header, name its columns"
            )
    return [by_name[_text(value).casefold()] for _, value in labels]


def _plain(value: Any, by_number: bool) -> Any:
    return (value.number if by_number else value.name) if isinstance(value, Named) else value


def _text(value: Any) -> str:
    return str(int(value)) if isinstance(value, bool) else str(value).strip()


def to_numbers(request: Request, labels: Sequence[Labelled]) -> list[float]:
    """The value of each label, for a model with one output. Whole numbers alone look like classes, and are refused."""
    if not any(isinstance(value, float) or "." in _text(value) for _, value in labels):
        raise DataError(
            f"the model has num_labels=1, which means regression, but the labels are no decimal numbers (the first is {labels[0][1]!r}, "
            f"{labels[0][0]}); load the model with as many labels as there are classes, or write values as 3.0"
        )
    return [_value(where, value) for where, value in labels]


def _value(where: str, value: Any) -> float:
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = math.nan
    if not math.isfinite(number):
        raise DataError(f"{where}: label {value!r} is no finite number, which a model with num_labels=1 (regression) needs")
    return number


class LabelledRows:
    """Reads rows and counts the labels of each source, of all rows that are read, however few of them a limited task keeps."""

    def __init__(self, read: Callable[[Source], Iterable[Row]], labels_of: Callable[[Row], Iterable[Any]]) -> None:
        self._read, self._labels_of = read, labels_of
        self._counts: dict[str, Counter[str]] = {}

    def __call__(self, source: Source) -> Iterator[Row]:
        """The rows of a source."""
        counts = self._counts[told(source)] = Counter()
        for row in self._read(source):
            for label in self._labels_of(row):
                text = _text(label.name if isinstance(label, Named) else label).casefold()
                if len(counts) < 2 or text in counts:
                    counts[text] += 1
            yield row

    def check_several(self) -> None:
        """Raises DataError where all labels of a source are the same, so that any constant answer is right."""
        for source, counts in self._counts.items():
            if len(counts) == 1:
                raise DataError(
                    f"all {counts.total()} examples taken from {source} have the label {next(iter(counts))}, so there is nothing to tell "
                    "apart; give examples of every label"
                )


def metric_of(request: Request, default: Metric = ACCURACY) -> Metric:
    """The metric that was asked for, else the default; Pearson's correlation for regression."""
    regression = n_labels(request) == 1
    name = request.options.get("metric")
    if name is None:
        return PEARSON if regression else default
    if name not in BY_NAME:
        raise unknown(f"metric of task '{request.name}'", str(name), BY_NAME)
    if (name == "pearson") != regression or (name == "f1" and n_labels(request) != 2):
        raise DataError(f"metric '{name}' does not fit a model with {n_labels(request)} labels: f1 takes 2, pearson 1 (regression)")
    return BY_NAME[name]
