"""What benchmarks/scale.py found, as tables and a plot: exponents of time and memory with errors, the gain of a process, rates."""

from __future__ import annotations

import io
import math
from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib
from matplotlib.figure import Figure
from peers.sidebyside import median, ratio, table
from scipy.stats import linregress

from headcount.runs.report.figures import LINES, MARKS, STYLE

Curve = list[tuple[int, float]]
"""Sizes along an axis, and the median at each."""
Curves = Mapping[tuple[str, str, str], Curve]
"""By what is measured, stage and axis."""
LABELS = {"seconds": "seconds", "mib": "MiB beyond the model"}
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#000000")
"""Of Okabe and Ito, distinct to colour-blind readers."""
EXPECTED: dict[str, dict[str, tuple[str, str]]] = {
    "scoring": {"layers": ("1", "1"), "heads": ("0 – 1", "0 – 1"), "length": ("1 – 2", "1 – 2"), "examples": ("1", "0")},
    "ablation": {"layers": ("2", "1"), "heads": ("1 – 2", "0 – 1"), "length": ("1 – 2", "1 – 2"), "examples": ("1", "0")},
    "roles": {"layers": ("1", "0 – 1"), "heads": ("0 – 1", "0 – 1"), "length": ("1 – 2", "1 – 2"), "examples": ("1", "0 – 1")},
    "dsp": {"layers": ("1", "1"), "heads": ("0 – 1", "0 – 1"), "length": ("1 – 2", "0 – 2"), "examples": ("1", "0")},
    "cutting": {"layers": ("1", "1"), "heads": ("0", "0")},
}
"""Stage and axis -> the exponents of time and memory that counting operations and bytes gives; a stage depends on no other axis."""


def exponents(points: Curve) -> tuple[str, str]:
    """The slope of log value on log size by least squares with its standard error, and the slope between the two largest sizes."""
    if len(points) < 3 or min(value for _, value in points) <= 0:
        return "–", "–"
    sizes, values = ([math.log(number) for number in column] for column in zip(*points, strict=True))
    fit: Any = linregress(sizes, values)
    return f"{fit.slope:.2f} ± {fit.stderr:.2f}", f"{(values[-1] - values[-2]) / (sizes[-1] - sizes[-2]):.2f}"


def growth(curves: Curves, what: str) -> str:
    """A row for every stage and axis: the medians, the measured exponents and the expected one."""
    rows = []
    for stage, axes in EXPECTED.items():
        for axis, expected in axes.items():
            points = curves[what, stage, axis]
            sizes, values = (" · ".join(f"{number:.3g}" for number in column) for column in zip(*points, strict=True))
            rows.append((stage, axis, sizes, values, *exponents(points), expected[list(LABELS).index(what)]))
    return table(("stage", "axis", "sizes", LABELS[what], "exponent", "two largest", "expected"), rows, left=3)


def gains(walls: Mapping[str, Sequence[tuple[float, ...]]], memory: Curves) -> str:
    """Wall seconds of one and of two processes, with the ratio within every round, and the peak of the first process."""
    rows = []
    for stage, rounds in walls.items():
        times = dict(zip("12", map(list, zip(*rounds, strict=True)), strict=True))
        peaks = " / ".join(f"{value:.0f}" for _, value in memory["mib", stage, "processes"]) or "not measured"
        rows.append((stage, median(times, "1"), median(times, "2"), ratio(times, "1", "2"), peaks))
    return table(("stage", "1 process, s", "2 processes, s", "speed-up (range)", "MiB of the first process, 1 / 2"), rows)


def rates(operations: Mapping[str, float], seconds: Mapping[str, float]) -> str:
    """Operations by the arithmetic of large models over measured CPU time."""
    rows = [(stage, f"{n:.2e}", f"{seconds[stage]:.3g}", f"{n / seconds[stage] / 1e9:.1f}") for stage, n in operations.items()]
    return table(("stage", "FLOPs", "CPU seconds", "GFLOP/s"), rows)


def draw(curves: Curves, axes: Sequence[str]) -> bytes:
    """Small multiples, log-log: a column for every axis, time above memory, a line for every stage; the same curves give the same bytes."""
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(11, 5), layout="constrained")
        panels = figure.subplots(len(LABELS), len(axes), sharex="col", sharey="row", squeeze=False)
        for row, (what, label) in enumerate(LABELS.items()):
            panels[row, 0].set_ylabel(label)
            for column, axis in enumerate(axes):
                _panel(panels[row, column], {stage: curves.get((what, stage, axis), []) for stage in EXPECTED})
        for column, axis in enumerate(axes):
            panels[0, column].set_title("processes, wall time" if axis == "processes" else axis)
            panels[-1, column].set_xlabel(axis)
        figure.legend(*panels[0, 0].get_legend_handles_labels(), loc="outside upper center", ncols=len(EXPECTED), frameon=False)
        packed = io.BytesIO()
        figure.savefig(packed, format="svg", metadata={"Date": None})
        return packed.getvalue()


def _panel(panel: Any, lines: Mapping[str, Curve]) -> None:
    panel.set_xscale("log", base=2)
    panel.set_yscale("log")
    for number, (stage, points) in enumerate(lines.items()):
        if len(points) < 2:
            continue
        look: Any = {"color": COLOURS[number], "marker": MARKS[number], "linestyle": LINES[number % len(LINES)]}
        panel.plot([size for size, _ in points], [value for _, value in points], label=stage, markersize=4, linewidth=1, **look)
    sizes = sorted({size for points in lines.values() for size, _ in points})
    panel.set_xticks(sizes, [str(size) for size in sizes])
    panel.yaxis.set_major_formatter("{x:g}")
    panel.grid(color="#dddddd", linewidth=0.5)
