"""With `headcount serve` behind it the page asks for new sentences, ablations and pruning; errors are shown as text."""

from __future__ import annotations

import json

import numpy as np
import pytest
import synthetic
from sentences import attention

from headcount.runs.report.page import render_page as page_of

HOST = "http://report.test/"


@pytest.fixture
def served(browser):
    """A page from a server that is not there: its answers are given here."""
    run = synthetic.run(synthetic.SMALL)
    live = {"token": "secret", "runs": [{"id": "0", "can_run": True, "why_not": ""}]}
    requests: list[tuple[str, dict, dict]] = []
    answers: dict[str, tuple[int, object]] = {}

    def answer(route):
        path = route.request.url.removeprefix(HOST)
        if not path.startswith("api/"):
            route.fulfill(body=page_of(synthetic.report(run, live=live)), content_type="text/html; charset=utf-8")
            return
        requests.append((path, route.request.post_data_json, route.request.headers))
        status, body = answers[path.rsplit("/", 1)[-1]]
        route.fulfill(status=status, body=json.dumps(body), content_type="application/json")

    context = browser.new_context()
    page = context.new_page()
    page.route("**/*", answer)
    errors: list[str] = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    yield page, run, answers, requests
    context.close()
    assert not errors


def test_a_new_sentence_is_shown(served):
    page, run, answers, requests = served
    shape = synthetic.Shape(kinds=(synthetic.Kind(layers=3, heads=4),), sentences=1, tokens=9, words=["Brand", "new", "words"])
    answers["attend"] = (200, {"attention": attention(np.random.default_rng(5), shape, run["blocks"])})
    page.goto(f"{HOST}#/attention/L1H2")
    page.get_by_label("New sentence").fill("Brand new words")
    page.get_by_role("button", name="Show attention").click()
    page.locator(".token-rows", has_text="Brand").wait_for()
    path, body, headers = requests[0]
    assert path == "api/0/attend"
    assert body == {"text": "Brand new words", "pair": None}
    assert headers["x-headcount-token"] == "secret"
    assert page.get_by_label("Sentence", exact=True).locator("option").count() == 3


def test_heads_are_ablated_and_errors_are_text(served):
    page, _, answers, requests = served
    actual = {"metric": "accuracy", "value": 0.8, "dense": 0.9, "difference": -0.1, "low": -0.2, "high": -0.05}
    answers["ablate"] = (200, {**actual, "p": 0.01, "test": "Tango", "n": 50})
    page.goto(f"{HOST}#/pruning?keep=8&heads=L0H1+L2H3")
    page.get_by_label("Examples").fill("50")
    page.get_by_role("button", name="Switch off the 2 selected heads").click()
    page.get_by_text("0.8 instead of 0.9").wait_for()
    assert requests[0][1] == {"heads": [1, 11], "limit": 50}
    answers["ablate"] = (409, {"error": "<b>busy</b> with another request"})
    page.get_by_role("button", name="Switch off the 2 selected heads").click()
    page.get_by_role("alert").wait_for()
    assert page.get_by_role("alert").inner_text() == "<b>busy</b> with another request"


def test_pruning_sends_what_the_slider_says_and_takes_the_answer_in(served):
    page, run, answers, requests = served
    like = next(one for one in run["curves"]["points"] if one["method"] == "surgeon" and one["seed"] == 1)
    numbers = {"value": 0.8771, "difference": -0.0475, "bound_text": "at most 6.1 points worse", "verdict": None}
    point = {**like, "id": "new", "keep": 7, "removed": [0, 5, 6, 7, 10], **numbers}
    answers["prune"] = (200, {"folder": "runs/tiny/pruned-7", "point": point})
    page.goto(f"{HOST}#/pruning?keep=7&method=surgeon&seed=1&heads=L0H1&protect=1&one=1")
    assert page.locator(".slider .tag").inner_text().startswith("interpolated")
    marks = page.locator(".figure .mark").count()
    page.get_by_role("button", name="Prune to 7 of 12 heads and export").click()
    page.get_by_text("runs/tiny/pruned-7").wait_for()
    wish = {"method": "surgeon", "keep": 7, "protect": [1], "seed": 1, "floor": 1, "unit": "kv_group"}
    assert requests[0][1] == {**wish, "repair": None}
    text = page.locator(".live [role=status]").first.inner_text()
    for expected in ("accuracy 0.877", "−0.0475", "at most 6.1 points worse (95 %, one-sided, n = 872)", "5 heads went"):
        assert expected in text, expected
    assert page.locator(".slider .tag").inner_text() == "measured"
    assert page.locator(".figure .mark").count() == marks + 1
    page.get_by_label("Output projections").select_option(label="without repair")
    page.get_by_role("button", name="Prune to 7 of 12 heads and export").click()
    page.wait_for_timeout(300)
    assert requests[1][1] == {**wish, "repair": False}
    page.get_by_role("link", name="Overview", exact=True).click()
    removed_heads = set(page.locator(".map .cell.removed").evaluate_all("all => all.map(e => e.dataset.head)"))
    assert removed_heads == {"L0H0", "L1H1", "L1H2", "L1H3", "L2H2"}


