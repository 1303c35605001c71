"""Small static HTML for notebooks: tables and coloured grids. Every text is escaped, and there is no script."""

from __future__ import annotations

import html
import math
from collections.abc import Sequence

SHOWN = 20
"""Rows of a table before the rest is only counted."""
COLOURS = ("#00224e", "#35456c", "#666970", "#948e77", "#c8b866", "#fee838")
"""From low to high, after cividis, which people of every colour vision tell apart."""


def text(value: object) -> str:
    """A value as text that no browser takes for markup and no reader's terminal for a command."""
    shown = f"{value:.4g}" if isinstance(value, float) else str(value)
    return html.escape("".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in shown))


def table(columns: Sequence[str], rows: Sequence[Sequence[object]], caption: str = "") -> str:
    """A table of the first rows, and how many there are besides."""
    head = "".join(f"<th>{text(column)}</th>" for column in columns)
    body = "".join(f"<tr>{''.join(f'<td>{text(cell)}</td>' for cell in row)}</tr>" for row in rows[:SHOWN])
    rest = f'<tr><td colspan="{len(columns)}">… and {len(rows) - SHOWN} more</td></tr>' if len(rows) > SHOWN else ""
    return f"<table><caption>{text(caption)}</caption><thead><tr>{head}</tr></thead><tbody>{body}{rest}</tbody></table>"


def grid(names: Sequence[str], values: Sequence[Sequence[float]], caption: str = "") -> str:
    """Rows of numbers as coloured cells on one scale, the number on pointing; NaN is an empty cell."""
    seen = [value for row in values for value in row if math.isfinite(value)]
    low, high = min(seen, default=0.0), max(seen, default=1.0)
    rows = [
        f"<tr><th>{text(name)}</th>{''.join(_cell(value, low, high) for value in row)}</tr>"
        for name, row in zip(names, values, strict=True)
    ]
    width = max((len(row) for row in values), default=0)
    head = f"<thead><tr><th></th>{''.join(f'<th>{number}</th>' for number in range(width))}</tr></thead>"
    return f"<table><caption>{text(caption)}</caption>{head}<tbody>{''.join(rows)}</tbody></table>"


def _cell(value: float, low: float, high: float) -> str:
    if not math.isfinite(value):
        return "<td></td>"
    place = 0.0 if high == low else (value - low) / (high - low)
    number = min(len(COLOURS) - 1, int(place * len(COLOURS)))
    ink = "#fff" if number < len(COLOURS) // 2 else "#000"
    return f'<td title="{value:.6g}" style="background:{COLOURS[number]};color:{ink};text-align:right">{value:.2g}</td>'
