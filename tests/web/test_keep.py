"""The slider of heads that stay: its plan, its numbers, what was measured and what not, and what can be taken away."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import synthetic

from headcount.core.heads import Head
from headcount.core.plan import Plan
from headcount.core.scores import Scores


@pytest.fixture
def bert(open_run_page):
    return open_run_page(synthetic.report(synthetic.run()), "pruning?keep=96&method=surgeon")


def points(method="surgeon", seed=0):
    return {point["keep"]: point for point in synthetic.run()["curves"]["points"] if point["method"] == method and point["seed"] == seed}


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
    assert point["bound_text"] in text and "n = 872" in text
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
    hatched_heads = hatched(page)
    assert len(hatched_heads) == 49
    assert {heads[at] for at in points()[96]["removed"]} < hatched_heads < {heads[at] for at in points()[82]["removed"]}


def test_buttons_step_through_measured_points_and_layers_are_counted(bert):
    page = bert.page
    page.get_by_role("button", name="Fewer, measured").click()
    assert page.get_by_role("heading", name="Keep 82 of 144 heads").is_visible()
    page.get_by_role("button", name="More, measured").click()
    page.get_by_role("button", name="More, measured").click()
    assert page.get_by_role("heading", name="Keep 110 of 144 heads").is_visible()
    counts = page.locator(".layers-left li").evaluate_all("all => all.map(e => Number(/: ?(\\d+)/.exec(e.textContent)[1]))")
    assert sum(counts) == 110


def test_choices_change_the_plan_and_say_so(open_run_page):
    page = open_run_page(synthetic.report(synthetic.run()), "pruning?keep=14&method=surgeon&heads=L0H0+L11H11").page
    page.get_by_label("Protect the selected heads (2)").check()
    page.get_by_label("At least 1 per layer").check()
    hatched_heads = hatched(page)
    assert not hatched_heads & {"L0H0", "L11H11"}
    assert all(any(f"L{layer}H{head}" not in hatched_heads for head in range(12)) for layer in range(12))
    assert len(hatched_heads) == 130
    assert page.locator(".slider .tag").inner_text() == "not measured: your choices change the plan"
    assert "not measured" in page.locator(".slider input").get_attribute("aria-valuetext")
    assert "not measured" in stat(page, "accuracy").inner_text()
    assert "computed from the number of heads" in stat(page, "parameters").inner_text()
    assert "interpolated" not in page.locator(".stats").inner_text()
    assert page.locator(".layers-left li.none").count() == 0


def test_a_guess_is_called_one_wherever_it_is_shown(open_run_page):
    run_page = open_run_page(synthetic.report(synthetic.run()), "pruning?keep=95&method=surgeon")
    page = run_page.page
    guess = "a guess, filled in by ablation order; the command may choose others"
    assert guess in stat(page, "heads that go").inner_text()
    assert guess in page.locator(".layers-left").inner_text().lower()
    take = page.locator(".take")
    assert guess in take.inner_text()
    assert "It is not a plan of surgeon" in take.inner_text()
    assert "a plan alone does not give such a model" in take.inner_text()
    with page.expect_download() as saved:
        page.get_by_role("button", name="Download plan by ablation order JSON").click()
    assert saved.value.suggested_filename == "plan-by-ablation-order-95.json"
    page.get_by_role("link", name="Overview", exact=True).click()
    assert guess in page.locator(".marks").inner_text()
    assert page.locator(".map .cell.removed:not(.guess)").count() == 0
    first = page.locator(".map .cell.removed").first
    assert "removed by a guess" in first.get_attribute("aria-label")
    first.hover()
    assert "may go at this K (a guess by ablation order)" in page.locator(".map .readout").inner_text()
    page = run_page.go("pruning?keep=96&method=surgeon")
    assert "guess" not in page.locator(".keep").inner_text()
    assert (
        "Output projections were changed: the plan alone does not give this model; use the command." in page.locator(".take").inner_text()
    )


def test_the_slider_its_pill_and_its_cards_agree(open_run_page):
    run_page = open_run_page(synthetic.report(synthetic.run()), "pruning?keep=144&method=surgeon")

    def said(page):
        return page.locator(".slider .tag").inner_text(), page.locator(".slider input").get_attribute("aria-valuetext")

    page = run_page.page
    assert said(page) == ("the dense model", "144 of 144 heads stay, 0 go, the dense model")
    assert "as fast" not in page.locator(".stats").inner_text()
    assert "Prune to 144" not in page.locator("main").inner_text()
    assert page.get_by_role("button", name="Download plan").count() == 0
    assert said(run_page.go("pruning?keep=143&method=surgeon")) == ("interpolated", "143 of 144 heads stay, 1 goes, interpolated")
    page = run_page.go("pruning?keep=3&method=surgeon")
    pill, spoken = said(page)
    assert pill == "not measured: fewer heads than in any measured model of the method"
    assert spoken == f"3 of 144 heads stay, 141 go, {pill}"
    assert "not measured" in stat(page, "accuracy").inner_text()
    assert "K 3, not measured" in page.locator(".here text").text_content()
    assert said(run_page.go("pruning?keep=96&method=rank:+fisher"))[1] == "96 of 144 heads stay, 48 go, a ranking, not measured"


def test_a_model_shows_its_bound_its_verdict_and_the_answers_that_changed(open_run_page):
    run = synthetic.run()
    point = next(one for one in run["curves"]["points"] if (one["method"], one["keep"], one["seed"]) == ("surgeon", 96, 0))
    point.update(bound_text="at most 1.3 points worse by accuracy", verdict="undecided", margin="1pt", right_to_wrong=18, wrong_to_right=8)
    point.update(difference=-0.002, loss_difference=0.021)
    page = open_run_page(synthetic.report(run), "pruning?keep=96&method=surgeon").page
    text = stat(page, "accuracy").inner_text()
    bound = "at most 1.3 points worse by accuracy (95 %, one-sided, n = 872)"
    for expected in (bound, "undecided, margin 1pt", "against the dense model, loss +0.021", "18 right → wrong, 8 wrong → right"):
        assert expected in text, expected
    assert "FLOPs of a pass over 128 tokens" in page.locator(".stats").inner_text()


def test_noise_is_not_told_as_a_speed(open_run_page):
    run = synthetic.run()
    for row in run["bench"]:
        if row["batch"] == 8:
            row["low"], row["high"] = row["seconds"] * 0.6, row["seconds"] * 1.6
            row["speedup_low"], row["speedup_high"] = 0.6 * row["speedup"], 1.6 * row["speedup"]
        elif row["name"] == "masked":
            row.update({name: row[name] / 2 for name in ("seconds", "low", "high")})
            row.update({name: 2 * row[name] for name in ("speedup", "speedup_low", "speedup_high")})
    run["bench"] = synthetic.judge(run["bench"])
    keep, method = run["bench"][0]["keep"], run["bench"][0]["method"]
    run_page = open_run_page(synthetic.report(run), f"pruning?keep={keep}&method={method}")
    card = stat(run_page.page, "latency").inner_text()
    for expected in ("quartiles", "not distinguishable from the dense model", "noisy measurement"):
        assert expected in card, expected
    page = run_page.go(f"cost?keep={keep}&method={method}")
    message = page.locator(".takeaway").first.inner_text()
    assert "at 2 of 3 sizes; at batch 8, length 128 it is not distinguishable" in message
    texts = page.locator(".figure .warnings li").all_inner_texts()
    assert texts[0].startswith("Noisy measurement at batch 8, length 128:")
    assert texts[1].startswith("Masked heads seem faster than the dense model at batch 1, length 32; batch 32, length 128.")
    ticks = page.locator(".figure .axis").last.locator("text").all_text_contents()
    assert len(set(ticks)) == len(ticks)
    assert page.locator(".off line").count() > 0


def test_kv_groups_go_whole(open_run_page):
    page = open_run_page(synthetic.report(synthetic.run(synthetic.GQA)), "pruning").page
    assert page.get_by_label("Whole KV groups only").is_checked()
    page.locator(".slider input").evaluate("e => { e.value = 301; e.dispatchEvent(new Event('input', {bubbles: true})) }")
    hatched_heads = hatched(page)
    groups = {(head.split("H")[0], int(head.split("H")[1]) // 4) for head in hatched_heads}
    assert len(hatched_heads) == 4 * len(groups)


def test_plans_are_taken_away(open_run_page):
    opened_page = open_run_page(
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


def test_the_curve_lists_seeds_marks_chosen_points_and_hides_methods(bert):
    page, curves = bert.page, synthetic.run()["curves"]
    marks = page.locator(".figure .mark")
    assert marks.count() == 60
    assert page.locator("circle.chosen").count() == len(curves["by_size"])
    assert page.locator("circle.chosen.certified").count() == sum(size["verdict"] == "certified" for size in curves["sizes"]) > 0
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


def test_a_ranking_alone_is_never_called_measured(open_run_page):
    run = synthetic.run(synthetic.SMALL) | {"curves": None, "bench": []}
    page = open_run_page(synthetic.report(run), "pruning?keep=5").page
    assert page.locator(".slider .tag").inner_text() == "a ranking, not measured"
    assert "not measured" in stat(page, "metric").inner_text()
    assert "headcount compare" in page.locator("main").inner_text()


@pytest.mark.parametrize(
    "shape", [synthetic.SMALL, synthetic.Shape(kinds=(synthetic.Kind("decoder-self", "", 3, 4, 2),), methods=0, name="groups")]
)
def test_heads_of_equal_score_go_as_headcount_removes_them(open_run_page, shape):
    run = synthetic.bare(shape)
    tied = synthetic.ranked(run, [float(index % 3 == 0) for index in range(12)])
    score = {
        "name": "ablation",
        "about": "",
        "kind": "importance",
        "higher_is_keep": True,
        "stderr": None,
        "low": None,
        "high": None,
        "significant": None,
        "n_examples": 5,
    }
    run["scores"] = [{**score, **tied}]
    units = tied["group_removal_order"]
    scores = Scores(
        tuple(map(Head.parse, run["heads"])),
        tuple(tied["values"]),
        units=tuple(tuple(Head.parse(run["heads"][at]) for at in unit) for unit in units or []),
    )
    page = open_run_page(synthetic.report(run), "pruning?keep=6&method=rank:+ablation" + ("&groups=1" if units else "")).page
    assert hatched(page) == set(map(str, Plan.keep_top(scores, 6).removed))
