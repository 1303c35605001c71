"""Small static HTML for notebooks: tables and coloured grids. Every text is escaped, and there is no script."""

from __future__ import annotations

import html
import math
from collections.abc import Sequence

MAX_ROWS = 20
"""Rows of a table that are shown."""
COLOURS = ("#00224e", "#35456c", "#666970", "#948e77", "#c8b866", "#fee838")
"""Colours from low to high, after cividis, which is readable with every colour vision."""


def escape_text(value: object) -> str:
    """Returns a value as escaped text without control characters."""
    plain = f"{value:.4g}" if isinstance(value, float) else str(value)
    return html.escape("".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in plain))


def html_table(columns: Sequence[str], rows: Sequence[Sequence[object]], caption: str = "") -> str:
    """Returns an HTML table of the first rows, with the number of rows left out."""
    head = "".join(f"<th>{escape_text(column)}</th>" for column in columns)
    body = "".join(f"<tr>{''.join(f'<td>{escape_text(cell)}</td>' for cell in row)}</tr>" for row in rows[:MAX_ROWS])
    more = f'<tr><td colspan="{len(columns)}">… and {len(rows) - MAX_ROWS} more</td></tr>' if len(rows) > MAX_ROWS else ""
    return f"<table><caption>{escape_text(caption)}</caption><thead><tr>{head}</tr></thead><tbody>{body}{more}</tbody></table>"


def html_grid(row_names: Sequence[str], values: Sequence[Sequence[float]], caption: str = "") -> str:
    """Returns an HTML table of numbers as coloured cells on one scale; NaN is an empty cell."""
    finite = [value for row in values for value in row if math.isfinite(value)]
    low, high = min(finite, default=0.0), max(finite, default=1.0)
    rows = [
        f"<tr><th>{escape_text(name)}</th>{''.join(_coloured_cell_html(value, low, high) for value in row)}</tr>"
        for name, row in zip(row_names, values, strict=True)
    ]
    width = max((len(row) for row in values), default=0)
    head = f"<thead><tr><th></th>{''.join(f'<th>{number}</th>' for number in range(width))}</tr></thead>"
    return f"<table><caption>{escape_text(caption)}</caption>{head}<tbody>{''.join(rows)}</tbody></table>"


def _coloured_cell_html(value: float, low: float, high: float) -> str:
    if not math.isfinite(value):
        return "<td></td>"
    fraction = 0.0 if high == low else (value - low) / (high - low)
    number = min(len(COLOURS) - 1, int(fraction * len(COLOURS)))
    ink = "#fff" if number < len(COLOURS) // 2 else "#000"
    return f'<td title="{value:.6g}" style="background:{COLOURS[number]};color:{ink};text-align:right">{value:.2g}</td>'
