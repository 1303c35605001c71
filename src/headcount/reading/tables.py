"""Rows of tsv, csv, jsonl and parquet files, of parallel line files and of datasets, under the roles that a task gives their columns."""

from __future__ import annotations

import csv
import difflib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

from headcount.errors import DataError, MissingExtra
from headcount.reading.lines import filled, kind_of, lines, parallel

Source = tuple[Path, ...] | Any
"""Files that belong together (parallel ones), or a datasets.Dataset; None for nothing."""

TABLES = (".tsv", ".csv", ".jsonl", ".json", ".ndjson", ".parquet")
"""Endings of files that are tables wherever text is read; any other is plain text there."""
KINDS = (*TABLES, ".txt")
"""What is read as a table where only that is wanted: .txt with tabs too."""
PAIRS = (("sentence1", "sentence2"), ("premise", "hypothesis"), ("question1", "question2"), ("question", "sentence"), ("text", "text_pair"))
SINGLE = (("text",), ("sentence",))
"""Names that columns of pairs of texts, and of single texts, usually have, tried in this order."""


@dataclass(frozen=True, slots=True)
class Row:
    """The values of one example by role, and where it stands."""

    values: Mapping[str, Any]
    source: str
    number: int
    unit: str = "line"

    @property
    def where(self) -> str:
        """File and line, for messages."""
        return f"{self.source}, {self.unit} {self.number}"

    def text(self, role: str) -> str:
        """A value that must be text."""
        value = self.values[role]
        if not isinstance(value, str):
            raise DataError(f"{self.where}: the {role} must be text, got {value!r}")
        return value


class Named(NamedTuple):
    """A label of a dataset that knows the names of its classes."""

    number: int
    name: str


@dataclass(frozen=True, slots=True)
class Group:
    """Columns found together: their roles, the option that names each, and the names they usually have, tried in order."""

    options: Mapping[str, str]
    usual: Sequence[tuple[str, ...]]

    @property
    def roles(self) -> tuple[str, ...]:
        """The roles, in the order of the usual names."""
        return tuple(self.options)


@dataclass(frozen=True, slots=True)
class Layout:
    """How a task finds its columns: as the user named them, by usual names, or by place (roles by number of columns) without a header."""

    groups: tuple[Group, ...]
    places: Mapping[int, tuple[str, ...]]
    named: Mapping[str, str]

    def columns(self, header: Sequence[str], source: str) -> dict[str, str]:
        """Role -> column, for a file with these columns."""
        found: dict[str, str] = {}
        for group in self.groups:
            chosen = {role: self.named[role] for role in group.roles if role in self.named}
            found |= chosen or self._usual(group, header) or {}
            role = group.roles[0]
            if role not in found:
                raise DataError(
                    f"{source} has no column for the {role}: it has {_listed(header)}. Name it with {_flag(group.options[role])}"
                )
        for role, column in found.items():
            if column not in header:
                raise _missing(column, role, header, source)
        return found

    def _usual(self, group: Group, header: Sequence[str]) -> dict[str, str] | None:
        names = next((names for names in group.usual if all(name in header for name in names)), None)
        return None if names is None else dict(zip(group.roles, names, strict=False))

    def is_header(self, cells: Sequence[str]) -> bool:
        """Whether the first line of a file names its columns."""
        return bool(self.named) or all(self._usual(group, cells) for group in self.groups)

    def by_place(self, number: int, source: str) -> dict[str, int]:
        """Role -> place, for a file without a header or for parallel files."""
        if number not in self.places:
            allowed = " or ".join(f"{n} ({', '.join(roles)})" for n, roles in self.places.items())
            flags = ", ".join(_flag(option) for group in self.groups for option in group.options.values())
            raise DataError(f"{source} has {number} columns and no header that is known; give {allowed}, or name columns with {flags}")
        return {role: place for place, role in enumerate(self.places[number])}


def _flag(option: str) -> str:
    return "--" + option.replace("_", "-")


def _listed(names: Sequence[str]) -> str:
    return ", ".join(repr(name) for name in names) or "none"


def _missing(column: str, role: str, header: Sequence[str], source: str) -> DataError:
    close = difflib.get_close_matches(column, list(header), n=1)
    hint = f" Did you mean '{close[0]}'?" if close else ""
    return DataError(f"{source} has no column '{column}' for the {role}.{hint} It has {_listed(header)}")


def read(source: Source, layout: Layout) -> Iterator[Row]:
    """The rows of files or of a dataset."""
    if not isinstance(source, tuple):
        return _of_dataset(source, layout)
    if len(source) > 1:
        return _of_parallel(source, layout)
    path = next(iter(source))
    if path.is_dir():
        return read(_saved(path), layout)
    kind = kind_of(path)
    if kind not in KINDS:
        known = f"known are {', '.join(KINDS)}, and .gz of those with lines"
        raise DataError(f"{path}: unknown kind of file '{kind}'; {known}. Parallel files come together: --train A --train B")
    if kind == ".parquet":
        return _of_parquet(path, layout)
    if kind in (".tsv", ".txt", ".csv"):
        return _of_cells(path, layout, _commas(path) if kind == ".csv" else ((n, text.split("\t")) for n, text in filled(path)))
    return _of_json(path, layout)


