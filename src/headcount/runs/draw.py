"""Draws the figures of studies for a paper: one column wide, in colours that every colour vision tells apart. Needs matplotlib (extra `figures`)."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from functools import partial
from textwrap import wrap
from typing import Any

import numpy as np

from headcount.core.errors import MissingExtra
from headcount.core.figure import Axis, BarFigure, Figure, HeatMap, Histogram, LineFigure, ScatterFigure
from headcount.runs.report.plain import replace_control_characters

WIDTH = 3.3
"""Inches: a column of a paper with two columns."""
FORMATS = ("svg", "pdf")
PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
"""Colours of Okabe and Ito, which every colour vision tells apart."""
CONTROL = "#777777"
RAMP = ("#fffdf2", "#efe3a0", "#d0be67", "#9e9677", "#727374", "#48526b", "#00306f", "#00204d")
"""From low to high, after cividis."""
DIVERGING = ("#7f3b08", "#e08214", "#fee0b6", "#f7f7f7", "#d8daeb", "#8073ac", "#2d004b")
"""From below 0 over 0 to above: orange to purple."""
MARKERS, LINES, HATCHES = "osD^vP*X", ("-", "--", "-.", ":"), ("", "///", "...", "xx")
SMALL = 7.0
"""Points: the smallest text."""
STYLE: Any = {
    "svg.hashsalt": "headcount",
    "svg.fonttype": "path",  # letters as shapes, so that no viewer replaces the font and cuts a label
    "pdf.fonttype": 42,
    "font.family": "DejaVu Sans",
    "font.size": SMALL,
    "axes.titlesize": SMALL + 0.5,
    "axes.labelsize": SMALL + 0.5,
    "axes.linewidth": 0.6,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.unicode_minus": True,
    "hatch.linewidth": 0.5,
    "legend.frameon": False,
    "legend.fontsize": SMALL,
    "lines.linewidth": 1.0,
    "lines.markersize": 3.0,
    "text.parse_math": False,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
}
LETTERS = 46
"""Letters of small text in one line of the figure."""
MOST_TICKS = 24
FEW_COLUMNS = 6


def draw_figure(figure: Figure, format: str) -> bytes:
    """Returns a figure as the bytes of a file: `svg`, `pdf` or `png`. The same figure gives the same bytes.

    Raises:
        MissingExtra: matplotlib is not installed.
    """
    try:
        import matplotlib
    except ImportError as error:
        raise MissingExtra("figures need matplotlib: pip install 'headcount[figures]'") from error
    dates = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}
    buffer = io.BytesIO()
    with matplotlib.rc_context(STYLE):  # pyright: ignore[reportArgumentType]
        draw_canvas(figure).savefig(buffer, format=format, metadata=dates.get(format), dpi=200)
    return buffer.getvalue()


def draw_canvas(figure: Figure) -> Any:
    """Returns a figure drawn by matplotlib, in the style that is set."""
    from matplotlib.figure import Figure as Canvas

    canvas = Canvas(figsize=(WIDTH, _figure_height(figure)), layout="constrained")
    DRAWINGS[type(figure)](canvas, canvas.subplots(), figure)
    count = "" if figure.n is None else f"\nn = {figure.n:,} {replace_control_characters(figure.n_unit)}"
    canvas.suptitle(
        "\n".join(wrap(replace_control_characters(figure.title), LETTERS)) + count, fontsize=SMALL + 0.5, x=0.01, ha="left", ma="left"
    )
    return canvas


def _figure_height(figure: Figure) -> float:
    """Returns the height in inches: room for the title, for the legend below, and for the rows of heat maps and lying bars."""
    lines = len(wrap(figure.title, LETTERS)) + (figure.n is not None)
    height = 0.25 + 0.13 * lines + 0.14 * _count_legend_lines(_legend_labels(figure))
    if isinstance(figure, HeatMap):
        names = 0.13 * max((len(_wrap_name(row)) for row in figure.rows), default=1)
        letters = max((len(line) for lines in _column_name_lines(figure.columns) for line in lines), default=0)
        return height + 0.9 + max(0.16, names) * len(figure.rows) + 0.06 * letters * _names_stand_upright(figure.columns)
    if isinstance(figure, BarFigure) and figure.is_horizontal:
        names = 0.13 * max((len(_wrap_name(name)) for name in figure.categories), default=1)
        beside = 1 if figure.is_stacked else len(figure.bars)
        return height + 0.5 + max(0.17, 0.09 * beside + 0.06, names) * len(figure.categories)
    if isinstance(figure, BarFigure):
        return height + 2.0 + 0.05 * max(map(len, figure.categories), default=0) * _names_stand_upright(figure.categories)
    return height + 2.2


def _legend_labels(figure: Figure) -> list[str]:
    """Returns the labels of the legend; none where there is a single series without controls."""
    if isinstance(figure, LineFigure):
        return [*(line.label for line in figure.lines), *(reference.label for reference in figure.references)]
    parts = figure.bars if isinstance(figure, BarFigure) else figure.groups if isinstance(figure, ScatterFigure | Histogram) else ()
    labels = [part.label for part in parts]
    if isinstance(figure, HeatMap) and figure.marks:
        labels = [figure.mark_label]
    return labels if len(labels) > 1 or isinstance(figure, HeatMap) else []


def _count_legend_lines(labels: Sequence[str]) -> int:
    """Returns how many lines of text the legend takes below the figure."""
    if labels and (columns := _legend_columns(labels)) > 1:
        return -(-len(labels) // columns)
    return sum(len(wrap(replace_control_characters(label), LETTERS - 6)) for label in labels)


def _legend_columns(labels: Sequence[str]) -> int:
    widest = max(map(len, labels))
    return next((number for number in (4, 3, 2) if number <= len(labels) and number * (widest + 6) <= LETTERS + 6), 1)


def _add_legend(canvas: Any, panel: Any) -> None:
    handles, labels = panel.get_legend_handles_labels()
    texts = ["\n".join(wrap(replace_control_characters(label), LETTERS - 6)) for label in labels]
    canvas.legend(handles, texts, loc="outside lower left", ncols=_legend_columns(labels), handlelength=2.2, columnspacing=1.2)


def _to_array(values: Sequence[float | None]) -> np.ndarray:
    return np.array([np.nan if value is None else value for value in values], dtype=float)


def _names_stand_upright(names: Sequence[str]) -> bool:
    """Whether the names of categories must stand upright to fit side by side."""
    return sum(len(name) + 2 for name in names) > LETTERS - 8


def _column_name_lines(columns: Sequence[str]) -> list[list[str]]:
    """Returns the lines of the names of columns; of many columns, whose names have room for a single line, one."""
    return [_wrap_name(column) if len(columns) <= FEW_COLUMNS else [replace_control_characters(column)] for column in columns]


def _wrap_name(name: str) -> list[str]:
    return wrap(replace_control_characters(name), 22) or [""]


def _set_axis(axis: Any, description: Axis, set_label: Callable[..., Any]) -> None:
    """Sets the label and the ticks of an axis; of many named ticks only some keep their name."""
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    set_label("\n".join(wrap(replace_control_characters(description.title), LETTERS - 8)))
    if description.ticks:
        step = -(-len(description.ticks) // MOST_TICKS)
        ticks = description.ticks[::step]
        names = [replace_control_characters(name) for _, name in ticks]
        axis.set_ticks([value for value, _ in ticks], names, rotation=90 if axis.axis_name == "x" and _names_stand_upright(names) else 0)
    else:
        axis.set_major_locator(MaxNLocator(6, steps=[1, 2, 2.5, 5, 10]))
    if description.is_share:
        axis.set_major_formatter(FuncFormatter(lambda value, _: f"{100 * value:.4g} %".replace("-", "−")))


def _set_axes(panel: Any, x: Axis, y: Axis) -> None:
    _set_axis(panel.xaxis, x, panel.set_xlabel)
    _set_axis(panel.yaxis, y, panel.set_ylabel)


def _draw_lines(canvas: Any, panel: Any, figure: LineFigure) -> None:
    n_shown = 0
    for line in figure.lines:
        colour = CONTROL if line.is_control else PALETTE[n_shown % len(PALETTE)]
        look = ":" if line.is_control else LINES[n_shown // len(PALETTE) % len(LINES)]
        x, y = np.array(line.x, dtype=float), _to_array(line.y)
        panel.plot(x, y, color=colour, linestyle=look, marker="" if line.is_control else MARKERS[n_shown % len(MARKERS)], label=line.label)
        if line.low:
            low, high = _to_array(line.low), _to_array(line.high)
            if len(x) == 1:
                panel.vlines(x, low, high, color=colour, linewidth=0.8)
            else:
                panel.fill_between(x, low, high, color=colour, alpha=0.15, linewidth=0)
        n_shown += not line.is_control
    for number, reference in enumerate(figure.references):
        panel.axhline(reference.y, color="black", linewidth=0.7, linestyle=LINES[(1 + number) % len(LINES)], label=reference.label)
    _set_axes(panel, figure.x, figure.y)
    _add_legend(canvas, panel)


def _draw_bars(canvas: Any, panel: Any, figure: BarFigure) -> None:
    positions, bottoms = np.arange(len(figure.categories)), np.zeros(len(figure.categories))
    thickness = 0.8 if figure.is_stacked else 0.8 / len(figure.bars)
    for number, series in enumerate(figure.bars):
        values = _to_array(series.values)
        shift = 0.0 if figure.is_stacked else thickness * (number - (len(figure.bars) - 1) / 2)
        errors = np.abs(np.stack([values - _to_array(series.low), _to_array(series.high) - values])) if series.low else None
        draw = partial(
            panel.barh if figure.is_horizontal else panel.bar,
            positions + shift,
            values,
            thickness,
            color=PALETTE[number % len(PALETTE)],
            hatch=HATCHES[number // len(PALETTE) % len(HATCHES)],
            edgecolor="white",
            linewidth=0.3,
            label=series.label,
            error_kw={"linewidth": 0.7, "ecolor": "black"},
        )
        if figure.is_horizontal:
            draw(left=bottoms if figure.is_stacked else 0, xerr=errors)
        else:
            draw(bottom=bottoms if figure.is_stacked else 0, yerr=errors)
        bottoms = bottoms + np.nan_to_num(values)
    names = ["\n".join(_wrap_name(name)) for name in figure.categories]
    if figure.is_horizontal:
        panel.set_yticks(positions, names)
        panel.invert_yaxis()
        panel.axvline(0, color="black", linewidth=0.6)
        _set_axis(panel.xaxis, figure.y, panel.set_xlabel)
        panel.set_ylabel(replace_control_characters(figure.x.title))
    else:
        panel.axhline(0, color="black", linewidth=0.6)
        _set_axis(panel.yaxis, figure.y, panel.set_ylabel)
        panel.set_xlabel(replace_control_characters(figure.x.title))
        panel.set_xticks(positions, names, rotation=90 if _names_stand_upright(figure.categories) else 0)
    if len(figure.bars) > 1:
        _add_legend(canvas, panel)


def _draw_heat_map(canvas: Any, panel: Any, figure: HeatMap) -> None:
    from matplotlib.colors import LinearSegmentedColormap
    from matplotlib.ticker import FuncFormatter

    grid = np.array([_to_array(row) for row in figure.values]).reshape(len(figure.rows), len(figure.columns))
    known = grid[np.isfinite(grid)]
    low, high = (float(known.min()), float(known.max())) if known.size else (0.0, 1.0)
    if figure.is_diverging:
        high = max(abs(low), abs(high)) or 1.0
        low = -high
    colours = LinearSegmentedColormap.from_list("headcount", DIVERGING if figure.is_diverging else RAMP)
    colours.set_bad("#dddddd")
    image = panel.imshow(np.ma.masked_invalid(grid), cmap=colours, vmin=low, vmax=high, aspect="auto")
    panel.set_yticks(range(len(figure.rows)), ["\n".join(_wrap_name(row)) for row in figure.rows])
    names = ["\n".join(lines) for lines in _column_name_lines(figure.columns)]
    step = -(-len(names) // (2 * MOST_TICKS))
    panel.set_xticks(range(0, len(names), step), names[::step], rotation=90 if _names_stand_upright(figure.columns) else 0)
    panel.set(xlabel=replace_control_characters(figure.x.title), ylabel=replace_control_characters(figure.y.title))
    for spine in panel.spines.values():
        spine.set_visible(False)
    bar = canvas.colorbar(image, ax=panel, shrink=0.95, pad=0.02)
    bar.set_label("\n".join(wrap(replace_control_characters(figure.value.title), 30)))
    bar.outline.set_linewidth(0.4)
    if figure.value.is_share:
        bar.ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{100 * value:.4g} %".replace("-", "−")))
    if figure.marks:
        ys, xs = np.nonzero(np.array(figure.marks).reshape(grid.shape))
        panel.scatter(xs, ys, s=7, color="white", edgecolor="black", linewidth=0.5, label=figure.mark_label)
        _add_legend(canvas, panel)


def _draw_scatter(canvas: Any, panel: Any, figure: ScatterFigure) -> None:
    for number, group in enumerate(figure.groups):
        look = {"color": PALETTE[number % len(PALETTE)], "marker": MARKERS[number % len(MARKERS)], "edgecolor": "white", "linewidth": 0.3}
        panel.scatter(group.x, group.y, s=12, label=group.label, **look)
    _set_axes(panel, figure.x, figure.y)
    if figure.note:
        panel.set_title("\n".join(wrap(replace_control_characters(figure.note), LETTERS - 8)), loc="left")
    if len(figure.groups) > 1:
        _add_legend(canvas, panel)


def _draw_histogram(canvas: Any, panel: Any, figure: Histogram) -> None:
    edges = np.array(figure.edges)
    widths = np.diff(edges)
    bottoms = np.zeros(len(widths))
    for number, group in enumerate(figure.groups):
        look = {"color": PALETTE[number % len(PALETTE)], "hatch": HATCHES[number % len(HATCHES)], "edgecolor": "white", "linewidth": 0.3}
        panel.bar(edges[:-1], group.counts, widths, bottom=bottoms, align="edge", label=group.label, **look)
        bottoms = bottoms + np.array(group.counts)
    _set_axes(panel, figure.x, figure.y)
    if len(figure.groups) > 1:
        _add_legend(canvas, panel)


DRAWINGS: dict[type[Figure], Callable[..., None]] = {
    LineFigure: _draw_lines,
    BarFigure: _draw_bars,
    HeatMap: _draw_heat_map,
    ScatterFigure: _draw_scatter,
    Histogram: _draw_histogram,
}
