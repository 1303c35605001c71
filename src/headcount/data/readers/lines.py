"""Lines of text files, plain or gzipped, always UTF-8; what is wrong with a file is told with its line."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, cast

from headcount.core.errors import DataError

LONGEST = 16 * 2**20
"""Bytes in a line; a longer one is no text, or a gzip bomb."""


def uncompressed_suffix(path: Path) -> str:
    """The ending of a file name, in small letters, that of the compression left out."""
    return (path.with_suffix("") if path.suffix.lower() == ".gz" else path).suffix.lower()


def _open_file(path: Path) -> IO[bytes]:
    try:
        if not path.exists():
            raise DataError(f"no file {path}; check its name")
        if not path.is_file():
            raise DataError(f"{path} is no regular file; give a file")
        return cast("IO[bytes]", gzip.open(path)) if path.suffix.lower() == ".gz" else path.open("rb")
    except OSError as error:
        raise DataError(f"{path!s:.200} cannot be read: {error.strerror or error}; check its name and permissions") from error


def count_lines(path: Path) -> int:
    """How many lines a file has; nothing is decoded."""
    number, last = 0, b"\n"
    with _open_file(path) as file:
        try:
            while chunk := file.read(2**20):
                number, last = number + chunk.count(b"\n"), chunk[-1:]
        except (OSError, EOFError, zlib.error) as error:
            raise DataError(f"{path} cannot be read: {error}") from error
    return number + (last != b"\n")


def read_lines(path: Path, every: int = 1) -> Iterator[tuple[int, str]]:
    """Yields (number from 1, text without its end) of every line, or of the first and each `every`-th after it, without byte-order mark."""
    number = 0
    with _open_file(path) as file:
        try:
            while raw := file.readline(LONGEST + 1):
                number += 1
                if len(raw) > LONGEST:
                    raise DataError(f"{path}, line {number} is longer than {LONGEST} bytes; this is no text with line ends")
                if (number - 1) % every:
                    continue
                yield number, raw.decode("utf-8-sig" if number == 1 else "utf-8").removesuffix("\n").removesuffix("\r")
        except UnicodeDecodeError as error:
            raise DataError(
                f"{path}, line {number} is not UTF-8: byte 0x{error.object[error.start]:02x} at position {error.start}. "
                "Convert the file, for example: iconv -f latin1 -t utf-8"
            ) from error
        except (OSError, EOFError, zlib.error) as error:
            raise DataError(f"{path} cannot be read: {error}") from error


def read_lines_without_gaps(path: Path, every: int = 1) -> Iterator[tuple[int, str]]:
    """Yields the lines up to the last that holds anything, or each `every`-th of them; raises DataError for an empty one before it."""
    empty: int | None = None
    for number, text in read_lines(path, every):
        if not text.strip():
            empty = empty or number
            continue
        if empty is not None:
            raise DataError(f"{path}, line {empty} is empty, but lines follow it; remove it")
        yield number, text


def read_parallel_lines(paths: tuple[Path, ...], every: int = 1) -> Iterator[tuple[int, list[str]]]:
    """Yields the lines of files that belong together, one from each; or each `every`-th of them."""
    open_files = [read_lines(path, every) for path in paths]
    while True:
        row = [next(file, None) for file in open_files]
        if all(line is None for line in row):
            return
        if any(line is None for line in row):
            counts = ", ".join(f"{path} has {count_lines(path)}" for path in paths)
            raise DataError(f"parallel files must have the same number of lines, but {counts}")
        cells = [line for line in row if line is not None]
        yield cells[0][0], [text.strip() for _, text in cells]
