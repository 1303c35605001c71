"""Rows of tsv, csv, jsonl and parquet files, of parallel line files and of datasets, with a task's roles for their columns."""

from __future__ import annotations

import csv
import difflib
import json
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, chain, islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from headcount.core.errors import DataError, MissingExtra, PartlyRead
from headcount.core.files import is_folder
from headcount.data.readers.lines import count_lines, read_lines, read_lines_without_gaps, read_parallel_lines, uncompressed_suffix

Source = tuple[Path, ...] | Any
"""Files that belong together (parallel ones), or a datasets.Dataset; None for nothing."""

TABLES = (".tsv", ".csv", ".jsonl", ".json", ".ndjson", ".parquet")
"""Endings of files that are tables wherever text is read; any other is plain text there."""
KINDS = (*TABLES, ".txt")
"""Endings that are read as a table where only tables are allowed: .txt with tabs too."""
PAIRS = (("sentence1", "sentence2"), ("premise", "hypothesis"), ("question1", "question2"), ("question", "sentence"), ("text", "text_pair"))
SINGLE = (("text",), ("sentence",))
"""Names that columns of pairs of texts, and of single texts, usually have, tried in this order."""


MOST, PER_EXAMPLE = 100_000, 100
"""Rows that a limited task reads of a source at most: that many, or that many for each example of the limit if these are more."""
GROUPS = 64
"""With more row groups a parquet file is read in so many of them at least, however large they are; with fewer it is read whole, in steps."""
BATCH_ROWS = 8192
"""Rows of a parquet file that are in memory at a time."""


def max_rows_for_limit(limit: int) -> int:
    """Returns the most rows that a task of so many examples reads of a source."""
    return max(PER_EXAMPLE * limit, MOST)


def source_label(source: Source) -> str:
    """Returns the name of a source, for messages."""
    return " + ".join(map(str, source)) if isinstance(source, tuple) else "the dataset"


def warn_of_unread_rows(source: str, n_read: int, n_rows: int | None) -> None:
    """Warns that not all rows of a source are read; `n_rows` is None where the first ones were read and the others not counted."""
    rows = f"the first {n_read:,} rows" if n_rows is None else f"{n_read:,} of {n_rows:,} rows, spread evenly over it,"
    message = (
        f"{source}: {rows} are read, and a limited task keeps those of each split whose hashes are smallest; a larger limit reads more"
    )
    warnings.warn(message, PartlyRead, stacklevel=2)


@dataclass(frozen=True, slots=True)
class TableRow:
    """The values of one example by role, and its position in the data; None where the source is a file of this example alone."""

    values: Mapping[str, Any]
    source: str
    number: int | None
    unit: str = "line"

    @property
    def origin(self) -> str:
        """File and line, for messages."""
        return self.source if self.number is None else f"{self.source}, {self.unit} {self.number}"

    def text(self, role: str) -> str:
        """Returns a value that must be text."""
        value = self.values[role]
        if not isinstance(value, str):
            raise DataError(f"{self.origin}: the {role} must be text, got {value!r}")
        return value


class ClassLabel(NamedTuple):
    """A label of a dataset that names its classes."""

    number: int
    name: str


@dataclass(frozen=True, slots=True)
class ColumnGroup:
    """Columns that are found together: their roles, the argument that names each, and the names they usually have, tried in order."""

    arguments: Mapping[str, str]
    usual: Sequence[tuple[str, ...]]

    @property
    def roles(self) -> tuple[str, ...]:
        """The roles, in the order of the usual names."""
        return tuple(self.arguments)


@dataclass(frozen=True, slots=True)
class ColumnLayout:
    """How a task finds its columns: as the user named them, by usual names, or without a header by their order.

    `roles` are the roles in order, by the number of columns.
    """

    groups: tuple[ColumnGroup, ...]
    roles: Mapping[int, tuple[str, ...]]
    named: Mapping[str, str]

    def columns_by_role(self, header: Sequence[str], source: str) -> dict[str, str]:
        """Returns the column of each role, for a file with these columns."""
        columns: dict[str, str] = {}
        for group in self.groups:
            chosen = {role: self.named[role] for role in group.roles if role in self.named}
            columns |= chosen or self._usual_columns_by_role(group, header) or {}
            role = group.roles[0]
            if role not in columns:
                raise DataError(f"{source} has no column for the {role}: it has {_quote_names(header)}. Name it by {group.arguments[role]}")
        for role, column in columns.items():
            if column not in header:
                close = difflib.get_close_matches(column, list(header), n=1)
                hint = f" Did you mean '{close[0]}'?" if close else ""
                raise DataError(f"{source} has no column '{column}' for the {role}.{hint} It has {_quote_names(header)}")
        return columns

    def _usual_columns_by_role(self, group: ColumnGroup, header: Sequence[str]) -> dict[str, str] | None:
        names = next((names for names in group.usual if all(name in header for name in names)), None)
        return None if names is None else dict(zip(group.roles, names, strict=False))

    def is_header(self, cells: Sequence[str]) -> bool:
        """Whether the first line of a file names its columns."""
        return bool(self.named) or all(self._usual_columns_by_role(group, cells) for group in self.groups)

    def positions_by_role(self, n_columns: int, source: str) -> dict[str, int]:
        """Returns the position of the column of each role, for a file without a header or for parallel files."""
        if n_columns not in self.roles:
            allowed = " or ".join(f"{n} ({', '.join(roles)})" for n, roles in self.roles.items())
            arguments = ", ".join(argument for group in self.groups for argument in group.arguments.values())
            raise DataError(f"{source} has {n_columns} columns and no header that is known; give {allowed}, or name columns by {arguments}")
        return {role: index for index, role in enumerate(self.roles[n_columns])}


