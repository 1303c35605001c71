"""Figures as data: their numbers fit together, and plain data gives them back."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from figure_kinds import FIGURES

from headcount.core.figure import KINDS, Axis, Bars, Counts, Figure, Histogram, Line, LineFigure
from headcount.core.study_result import Column, StudyResult, Table


@pytest.mark.parametrize("figure", FIGURES, ids=lambda figure: figure.name)
def test_a_figure_survives_its_plain_data(figure: Figure) -> None:
    plain = figure.to_dict()
    assert plain["kind"] == figure.kind and plain["n"] == 300 and plain["table"] == "rows"
    assert Figure.from_dict(json.loads(json.dumps(plain))) == figure


def test_every_kind_is_tried() -> None:
    assert {figure.kind for figure in FIGURES} == set(KINDS)


def test_an_unknown_kind_is_named() -> None:
    with pytest.raises(ValueError, match=r"no kind of figure 'pie'\. Known: lines"):
        Figure.from_dict({"kind": "pie"})


def test_numbers_must_fit_together() -> None:
    by_name = {figure.name: figure for figure in FIGURES}
    for name, changes, message in (
        ("lines", {"lines": (Line("a", (1.0, 2.0), (1.0,)),)}, "columns of different length"),
        ("lines", {"lines": (Line("a", (1.0,), (1.0,), (0.5,)),)}, "columns of different length"),
        ("lines", {"lines": (Line("a", (1.0,), (float("nan"),)),)}, "not finite; write None"),
        ("grouped", {"bars": (Bars("a", (1.0,)),)}, "'a' of figure 'grouped'"),
        ("map", {"columns": ("L0",)}, "'offset:-1' of figure 'map'"),
        ("map", {"marks": ((True,), (True,))}, "columns of different length"),
        ("histogram", {"groups": (Counts("a", (1, 2)),)}, "columns of different length"),
    ):
        with pytest.raises(ValueError, match=message):
            replace(by_name[name], **changes)
    histogram = by_name["histogram"]
    assert isinstance(histogram, Histogram)
    with pytest.raises(ValueError, match="must rise"):
        replace(histogram, edges=(0.0, 0.0, 1.0, 2.0))


def test_units_stand_behind_labels() -> None:
    assert Axis("rise of the loss", "nats").title == "rise of the loss (nats)" and Axis("heads").title == "heads"


def test_a_figure_of_a_result_names_its_table() -> None:
    table = Table("rows", (Column("layer"),), (("L0",),))
    result = StudyResult("layers", (table,), "Layers matter.", figures=FIGURES)
    assert StudyResult.from_dict(json.loads(json.dumps(result.to_dict()))) == result
    assert isinstance(result.figure("lines"), LineFigure)
    with pytest.raises(KeyError):
        result.figure("none")
    with pytest.raises(ValueError, match="names the table 'rows', which does not exist"):
        StudyResult("layers", (), "", figures=FIGURES[:1])
    with pytest.raises(ValueError, match="have one name"):
        StudyResult("layers", (table, table), "")
