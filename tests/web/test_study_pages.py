"""The pages of studies and papers: reached by the navigation, with as many marks as there are data and as many rows as the tables have."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import pytest
import synthetic
from figure_kinds import FIGURES
from study_pages import LONG, PUBLISHED, ROWS

from headcount.core.figure import BarFigure, Figure, HeatMap, Histogram, LineFigure, ScatterFigure


def count_marks(figure: Figure) -> int:
    """How many values of a figure are defined, and so drawn."""
    if isinstance(figure, LineFigure):
        return sum(y is not None for line in figure.lines for y in line.y)
    if isinstance(figure, BarFigure):
        return sum(value is not None for bars in figure.bars for value in bars.values)
    if isinstance(figure, HeatMap):
        return sum(value is not None for row in figure.values for value in row)
    assert isinstance(figure, ScatterFigure | Histogram)
    return sum(len(group.x) if hasattr(group, "x") else len(group.counts) for group in figure.groups)  # pyright: ignore[reportAttributeAccessIssue]


@pytest.fixture
def one(open_run_page: Any) -> Any:
    return open_run_page(synthetic.report(synthetic.run(synthetic.SMALL)))


def views(page: Any) -> Any:
    return page.get_by_role("navigation", name="Views")


def test_the_navigation_leads_to_every_study(one):
    page = one.page
    views(page).get_by_role("link", name="Studies").click()
    assert page.locator(".verdicts dd").all_inner_texts() == ["Nothing is kept.", "Layers matter: 3 of 4."]
    page.get_by_role("navigation", name="Studies of this run").get_by_role("link", name="layers").click()
    page.wait_for_url(lambda url: "#/studies/layers" in url, timeout=3000)
    text = page.locator("main").inner_text()
    for expected in (
        "Layers matter: 3 of 4.",
        "A note.",
        "Study: layers(how=mean).",
        "Seed: 0.",
        "headcount study layers bert-base-uncased",
    ):
        assert expected in text, expected
    assert page.title().startswith("layers – ")
    page.go_back()
    page.locator(".verdicts").wait_for()


def test_every_figure_has_as_many_marks_as_data(one):
    page = one.go("studies/layers")
    element = page.locator("figure")
    assert element.count() == len(FIGURES)
    for at, figure in enumerate(FIGURES):
        marks = element.nth(at).locator("svg.chart [role=img]")
        assert marks.count() == count_marks(figure), figure.name
        assert element.nth(at).locator("figcaption").inner_text().startswith("n = 300 examples.")
        assert element.nth(at).locator("svg.chart").get_attribute("aria-label"), figure.name
    boxes = page.locator("figure").first.locator("svg.chart [role=img]").evaluate_all("all => all.map((e) => e.getBoundingClientRect().y)")
    assert boxes[0] < boxes[1], "1.0 stands above 0.2"


def test_marks_are_read_with_keys(one):
    page = one.go("studies/layers")
    first = page.locator("figure").first
    first.locator("[role=img][tabindex='0']").focus()
    assert "heads removed 10 %, share of the score above chance that remains 100 % (90 % … 110 %)" in first.locator(".readout").inner_text()
    page.keyboard.press("ArrowRight")
    assert "heads removed 90 %" in first.locator(".readout").inner_text()
    first.get_by_role("button", name="Its table").click()
    assert page.evaluate("document.activeElement.getAttribute('aria-label')") == f"Table: {ROWS.title}"


def test_tables_have_their_rows_formats_and_files(one, tmp_path):
    page = one.go("studies/layers")
    table = page.get_by_role("region", name=f"Table: {ROWS.title}")
    assert table.locator("tbody tr").count() == len(ROWS.rows)
    assert table.locator("thead th").all_inner_texts() == ["head", "heads", "change (loss)", "share"]
    cells = [row.locator("td").all_inner_texts() for row in table.locator("tbody tr").all()]
    assert cells == [["L0H1", "3", "−0.50 (−0.75 … −0.25)", "50\u00a0%"], ["all", "4", "+0.33", "–"], ["none", "0", "–", "0\u00a0%"]]
    table.get_by_role("button", name="change (loss)").click()
    assert table.locator("tbody tr").first.locator("td").first.inner_text() == "all"
    with page.expect_download() as download:
        table.get_by_role("button", name="CSV").click()
    path = Path(tmp_path / "rows.csv")
    download.value.save_as(path)
    rows = list(csv.DictReader(path.read_text(encoding="utf-8").splitlines()))
    assert rows[-1]["head"] == "none" and rows[1]["change low (loss)"] == "-0.75", "ends of intervals are saved"
    long = page.get_by_role("region", name=f"Table: {LONG.title}")
    assert not long.locator("table").is_visible()
    long.locator("summary").click()
    assert long.locator("tbody tr").count() == 50 and "60 rows" in long.inner_text()
    page.get_by_role("link", name="L0H1").first.click()
    page.wait_for_url(lambda url: "#/head/L0H1" in url, timeout=3000)


def test_a_paper_lists_its_items_in_order(one):
    page = one.page
    views(page).get_by_role("link", name="Papers").click()
    assert page.locator(".verdicts dt").all_inner_texts() == [
        "M2 Change without each head Table 1",
        "M8 Pruning curve Fig. 3",
        "M10 Ranked again section 4.1",
    ]
    assert page.locator(".verdicts dd").all_inner_texts() == ["needs --other-task TASK", "The curve falls.", "Nothing is kept."]
    page.locator(".verdicts").get_by_role("link", name="M2").click()
    assert "Not measured: needs --other-task TASK." in page.locator("main").inner_text()
    assert page.get_by_label("The command that measures it").inner_text() == "headcount paper michel2019 --only M2"
    page.get_by_role("link", name="Next: M8").click()
    page.wait_for_url(lambda url: "#/papers/michel2019/M8" in url, timeout=3000)
    published = page.locator(".section", has=page.get_by_role("heading", name="As published"))
    assert published.locator("tbody tr").count() == len(PUBLISHED.rows)
    assert published.locator("td").all_inner_texts() == ["0", "0.837", "57", "0.830"]
    assert page.locator("figure svg.chart [role=img]").count() == count_marks(FIGURES[0])


def test_pages_that_do_not_exist_are_told(one):
    page = one.go("studies/nothing")
    assert "This run has no study “nothing”; all are listed instead." in page.locator(".notice").inner_text()
    assert page.locator(".verdicts dt").count() == 2


def test_a_run_without_studies_names_the_commands(open_run_page):
    run_page = open_run_page(synthetic.report(synthetic.bare()), "studies")
    assert "headcount study NAME bert-base-uncased --task glue/sst2 --out RUN" in run_page.page.locator(".missing").inner_text()
    assert "headcount paper NAME bert-base-uncased --task glue/sst2 --out RUN" in run_page.go("papers").locator(".missing").inner_text()


def test_tables_of_studies_are_among_the_data(one):
    options = one.go("data").get_by_label("Table", exact=True).locator("option").all_inner_texts()
    assert {"layers: rows (3)", "layers: long (60)", "kept: rows (3)", "michel2019 M8: rows (3)"} <= set(options)


@pytest.mark.parametrize("width", [320, 768])
def test_pages_fit_narrow_screens(open_run_page, width):
    run_page = open_run_page(synthetic.report(synthetic.run(synthetic.SMALL)), width=width, scheme="dark")
    for view in ("studies/layers", "papers/michel2019/M8", "papers/michel2019"):
        page = run_page.go(view)
        page.wait_for_timeout(150)
        assert page.evaluate("document.documentElement.scrollWidth") <= width, view
    page.get_by_role("link", name="All papers of this run").click()
    assert page.locator(".verdicts").count() == 1
