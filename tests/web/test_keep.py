"""The slider of heads that stay: its plan, its numbers, what was measured and what not, and what can be taken away."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import synthetic


@pytest.fixture
def bert(opened):
    return opened(synthetic.report(synthetic.run()), "pruning?keep=96&method=surgeon")


def points(method="surgeon", seed=0):
    return {one["keep"]: one for one in synthetic.run()["curves"]["points"] if one["method"] == method and one["seed"] == seed}


def stat(page, name):
    return page.locator(".stat", has_text=name).first


def hatched(page):
    page.get_by_role("link", name="Overview", exact=True).click()
    return set(page.locator(".map .cell.removed").evaluate_all("all => all.map(e => e.dataset.head)"))


def test_a_measured_point_is_shown_as_it_was_measured(bert):
    page, point = bert.page, points()[96]
    assert page.get_by_role("heading", name="Keep 96 of 144 heads").is_visible()
    assert page.locator(".slider .tag").inner_text() == "measured"
    text = stat(page, "accuracy").inner_text()
    assert f"{point['value']:.3g}" in text
    assert "McNemar" in text
    assert "3 seeds" in text
    assert "100 M" in stat(page, "parameters").inner_text()
    assert "interpolated" not in stat(page, "KV cache per token").inner_text()
    heads = synthetic.run()["heads"]
    assert hatched(page) == {heads[at] for at in point["removed"]}


def test_between_measured_points_everything_says_interpolated(bert):
    page = bert.page
    slider = page.locator(".slider input")
    slider.focus()
    page.keyboard.press("ArrowLeft")
    assert page.get_by_role("heading", name="Keep 95 of 144 heads").is_visible()
    assert "95 of 144 heads stay, 49 go, interpolated" in slider.get_attribute("aria-valuetext")
    assert page.locator(".slider .tag").inner_text() == "interpolated"
    for name in ("accuracy", "parameters", "size", "FLOPs"):
        assert "interpolated between 82 and 96" in stat(page, name).inner_text(), name
    assert "K 95, interpolated" in page.locator(".here text").text_content()
    page.wait_for_url(lambda url: "keep=95" in url, timeout=3000)
    heads = synthetic.run()["heads"]
    gone = hatched(page)
    assert len(gone) == 49
    assert {heads[at] for at in points()[96]["removed"]} < gone < {heads[at] for at in points()[82]["removed"]}


def test_buttons_step_through_measured_points_and_layers_are_counted(bert):
    page = bert.page
    page.get_by_role("button", name="Fewer, measured").click()
    assert page.get_by_role("heading", name="Keep 82 of 144 heads").is_visible()
    page.get_by_role("button", name="More, measured").click()
    page.get_by_role("button", name="More, measured").click()
    assert page.get_by_role("heading", name="Keep 110 of 144 heads").is_visible()
    counts = page.locator(".layers-left li").evaluate_all("all => all.map(e => Number(/: ?(\\d+)/.exec(e.textContent)[1]))")
    assert sum(counts) == 110


def test_choices_change_the_plan_and_say_so(opened):
    page = opened(synthetic.report(synthetic.run()), "pruning?keep=14&method=surgeon&heads=L0H0+L11H11").page
    page.get_by_label("Protect the selected heads (2)").check()
    page.get_by_label("At least 1 per layer").check()
    gone = hatched(page)
    assert not gone & {"L0H0", "L11H11"}
    assert all(any(f"L{layer}H{head}" not in gone for head in range(12)) for layer in range(12))
    assert len(gone) == 130
    status = page.locator(".slider .tag").inner_text()
    assert "interpolated" in status
    assert page.locator(".layers-left li.none").count() == 0


def test_kv_groups_go_whole(opened):
    page = opened(synthetic.report(synthetic.run(synthetic.GQA)), "pruning").page
    assert page.get_by_label("Whole KV groups only").is_checked()
    page.locator(".slider input").evaluate("e => { e.value = 301; e.dispatchEvent(new Event('input', {bubbles: true})) }")
    gone = hatched(page)
    groups = {(head.split("H")[0], int(head.split("H")[1]) // 4) for head in gone}
    assert len(gone) == 4 * len(groups)


def test_plans_are_taken_away(opened):
    opened_page = opened(
        synthetic.report(synthetic.run()), "pruning?keep=96&method=surgeon", permissions=["clipboard-read", "clipboard-write"]
    )
    page = opened_page.page
    removed = points()[96]["removed"]
    with page.expect_download() as saved:
        page.get_by_role("button", name="Download plan JSON").click()
    heads = synthetic.run()["heads"]
    assert saved.value.suggested_filename == "plan-96.json"
    assert json.loads(Path(saved.value.path()).read_text()) == {"schema_version": 1, "removed": [heads[at] for at in removed]}
    page.get_by_role("button", name="Copy plan").click()
    page.locator("#said", has_text="plan copied").wait_for(state="attached")
    copied = json.loads(page.evaluate("navigator.clipboard.readText()"))
    assert {12 * int(layer) + head for layer, some in copied.items() for head in some} == set(removed)
    page.locator(".take").get_by_role("button", name="Copy command").click()
    page.locator("#said", has_text="command copied").wait_for(state="attached")
    assert page.evaluate("navigator.clipboard.readText()") == points()[96]["command"]


def test_the_curve_lists_seeds_marks_safe_points_and_hides_methods(bert):
    page, curves = bert.page, synthetic.run()["curves"]
    marks = page.locator(".figure .mark")
    assert marks.count() == 60
    assert page.locator(".safe").count() == sum(keep is not None for keep in curves["smallest_safe"].values())
    assert page.locator(".dense").count() == 1
    assert page.locator(".band.random").count() == 1
    marks.first.focus()
    for seed in range(3):
        assert f"seed {seed}:" in page.locator(".figure .readout").first.inner_text()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("Enter")
    assert page.get_by_role("heading", name="Keep 28 of 144 heads").is_visible()
    page.get_by_label("Methods that train weights").uncheck()
    assert marks.count() == 40
    page.locator(".series-key").get_by_role("button", name="random").click()
    assert marks.count() == 30
    assert page.locator(".band.random").count() == 0


def test_a_ranking_alone_is_never_called_measured(opened):
    run = synthetic.run(synthetic.SMALL) | {"curves": None, "bench": []}
    page = opened(synthetic.report(run), "pruning?keep=5").page
    assert page.locator(".slider .tag").inner_text() == "a ranking, not measured"
    assert "not measured" in stat(page, "metric").inner_text()
    assert "headcount compare" in page.locator("main").inner_text()
