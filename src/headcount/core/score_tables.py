"""Tables of one row per head that users bring: csv, tsv, json or parquet, read with limits on size and rows; nothing in them is executed."""

from __future__ import annotations

import csv
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

from headcount.core.errors import ArtifactError
from headcount.core.files import MAX_JSON, is_file, read_json, seal, sha256

MAX_ROWS = 200_000
MAX_BYTES = 64 * 2**20
LISTING = "tables.json"
"""The file of a run folder that holds the hashes of its tables."""
KINDS = (".csv", ".tsv", ".json", ".parquet")
_NUMBER = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
_NOT_FINITE = re.compile(r"[+-]?(?:nan|inf|infinity)", re.IGNORECASE)

LocatedRow = tuple[str, Mapping[str, Any]]
"""The location of a row for messages (`file, line 3`), and its values by column."""


def read_table(path: Path) -> tuple[tuple[str, ...], list[LocatedRow]]:
    """Returns the columns and the rows of a table; raises ArtifactError naming file and line."""
    kind = path.suffix.lower()
    if kind not in KINDS:
        raise ArtifactError(f"{path}: unknown kind of table {kind!r:.20}; known are {', '.join(KINDS)}")
    try:
        if not is_file(path):
            raise ArtifactError(f"{path} is no file; name a table ({', '.join(KINDS)})")
        size = path.stat().st_size
        most = MAX_JSON if kind == ".json" else MAX_BYTES
        if size > most:
            raise ArtifactError(f"{path} has {size} bytes, more than the {most} that a table of heads may have; keep head and score only")
        check_table_hash(path)
        columns, rows = _READERS[kind](path)
        table = list(islice(rows, MAX_ROWS + 1))
    except (OSError, ValueError, RecursionError, csv.Error) as error:
        if isinstance(error, ArtifactError):
            raise
        raise ArtifactError(
            f"{path} cannot be read as {kind[1:]}: {' '.join(str(error).split())[:200]}; write it again, as UTF-8 where it is text"
        ) from error
    if len(table) > MAX_ROWS:
        raise ArtifactError(f"{path} has more than {MAX_ROWS} rows; a table has one row for each head and method")
    if not table:
        raise ArtifactError(f"{path} is empty: no row in it; write one for each head")
    return columns, table


def check_table_hash(path: Path) -> None:
    """Raises ArtifactError for a table of a run folder that was changed, by the sealed hashes in tables.json beside it."""
    listing = path.with_name(LISTING)
    if not is_file(listing):
        return
    content = read_json(listing, remedy_if_missing="copy the run folder again with all its files")
    if not isinstance(content, dict) or "files" not in content or "seal" not in content:
        return  # another file of that name
    if content["seal"] != seal(content):
        raise ArtifactError(f"{listing} is damaged or was edited, so {path.name} cannot be checked; run the command of the run again")
    listed = [hashes[path.name] for hashes in (content["files"], content.get("before") or {}) if path.name in hashes]
    if listed and sha256(path) not in listed:
        raise ArtifactError(
            f"{path} is damaged or was edited: its hash is not the one in {LISTING}. Run the command of the run again, or, to use a table that "
            "you edited, move it out of the run folder"
        )


def _read_csv(path: Path) -> tuple[tuple[str, ...], Iterator[LocatedRow]]:
    separator = "," if path.suffix.lower() == ".csv" else "\t"
    table = _read_numbered_lines(path, separator)
    _, first = next(table, (0, []))
    columns = tuple(name.strip() for name in first)
    duplicate = next((name for name in columns if columns.count(name) > 1), None)
    if duplicate is not None:
        raise ArtifactError(f"{path} has the column {duplicate!r:.40} twice; name every column once")
    return columns, _name_cells(path, columns, table)


def _read_numbered_lines(path: Path, separator: str) -> Iterator[tuple[int, list[str]]]:
    with path.open(encoding="utf-8-sig", newline="") as file:
        reader = csv.reader(file, delimiter=separator, strict=True)
        yield from ((reader.line_num, cells) for cells in reader if cells)


def _name_cells(path: Path, columns: tuple[str, ...], numbered_lines: Iterable[tuple[int, list[str]]]) -> Iterator[LocatedRow]:
    for number, cells in numbered_lines:
        if len(cells) != len(columns):
            raise ArtifactError(
                f"{path}, line {number} has {len(cells)} columns, but the first line has {len(columns)}; give every line the same"
            )
        yield f"{path}, line {number}", dict(zip(columns, (cell.strip() for cell in cells), strict=True))


def _read_json(path: Path) -> tuple[tuple[str, ...], Iterator[LocatedRow]]:
    content = read_json(path, unique_names=True)
    if isinstance(content, dict):
        content = [{"head": head, "score": score} for head, score in content.items()]
    if not isinstance(content, list) or not all(isinstance(row, dict) for row in content):
        raise ArtifactError(f'{path} holds no table: write [{{"head": "L0H0", "score": 0.5}}, …], or {{"L0H0": 0.5, …}}')
    columns = tuple(dict.fromkeys(name for row in content[:MAX_ROWS] for name in row))
    return columns, ((f"{path}, row {number}", row) for number, row in enumerate(content))


def _read_parquet(path: Path) -> tuple[tuple[str, ...], Iterator[LocatedRow]]:
    from pyarrow import parquet

    file = parquet.ParquetFile(path)
    metadata = file.metadata
    size = sum(metadata.row_group(number).total_byte_size for number in range(metadata.num_row_groups))
    if metadata.num_rows > MAX_ROWS or size > MAX_BYTES:
        raise ArtifactError(
            f"{path} has {metadata.num_rows} rows of {size} bytes; a table of heads has at most {MAX_ROWS} rows of {MAX_BYTES} bytes in all"
        )
    rows = (row for part in file.iter_batches(batch_size=256) for row in part.to_pylist())
    return tuple(file.schema_arrow.names), ((f"{path}, row {number}", row) for number, row in enumerate(rows))


_READERS = {".csv": _read_csv, ".tsv": _read_csv, ".json": _read_json, ".parquet": _read_parquet}


def parse_optional_number(location: str, column: str, value: Any) -> float | None:
    """Returns a cell as a finite number; None for an empty one (NaN in parquet included)."""
    text = str(value).strip() if isinstance(value, str) else repr(value)
    if value is None or text == "" or (isinstance(value, float) and math.isnan(value)):
        return None
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if _NOT_FINITE.fullmatch(text) or (is_number and not _is_finite(value)):
        raise ArtifactError(
            f"{location}: the {column} is {text:.40}; a ranking needs finite numbers, so measure it again or leave the head out"
        )
    if not is_number and not (isinstance(value, str) and _NUMBER.fullmatch(text)):
        raise ArtifactError(f"{location}: the {column} must be a number, got {value!r:.60}; write it as 0.25 or 1e-3")
    parsed = float(value)
    if not math.isfinite(parsed):
        raise ArtifactError(f"{location}: the {column} {text:.40} is beyond what a float holds; divide all of them by a common number")
    return parsed


def _is_finite(value: Any) -> bool:
    try:
        return math.isfinite(value)
    except OverflowError:
        return False
