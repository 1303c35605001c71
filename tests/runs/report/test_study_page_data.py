"""Studies and papers in the report: pages with the numbers of their tables, and every figure of a run as a file."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from contract import check
from kit import make_run
from study_pages import DRAWN, LONG, PAPER, PLAIN, PUBLISHED, ROWS, make_studied_run

from headcount.app.console.missing_figures import find_missing_figures
from headcount.core.figure import Figure
from headcount.core.study_result import StudyResult
from headcount.runs.artifacts import ArtifactKey, safe_name
from headcount.runs.draw import draw_figure
from headcount.runs.paper_files import summary_to_markdown
from headcount.runs.paper_pages import ITEM, MISSING, read_paper_pages
from headcount.runs.report.collect import collect_report
from headcount.runs.report.figures import write_figures_with_matplotlib
from headcount.runs.report.page import load_front_end
from headcount.runs.report.write import fit_report
from headcount.runs.store import Run
from headcount.runs.study_files import figure_file_name
from headcount.runs.tables import STUDY


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return make_studied_run(tmp_path_factory.mktemp("studied") / "run")


def same(packed: Any, value: Any) -> bool:
    """Whether plain data of the page are those of a result, up to the digits that the page has."""
    if isinstance(value, float) and not isinstance(packed, bool) and packed is not None:
        return math.isclose(packed, value, rel_tol=1e-6, abs_tol=1e-300)
    if isinstance(value, dict):
        return packed.keys() == value.keys() and all(same(packed[name], inner) for name, inner in value.items())
    if isinstance(value, list | tuple):
        return len(packed) == len(value) and all(map(same, packed, value))
    return packed == value


def test_every_study_has_a_page_with_its_numbers(run: Run) -> None:
    report = collect_report(run).with_all_maps()
    check(report, "Report")
    pages = {page["name"]: page for page in report["runs"][0]["studies"]}
    assert list(pages) == ["kept", "layers"]
    for name, result in (("layers", DRAWN), ("kept", PLAIN)):
        plain = {key: value for key, value in result.to_dict().items() if key != "measurements"}
        assert same(pages[name]["result"], plain)
        assert pages[name]["command"] == f"headcount study {name}"
    conditions = ["Model: tiny.", "Task: toy.", "Seed: 3.", "At most 40 examples of each split."]
    assert pages["layers"]["conditions"] == conditions and pages["layers"]["about"].startswith("Which layers matter?")


def test_a_paper_has_its_items_in_order_with_what_it_reports(run: Run) -> None:
    (paper,) = collect_report(run).report["runs"][0]["papers"]
    assert [(item["id"], item["part"]) for item in paper["items"]] == [("M2", "Table 1"), ("M8", "Fig. 3"), ("M10", "section 4.1")]
    without, measured, _ = paper["items"]
    assert without["result"] is None and without["reason"] == "needs --other-task TASK" and without["command"].endswith("--only M2")
    assert measured["published"] is not None and same(measured["published"], PUBLISHED.to_dict()) and measured["result"] is not None
    assert same(measured["result"]["tables"], [ROWS.to_dict()]) and measured["result"]["sentence"] == "The curve falls."
    assert (paper["title"], paper["conditions"], paper["bibtex"]) == (PAPER.title, ["Seed: 0."], PAPER.bibtex)


def test_a_page_is_read_back_and_names_results_that_are_gone(tmp_path: Path) -> None:
    run = make_studied_run(tmp_path / "run")
    assert read_paper_pages(run) == [PAPER]
    for path in (run.folder / "artifacts" / ITEM).glob("m8*"):
        path.unlink()
    (page,) = read_paper_pages(run)
    assert [entry.reason for entry in page.entries] == ["needs --other-task TASK", MISSING, ""]


def test_a_study_that_kept_rows_alone_has_a_page_too(tmp_path: Path) -> None:
    data = collect_report(make_run(tmp_path / "run", kinds=("scores", "study"), text="a < b")).report["runs"][0]
    (page,) = data["studies"]
    (table,) = page["result"]["tables"]
    assert page["name"] == "survivors" and page["result"]["sentence"] == "" and data["papers"] == []
    assert [column["name"] for column in table["columns"]] == ["a < b", "number", "truth", "none"]
    assert table["rows"] == [["a < b", 1.5, True, None], [None, 2, None, None]]


def test_long_tables_go_when_the_file_would_be_too_large(run: Run) -> None:
    bundle = load_front_end()
    complete = fit_report(collect_report(run), 2_000_000, bundle)
    small = fit_report(collect_report(run), 1000, bundle)
    names = [[table["name"] for table in report["runs"][0]["studies"][1]["result"]["tables"]] for report in (complete, small)]
    assert names == [["rows", LONG.name], ["rows"]]
    assert any("Long tables of studies are left out" in text for text in small["left_out"]) and not complete["left_out"]


def test_all_figures_are_written_from_the_data(run: Run, tmp_path: Path) -> None:
    figure_files = write_figures_with_matplotlib(run, tmp_path)
    expected: dict[str, Figure] = {f"study-layers-{figure.name}": figure for figure in DRAWN.figures}
    expected |= {"michel2019-m8-lines": DRAWN.figures[0]}
    names = {path.stem for path in figure_files.paths}
    assert {name for name in names if not name.startswith("map-")} == set(expected) and len(names) * 2 == len(figure_files.paths)
    for name, figure in expected.items():
        assert (tmp_path / f"{name}.svg").read_bytes() == draw_figure(figure, "svg")
        assert (tmp_path / f"{name}.pdf").read_bytes() == draw_figure(figure, "pdf")
    missing = {figure.name: figure for figure in find_missing_figures(run, figure_files.data)}
    assert set(missing) == {"curves", "cost", "roles", "study kept", "michel2019 M2", "michel2019 M10"}
    assert missing["michel2019 M2"].reason == "needs --other-task TASK" and missing["michel2019 M2"].command.endswith("--only M2")
    assert missing["study kept"].command == "" and missing["curves"].command.startswith("headcount compare ")


def test_the_title_of_a_figure_does_not_end_its_alt_text_early() -> None:
    figure = replace(DRAWN.figures[0], title="heads [0]\\ | of (a)\nrun")
    entry = replace(PAPER.entries[1], result=replace(DRAWN, figures=(figure,)))
    line = next(line for line in summary_to_markdown(replace(PAPER, entries=[entry])).splitlines() if line.startswith("!["))
    assert line == f"![heads \\[0\\]\\\\ | of (a) run]({safe_name('M8')}/{figure_file_name(figure, 'svg')})"


def test_a_run_without_studies_says_so(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", n=20, kinds=("roles",))
    figure_files = write_figures_with_matplotlib(run, tmp_path / "figures")
    missing = {figure.name: figure for figure in find_missing_figures(run, figure_files.data)}
    assert {"head maps", "curves", "cost", "studies", "papers"} <= set(missing) and "roles" not in missing
    assert missing["studies"].command.startswith("headcount study NAME ") and str(tmp_path / "run") in missing["papers"].command


def test_names_that_would_be_one_file_are_told_apart(tmp_path: Path) -> None:
    make_run(tmp_path / "run", n=20, kinds=("scores",))
    line = DRAWN.figures[0]
    with Run.lead(tmp_path / "run") as run:
        for name in ("a b", "a+b"):
            content = {"result": StudyResult(name, (ROWS,), "", (), {}, (line,)).to_dict(), "rows": []}
            run.register_results(run.commit(ArtifactKey(STUDY, name, {}), content, provenance={}))
    names = {path.name for path in write_figures_with_matplotlib(run, tmp_path / "figures").paths}
    assert {"study-a-b-lines.svg", "study-a-b-lines-2.svg", "study-a-b-lines.pdf", "study-a-b-lines-2.pdf"} <= names
