"""Figures as plain data: what is drawn, on which axes, over how many examples or heads, and the table that holds the same numbers.

Nothing is drawn here: `runs.study_files` draws a figure for a paper. A value is None where it is not defined, and then not drawn.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from math import isfinite
from typing import Any, ClassVar, Self

FigureValues = tuple[float | None, ...]


@dataclass(frozen=True, slots=True)
class Axis:
    """What an axis shows.

    Attributes:
        label: The quantity.
        unit: Its unit; empty for counts, shares and names.
        is_share: Whether its numbers are shares, which are drawn as percentages.
        ticks: Numbers of the axis that bear a name, such as layers; by default the drawing chooses ticks.
        is_count: Whether its numbers count something, such as heads or steps: ticks are whole numbers, also where means lie between them.
        limits: The least and the greatest number that is drawn, where not all are; the note of the figure says so. Empty for all.
    """

    label: str
    unit: str = ""
    is_share: bool = False
    ticks: tuple[tuple[float, str], ...] = ()
    is_count: bool = False
    limits: tuple[float, float] | tuple[()] = ()

    @property
    def title(self) -> str:
        """The label with its unit."""
        return f"{self.label} ({self.unit})" if self.unit else self.label

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """Returns the axis that its plain data describe."""
        return cls(**{name: _lists_to_tuples(value) for name, value in values.items()})


@dataclass(frozen=True, slots=True)
class Line:
    """A line through points in the order of x, with the interval of every point if there is one; a control is drawn in grey.

    `start` is the point (x, y) of the dense model, at which all lines of a pruning curve begin; empty if there is none.
    """

    label: str
    x: tuple[float, ...]
    y: FigureValues
    low: FigureValues = ()
    high: FigureValues = ()
    is_control: bool = False
    start: tuple[float, float] | tuple[()] = ()

    def with_start_as_point(self) -> Line:
        """Returns the line with its start as a point of its own, which has no interval."""
        if not self.start:
            return self
        x, y = self.start
        low, high = ((*ends, None) if ends else () for ends in (self.low, self.high))
        columns = [(*self.x, x), (*self.y, y), *([low, high] if self.low else [])]
        ordered = zip(*sorted(zip(*columns, strict=True), key=lambda point: point[0]), strict=True)
        return replace(self, start=(), **dict(zip(("x", "y", "low", "high"), ordered, strict=False)))


@dataclass(frozen=True, slots=True)
class Reference:
    """A horizontal line, such as the score of the dense model."""

    label: str
    y: float


@dataclass(frozen=True, slots=True)
class Bars:
    """A bar for every category, with its interval if there is one."""

    label: str
    values: FigureValues
    low: FigureValues = ()
    high: FigureValues = ()


@dataclass(frozen=True, slots=True)
class Points:
    """A group of points; `names` say what each of them is, such as heads."""

    label: str
    x: tuple[float, ...]
    y: tuple[float, ...]
    names: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Counts:
    """How many values lie in every bin."""

    label: str
    counts: tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """What every figure has.

    Attributes:
        name: The name of the figure in its study, also that of its files.
        title: One line that says what is shown.
        x: The horizontal axis; of bars, that of the categories, also if the bars lie.
        y: The vertical axis; of bars, that of the values.
        table: The table of the study that holds the numbers.
        n: How many units (`n_unit`) the numbers rest on; None where that differs between them or is not known.
        n_unit: What is counted by `n`.
        note: A line of text beside the figure, such as a correlation, or what holds for all of its series.

    Raises:
        ValueError: the numbers do not fit together, or one of them is not finite.
    """

    kind: ClassVar[str] = ""
    parts: ClassVar[Mapping[str, type]] = {}
    """The types of the fields that hold several objects."""

    name: str
    title: str
    x: Axis
    y: Axis
    table: str
    n: int | None
    n_unit: str = "examples"
    note: str = ""

    @property
    def has_values(self) -> bool:
        """Whether there is a value to draw."""
        return any(value is not None for value in self._values_of_marks())

    def _values_of_marks(self) -> Iterator[float | None]:
        """Yields what is drawn: the value of every mark, None where it is not defined."""
        raise NotImplementedError

    def to_dict(self) -> dict[str, Any]:
        """Returns the figure as plain data; `kind` says which figure it is."""
        return {"kind": self.kind, **_tuples_to_lists(asdict(self))}

    @staticmethod
    def from_dict(values: Mapping[str, Any]) -> Figure:
        """Returns the figure that `to_dict` described, also in an earlier release; raises ValueError for an unknown kind."""
        if values["kind"] not in KINDS:
            raise ValueError(f"no kind of figure '{values['kind']}'. Known: {', '.join(KINDS)}")
        cls = KINDS[values["kind"]]
        return cls(**{field.name: cls._parse_field(field.name, values[field.name]) for field in fields(cls) if field.name in values})

    @classmethod
    def _parse_field(cls, field_name: str, value: Any) -> Any:
        if field_name in cls.parts:
            return tuple(cls.parts[field_name](**{key: _lists_to_tuples(entry) for key, entry in part.items()}) for part in value)
        return Axis.from_dict(value) if isinstance(value, dict) else _lists_to_tuples(value)

    def _check_columns(self, label: str, length: int, *columns: Sequence[Any]) -> None:
        """Raises ValueError unless all columns have so many entries, and all numbers are finite."""
        if any(len(column) != length for column in columns):
            raise ValueError(f"'{label}' of figure '{self.name}' has columns of different length: {length}, {[*map(len, columns)]}")
        if any(isinstance(value, float) and not isfinite(value) for column in columns for value in column):
            raise ValueError(f"'{label}' of figure '{self.name}' has a number that is not finite; write None where it is not defined")

    def _check_interval(self, label: str, length: int, low: FigureValues, high: FigureValues) -> None:
        if low or high:
            self._check_columns(label, length, low, high)


@dataclass(frozen=True, slots=True, kw_only=True)
class LineFigure(Figure):
    """Lines with their intervals as bands, and horizontal lines for comparison."""

    kind: ClassVar[str] = "lines"
    parts: ClassVar[Mapping[str, type]] = {"lines": Line, "references": Reference}

    lines: tuple[Line, ...]
    references: tuple[Reference, ...] = ()

    def _values_of_marks(self) -> Iterator[float | None]:
        return (y for line in self.lines for y in line.y)

    def __post_init__(self) -> None:
        for line in self.lines:
            self._check_columns(line.label, len(line.x), line.x, line.y)
            self._check_interval(line.label, len(line.x), line.low, line.high)


@dataclass(frozen=True, slots=True, kw_only=True)
class BarFigure(Figure):
    """Bars by category, those of several series side by side or stacked, standing or lying."""

    kind: ClassVar[str] = "bars"
    parts: ClassVar[Mapping[str, type]] = {"bars": Bars}

    categories: tuple[str, ...]
    bars: tuple[Bars, ...]
    is_stacked: bool = False
    is_horizontal: bool = False

    def _values_of_marks(self) -> Iterator[float | None]:
        return (value for series in self.bars for value in series.values)

    def __post_init__(self) -> None:
        for series in self.bars:
            self._check_columns(series.label, len(self.categories), series.values)
            self._check_interval(series.label, len(self.categories), series.low, series.high)


@dataclass(frozen=True, slots=True, kw_only=True)
class HeatMap(Figure):
    """A coloured cell for every row and column.

    Attributes:
        rows: The names of the rows, from the top.
        columns: The names of the columns.
        values: The value of every cell, row by row.
        value: What the colour shows.
        marks: Whether a cell bears a dot, row by row; empty for no dots.
        mark_label: What a dot means.
        missing_label: What a grey cell means, one without a value.
        is_diverging: Whether colours tell values below 0 from those above.
    """

    kind: ClassVar[str] = "heat map"

    rows: tuple[str, ...]
    columns: tuple[str, ...]
    values: tuple[FigureValues, ...]
    value: Axis
    marks: tuple[tuple[bool, ...], ...] = ()
    mark_label: str = ""
    is_diverging: bool = False
    missing_label: str = "not defined"

    def _values_of_marks(self) -> Iterator[float | None]:
        return (value for row in self.values for value in row)

    def __post_init__(self) -> None:
        self._check_columns("values", len(self.rows), self.values)
        for row, values in zip(self.rows, self.values, strict=True):
            self._check_columns(row, len(self.columns), values)
        if self.marks:
            self._check_columns("marks", len(self.rows), self.marks)
            for row, marks in zip(self.rows, self.marks, strict=True):
                self._check_columns(row, len(self.columns), marks)


@dataclass(frozen=True, slots=True, kw_only=True)
class ScatterFigure(Figure):
    """Points in groups."""

    kind: ClassVar[str] = "scatter"
    parts: ClassVar[Mapping[str, type]] = {"groups": Points}

    groups: tuple[Points, ...]

    def _values_of_marks(self) -> Iterator[float | None]:
        return (y for group in self.groups for y in group.y)

    def __post_init__(self) -> None:
        for group in self.groups:
            self._check_columns(group.label, len(group.x), group.x, group.y, *([group.names] if group.names else []))


@dataclass(frozen=True, slots=True, kw_only=True)
class Histogram(Figure):
    """How many values lie between each edge and the next, for one group or several."""

    kind: ClassVar[str] = "histogram"
    parts: ClassVar[Mapping[str, type]] = {"groups": Counts}

    edges: tuple[float, ...]
    groups: tuple[Counts, ...]

    def _values_of_marks(self) -> Iterator[float | None]:
        return (number or None for group in self.groups for number in group.counts)

    def __post_init__(self) -> None:
        self._check_columns("edges", len(self.edges), self.edges)
        if any(high <= low for low, high in zip(self.edges, self.edges[1:], strict=False)):
            raise ValueError(f"the edges of histogram '{self.name}' must rise")
        for group in self.groups:
            self._check_columns(group.label, len(self.edges) - 1, group.counts)


KINDS: Mapping[str, type[Figure]] = {cls.kind: cls for cls in (LineFigure, BarFigure, HeatMap, ScatterFigure, Histogram)}


def _lists_to_tuples(value: Any) -> Any:
    return tuple(_lists_to_tuples(entry) for entry in value) if isinstance(value, list | tuple) else value


def _tuples_to_lists(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _tuples_to_lists(entry) for name, entry in value.items()}
    return [_tuples_to_lists(entry) for entry in value] if isinstance(value, tuple | list) else value
