"""Figures of a run for papers, as SVG and PDF: head maps, curves, costs, roles, and those of its studies. Needs matplotlib (extra `figures`)."""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, count
from pathlib import Path
from textwrap import wrap
from typing import Any

from headcount.core.errors import MissingExtra
from headcount.core.files import check_writable, make_folder, write_atomic
from headcount.core.tolerance import Tolerance
from headcount.runs.artifacts import safe_name
from headcount.runs.draw import draw_figure
from headcount.runs.draw_lines import MatplotlibFigure
from headcount.runs.paper_pages import read_paper_pages
from headcount.runs.report import contract
from headcount.runs.report.collect import collect_report
from headcount.runs.report.plain import replace_control_characters
from headcount.runs.report.studies import unpack_study
from headcount.runs.store import Run
from headcount.runs.study_files import file_stem
from headcount.runs.tables import STUDY
from headcount.runs.training_log import training_figures

KINDS = ("svg", "pdf")
RAMP = ("#fffdf2", "#efe3a0", "#d0be67", "#9e9677", "#727374", "#48526b", "#00306f", "#00204d")
"""Colours from low to high, after cividis, with a paper white for the lowest, as in the page."""
DARK_FROM = 0.6
"""From this quantile on, marks on a cell are white."""
QUANTILE_TICKS = (0.0, 0.25, 0.5, 0.75, 1.0)
MANY = 12
LINES = ("-", "--", "-.", ":")
MARKS = "osD^vP*X"
STYLE: Any = {
    "svg.hashsalt": "headcount",
    "svg.fonttype": "path",  # letters as shapes, so that no viewer replaces the font and cuts a label
    "pdf.fonttype": 42,
    "font.size": 8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "text.parse_math": False,
}
Draw = Callable[[MatplotlibFigure], None]
"""Draws onto an empty matplotlib figure."""


@dataclass(frozen=True, slots=True)
class FigureFiles:
    """The figures that were written, and the data of the page that they were drawn from."""

    paths: list[Path]
    data: contract.RunData


def write_figures_with_matplotlib(run: Run, folder: Path) -> FigureFiles:
    """Writes every figure that the run has data for, under a name of its own; the same run gives the same bytes.

    Raises:
        MissingExtra: matplotlib is not installed.
    """
    try:
        import matplotlib as _  # noqa: F401
    except ImportError as error:
        raise MissingExtra("figures need matplotlib: pip install 'headcount[figures]'") from error
    check_writable(folder / "figure")
    make_folder(folder)
    data = collect_report(run).report["runs"][0]
    paths, names = [], set[str]()
    for base, contents in chain(_draw_run_figures(data), _draw_study_and_training_figures(run)):
        name = next(name for number in count(1) if (name := base if number == 1 else f"{base}-{number}") not in names)
        names.add(name)
        for kind, content in contents.items():
            write_atomic(folder / f"{name}.{kind}", content)
            paths.append(folder / f"{name}.{kind}")
    return FigureFiles(paths, data)


def _draw_run_figures(data: contract.RunData) -> Iterator[tuple[str, dict[str, bytes]]]:
    """Yields name and files, by kind, of the figures of scores, roles, curves and costs."""
    import matplotlib
    from matplotlib.figure import Figure

    for name, size, draw in _list_drawings(data):
        contents = {}
        with matplotlib.rc_context(STYLE):
            figure = Figure(figsize=size, layout="constrained")
            draw(figure)
            for kind in KINDS:
                buffer = io.BytesIO()
                figure.savefig(buffer, format=kind, metadata={"Date": None} if kind == "svg" else {"CreationDate": None})
                contents[kind] = buffer.getvalue()
        yield name, contents


def _draw_study_and_training_figures(run: Run) -> Iterator[tuple[str, dict[str, bytes]]]:
    """Yields name and files, by kind, of the figures of studies and papers, then of gates, penalties and temperatures over training."""
    results = {f"study-{name}": unpack_study(artifact) for name, artifact in run.results(STUDY).items()}
    for page in read_paper_pages(run):
        results |= {f"{page.name}-{entry.id}": entry.result for entry in page.entries if entry.result is not None}
    for name, result in results.items():
        for figure in result.figures:
            yield file_stem(f"{name}-{figure.name}"), {kind: draw_figure(figure, kind) for kind in KINDS}
    for figure in training_figures(run):
        yield file_stem(figure.name), {kind: draw_figure(figure, kind) for kind in KINDS}