def _quote_names(names: Sequence[str]) -> str:
    return ", ".join(repr(name) for name in names) or "none"


def read_rows(source: Source, layout: ColumnLayout, max_rows: int | None = None) -> Iterator[TableRow]:
    """Yields the rows of files or of a dataset; of a source with more than `max_rows` rows at most so many, spread evenly over it."""
    if not isinstance(source, tuple):
        return _read_dataset(source, layout, max_rows)
    if len(source) > 1:
        return _read_parallel_files(source, layout, max_rows)
    path = next(iter(source))
    if is_folder(path):
        return read_rows(_load_saved_dataset(path), layout, max_rows)
    kind = uncompressed_suffix(path)
    if kind not in KINDS:
        known = f"known are {', '.join(KINDS)}, and .gz of those with lines"
        raise DataError(f"{path}: unknown kind of file '{kind}'; {known}. Parallel files come together, as a list")
    if kind == ".parquet":
        return _read_parquet(path, layout, max_rows)
    if kind == ".csv":
        return _table_rows_of_cells(path, layout, _read_csv(path, max_rows))
    if kind in (".tsv", ".txt"):
        return _table_rows_of_cells(
            path, layout, ((n, text.split("\t")) for n, text in read_lines_without_gaps(path, _line_step(max_rows, path)))
        )
    return _read_json(path, layout, max_rows)


