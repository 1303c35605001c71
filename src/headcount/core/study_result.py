"""The result of a study: tables of numbers with their intervals, figures, the verdict in one sentence, and every measurement as plain data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple, Self

from headcount.core.figure import Figure

Cell = str | int | float | bool | None


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table: its heading, the unit and the format specification of its numbers, such as `+.3g`.

    `interval` names the two columns that hold the ends of the interval around each of its numbers.
    """

    name: str
    unit: str = ""
    format: str = ""
    interval: tuple[str, str] | None = None


def interval_columns(name: str, format: str, unit: str = "") -> tuple[Column, Column, Column]:
    """Returns the columns of a number and of the two ends of its interval."""
    low, high = f"{name} low", f"{name} high"
    return Column(name, unit, format, (low, high)), Column(low, unit, format), Column(high, unit, format)


@dataclass(frozen=True, slots=True)
class Table:
    """Named columns and rows of cells; `title` says in one line what the table holds. A cell is None where the number is not defined.

    A table that is not `is_printed` is for files alone: it is too long to read, such as one with a row for every head.

    Raises:
        ValueError: a row has more or fewer cells than there are columns, or an interval names a column that does not exist.
    """

    name: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]
    title: str = ""
    is_printed: bool = True

    def __post_init__(self) -> None:
        names = [column.name for column in self.columns]
        for row in self.rows:
            if len(row) != len(names):
                raise ValueError(f"a row of table '{self.name}' has {len(row)} cells for {len(names)} columns")
        for column in self.columns:
            if column.interval is not None and not set(column.interval) <= set(names):
                raise ValueError(f"the interval of column '{column.name}' of table '{self.name}' names a column that does not exist")

    def records(self) -> list[dict[str, Cell]]:
        """Returns the rows as mappings from column name to cell."""
        names = [column.name for column in self.columns]
        return [dict(zip(names, row, strict=True)) for row in self.rows]

    def to_dict(self) -> dict[str, Any]:
        """Returns the table as plain data."""
        return {**asdict(self), "columns": [asdict(column) for column in self.columns], "rows": [list(row) for row in self.rows]}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """Returns the table that `to_dict` described."""
        columns = [
            Column(**{**column, "interval": None if column["interval"] is None else tuple(column["interval"])})
            for column in values["columns"]
        ]
        return cls(values["name"], tuple(columns), tuple(tuple(row) for row in values["rows"]), values["title"], values["is_printed"])

    def rows_with_rounding_errors_zeroed(self) -> list[list[Cell]]:
        """Returns the rows as readers see them: numbers with an interval, and its ends, are 0 where they are rounding alone."""
        position_of = {column.name: position for position, column in enumerate(self.columns)}
        rows = [list(row) for row in self.rows]
        for column in self.columns:
            if column.interval is not None:
                positions = [position_of[name] for name in (column.name, *column.interval)]
                for row in rows:
                    for position, cell in zip(positions, zero_rounding_errors([row[position] for position in positions]), strict=True):
                        row[position] = cell
        return rows

    def format(self) -> FormattedTable:
        """Returns the table as text: the ends of an interval in parentheses behind their number, and a dash for what is not defined."""
        ends = {name for column in self.columns for name in column.interval or ()}
        columns = [column for column in self.columns if column.name not in ends]
        names = [column.name for column in self.columns]
        records = [dict(zip(names, row, strict=True)) for row in self.rows_with_rounding_errors_zeroed()]
        return FormattedTable(
            headings=[f"{column.name} ({column.unit})" if column.unit else column.name for column in columns],
            rows=[[_format_cell(column, record) for column in columns] for record in records],
            are_numbers=[any(isinstance(record[column.name], int | float) for record in records) for column in columns],
            have_intervals=[column.interval is not None for column in columns],
        )


class FormattedTable(NamedTuple):
    """A table as text: headings with units, cells, and for every column whether it holds numbers, and whether these have intervals."""

    headings: list[str]
    rows: list[list[str]]
    are_numbers: list[bool]
    have_intervals: list[bool]


