"""Lines of text files, plain or gzipped, always UTF-8; what is wrong with a file is told with its line."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, cast

from headcount.errors import DataError

LONGEST = 16 * 2**20
"""Bytes in a line; a longer one is no text, or a gzip bomb."""


def kind_of(path: Path) -> str:
    """The ending of a file name, in small letters, that of the compression left out."""
    return (path.with_suffix("") if path.suffix.lower() == ".gz" else path).suffix.lower()


def _open(path: Path) -> IO[bytes]:
    try:
        if not path.exists():
            raise DataError(f"no file {path}; check its name")
        if not path.is_file():
            raise DataError(f"{path} is no regular file; give a file")
        return cast("IO[bytes]", gzip.open(path)) if path.suffix.lower() == ".gz" else path.open("rb")
    except OSError as error:
        raise DataError(f"{path!s:.200} cannot be read: {error.strerror or error}; check its name and permissions") from error


def lines(path: Path) -> Iterator[tuple[int, str]]:
    """(number from 1, text without its end) of every line; a byte-order mark is dropped."""
    number = 0
    with _open(path) as file:
        try:
            while raw := file.readline(LONGEST + 1):
                number += 1
                if len(raw) > LONGEST:
                    raise DataError(f"{path}, line {number} is longer than {LONGEST} bytes; this is no text with line ends")
                yield number, raw.decode("utf-8-sig" if number == 1 else "utf-8").removesuffix("\n").removesuffix("\r")
        except UnicodeDecodeError as error:
            raise DataError(
                f"{path}, line {number} is not UTF-8: byte 0x{error.object[error.start]:02x} at place {error.start}. "
                "Convert the file, for example: iconv -f latin1 -t utf-8"
            ) from error
        except (OSError, EOFError, zlib.error) as error:
            raise DataError(f"{path} cannot be read: {error}") from error


def filled(path: Path) -> Iterator[tuple[int, str]]:
    """Lines up to the last that holds anything; an empty one before it is an error."""
    empty: int | None = None
    for number, text in lines(path):
        if not text.strip():
            empty = empty or number
            continue
        if empty is not None:
            raise DataError(f"{path}, line {empty} is empty, but lines follow it; remove it")
        yield number, text


def parallel(paths: tuple[Path, ...]) -> Iterator[tuple[int, list[str]]]:
    """The lines of files that belong together, one from each."""
    open_files = [lines(path) for path in paths]
    number = 0
    while True:
        row = [next(file, None) for file in open_files]
        if all(line is None for line in row):
            return
        if any(line is None for line in row):
            counts = [number + (line is not None) + sum(1 for _ in file) for line, file in zip(row, open_files, strict=True)]
            told = ", ".join(f"{path} has {count}" for path, count in zip(paths, counts, strict=True))
            raise DataError(f"parallel files must have the same number of lines, but {told}")
        number += 1
        yield number, [line[1].strip() for line in row if line is not None]