def row_step(source: str, n_rows: int, max_rows: int | None) -> int:
    """Returns the step between rows, so that of `n_rows` at most `max_rows` are read; warns where it is not 1."""
    step = 1 if max_rows is None else -(-n_rows // max_rows)
    if step > 1:
        warn_of_unread_rows(source, -(-n_rows // step), n_rows)
    return max(1, step)


def _line_step(max_rows: int | None, *paths: Path) -> int:
    """Returns the step between the lines that are read of files that belong together."""
    if max_rows is None:
        return 1
    counts = {path: count_lines(path) for path in paths}
    if len(set(counts.values())) > 1:
        raise DataError(f"parallel files must have the same number of lines, but {', '.join(f'{p} has {n}' for p, n in counts.items())}")
    return row_step(" + ".join(map(str, paths)), counts[paths[0]], max_rows)


def _read_dataset(dataset: Any, layout: ColumnLayout, max_rows: int | None) -> Iterator[TableRow]:
    columns = layout.columns_by_role(dataset.column_names, "the dataset")
    names = {role: _class_names(dataset, column) for role, column in columns.items()}
    step = row_step("the dataset", len(dataset), max_rows) if hasattr(dataset, "__len__") else 1
    rows = enumerate(dataset) if step == 1 else ((i, dataset[i]) for i in range(0, len(dataset), step))
    for row in _table_rows_of_records(rows, dataset.column_names, layout, "the dataset", "row"):
        yield replace(row, values={role: _to_class_labels(value, names[role]) for role, value in row.values.items()})


def _class_names(dataset: Any, column: str) -> list[str] | None:
    feature = (getattr(dataset, "features", None) or {}).get(column)
    return getattr(getattr(feature, "feature", feature), "names", None)


def _to_class_labels(value: Any, class_names: list[str] | None) -> Any:
    if class_names is None:
        return value
    if isinstance(value, list):
        return [_to_class_labels(entry, class_names) for entry in value]
    return ClassLabel(value, class_names[value]) if isinstance(value, int) and 0 <= value < len(class_names) else value


def _load_saved_dataset(path: Path) -> Any:
    """Returns the dataset of a folder that `datasets` wrote by save_to_disk."""
    import datasets

    if (path / "dataset_dict.json").exists():
        splits = sorted(part.name for part in path.iterdir() if part.is_dir())
        raise DataError(f"{path} holds several datasets; name the folder of one: {', '.join(str(path / split) for split in splits)}")
    if not (path / "state.json").exists():
        raise DataError(f"{path} is a folder, but not one that datasets' save_to_disk wrote; give a file")
    return datasets.load_from_disk(str(path))


def _read_parallel_files(paths: tuple[Path, ...], layout: ColumnLayout, max_rows: int | None) -> Iterator[TableRow]:
    source = " + ".join(path.name for path in paths)
    order = layout.positions_by_role(len(paths), source)
    for number, cells in read_parallel_lines(paths, _line_step(max_rows, *paths)):
        yield TableRow({role: cells[index] for role, index in order.items()}, source, number)


def _read_csv(path: Path, max_rows: int | None) -> Iterator[tuple[int, list[str]]]:
    """Returns (line, cells) of the rows of a csv file. A row may span lines, so that rows have to be read to be counted."""
    if max_rows is None or count_lines(path) <= max_rows:
        return _read_all_csv_rows(path)
    return islice(_read_all_csv_rows(path), 0, None, row_step(str(path), sum(1 for _ in _read_all_csv_rows(path)), max_rows))


def _read_all_csv_rows(path: Path) -> Iterator[tuple[int, list[str]]]:
    reader = csv.reader((text + "\n" for _, text in read_lines(path)), strict=True)
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


def _table_rows_of_cells(path: Path, layout: ColumnLayout, numbered_cells: Iterator[tuple[int, list[str]]]) -> Iterator[TableRow]:
    first = next(numbered_cells, None)
    if first is None:
        return
    width = len(first[1])
    has_header = layout.is_header(first[1])
    columns = layout.columns_by_role(first[1], str(path)) if has_header else {}
    order = {role: first[1].index(name) for role, name in columns.items()} if has_header else layout.positions_by_role(width, str(path))
    for number, cells in numbered_cells if has_header else chain([first], numbered_cells):
        if len(cells) != width:
            raise DataError(f"{path}, line {number} has {len(cells)} columns, but the first line has {width}; give every line the same")
        yield TableRow({role: cells[index] for role, index in order.items()}, str(path), number)


def _read_json(path: Path, layout: ColumnLayout, max_rows: int | None) -> Iterator[TableRow]:
    records = _read_json_records(path, _line_step(max_rows, path))
    first = next(records, None)
    if first is None:
        return
    yield from _table_rows_of_records(chain([first], records), list(first[1]), layout, str(path), "line")


def _read_json_records(path: Path, every: int) -> Iterator[tuple[int, dict[str, Any]]]:
    for number, text in read_lines_without_gaps(path, every):
        try:
            record = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise DataError(f"{path}, line {number} is no JSON: {error}. Write one object a line") from error
        if not isinstance(record, dict):
            raise DataError(f"{path}, line {number} holds a {type(record).__name__}; write one JSON object a line")
        yield number, record


def _read_parquet(path: Path, layout: ColumnLayout, max_rows: int | None) -> Iterator[TableRow]:
    try:
        from pyarrow import parquet
    except ImportError as error:
        raise MissingExtra("reading parquet needs pyarrow; install it with: pip install pyarrow") from error
    try:
        file = parquet.ParquetFile(path, buffer_size=2**20)  # so that a row group is not read whole for its first rows
        header = file.schema_arrow.names
        columns = list(layout.columns_by_role(header, str(path)).values())
        yield from _table_rows_of_records(_read_parquet_rows(file, str(path), columns, max_rows), header, layout, str(path), "row")
    except (OSError, ValueError) as error:
        if isinstance(error, DataError):
            raise
        raise DataError(f"{path} cannot be read as parquet: {error}; write it again") from error


def _read_parquet_rows(file: Any, source: str, columns: list[str], max_rows: int | None) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yields (number, values) of the rows; of a file with more than `max_rows`, rows spread evenly over it.

    These are the first ones of evenly spread row groups, or every k-th row where groups are too few for that: pandas writes up to a million rows
    into one.
    """
    sizes = [file.metadata.row_group(group).num_rows for group in range(file.num_row_groups)]
    starts, total = [0, *accumulate(sizes)], sum(sizes)
    if max_rows is None or total <= max_rows or len(sizes) <= GROUPS:
        yield from _read_every_kth_parquet_row(file, columns, row_step(source, total, max_rows))
        return
    number = min(len(sizes), max(GROUPS, max_rows * len(sizes) // total))
    chosen, share = [turn * len(sizes) // number for turn in range(number)], max(1, max_rows // number)
    warn_of_unread_rows(source, sum(min(share, sizes[group]) for group in chosen), total)
    for group in chosen:
        batches = file.iter_batches(batch_size=min(share, BATCH_ROWS), row_groups=[group], columns=columns)
        rows = (row for batch in batches for row in batch.to_pylist())
        yield from enumerate(islice(rows, share), starts[group])


def _read_every_kth_parquet_row(file: Any, columns: list[str], step: int) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yields (number, values) of every k-th row; a batch of rows is in memory at a time."""
    start = 0
    for batch in file.iter_batches(batch_size=BATCH_ROWS, columns=columns):
        indices = np.arange(-start % step, batch.num_rows, step)
        yield from zip((start + indices).tolist(), batch.take(indices).to_pylist(), strict=True)
        start += batch.num_rows


def _table_rows_of_records(
    numbered_records: Iterable[tuple[int, Any]], header: Sequence[str], layout: ColumnLayout, source: str, unit: str
) -> Iterator[TableRow]:
    columns = layout.columns_by_role(header, source)
    for number, record in numbered_records:
        absent = next((column for column in columns.values() if record.get(column) is None), None)
        if absent is not None:
            raise DataError(f"{source}, {unit} {number} has no value in column '{absent}'; fill it, or remove the row")
        yield TableRow({role: record[column] for role, column in columns.items()}, source, number, unit)