def _list_drawings(data: contract.RunData) -> Iterator[tuple[str, tuple[float, float], Draw]]:
    maps = group_blocks_by_kind(data["blocks"])
    curves, roles, verdicts = data["curves"], data["roles"], data["verdicts"]
    height = 0.7 + sum(0.4 + 0.22 * len(rows) for _, rows in maps)
    for score in data["scores"]:
        yield (
            f"map-{safe_name(score['name'])}",
            (5.5, height),
            lambda figure, score=score: draw_map(figure, maps, score["name"], score["values"], score["significant"], verdicts),
        )
    if curves is not None:
        yield "curves", (5.5, 3.5), lambda figure: draw_curves(figure, curves, len(data["heads"]))
    if data["bench"]:
        shapes, models = {(row["batch"], row["length"]) for row in data["bench"]}, {row["of"] for row in data["bench"]}
        size = 6.5, 0.7 + -(-len(shapes) // 2) * (0.6 + 0.45 * len(models))  # a row of panels for every two shapes
        yield "cost", size, lambda figure: draw_cost(figure, data["bench"], data["machine"])
    if roles is not None and any(roles["labels"]):
        n_roles = len({role for labels in roles["labels"] for role in labels})
        yield "roles", (5.5, 0.8 + 0.22 * n_roles), lambda figure: _draw_role_counts(figure, roles, data["blocks"])


def group_blocks_by_kind(blocks: Sequence[contract.Block]) -> list[tuple[str, list[contract.Block]]]:
    """Returns the blocks of every kind of attention, with the name of the kind."""
    by_kind: dict[tuple[str, str], list[contract.Block]] = {}
    for block in blocks:
        by_kind.setdefault((block["kind"], block["stack"]), []).append(block)
    kinds = Counter(kind for kind, _ in by_kind)
    return [(f"{kind}, {stack}" if kinds[kind] > 1 else kind, rows) for (kind, stack), rows in by_kind.items()]


def _colour_ramp() -> Any:
    from matplotlib.colors import LinearSegmentedColormap

    return LinearSegmentedColormap.from_list("headcount", RAMP)


def ranks_as_fractions(values: Sequence[float | None]) -> list[float | None]:
    """Returns every value's place among all, from 0 for the lowest to 1 for the highest; equal values share the mean of theirs."""
    from scipy import stats

    known = [value for value in values if value is not None]
    fractions = iter(((stats.rankdata(known) - 1) / max(1, len(known) - 1)).tolist())
    return [None if value is None else next(fractions) for value in values]


def draw_map(
    figure: MatplotlibFigure,
    blocks_by_kind: Sequence[tuple[str, list[contract.Block]]],
    score_name: str,
    values: Sequence[float | None],
    significant: Sequence[bool] | None = None,
    verdicts: contract.Verdicts | None = None,
) -> None:
    """Draws layers by heads, one panel for each kind of attention, coloured by quantile; the scale names the values.

    A dot marks values that differ significantly from zero, a tick heads that are safe when they are removed alone.
    """
    import numpy as np

    fractions, safe = ranks_as_fractions(values), verdicts["safe"] if verdicts is not None else [None] * len(values)
    panels = figure.subplots(len(blocks_by_kind), 1, squeeze=False)[:, 0]
    image = None
    for panel, (kind, rows) in zip(panels, blocks_by_kind, strict=True):
        width = max(len(row["heads"]) for row in rows)
        grid = np.full((len(rows), width), np.nan)
        for y, row in enumerate(rows):
            for x, head in enumerate(row["heads"]):
                fraction = fractions[head]
                grid[y, x] = np.nan if fraction is None else fraction
                if significant is not None and significant[head]:
                    panel.plot(x, y, "o", markersize=3, color="white", markeredgecolor="black", markeredgewidth=0.6)
                if safe[head]:
                    colour = "white" if fraction is not None and fraction > DARK_FROM else "black"
                    panel.text(x - 0.42, y + 0.36, "\N{CHECK MARK}", fontsize=6, color=colour)
        image = panel.imshow(grid, cmap=_colour_ramp(), vmin=0, vmax=1, aspect="auto")
        panel.set(title=kind, ylabel="layer", xlabel="head", yticks=range(len(rows)), yticklabels=[str(row["layer"]) for row in rows])
    if image is not None:
        known = [value for value in values if value is not None]
        bar = figure.colorbar(image, ax=list(panels), label=f"{replace_control_characters(score_name)}, by quantile", ticks=QUANTILE_TICKS)
        bar.set_ticklabels([f"{number:.3g}" for number in np.quantile(known or [0.0], QUANTILE_TICKS)])
    marks = ["○ away from zero, 5 %, corrected"] if significant is not None and any(significant) else []
    if verdicts is not None and any(safe):
        size = Tolerance(verdicts["tolerance"], verdicts["unit"])
        marks.append(
            f"\N{CHECK MARK} removed alone costs at most {size} (up to {size.format_damage(size.clip)} per example), 95 %, corrected"
        )
    if marks:
        panels[-1].annotate("\n".join(marks), (0, 0), (0, -26), xycoords="axes fraction", textcoords="offset points", fontsize=6, va="top")


def draw_curves(figure: MatplotlibFigure, curves: contract.Curves, n_heads: int) -> None:
    """Draws the metric by heads kept: the mean over seeds with their range, and the dense model with its interval."""
    panel = figure.subplots()
    dense = curves["dense"]
    panel.axhline(dense["value"], color="black", linewidth=0.8, label="dense model, 95 %")
    if dense["low"] is not None:
        panel.axhspan(dense["low"], dense["high"], color="black", alpha=0.1, linewidth=0)
    control = {point["method"] for point in curves["points"] if point["is_random"]}
    for number, method in enumerate(dict.fromkeys(point["method"] for point in curves["points"])):
        by_keep: dict[int, list[float]] = {n_heads: [dense["value"]]}
        for point in curves["points"]:
            if point["method"] == method:
                by_keep.setdefault(point["keep"], []).append(point["value"])
        keeps = sorted(by_keep)
        means = [sum(by_keep[keep]) / len(by_keep[keep]) for keep in keeps]
        look: dict[str, Any] = {
            "linestyle": LINES[number % len(LINES)],
            "marker": MARKS[number % len(MARKS)],
            "markersize": 3,
            "linewidth": 1,
        }
        look |= {"color": "grey", "linestyle": ":"} if method in control else {}
        label = (
            f"{replace_control_characters(method)}, range of seeds"
            if max(map(len, by_keep.values())) > 1
            else replace_control_characters(method)
        )
        (line,) = panel.plot(keeps, means, label=label, markevery=[i for i, keep in enumerate(keeps) if keep < n_heads], **look)
        panel.fill_between(
            keeps, [min(by_keep[k]) for k in keeps], [max(by_keep[k]) for k in keeps], alpha=0.15, color=line.get_color(), linewidth=0
        )
    panel.set(xlabel=f"heads kept of {n_heads}", ylabel=replace_control_characters(curves["metric"]))
    panel.legend(frameon=False, fontsize=7)


def draw_cost(figure: MatplotlibFigure, bench: Sequence[contract.BenchRow], machine: Mapping[str, object]) -> None:
    """Draws the times of one pass with their quartiles, a panel for each batch and length: dense, masked and cut, for every pruned model."""
    models = list(dict.fromkeys(row["of"] for row in bench))
    shapes = sorted({(row["batch"], row["length"]) for row in bench})
    columns = min(2, len(shapes))
    panels = figure.subplots(-(-len(shapes) // columns), columns, squeeze=False, sharey=True).ravel()
    for panel, (batch, length) in zip(panels, shapes, strict=False):
        for number, name in enumerate(("dense", "masked", "removed")):
            rows = [row for row in bench if (row["batch"], row["length"], row["name"]) == (batch, length, name)]
            reach = [[1000 * (row["seconds"] - row["low"]) for row in rows], [1000 * (row["high"] - row["seconds"]) for row in rows]]
            heights = [models.index(row["of"]) + 0.27 * (number - 1) for row in rows]
            hatch = ("", "//", "..")[number]
            panel.barh(
                heights, [1000 * row["seconds"] for row in rows], 0.25, xerr=reach, label=name, hatch=hatch, error_kw={"linewidth": 0.6}
            )
        panel.set_title(f"batch {batch}, length {length}", fontsize=7)
        panel.tick_params(labelsize=6)
        panel.set_xlabel("ms", fontsize=6)
    panels[0].set_yticks(range(len(models)), ["\n".join(wrap(replace_control_characters(model), 28)) for model in models])
    panels[0].invert_yaxis()
    for panel in panels[len(shapes) :]:
        panel.set_visible(False)
    threads = machine.get("threads", "?")
    figure.suptitle(
        replace_control_characters(f"one pass, median and quartiles; {machine.get('system', '')}, {threads} thread{'s' * (threads != 1)}"),
        fontsize=6,
    )
    figure.legend(*panels[0].get_legend_handles_labels(), frameon=False, fontsize=6, ncols=3, loc="outside lower center")


def _draw_role_counts(figure: MatplotlibFigure, roles: contract.Roles, blocks: Sequence[contract.Block]) -> None:
    """Draws how many heads of every block have each role."""
    import numpy as np

    panel = figure.subplots()
    present = sorted({role for labels in roles["labels"] for role in labels})
    grid = np.array([[sum(role in roles["labels"][head] for head in block["heads"]) for block in blocks] for role in present])
    image = panel.imshow(grid, cmap=_colour_ramp(), vmin=0, aspect="auto")
    names = [f"{block['stack']}.L{block['layer']}" if block["stack"] else f"L{block['layer']}" for block in blocks]
    panel.set(
        xticks=range(len(names)),
        yticks=range(len(present)),
        yticklabels=[replace_control_characters(roles["names"][role]) for role in present],
    )
    panel.set_xticks(range(len(names)), names, rotation=90)
    figure.colorbar(image, ax=panel, label="heads", ticks=range(int(grid.max()) + 1) if grid.max() < MANY else None)