def sentence(run, **more):
    shape = synthetic.Shape(kinds=(synthetic.Kind(layers=3, heads=4),), sentences=1, tokens=9, words=["Brand", "new", "words"])
    return {"attention": attention(np.random.default_rng(5), shape, run["blocks"]), "note": None, **more}


def test_an_empty_sentence_is_refused_and_an_answer_is_gone_to(served):
    page, run, answers, requests = served
    answers["attend"] = (200, sentence(run))
    page.goto(f"{HOST}#/attention/L1H2")
    page.get_by_role("button", name="Show attention").click()
    assert page.get_by_role("alert").inner_text() == "Write a sentence first."
    assert not requests
    page.get_by_label("New sentence").fill("Brand new words")
    assert page.get_by_role("alert").count() == 0
    page.get_by_role("button", name="Show attention").click()
    page.locator("#shown-sentence:focus").wait_for()
    assert 0 <= page.locator("#shown-sentence").evaluate("e => e.getBoundingClientRect().top") < 300


def test_a_server_that_is_gone_or_broken_is_told(served):
    page, *_ = served
    page.goto(f"{HOST}#/pruning?keep=8&heads=L0H1")
    button = page.get_by_role("button", name="Switch off the 1 selected head")
    page.route("**/api/**", lambda route: route.abort())
    button.click()
    page.get_by_text("The server has stopped; start headcount serve again.").wait_for()
    page.unroute("**/api/**")
    page.route("**/api/**", lambda route: route.fulfill(status=502, body="<html>Bad gateway", content_type="text/html"))
    button.click()
    page.get_by_text("The server failed (502) without saying why").wait_for()


def test_a_long_action_tells_its_time_and_what_it_refused_is_forgotten(served):
    page, _, answers, _ = served
    answers["ablate"] = (409, {"error": "another action is under way"})
    waiting = []
    page.route("**/api/0/prune", lambda route: waiting.append(route))
    page.goto(f"{HOST}#/pruning?keep=8&heads=L0H1")
    page.get_by_role("button", name="Prune to 8 of 12 heads and export").click()
    page.get_by_role("button", name="Switch off the 1 selected head").click()
    page.get_by_text("another action is under way").wait_for()
    page.get_by_role("button", name="Working … 2 s").wait_for()
    waiting[0].fulfill(status=400, body=json.dumps({"error": "it cannot be pruned so"}), content_type="application/json")
    page.get_by_text("it cannot be pruned so").wait_for()
    page.get_by_text("another action is under way").wait_for(state="detached")


def test_all_heads_cannot_be_pruned_to(served):
    page, *_ = served
    page.goto(f"{HOST}#/pruning?keep=12")
    assert page.get_by_role("button", name="Prune to").count() == 0
    assert "All heads stay at this K" in page.locator(".live").first.inner_text()


def test_one_example_cannot_be_tested(served):
    page, _, answers, requests = served
    answers["ablate"] = (409, {"error": "busy"})
    page.goto(f"{HOST}#/pruning?heads=L0H1")
    field = page.get_by_label("Examples")
    assert field.get_attribute("min") == "2"
    field.evaluate("e => { e.form.noValidate = true }")
    field.fill("1")
    page.get_by_role("button", name="Switch off the 1 selected head").click()
    page.get_by_role("alert").wait_for()
    assert requests[0][1]["limit"] == 2


def test_a_note_to_a_sentence_is_shown(served):
    page, run, answers, _ = served
    shape = synthetic.Shape(kinds=(synthetic.Kind(layers=3, heads=4),), sentences=1, tokens=9, words=["Brand", "new", "words"])
    answers["attend"] = (200, {"attention": attention(np.random.default_rng(5), shape, run["blocks"]), "note": "Most words are not known."})
    page.goto(f"{HOST}#/attention/L1H2")
    page.get_by_label("New sentence").fill("Brand new words")
    page.get_by_role("button", name="Show attention").click()
    page.get_by_text("Most words are not known.").wait_for()


def test_a_run_without_a_model_says_why(browser, served):
    page, run, *_ = served
    live = {"token": "secret", "runs": [{"id": "0", "can_run": False, "why_not": "its model folder is gone"}]}
    page.unroute("**/*")
    page.route("**/*", lambda route: route.fulfill(body=page_of(synthetic.report(run, live=live)), content_type="text/html; charset=utf-8"))
    page.goto(f"{HOST}#/attention")
    assert "not here, because its model folder is gone" in page.locator("main").inner_text()
