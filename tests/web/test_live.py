"""With `headcount serve` behind it the page asks for new sentences, ablations and pruning; errors are shown as text."""

from __future__ import annotations

import json

import numpy as np
import pytest
import synthetic
from sentences import attention

from headcount.report.page import page as page_of

HOST = "http://report.test/"


@pytest.fixture
def served(browser):
    """A page from a server that is not there: its answers are given here."""
    run = synthetic.run(synthetic.SMALL)
    live = {"token": "secret", "runs": [{"id": "0", "can_run": True, "why_not": ""}]}
    asked: list[tuple[str, dict, dict]] = []
    answers: dict[str, tuple[int, object]] = {}

    def answer(route):
        path = route.request.url.removeprefix(HOST)
        if not path.startswith("api/"):
            route.fulfill(body=page_of(synthetic.report(run, live=live)), content_type="text/html; charset=utf-8")
            return
        asked.append((path, route.request.post_data_json, route.request.headers))
        status, body = answers[path.rsplit("/", 1)[-1]]
        route.fulfill(status=status, body=json.dumps(body), content_type="application/json")

    context = browser.new_context()
    page = context.new_page()
    page.route("**/*", answer)
    errors: list[str] = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    yield page, run, answers, asked
    context.close()
    assert not errors


def test_a_new_sentence_is_shown(served):
    page, run, answers, asked = served
    shape = synthetic.Shape(kinds=(synthetic.Kind(layers=3, heads=4),), sentences=1, tokens=9, words=["Brand", "new", "words"])
    answers["attend"] = (200, {"attention": attention(np.random.default_rng(5), shape, run["blocks"])})
    page.goto(f"{HOST}#/attention/L1H2")
    page.get_by_label("New sentence").fill("Brand new words")
    page.get_by_role("button", name="Show attention").click()
    page.locator(".token-rows", has_text="Brand").wait_for()
    path, body, headers = asked[0]
    assert path == "api/0/attend"
    assert body == {"text": "Brand new words", "pair": None}
    assert headers["x-headcount-token"] == "secret"
    assert page.get_by_label("Sentence", exact=True).locator("option").count() == 3


def test_heads_are_ablated_and_errors_are_text(served):
    page, _, answers, asked = served
    found = {"metric": "accuracy", "value": 0.8, "dense": 0.9, "difference": -0.1, "low": -0.2, "high": -0.05}
    answers["ablate"] = (200, {**found, "p": 0.01, "test": "McNemar", "n": 50})
    page.goto(f"{HOST}#/pruning?keep=8&heads=L0H1+L2H3")
    page.get_by_label("Examples").fill("50")
    page.get_by_role("button", name="Switch off the 2 selected heads").click()
    page.get_by_text("0.8 instead of 0.9").wait_for()
    assert asked[0][1] == {"heads": [1, 11], "limit": 50}
    answers["ablate"] = (409, {"error": "<b>busy</b> with another request"})
    page.get_by_role("button", name="Switch off the 2 selected heads").click()
    page.get_by_role("alert").wait_for()
    assert page.get_by_role("alert").inner_text() == "<b>busy</b> with another request"


def test_pruning_sends_what_the_slider_says(served):
    page, run, answers, asked = served
    answers["prune"] = (200, {"folder": "runs/tiny/pruned-8", "point": run["curves"]["points"][0]})
    page.goto(f"{HOST}#/pruning?keep=8&method=surgeon&heads=L0H1&protect=1")
    page.get_by_role("button", name="Prune to 8 of 12 heads and export").click()
    page.get_by_text("runs/tiny/pruned-8").wait_for()
    assert asked[0][1] == {"method": "surgeon", "keep": 8, "protect": [1], "repair": True}


def test_a_run_without_a_model_says_why(browser, served):
    page, run, *_ = served
    live = {"token": "secret", "runs": [{"id": "0", "can_run": False, "why_not": "its model folder is gone"}]}
    page.unroute("**/*")
    page.route("**/*", lambda route: route.fulfill(body=page_of(synthetic.report(run, live=live)), content_type="text/html; charset=utf-8"))
    page.goto(f"{HOST}#/attention")
    assert "not here, because its model folder is gone" in page.locator("main").inner_text()
