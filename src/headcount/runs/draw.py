"""Draws the figures of studies for a paper: one column wide, in colours that every colour vision tells apart. Needs matplotlib (extra `figures`)."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from headcount.core.errors import MissingExtra
from headcount.core.figure import Axis, BarFigure, Figure, HeatMap, Histogram, LineFigure, ScatterFigure
from headcount.runs.draw_lines import MARKERS, MatplotlibAxes, MatplotlibFigure, draw_lines, label_ends, to_array, x_ticks_at_points
from headcount.runs.figure_layout import (
    LETTERS,
    LINE,
    WIDTH,
    count_legend_columns,
    figure_height,
    legend_labels,
    letters_under_columns,
    must_turn_names,
    row_height,
    title_lines,
    wrap_axis,
    wrap_column_names,
    wrap_legend,
    wrap_name,
)
from headcount.runs.report.plain import replace_control_characters

FORMATS = ("svg", "pdf")
PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
"""Colours of Okabe and Ito, which every colour vision tells apart."""
MISSING = "#dddddd"
"""Of cells without a value."""
RAMP = ("#fffdf2", "#efe3a0", "#d0be67", "#9e9677", "#727374", "#48526b", "#00306f", "#00204d")
"""From low to high, after cividis."""
DIVERGING = ("#7f3b08", "#e08214", "#fee0b6", "#f7f7f7", "#d8daeb", "#8073ac", "#2d004b")
"""From below 0 over 0 to above: orange to purple."""
HATCHES = "", "///", "...", "xx"
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
MOST_TICKS = 24
MatplotlibAxis = Any
"""A `matplotlib.axis.Axis`: the x or the y axis of a panel."""


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
        draw_matplotlib_figure(figure).savefig(buffer, format=format, metadata=dates.get(format), dpi=200)
    return buffer.getvalue()


def draw_matplotlib_figure(figure: Figure) -> MatplotlibFigure:
    """Returns a figure drawn by matplotlib, in the style that is set."""
    from matplotlib.figure import Figure as Canvas

    canvas = Canvas(figsize=(WIDTH, figure_height(figure)), layout="constrained")
    canvas.suptitle("\n".join(title_lines(figure)), fontsize=SMALL + 0.5, x=0.01, ha="left", ma="left")
    DRAWINGS[type(figure)](canvas, canvas.subplots(), figure)
    return canvas


def _add_legend(canvas: MatplotlibFigure, panel: MatplotlibAxes) -> None:
    handles, labels = panel.get_legend_handles_labels()
    texts = [wrap_legend(label) for label in labels]
    canvas.legend(handles, texts, loc="outside lower left", ncols=count_legend_columns(labels), handlelength=2.2, columnspacing=1.2)


def _set_axis(axis: MatplotlibAxis, description: Axis, set_label: Callable[..., Any], tick_positions: Sequence[float] = ()) -> None:
    """Sets the label and the ticks of an axis, at `tick_positions` if there are any; of many named ticks only some keep their name."""
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    set_label(wrap_axis(description))
    if description.ticks:
        step = -(-len(description.ticks) // MOST_TICKS)
        ticks = description.ticks[::step]
        names = [replace_control_characters(name) for _, name in ticks]
        is_turned = axis.axis_name == "x" and must_turn_names([[name] for name in names], LETTERS - 8)
        axis.set_ticks([value for value, _ in ticks], names, rotation=90 if is_turned else 0)
    elif tick_positions:
        # means over seeds are no round numbers
        axis.set_ticks(tick_positions, [f"{position:.3g}" if abs(position) < 100 else f"{position:,.0f}" for position in tick_positions])
    else:
        steps = [1, 2, 5, 10] if description.is_count else [1, 2, 2.5, 5, 10]
        axis.set_major_locator(MaxNLocator(6, steps=steps, integer=description.is_count))
        if description.is_count:
            axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}".replace("-", "−")))
    if description.is_share:
        axis.set_major_formatter(FuncFormatter(lambda value, _: f"{100 * value:.4g} %".replace("-", "−")))
    if description.limits:
        (axis.axes.set_xlim if axis.axis_name == "x" else axis.axes.set_ylim)(*description.limits)


def _set_axes(panel: MatplotlibAxes, x: Axis, y: Axis, x_tick_positions: Sequence[float] = ()) -> None:
    _set_axis(panel.xaxis, x, panel.set_xlabel, x_tick_positions)
    _set_axis(panel.yaxis, y, panel.set_ylabel)


def _draw_lines(canvas: MatplotlibFigure, panel: MatplotlibAxes, figure: LineFigure) -> None:
    ends = draw_lines(panel, figure, PALETTE)
    _set_axes(panel, figure.x, figure.y, x_ticks_at_points(figure))
    if ends:
        label_ends(canvas, panel, ends)
    else:
        _add_legend(canvas, panel)


def _draw_bars(canvas: MatplotlibFigure, panel: MatplotlibAxes, figure: BarFigure) -> None:
    positions, bottoms = np.arange(len(figure.categories)), np.zeros(len(figure.categories))
    thickness = 0.8 if figure.is_stacked else 0.8 / len(figure.bars)
    for number, series in enumerate(figure.bars):
        values = to_array(series.values)
        shift = 0.0 if figure.is_stacked else thickness * (number - (len(figure.bars) - 1) / 2)
        errors = np.abs(np.stack([values - to_array(series.low), to_array(series.high) - values])) if series.low else None
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
    lines = [wrap_name(name) for name in figure.categories]
    names = ["\n".join(of_name) for of_name in lines]
    if figure.is_horizontal:
        panel.set_yticks(positions, names)
        panel.set_ylim(len(figure.categories) - 0.5, -0.5)
        panel.axvline(0, color="black", linewidth=0.6)
        _set_axis(panel.xaxis, figure.y, panel.set_xlabel)
        panel.set_ylabel(replace_control_characters(figure.x.title))
    else:
        panel.axhline(0, color="black", linewidth=0.6)
        _set_axis(panel.yaxis, figure.y, panel.set_ylabel)
        panel.set_xlabel(replace_control_characters(figure.x.title))
        panel.set_xticks(positions, names, rotation=90 if must_turn_names(lines, LETTERS - 8) else 0)
    if len(figure.bars) > 1:
        _add_legend(canvas, panel)


def _draw_heat_map(canvas: MatplotlibFigure, panel: MatplotlibAxes, figure: HeatMap) -> None:
    from matplotlib.colors import LinearSegmentedColormap
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    grid = np.array([to_array(row) for row in figure.values]).reshape(len(figure.rows), len(figure.columns))
    known = grid[np.isfinite(grid)]
    low, high = figure.value.limits or ((float(known.min()), float(known.max())) if known.size else (0.0, 1.0))
    if figure.is_diverging:
        high = max(abs(low), abs(high)) or 1.0
        low = -high
    colours = LinearSegmentedColormap.from_list("headcount", DIVERGING if figure.is_diverging else RAMP)
    colours.set_bad(MISSING)
    image = panel.imshow(np.ma.masked_invalid(grid), cmap=colours, vmin=low, vmax=high, aspect="auto")
    rows, height = [wrap_name(row) for row in figure.rows], row_height(figure)
    is_thin = height < LINE * max(map(len, rows), default=1)
    step = -(-LINE // height) if is_thin else 1  # of rows that are thinner than a line, every so many has its name
    named_rows = range(0, len(rows), int(step))
    panel.set_yticks(
        named_rows, [replace_control_characters(figure.rows[number]) if is_thin else "\n".join(rows[number]) for number in named_rows]
    )
    lines = wrap_column_names(figure)
    step = -(-len(lines) // (2 * MOST_TICKS))
    is_turned = must_turn_names(lines[::step], letters_under_columns(figure))
    panel.set_xticks(range(0, len(lines), step), ["\n".join(of_name) for of_name in lines[::step]], rotation=90 if is_turned else 0)
    panel.set(xlabel=replace_control_characters(figure.x.title), ylabel=replace_control_characters(figure.y.title))
    for spine in panel.spines.values():
        spine.set_visible(False)
    bar = canvas.colorbar(image, ax=panel, shrink=0.95, pad=0.02)
    bar.set_label(wrap_axis(figure.value, 30))
    bar.outline.set_linewidth(0.4)
    if figure.value.is_count:
        bar.locator = MaxNLocator(5, integer=True)
    if figure.value.is_share:
        bar.ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{100 * value:.4g} %".replace("-", "−")))
    if figure.marks:
        ys, xs = np.nonzero(np.array(figure.marks).reshape(grid.shape))
        panel.scatter(xs, ys, s=7, color="white", edgecolor="black", linewidth=0.5, label=figure.mark_label)
    if known.size < grid.size:
        panel.fill([], [], color=MISSING, label=figure.missing_label)
    if legend_labels(figure):
        _add_legend(canvas, panel)


def _draw_scatter(canvas: MatplotlibFigure, panel: MatplotlibAxes, figure: ScatterFigure) -> None:
    for number, group in enumerate(figure.groups):
        look = {"color": PALETTE[number % len(PALETTE)], "marker": MARKERS[number % len(MARKERS)], "edgecolor": "white", "linewidth": 0.3}
        panel.scatter(group.x, group.y, s=12, label=group.label, **look)
    _set_axes(panel, figure.x, figure.y)
    if len(figure.groups) > 1:
        _add_legend(canvas, panel)


def _draw_histogram(canvas: MatplotlibFigure, panel: MatplotlibAxes, figure: Histogram) -> None:
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
