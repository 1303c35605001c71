"""The map of heads: what it shows, how keys move through it, and that a selection is shared and kept in the address."""

from __future__ import annotations

import pytest
import synthetic


@pytest.fixture
def bert(open_run_page):
    return open_run_page(synthetic.report(synthetic.run()))


def cell(page, name):
    return page.locator(f'.map [data-head="{name}"]')


def focused(page):
    return page.evaluate("document.activeElement.dataset.head ?? document.activeElement.id")


def test_a_cell_per_head_says_what_it_is(bert):
    page, run = bert.page, synthetic.run()
    assert page.locator(".map [role=gridcell]").count() == 144
    assert page.locator(".map [role=row]").count() == 13
    score = run["scores"][0]
    value, bottom = score["values"][63], score["low"][63]
    label = cell(page, "L5H3").get_attribute("aria-label")
    assert label.startswith("Layer 5 head 3, ablation ")
    spoken_text = float(label.split("ablation ")[1].split(",")[0].replace("−", "-"))
    assert spoken_text == pytest.approx(value, rel=0.01)
    low = float(label.split("interval ")[1].split(" to ")[0].replace("−", "-"))
    assert low == pytest.approx(bottom, rel=0.01)
    assert "removed alone costs at most 0.011 nats, safe alone" in label
    roles = [run["roles"]["names"][at] for at in run["roles"]["labels"][63]]
    assert f"role {', '.join(roles) or 'none'}" in label
    assert label.endswith(("kept", "removed"))


def test_keys_move_select_and_open(bert):
    page = bert.page
    cell(page, "L0H0").focus()
    for key, expected in [
        ("ArrowRight", "L0H1"),
        ("ArrowDown", "L1H1"),
        ("End", "L1H11"),
        ("ArrowRight", "L1H11"),
        ("PageDown", "L11H11"),
        ("Home", "L11H0"),
        ("ArrowUp", "L10H0"),
        ("PageUp", "L0H0"),
        ("Control+End", "L11H11"),
        ("Control+Home", "L0H0"),
    ]:
        page.keyboard.press(key)
        assert focused(page) == expected, key
    assert page.locator(".map [role=gridcell][tabindex='0']").count() == 1
    page.keyboard.press("Space")
    assert cell(page, "L0H0").get_attribute("aria-selected") == "true"
    page.wait_for_url(lambda url: "heads=L0H0" in url, timeout=3000)
    page.keyboard.press("ArrowRight")
    page.keyboard.press("Enter")
    page.wait_for_selector(".head-title")
    page.wait_for_url(lambda url: "#/head/L0H1" in url, timeout=3000)
    assert page.locator(".head-title h2").inner_text() == "L0H1"
    assert page.evaluate("document.activeElement.id") == "view", "focus follows into the page of the head"


def test_tab_reaches_the_map_once(bert):
    page = bert.page
    page.locator(".map select").first.focus()
    stops = []
    for _ in range(12):
        page.keyboard.press("Tab")
        stops.append(page.evaluate("document.activeElement.getAttribute('role')"))
    assert stops.count("gridcell") == 1


def test_a_selection_is_shared_and_survives_a_reload(bert):
    page = bert.page
    cell(page, "L2H3").click(modifiers=["Control"])
    cell(page, "L4H5").click(modifiers=["Control"])
    page.get_by_role("link", name="Data", exact=True).click()
    page.get_by_role("link", name="Overview", exact=True).click()
    assert page.locator(".map .cell.selected").count() == 2
    assert page.locator(".scatter .point.selected").count() == 2
    page.reload()
    assert page.locator(".map .cell.selected").count() == 2
    assert "2 heads selected" in page.locator(".selection").inner_text()
    page.get_by_role("button", name="Clear selection").click()
    assert page.locator(".map .cell.selected").count() == 0


def test_colours_marks_and_sorting(bert):
    page, run = bert.page, synthetic.run()
    before = cell(page, "L0H0").evaluate("e => getComputedStyle(e).backgroundColor")
    page.get_by_label("Colour by", exact=True).select_option("score:magnitude")
    assert cell(page, "L0H0").evaluate("e => getComputedStyle(e).backgroundColor") != before
    assert page.locator(".map .cell .dot").count() == 0, "magnitude has no test, so no marks"
    page.get_by_label("Colour by", exact=True).select_option("score:gradient")
    assert page.locator(".map .cell .dot").count() == sum(run["scores"][1]["significant"])
    assert page.locator(".map .cell .letter").count() == sum(bool(labels) for labels in run["roles"]["labels"])
    page.get_by_label("Sort heads in a layer").check()
    order = page.locator(".map [role=row]").nth(1).locator("[data-head]").evaluate_all("all => all.map(e => e.dataset.head)")
    values = dict(zip(run["heads"], run["scores"][1]["values"], strict=True))
    assert [values[head] for head in order] == sorted((values[head] for head in run["heads"][:12]), reverse=True)
    page.get_by_label("Colour by", exact=True).select_option("label")
    assert "Layer 0 head 0, role" in cell(page, "L0H0").get_attribute("aria-label")
    for key in ("profile:entropy", "profile:confidence", "agreement", "role:sink"):
        page.get_by_label("Colour by", exact=True).select_option(key)
        assert page.locator(".map .cell:not(.unknown)").count() == 144, key


