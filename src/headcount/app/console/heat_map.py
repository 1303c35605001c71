"""Scores as a heat map in the terminal: one row per block, one digit per head, from 0 (lowest) to 9, so that no colour is needed."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headcount.core.scores import Scores


def format_heat_map(scores: Scores) -> list[str]:
    """Returns the lines of the map: the rank of each head in tenths, 9 for the heads to keep first; a dot for a removed head."""
    worth = scores.keep_values()
    order = sorted(worth.values())
    names, grid = scores.grid()
    width = max(map(len, names))
    sign = 1.0 if scores.higher_is_keep else -1.0
    header = " " * (width + 2) + " ".join(f"{i % 10}" for i in range(grid.shape[1]))
    lines = [header]
    for name, row in zip(names, grid, strict=True):
        n_below = [sum(score < sign * value for score in order) for value in row]
        tenths = [min(9, 10 * number // len(order)) for number in n_below]
        cells = " ".join("·" if math.isnan(value) else str(tenth) for value, tenth in zip(row, tenths, strict=True))
        lines.append(f"{name:<{width}}  {cells}")
    return lines
