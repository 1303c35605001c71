"""Draws lines with their intervals, labelled at their ends where there is room. Needs matplotlib."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from headcount.core.figure import LineFigure
from headcount.runs.figure_layout import BESIDE_LETTERS, has_labels_at_ends, wrap_text

MOST_BANDS = 2
"""Intervals of more lines are drawn as bars, because bands would cover each other."""
CONTROL = "#777777"
MARKERS, LINES = "osD^vP*X", ("-", "--", "-.", ":")
MatplotlibFigure = Any
"""A `matplotlib.figure.Figure`; matplotlib is imported only where something is drawn."""
MatplotlibAxes = Any
"""A `matplotlib.axes.Axes`: one panel."""


class LineEnd(NamedTuple):
    """Where a line ends, and the label that stands beside it."""

    label: str
    x: float
    y: float
    colour: str


def to_array(values: Sequence[float | None]) -> np.ndarray:
    """Returns numbers as an array, not a number where None stands."""
    return np.array([np.nan if value is None else value for value in values], dtype=float)


def draws_intervals_as_bars(figure: LineFigure) -> bool:
    """Whether the intervals of a figure are bars: those of more lines than bands can show, or of a line with a single one."""
    numbers = [sum(low is not None for low in line.low) for line in figure.lines if line.low]
    return len(numbers) > MOST_BANDS or 1 in numbers


def draw_lines(panel: MatplotlibAxes, figure: LineFigure, palette: Sequence[str]) -> list[LineEnd]:
    """Draws all lines and references, and returns their ends for the labels beside them; none where a legend is needed."""
    ends, shifts, n_shown, n_controls = [], _x_shifts_of_lines(figure), 0, 0
    for line, shift in zip((line.with_start_as_point() for line in figure.lines), shifts, strict=True):
        number = n_controls if line.is_control else n_shown
        colour = CONTROL if line.is_control else palette[number % len(palette)]
        x, y, low, high = np.array(line.x, dtype=float), to_array(line.y), to_array(line.low), to_array(line.high)
        if line.low and draws_intervals_as_bars(figure):
            x = np.where(np.isnan(low), x, x + shift)
            panel.vlines(x, low, high, color=colour, linewidth=0.9)
        elif line.low:
            panel.fill_between(x, low, high, color=colour, alpha=0.15, linewidth=0)
        look: dict[str, Any] = {"linestyle": LINES[number // len(palette) % len(LINES)], "marker": MARKERS[number % len(MARKERS)]}
        if line.is_control:
            look |= {"linestyle": ":", "markerfacecolor": "white"}
        panel.plot(x, y, color=colour, label=line.label, **look)
        defined = np.flatnonzero(np.isfinite(y))
        ends += [LineEnd(line.label, float(x[defined[-1]]), float(y[defined[-1]]), colour)] if len(defined) else []
        n_shown, n_controls = n_shown + (not line.is_control), n_controls + line.is_control
    for number, reference in enumerate(figure.references):
        panel.axhline(reference.y, color="black", linewidth=0.7, linestyle=LINES[(1 + number) % len(LINES)], label=reference.label)
    if len(positions := _x_of_points(figure)) == 1:
        half = 0.1 if figure.x.is_share else 1.0
        panel.set_xlim(positions[0] - half, positions[0] + half)
    ends += [LineEnd(reference.label, panel.get_xlim()[1], reference.y, "black") for reference in figure.references]
    return ends if has_labels_at_ends(figure) else []


def x_ticks_at_points(figure: LineFigure) -> list[float]:
    """Returns the x of all points where these are few and far enough apart to bear a tick each; else nothing."""
    positions = _x_of_points(figure)
    gaps = [second - first for first, second in pairwise(positions)]
    return positions if len(positions) <= 6 and all(gap >= 0.13 * (positions[-1] - positions[0]) for gap in gaps) else []


def label_ends(canvas: MatplotlibFigure, panel: MatplotlibAxes, ends: Sequence[LineEnd]) -> None:
    """Writes labels beside the axes at the height of their lines, apart from each other, each joined to the end of its line."""
    texts = [
        panel.annotate(
            "\n".join(wrap_text(end.label, BESIDE_LETTERS)),
            (end.x, end.y),
            xytext=(1.07, 0.5),
            textcoords="axes fraction",
            va="center",
            color=end.colour,
            annotation_clip=False,
            arrowprops={"arrowstyle": "-", "color": end.colour, "linewidth": 0.4, "shrinkA": 1, "shrinkB": 2, "relpos": (0, 0.5)},
        )
        for end in ends
    ]
    canvas.draw_without_rendering()  # now the axes have their size
    box = panel.get_window_extent()
    heights = [float(text.get_fontsize() * canvas.dpi / 72 * 1.25 * (text.get_text().count("\n") + 1)) for text in texts]
    targets = [float(panel.transData.transform((end.x, end.y))[1]) for end in ends]
    for text, position in zip(texts, spread_labels(targets, heights, box.y0, box.y1), strict=True):
        text.set_position((1.07, (position - box.y0) / box.height))


def spread_labels(target_centres: Sequence[float], label_heights: Sequence[float], low: float, high: float) -> list[float]:
    """Returns the centres, between `low` and `high`, near the targets and in their order, at which labels of these heights do not overlap."""
    order = sorted(range(len(target_centres)), key=lambda index: target_centres[index])
    positions = [0.0] * len(target_centres)
    floor = low
    for index in order:
        positions[index] = max(target_centres[index], floor + label_heights[index] / 2)
        floor = positions[index] + label_heights[index] / 2
    ceiling = high
    for index in reversed(order):
        positions[index] = min(positions[index], ceiling - label_heights[index] / 2)
        ceiling = positions[index] - label_heights[index] / 2
    return positions


def _x_of_points(figure: LineFigure) -> list[float]:
    lines = [line.with_start_as_point() for line in figure.lines]
    return sorted({x for line in lines for x, y in zip(line.x, line.y, strict=True) if y is not None})


def _x_shifts_of_lines(figure: LineFigure) -> list[float]:
    """Returns how far each line stands beside its x, so that bars and points that coincide can be told apart."""
    positions, n = _x_of_points(figure), len(figure.lines)
    if not draws_intervals_as_bars(figure) or n < 2:
        return [0.0] * n
    if len(positions) == 1:
        step = (0.2 if figure.x.is_share else 2.0) * min(0.06, 0.8 / n)
    else:
        gap = min(second - first for first, second in pairwise(positions))
        step = min(0.02 * (positions[-1] - positions[0]), 0.5 * gap / n)
    return [step * (number - (n - 1) / 2) for number in range(n)]