def test_filters_fade_and_select(bert):
    page, run = bert.page, synthetic.run()
    role = run["roles"]["names"].index("sink")
    total = sum(role in labels for labels in run["roles"]["labels"])
    page.locator(".role-key").get_by_role("button", name="sink").click()
    assert page.locator(".map .cell:not(.faded)").count() == total
    page.get_by_role("button", name=f"Select the {total} shown").click()
    assert page.locator(".map .cell.selected").count() == total
    page.get_by_role("button", name="Show all heads").click()
    page.get_by_label("Layer", exact=True).select_option("3")
    assert page.locator(".map .cell:not(.faded)").count() == 12


def test_a_rectangle_in_the_scatter_selects(bert):
    page = bert.page
    page.locator(".scatter").scroll_into_view_if_needed()
    box = page.locator(".scatter").bounding_box()
    page.mouse.move(box["x"] + 60, box["y"] + 20)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] - 20, box["y"] + box["height"] - 60, steps=4)
    page.mouse.up()
    assert page.locator(".map .cell.selected").count() > 100
    first = page.locator(".scatter .point").first
    first.focus()
    page.keyboard.press("ArrowRight")
    assert "ablation" in page.evaluate("document.activeElement.getAttribute('aria-label')")


def test_kv_groups_have_brackets_and_kinds_their_own_maps(open_run_page):
    page = open_run_page(synthetic.report(synthetic.run(synthetic.GQA))).page
    assert page.locator(".map .cell.kv-start").count() == 16 * 8
    assert "KV group 1" in cell(page, "L0H5").get_attribute("aria-label")
    page = open_run_page(synthetic.report(synthetic.run(synthetic.TRANSLATION))).page
    assert page.locator(".map [role=grid]").count() == 3
    assert page.locator(".map h3").all_inner_texts() == ["Encoder self-attention", "Decoder self-attention", "Cross-attention"]
    assert cell(page, "cross.L2H1").get_attribute("aria-label").startswith("Cross-attention, Layer 2 head 1")


def test_the_map_is_also_a_table(bert):
    page = bert.page
    page.locator(".map").get_by_role("button", name="Show as table").click()
    assert page.locator(".map tbody tr").count() == 50
    assert "144 rows" in page.locator(".map .table-tools").inner_text()


def test_colours_are_quantiles_unless_values_are_asked_for(open_run_page):
    run = synthetic.run()
    score = run["scores"][0]
    score["values"] = [1000.0 if value == max(score["values"]) else value for value in score["values"]]
    page = open_run_page(synthetic.report(run)).page

    def shades():
        return page.evaluate("new Set([...document.querySelectorAll('.map .cell')].map((cell) => cell.style.background)).size")

    assert shades() > 60, "one dominant head leaves the others apart"
    assert "by quantile: half of the heads are below" in page.locator(".map .colour-bar").inner_text()
    page.get_by_label("Colour by value").check()
    assert shades() < 5
    assert "quantile" not in page.locator(".map .colour-bar").inner_text()
    page.wait_for_url(lambda url: "value=1" in url, timeout=3000)


def test_safe_heads_are_marked_and_every_bound_is_shown(bert):
    page, verdicts = bert.page, synthetic.run()["verdicts"]
    assert page.locator(".map .cell .alone").count() == sum(verdicts["safe"])
    assert "removed alone, costs at most 0.02 nats on average" in page.locator(".map .marks").inner_text()
    assert "of several heads removed together they say nothing" in page.locator(".map").inner_text()
    cell(page, "L0H1").hover()
    assert f"removed alone costs at most {verdicts['bound'][1]} nats" in page.locator(".map .readout").inner_text()
    page.locator(".alone-bounds summary").click()
    going = page.locator(".alone-bounds tbody tr")
    removed = page.locator(".map .cell.removed").count()
    assert going.count() == removed > 0
    cell(page, "L0H3").click()
    page.wait_for_selector(".head-title")
    line = page.locator(".alone-line").inner_text()
    assert "at most 0.011 nats" in line and "up to 2 nats per example" in line and "safe alone" in line
