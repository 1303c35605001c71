"""Every view with everything, with two runs, and with nothing: it shows its numbers, or says which command makes them."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pytest
import synthetic
from browsing import VIEWS


@pytest.fixture
def bert(open_run_page):
    return open_run_page(synthetic.report(synthetic.run()))


def test_the_summary_comes_first(bert):
    page, run = bert.page, synthetic.run()
    assert page.locator(".lead p").all_inner_texts() == run["summary"]
    text = page.locator("main").inner_text()
    for expected in (
        run["model"]["name"],
        run["data"]["report"],
        "seeds 0, 1, 2",
        run["versions"]["torch"],
        run["warnings"][0],
        run["command"],
    ):
        assert expected in text, expected


def test_costs_name_the_machine(bert):
    page = bert.go("cost")
    text = page.locator("main").inner_text()
    for expected in ("Xeon 8375C", "threads 2", "dtype float32", "KV bytes per token"):
        assert expected in text, expected
    bars = page.locator(".bar.removed")
    assert bars.count() == 3
    assert page.locator(".whisker").count() == 9
    labels = page.locator("g[role=img]").evaluate_all("all => all.map(e => e.getAttribute('aria-label'))")
    assert any("heads masked" in label and "quartiles" in label for label in labels)
    page.get_by_role("button", name="FLOPs").click()
    assert page.get_by_role("button", name="FLOPs").get_attribute("aria-pressed") == "true"
    assert page.locator(".frontier").count() == 1


def test_a_head_has_a_page_of_its_own(bert):
    page, run = bert.go("head/L5H3"), synthetic.run()
    text = page.locator("main").inner_text()
    for expected in ("L5H3", "of 144", "Distance in words", "Part of speech of the key", "Other word of a dependency", "Similar heads"):
        assert expected in text, expected
    assert page.locator(".examples li").count() == 3
    for kind, name in (("top", "Most confident"), ("middle", "Middle"), ("random", "At random")):
        page.get_by_role("button", name=name).click()
        texts = page.locator(".examples li .tokens").first.locator(".token").all_inner_texts()
        assert texts == run["profiles"]["examples"][63][kind][0]["tokens"]
    page.get_by_role("button", name="Next").click()
    page.wait_for_url(lambda url: "#/head/L5H4" in url, timeout=3000)
    page.get_by_role("link", name="See its attention").click()
    page.wait_for_url(lambda url: "#/attention/L5H4" in url, timeout=3000)


def test_relations_are_honest(bert):
    page = bert.go("roles")
    text = page.locator("main").inner_text()
    assert "no head beats offset −1 for syntax:amod" in text
    assert "44.0 % offset −1" in text
    page.get_by_role("button", name="15 on the map").click()
    assert page.locator(".map .cell:not(.faded)").count() == 15
    page.wait_for_url(lambda url: "colour=role" in url, timeout=3000)


def test_two_runs_are_compared(open_run_page):
    first, second = synthetic.run(), synthetic.run(seed=1) | {"name": "second"}
    run_page = open_run_page(synthetic.report(first, second), "compare")
    page = run_page.page
    assert page.locator(".three [role=grid]").count() == 3
    text = page.locator("main").inner_text()
    for expected in ("B − A", "Rank correlation", "760", "Tango", "model.weights", "Heads that changed role"):
        assert expected in text, expected
    assert page.locator(".figure .guide").count() == 1
    page.get_by_label("Run", exact=True).select_option("1")
    page.wait_for_url(lambda url: "run=1" in url, timeout=3000)
    page.get_by_role("link", name="Overview", exact=True).click()
    assert "second" in page.locator("h1").inner_text()
    page.get_by_label("Colour by", exact=True).select_option("diff:ablation")
    assert "grey is 0" in page.locator(".map .colour-bar").get_attribute("aria-label")


def test_runs_with_other_heads_are_shown_one_by_one(open_run_page):
    page = open_run_page(synthetic.report(synthetic.run(synthetic.SMALL), synthetic.run()), "compare").page
    assert "do not have the same heads" in page.locator("main").inner_text()
    page.get_by_label("Run", exact=True).select_option("1")
    page.get_by_role("link", name="Overview", exact=True).click()
    assert page.locator(".map [role=gridcell]").count() == 144


def test_tables_sort_filter_page_and_save(bert):
    page, run = bert.go("data"), synthetic.run()
    page.get_by_role("button", name="ablation").click()
    first = page.locator("tbody tr").first.inner_text()
    best = max(range(144), key=lambda at: run["scores"][0]["values"][at])
    assert first.split()[0] == run["heads"][best]
    page.get_by_role("searchbox").fill("sink")
    total = sum("sink" in [run["roles"]["names"][at] for at in labels] for labels in run["roles"]["labels"])
    assert f"{total} of 144 rows" in page.locator(".table-tools").inner_text()
    with page.expect_download() as saved:
        page.get_by_role("button", name="CSV").click()
    rows = list(csv.reader(io.StringIO(Path(saved.value.path()).read_text())))
    assert len(rows) == total + 1
    assert rows[0][:3] == ["head", "kind", "layer"]
    with page.expect_download() as saved:
        page.get_by_role("button", name="Download the whole run").click()
    assert json.loads(Path(saved.value.path()).read_text())["heads"] == run["heads"]
    for name, count in (
        ("Scores", 720),
        ("Role scores", 1440),
        ("Relations", 3),
        ("Pruned models", 180),
        ("Latency", 54),
        ("Attention", 144),
        ("survivors by layer", 2),
    ):
        page.get_by_label("Table", exact=True).select_option(name)
        assert f"{count:,} rows" in page.locator(".table-tools").inner_text(), name
    page.get_by_label("Table", exact=True).select_option("Pruned models")
    page.get_by_role("button", name="Later").click()
    assert "Rows 51–100" in page.locator(".pages").inner_text()
    assert "Jensen–Shannon" in page.locator(".glossary").last.inner_text()


def test_a_run_with_nothing_but_heads_says_what_makes_the_rest(open_run_page):
    run_page = open_run_page(synthetic.report(synthetic.bare()))
    expected = {
        "overview": "headcount score",
        "pruning": "headcount compare",
        "cost": "headcount prune",
        "head/L0H0": "headcount analyze",
        "attention": "headcount analyze",
        "roles": "headcount roles",
        "compare": "headcount report",
    }
    for view, command in expected.items():
        page = run_page.go(view)
        assert command in page.locator(".missing").last.inner_text() or command in page.locator("main").inner_text(), view
    assert run_page.go("data").locator("tbody tr").count() == 12


def test_nothing_is_greyed_out(open_run_page):
    for payload in (synthetic.report(synthetic.run()), synthetic.report(synthetic.bare())):
        run_page = open_run_page(payload)
        for view in VIEWS:
            assert run_page.go(view).locator(":disabled").count() == 0, view


def test_a_file_says_where_live_actions_are(bert):
    for view in ("pruning", "attention"):
        assert "open this run with headcount serve RUN to use live actions" in bert.go(view).locator("main").inner_text()


def test_old_and_broken_addresses_lead_somewhere(bert):
    for address in (
        "nowhere",
        "head/L99H99",
        "head/%E0%A4%A",
        "overview?keep=NaN&method=x&heads=zzz&colour=javascript:1&sentence=-7",
        "attention/L0H0?sentence=999",
    ):
        page = bert.go(address)
        assert page.locator("main > *").count() > 0, address


def test_roles_of_one_run_alone_and_no_marks_on_the_difference(open_run_page):
    payload = synthetic.report(synthetic.run(), synthetic.run(seed=1) | {"name": "second"})
    payload["comparison"]["roles_only"] = {"a": ["induction", "rare"], "b": []}
    page = open_run_page(payload, "compare").page
    text = page.locator("main").inner_text()
    assert "Tested in A only: induction, rare." in text
    assert "Tested in B only" not in text
    maps = page.locator(".three .one-grid")
    assert [maps.nth(at).locator(".letter").count() > 0 for at in range(3)] == [True, True, False]
    assert "role" not in maps.nth(2).locator(".cell").first.get_attribute("aria-label")


def test_what_the_test_of_roles_asks_is_said_and_drawn(bert):
    page = bert.go("roles")
    assert "whether the bias is above 3, the solid line" in page.locator("main").inner_text()
    positions = page.locator(".bias .tau").evaluate_all("all => all.map(e => Number(e.getAttribute('x1')))")
    chance = page.locator(".bias .chance").first.evaluate("e => Number(e.getAttribute('x1'))")
    assert len(set(positions)) == 1
    assert positions[0] - 2 == pytest.approx(3 * (chance - 2))
    assert "above τ = 3" in bert.go("data").locator(".glossary").last.inner_text()


def test_a_role_that_is_an_offset_has_no_other_baseline(open_run_page):
    run = synthetic.run(synthetic.SMALL)
    roles = run["roles"]
    roles["names"][0] = "offset:-1"
    for at, role in enumerate(roles["rows"]["role"]):
        if role == 0:
            roles["rows"]["baseline"][at], roles["rows"]["baseline_offset"][at], roles["rows"]["bias"][at] = 1.0, -1, 99.0
    page = open_run_page(synthetic.report(run), "head/L0H0").page
    row = page.locator("tr", has_text="offset:-1").first.inner_text()
    assert "itself" in row
    assert "100.0 %" not in row


def test_an_unknown_head_is_told(bert):
    page = bert.go("head/L99H99")
    assert "This run has no head “L99H99”" in page.locator(".notice").inner_text()
    page.get_by_role("button", name="Next").click()
    assert not page.locator(".notice").is_visible()


def test_a_table_that_goes_on_shows_it_at_its_edge(open_run_page):
    page = open_run_page(synthetic.report(synthetic.run()), "data", width=320).page
    frame = page.locator(".scroll-frame").first
    page.locator(".scroll-frame.more-after").first.wait_for()
    assert "more-before" not in frame.get_attribute("class")
    frame.locator(".scroll").evaluate("e => { e.scrollLeft = e.scrollWidth }")
    page.locator(".scroll-frame.more-before:not(.more-after)").first.wait_for()


def test_heads_without_a_role_look_empty_and_sorted_marks_do_not_meet(bert):
    page = bert.page
    page.get_by_label("Colour by", exact=True).select_option("label")
    empty = page.locator(".map .cell.unknown:not(.removed)").first
    assert "gradient" not in empty.evaluate("e => getComputedStyle(e).backgroundImage")
    assert "no role" in page.locator(".marks").inner_text()
    page.get_by_label("Colour by", exact=True).select_option("score:ablation")
    page.get_by_label("Sort heads in a layer").check()
    met = page.locator(".map .cell.numbered").evaluate_all(
        """all => all.filter((e) => e.querySelector('.letter')).filter((e) => {
          const [a, b] = ['.cell-number', '.letter'].map((one) => e.querySelector(one).getBoundingClientRect());
          return a.right > b.left && b.right > a.left && a.bottom > b.top && b.bottom > a.top })
          .length"""
    )
    assert met == 0
