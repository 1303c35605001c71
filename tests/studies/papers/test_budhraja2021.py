"""Budhraja et al. 2021: every item on the two embedded languages, its table and its figure."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import headcount as hc
from headcount.core.figure import HeatMap, LineFigure
from headcount.runs.store import Run
from headcount.studies._base import StudyContext
from headcount.studies._paper import PaperResult, Subject
from headcount.studies._run_paper import list_items, run_paper
from headcount.studies._run_study import PythonSources
from headcount.studies.papers.budhraja2021 import Budhraja2021

ENTAILMENT, TAVI, ENGLISH = "demo/entailment", "demo/entailment-tavi", "demo/entailment-english"


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PaperResult]:
    folder = tmp_path_factory.mktemp("budhraja2021")
    groups = folder / "groups.csv"
    groups.write_text(f"language,family,size\n{ENTAILMENT},one,100\n{TAVI},two,10\n")
    paper = Budhraja2021(quick=True, rate=1e-3, tasks=(ENTAILMENT, TAVI), against=ENGLISH, groups=str(groups), tuned=ENGLISH)
    with Run.lead(folder / "run") as run:
        context = StudyContext(PythonSources(ENTAILMENT, None, None, 0, 60, None), model=ENTAILMENT, run=run, limit=60)
        yield run_paper(paper, list_items(paper, context), context)


def test_items_say_what_they_lack(ran: PaperResult) -> None:
    assert [item.id for item in ran.items] == [f"X{number}" for number in range(1, 8)] and not ran.failures
    model = hc.load(ENTAILMENT)
    items = Budhraja2021().items(Subject(hc.HeadMap.of(model), hc.open_task(ENTAILMENT, model, limit=8), False))
    assert [item.lacks for item in items] == [
        ("against",),
        ("language",),
        ("language",),
        ("language", "groups"),
        ("language", "groups"),
        ("tuned",),
        ("language",),
    ]


def test_x1_relative_drop_against_a_monolingual_model(ran: PaperResult) -> None:
    result = ran.results["X1"]
    rows = result.table("against").records()
    assert {row["language"] for row in rows} == {ENTAILMENT} and "between languages" not in [table.name for table in result.tables]
    assert all(row["difference"] == pytest.approx(row["one"] - row["other"]) and row["q"] <= 1 for row in rows)
    assert any("heads by random" in str(row["without"]) for row in rows)


def test_x2_x3_every_language_and_block_of_layers(ran: PaperResult) -> None:
    result = ran.results["X2"]
    figure, table = result.figure("lost"), result.table("lost").records()
    assert isinstance(figure, HeatMap) and figure.columns == (ENTAILMENT, TAVI) and {"bottom (L0)", "top (L3)", "L1"} <= set(figure.rows)
    for number, name in enumerate(figure.columns):
        column = f"{ENTAILMENT}: {name}"
        assert [row[number] for row in figure.values] == [row[column] for row in table]
        assert all(row[f"{column} low"] <= row[column] <= row[f"{column} high"] for row in table)
    between = result.table("between languages").records()
    assert {row["language"] for row in between} == {TAVI} and len(between) == len(table)
    assert ran.results["X3"].figures == result.figures


def test_x4_x5_families_and_sizes(ran: PaperResult) -> None:
    families = ran.results["X4"].table("families").records()
    assert {row["family"] for row in families} == {"one", "two"}
    assert all(row["p"] is None and row["difference low"] is None for row in families), "one language has no interval"
    assert all(row["difference"] == pytest.approx(row["lost"] - row["lost by others"]) for row in families)
    assert "sizes" not in [table.name for table in ran.results["X5"].tables], "two languages have no rank correlation"
    assert ran.results["X5"].measurements["sizes"] == []


def test_x6_change_of_weights(ran: PaperResult) -> None:
    table, figure = ran.results["X6"].table("layers").records(), ran.results["X6"].figure("layers")
    assert [row["part"] for row in table] == [part for part in "qkvo" for _ in range(4)] and isinstance(figure, LineFigure)
    assert all(row["relative change low"] <= row["relative change"] <= row["relative change high"] for row in table)


def test_x7_pruned_then_trained_on_the_first_language(ran: PaperResult) -> None:
    rows = [row for row in ran.results["X7"].measurements["rows"] if row["kind"] == "heads"]
    assert [row["language"] for row in rows] == [ENTAILMENT, TAVI] and all("recover 8steps" in row["without"] for row in rows)
    assert all(0 <= row["value"] <= 1 for row in rows)
    untrained = {row["language"]: row for row in ran.results["X2"].measurements["rows"] if row["kind"] == "heads"}
    assert all(row["dense"] != untrained[row["language"]]["dense"] or row["value"] != untrained[row["language"]]["value"] for row in rows)