def _of_dataset(dataset: Any, layout: Layout) -> Iterator[Row]:
    columns = layout.columns(dataset.column_names, "the dataset")
    names = {role: _class_names(dataset, column) for role, column in columns.items()}
    for row in _of_records(enumerate(dataset), dataset.column_names, layout, ("the dataset", "row")):
        yield replace(row, values={role: _with_names(value, names[role]) for role, value in row.values.items()})


def _class_names(dataset: Any, column: str) -> list[str] | None:
    feature = (getattr(dataset, "features", None) or {}).get(column)
    return getattr(getattr(feature, "feature", feature), "names", None)


def _with_names(value: Any, names: list[str] | None) -> Any:
    if names is None:
        return value
    if isinstance(value, list):
        return [_with_names(one, names) for one in value]
    return Named(value, names[value]) if isinstance(value, int) and 0 <= value < len(names) else value


def _saved(path: Path) -> Any:
    """A folder that `datasets` wrote by save_to_disk."""
    import datasets

    if (path / "dataset_dict.json").exists():
        splits = sorted(part.name for part in path.iterdir() if part.is_dir())
        raise DataError(f"{path} holds several datasets; name the folder of one: {', '.join(str(path / split) for split in splits)}")
    if not (path / "state.json").exists():
        raise DataError(f"{path} is a folder, but not one that datasets' save_to_disk wrote; give a file")
    return datasets.load_from_disk(str(path))


def _of_parallel(paths: tuple[Path, ...], layout: Layout) -> Iterator[Row]:
    source = " + ".join(path.name for path in paths)
    places = layout.by_place(len(paths), source)
    for number, cells in parallel(paths):
        yield Row({role: cells[place] for role, place in places.items()}, source, number)


def _commas(path: Path) -> Iterator[tuple[int, list[str]]]:
    reader = csv.reader((text + "\n" for _, text in lines(path)), strict=True)
    empty: int | None = None
    try:
        for cells in reader:
            if not cells:
                empty = empty or reader.line_num
            elif empty is not None:
                raise DataError(f"{path}, line {empty} is empty, but lines follow it; remove it")
            else:
                yield reader.line_num, cells
    except csv.Error as error:
        raise DataError(f"{path}, line {reader.line_num} is no csv: {error}; check its quotes") from error


def _of_cells(path: Path, layout: Layout, table: Iterator[tuple[int, list[str]]]) -> Iterator[Row]:
    first = next(table, None)
    if first is None:
        return
    width = len(first[1])
    named = layout.is_header(first[1])
    columns = layout.columns(first[1], str(path)) if named else {}
    places = {role: first[1].index(name) for role, name in columns.items()} if named else layout.by_place(width, str(path))
    for number, cells in table if named else chain([first], table):
        if len(cells) != width:
            raise DataError(f"{path}, line {number} has {len(cells)} columns, but the first line has {width}; give every line the same")
        yield Row({role: cells[place] for role, place in places.items()}, str(path), number)


def _of_json(path: Path, layout: Layout) -> Iterator[Row]:
    records = _records(path)
    first = next(records, None)
    if first is None:
        return
    yield from _of_records(chain([first], records), list(first[1]), layout, (str(path), "line"))


def _records(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    for number, text in filled(path):
        try:
            record = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise DataError(f"{path}, line {number} is no JSON: {error}. One object a line is wanted") from error
        if not isinstance(record, dict):
            raise DataError(f"{path}, line {number} holds a {type(record).__name__}; one JSON object a line is wanted")
        yield number, record


def _of_parquet(path: Path, layout: Layout) -> Iterator[Row]:
    try:
        from pyarrow import parquet
    except ImportError as error:
        raise MissingExtra("reading parquet needs pyarrow; install it with: pip install pyarrow") from error
    try:
        file = parquet.ParquetFile(path)
        rows = (row for part in file.iter_batches() for row in part.to_pylist())
        yield from _of_records(enumerate(rows), file.schema_arrow.names, layout, (str(path), "row"))
    except (OSError, ValueError) as error:
        if isinstance(error, DataError):
            raise
        raise DataError(f"{path} cannot be read as parquet: {error}; write it again") from error


def _of_records(records: Iterable[tuple[int, Any]], header: Sequence[str], layout: Layout, told: tuple[str, str]) -> Iterator[Row]:
    columns = layout.columns(header, told[0])
    for number, record in records:
        absent = next((column for column in columns.values() if record.get(column) is None), None)
        if absent is not None:
            raise DataError(f"{told[0]}, {told[1]} {number} has no value in column '{absent}'; fill it, or remove the row")
        yield Row({role: record[column] for role, column in columns.items()}, told[0], number, told[1])
