"""Figures that were unreadable in the column of a paper: one point, many rows, long legends, coinciding intervals, labels that met."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from headcount.core.figure import Axis, BarFigure, Bars, Figure, HeatMap, Line, LineFigure, Reference
from headcount.core.study_result import Column, StudyResult, Table
from headcount.runs.draw import STYLE, draw_matplotlib_figure
from headcount.runs.draw_lines import spread_labels
from headcount.runs.figure_layout import (
    figure_height,
    has_labels_at_ends,
    legend_labels,
    must_turn_names,
    title_lines,
    wrap_axis,
    wrap_text,
)

CENTIMETRES = 2.54
COMMON: dict[str, Any] = {"title": "What is shown", "table": "rows", "n": 300}
CURVE = LineFigure(
    name="curve",
    x=Axis("heads removed", is_share=True),
    y=Axis("accuracy"),
    lines=tuple(
        Line(name, (0.5, 0.75), (0.8, 0.6), (0.7, 0.5), (0.9, 0.7), is_control=name == "random", start=(0.0, 0.9))
        for name in ("dsp", "dsp:pipelined", "l0", "random")
    ),
    references=(Reference("dense model", 0.9),),
    **COMMON,
)


@pytest.fixture
def canvas_of() -> Any:
    matplotlib = pytest.importorskip("matplotlib")

    def draw(figure: Figure) -> Any:
        with matplotlib.rc_context(STYLE):
            canvas = draw_matplotlib_figure(figure)
            canvas.draw_without_rendering()
        return canvas

    return draw


def test_texts_break_at_spaces_and_semicolons_alone() -> None:
    text = "dsp(tau=1000;tau_end=1e-08;cool=0.6667;rate=0.5;init=none;settle=0) without repair"
    lines = wrap_text(text, 40)
    assert "".join(lines).replace(" ", "") == text.replace(" ", "") and all(len(line) <= 40 for line in lines)
    assert all(line[-1] == ";" or text[text.index(line) + len(line) :][:1] in (" ", "") for line in lines)
    assert wrap_text("demo/entailment-english: demo/entailment", 26) == ["demo/entailment-english:", "demo/entailment"]
    assert wrap_text("a/very/long/path/without/any/space", 10) == ["a/very/", "long/path/", "without/", "any/space"]
    assert wrap_text("", 10) == [] and wrap_text("x" * 25, 10) == ["x" * 10, "x" * 10, "x" * 5]


def test_a_unit_stays_whole() -> None:
    assert wrap_axis(Axis("Jensen–Shannon distance", "0 to 1"), 30).splitlines() == ["Jensen–Shannon distance", "(0 to 1)"]


def test_a_single_point_has_a_mark_and_a_tick_of_its_own(canvas_of: Any) -> None:
    lines = (Line("random", (48.0,), (0.5,), (0.4,), (0.6,), is_control=True), Line("l0", (48.0,), (0.5,), (0.4,), (0.6,)))
    panel = canvas_of(replace(CURVE, x=Axis("heads that stay", is_count=True), lines=lines)).axes[0]
    sample = [line for line in panel.lines if line.get_label() in ("random", "l0")]
    assert len(sample) == 2 and all(line.get_marker() not in ("", "None", None) for line in sample), "a control is seen as well"
    assert list(panel.get_xticks()) == [48.0]
    first, second = (line.get_xdata()[0] for line in sample)
    assert first != second, "points that coincide stand side by side"


def test_many_intervals_are_bars_side_by_side_from_the_dense_model_on(canvas_of: Any) -> None:
    panel = canvas_of(CURVE).axes[0]
    names = [line.label for line in CURVE.lines]
    xs = [list(line.get_xdata()) for line in panel.lines if line.get_label() in names]
    assert all(values[0] == 0.0 for values in xs) and len({values[1] for values in xs}) == 4
    assert all(abs(values[1] - 0.5) < 0.05 for values in xs)
    bands = [collection for collection in panel.collections if "PolyCollection" in type(collection).__name__]
    assert not bands
    two = canvas_of(replace(CURVE, lines=CURVE.lines[:2])).axes[0]
    assert len([collection for collection in two.collections if "LineCollection" not in type(collection).__name__]) == 2, (
        "two bands can be told apart"
    )


def test_labels_stand_beside_their_lines_and_apart(canvas_of: Any) -> None:
    assert has_labels_at_ends(CURVE) and legend_labels(CURVE) == []
    canvas = canvas_of(CURVE)
    assert not canvas.legends
    texts = [
        text
        for text in canvas.axes[0].texts
        if text.get_text().replace("\n", " ") in {*(line.label for line in CURVE.lines), "dense model"}
    ]
    assert len(texts) == 5
    rows = sorted(text.get_position()[1] for text in texts)
    assert all(second - first > 0.05 for first, second in pairwise(rows)) and rows[0] >= 0 and rows[-1] <= 1
    long = replace(CURVE, lines=tuple(replace(line, label=f"{line.label}: a name that is longer than its room") for line in CURVE.lines))
    assert not has_labels_at_ends(long) and len(legend_labels(long)) == 5


def test_labels_are_spread_in_their_order() -> None:
    positions = spread_labels([5.0, 5.0, 5.1, 90.0], [10.0] * 4, 0.0, 100.0)
    assert positions == [5.0, 15.0, 25.0, 90.0]
    assert spread_labels([99.0, 98.0], [10.0, 10.0], 0.0, 100.0) == [95.0, 85.0]


def test_figures_of_many_rows_fit_a_page(canvas_of: Any) -> None:
    heads = tuple(f"L{layer}H{head}" for layer in range(12) for head in range(12))
    gates = HeatMap(
        name="gates",
        x=Axis("optimiser step"),
        y=Axis("head"),
        rows=heads,
        columns=tuple(map(str, range(20))),
        values=tuple((0.5, 3.1) * 10 for _ in heads),
        value=Axis("gate", limits=(0.0, 1.0)),
        **COMMON,
    )
    roles = tuple(f"syntax:role-{number}" for number in range(36))
    labels = BarFigure(
        name="labels",
        x=Axis("role"),
        y=Axis("heads", is_count=True),
        categories=roles,
        bars=tuple(Bars(name, tuple(float(number) for number in range(36))) for name in ("bias above τ", "with the role")),
        is_horizontal=True,
        **COMMON,
    )
    for figure in (gates, labels):
        assert figure_height(figure) * CENTIMETRES < 16.2
        panel = canvas_of(figure).axes[0]
        boxes = [label.get_window_extent() for label in panel.get_yticklabels() if label.get_text()]
        assert all(upper.y0 >= lower.y1 - 2 for upper, lower in pairwise(sorted(boxes, key=lambda box: -box.y0)))
    assert canvas_of(gates).axes[0].images[0].get_clim() == (0.0, 1.0)


def test_names_of_columns_do_not_meet(canvas_of: Any) -> None:
    languages = ("en", "de", "nl", "fr", "es", "it", "pt", "ru", "pl")
    figure = HeatMap(
        name="lost",
        x=Axis("language"),
        y=Axis("without"),
        rows=("18 of 36 heads by random", "L0"),
        columns=languages,
        values=((0.5, None, None, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6),) * 2,
        value=Axis("share lost", is_share=True),
        missing_label="not defined: at chance",
        **COMMON,
    )
    canvas = canvas_of(figure)
    boxes = [label.get_window_extent() for label in canvas.axes[0].get_xticklabels() if label.get_text()]
    assert len(boxes) == 9 and all(first.x1 < second.x0 for first, second in pairwise(sorted(boxes, key=lambda box: box.x0)))
    assert [text.get_text() for text in canvas.legends[0].get_texts()] == ["not defined: at chance"], "grey is explained"
    assert must_turn_names([["1"], ["9 or more"]], 8) and not must_turn_names([["1"], ["9+"]], 8)


def test_ticks_of_counts_are_whole(canvas_of: Any) -> None:
    figure = replace(CURVE, y=Axis("heads", is_count=True), x=Axis("optimiser step", is_count=True))
    panel = canvas_of(replace(figure, lines=(Line("a", tuple(map(float, range(9))), tuple(number / 3 for number in range(9))),))).axes[0]
    assert all(float(tick).is_integer() for tick in (*panel.get_xticks(), *panel.get_yticks()))


def test_ticks_have_few_digits(canvas_of: Any) -> None:
    means = LineFigure(
        name="metric", x=Axis("heads left"), y=Axis("BLEU"), lines=(Line("l0", (1.0, 10 / 3, 28 / 3), (91.0, 93.0, 94.0)),), **COMMON
    )
    assert [text.get_text() for text in canvas_of(means).axes[0].get_xticklabels()] == ["1", "3.33", "9.33"]
    many = BarFigure(
        name="parameters",
        x=Axis("layer"),
        y=Axis("parameters", is_count=True),
        categories=("L0",),
        bars=(Bars("", (590_592.0,)),),
        **COMMON,
    )
    assert "400,000" in [text.get_text() for text in canvas_of(many).axes[0].get_yticklabels()]


def test_titles_begin_with_a_capital() -> None:
    assert title_lines(replace(CURVE, title="accuracy by the share of heads removed"))[0].startswith("Accuracy by")


def test_what_all_share_stands_in_the_note() -> None:
    figure = replace(CURVE, note="All without repair.")
    assert title_lines(figure) == ["What is shown", "n = 300 examples", "All without repair."]
    assert Figure.from_dict(figure.to_dict()) == figure
    earlier = {name: value for name, value in figure.to_dict().items() if name != "note"}
    assert Figure.from_dict(earlier) == CURVE, "a figure of an earlier release has no note"


def test_a_figure_without_values_is_not_drawn() -> None:
    empty = replace(CURVE, lines=(Line("step 1", (0.5,), (None,), (None,), (None,)),))
    table = Table("rows", (Column("heads"),), ((1,),))
    result = StudyResult("dynamics", (table,), "Nothing.", ("A reason.",), figures=(empty, replace(CURVE, name="other")))
    assert [figure.name for figure in result.figures] == ["other"]
    assert result.notes == ("A reason.", "The figure 'curve' is not drawn: none of its values is defined.")
    assert StudyResult.from_dict(result.to_dict()) == result