def _format_cell(column: Column, record: Mapping[str, Cell]) -> str:
    def format_cell_of(column_name: str) -> str:
        value = record[column_name]
        return "–" if value is None else str(value) if isinstance(value, str) else format(value, column.format)

    if column.interval is None or record[column.interval[0]] is None:
        return format_cell_of(column.name)
    return f"{format_cell_of(column.name)} ({format_cell_of(column.interval[0])} … {format_cell_of(column.interval[1])})"


@dataclass(frozen=True, slots=True)
class StudyResult:
    """What a study measured.

    Attributes:
        study: The text of the study with the options that differ from their defaults.
        tables: The tables to read, in order.
        sentence: The verdict in one sentence.
        notes: Conditions and reservations, one sentence each.
        measurements: Every number and the conditions under which it was measured, as plain data by name.
        figures: The figures, described as data. One without any value is left out, and a note says so.

    Raises:
        ValueError: two tables or two figures have one name, or a figure names a table that does not exist.
    """

    study: str
    tables: tuple[Table, ...]
    sentence: str
    notes: tuple[str, ...] = ()
    measurements: Mapping[str, Any] = field(default_factory=dict)
    figures: tuple[Figure, ...] = ()

    def __post_init__(self) -> None:
        empty = [figure for figure in self.figures if not figure.has_values]
        notes = (f"The figure '{figure.name}' is not drawn: none of its values is defined." for figure in empty)
        object.__setattr__(self, "notes", (*self.notes, *notes))
        object.__setattr__(self, "figures", tuple(figure for figure in self.figures if figure.has_values))
        for names in ([table.name for table in self.tables], [figure.name for figure in self.figures]):
            if len(set(names)) < len(names):
                raise ValueError(f"two tables or two figures of study '{self.study}' have one name: {', '.join(names)}")
        tables = {table.name for table in self.tables}
        for figure in self.figures:
            if figure.table not in tables:
                raise ValueError(f"figure '{figure.name}' of study '{self.study}' names the table '{figure.table}', which does not exist")

    def table(self, name: str) -> Table:
        """Returns the table of that name; KeyError if there is none."""
        tables = {table.name: table for table in self.tables}
        return tables[name]

    def figure(self, name: str) -> Figure:
        """Returns the figure of that name; KeyError if there is none."""
        figures = {figure.name: figure for figure in self.figures}
        return figures[name]

    def rows(self) -> list[dict[str, Any]]:
        """Returns the rows that stand for the study in the tables of a run: the measurement `rows`, or else those of the first table."""
        return [dict(row) for row in self.measurements["rows"]] if "rows" in self.measurements else self.tables[0].records()

    def to_dict(self) -> dict[str, Any]:
        """Returns the result as plain data."""
        return {
            "study": self.study,
            "tables": [table.to_dict() for table in self.tables],
            "sentence": self.sentence,
            "notes": list(self.notes),
            "measurements": dict(self.measurements),
            "figures": [figure.to_dict() for figure in self.figures],
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """Returns the result that `to_dict` described."""
        return cls(
            values["study"],
            tuple(Table.from_dict(table) for table in values["tables"]),
            values["sentence"],
            tuple(values["notes"]),
            values["measurements"],
            tuple(Figure.from_dict(figure) for figure in values["figures"]),
        )


ROUNDING, SMALLEST = 1e-12, 1e-15
"""Below this share of the largest of a number and the ends of its interval, or below this size, one of them is rounding and shown as 0."""


def zero_rounding_errors(value_and_ends: Sequence[Cell]) -> list[Cell]:
    """Returns a number and the ends of its interval, with 0 for what is rounding beside the largest of them, such as −5.6e-18."""
    sizes = [abs(cell) for cell in value_and_ends if isinstance(cell, float)]
    limit = max(ROUNDING * max(sizes, default=0.0), SMALLEST)
    return [0.0 if isinstance(cell, float) and abs(cell) < limit else cell for cell in value_and_ends]


def format_interval(value: float, low: float | None, high: float | None, format_spec: str = "+.3g") -> str:
    """Returns a number with its interval as text, such as `+0.12 (+0.05 … +0.19)`; without an interval, the number alone."""
    number, *ends = [None if cell is None else format(cell, format_spec) for cell in zero_rounding_errors([value, low, high])]
    return f"{number}" if None in ends else f"{number} ({' … '.join(map(str, ends))})"
