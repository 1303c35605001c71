"""Rows of tests with p-values corrected over all of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Protocol, TypeVar

from headcount.core.stats.significance import benjamini_hochberg


class TestedRow(Protocol):
    """A frozen dataclass with a p-value, None where nothing was tested, and its corrected p-value."""

    @property
    def p(self) -> float | None:
        """The p-value."""
        ...

    @property
    def q(self) -> float | None:
        """The p-value corrected over the rows of a table."""
        ...


AnyTestedRow = TypeVar("AnyTestedRow", bound=TestedRow)


def add_q_values(rows: Sequence[AnyTestedRow]) -> list[AnyTestedRow]:
    """Returns the rows with q, their p-value corrected over the rows that have one (Benjamini–Hochberg); None for rows without."""
    p_values = [row.p for row in rows if row.p is not None]
    corrected = iter(benjamini_hochberg(p_values) if p_values else ())
    values: list[Any] = [{"q": None if row.p is None else float(next(corrected))} for row in rows]
    return [replace(row, **value) for row, value in zip(rows, values, strict=True)]  # pyright: ignore[reportArgumentType]
