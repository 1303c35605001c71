"""The attention viewer: matrix, arcs, words, masks, long and right-to-left text, and two texts."""

from __future__ import annotations

import base64
import re
import time
import zlib

import numpy as np
import pytest
import synthetic
from sentences import pack


def weights(run, sentence, block, head):
    side = run["attention"]["sentences"][sentence]["source"]
    n = len(side["tokens"])
    data = zlib.decompress(base64.b64decode(run["attention"]["maps"][sentence][block]), -15)
    return (np.frombuffer(data, np.uint8).reshape(-1, n, n)[head] / 255) ** 2


@pytest.fixture
def bert(open_run_page):
    run_page = open_run_page(synthetic.report(synthetic.run()), "attention/L3H4")
    run_page.page.wait_for_selector(".matrix canvas")
    return run_page


def said(page):
    return page.locator(".matrix [aria-live]").inner_text()


def test_the_cursor_reads_the_weights_of_the_file(bert):
    page = bert.page
    page.get_by_role("button", name="Word pieces").click()
    page.get_by_label("Hide special tokens").uncheck()
    matrix = weights(synthetic.run(), 0, 3, 4)
    page.locator(".matrix canvas").first.focus()
    for _ in range(3):
        page.keyboard.press("ArrowDown")
    for _ in range(2):
        page.keyboard.press("ArrowRight")
    text = said(page)
    tokens = synthetic.run()["attention"]["sentences"][0]["source"]["tokens"]
    assert re.fullmatch(rf"“{tokens[3]}”( \(4\))? attends to “{tokens[2]}”( \(3\))?: .*", text)
    assert text.endswith(": < 0.01" if matrix[3, 2] < 0.01 else f": {matrix[3, 2]:.2f}")
    page.keyboard.press("Enter")
    assert page.locator(".token-rows .token.query").inner_text() == tokens[3]
    page.get_by_role("button", name=re.compile(f"^Unpin {tokens[3]}")).click()
    assert page.locator(".token-rows .token.query").count() == 0


def test_words_gold_arcs_and_agreement(bert):
    page = bert.page
    side = synthetic.run()["attention"]["sentences"][0]["source"]
    assert page.locator(".arcs .word").all_text_contents() == side["words"]
    assert page.locator(".arcs .gold").count() == len(side["arcs"])
    agreeing = page.locator(".arcs .own.agrees").count()
    assert f"{agreeing} of " in page.locator(".takeaway").first.inner_text()
    dashes = page.locator(".arcs .own:not(.agrees) path").first.evaluate("e => getComputedStyle(e).strokeDasharray")
    solid = page.locator(".arcs .own.agrees path").first.evaluate("e => getComputedStyle(e).strokeDasharray")
    assert dashes != "none"
    assert solid == "none"
    every = page.locator(".arcs .own").count()
    page.get_by_label("Hide weights under").fill("0.95")
    assert page.locator(".arcs .own").count() < every
    page.get_by_role("button", name="Word pieces").click()
    assert page.locator(".arcs .word").count() == len(side["tokens"]) - 2
    page.get_by_label("Hide special tokens").uncheck()
    assert page.locator(".arcs .word").count() == len(side["tokens"])


def test_a_token_is_pinned_and_shows_its_row(bert):
    page = bert.page
    page.locator(".token-rows button").nth(4).click()
    assert page.locator(".token-rows button").nth(4).get_attribute("aria-pressed") == "true"
    tinted = page.locator(".token-rows button").evaluate_all("all => all.filter(e => e.style.background).length")
    assert tinted > 0
    assert page.locator(".arcs .own.faded").count() > 0


def test_what_comes_later_is_masked(open_run_page):
    page = open_run_page(synthetic.report(synthetic.run(synthetic.GQA)), "attention/L2H1").page
    page.wait_for_selector(".matrix canvas")
    page.locator(".matrix canvas").first.focus()
    page.keyboard.press("ArrowRight")
    assert "masked" in said(page)
    assert page.locator(".masked-sample").is_visible()


def test_cross_attention_has_two_rows_of_tokens(open_run_page):
    page = open_run_page(synthetic.report(synthetic.run(synthetic.TRANSLATION)), "attention/cross.L2H1").page
    page.wait_for_selector(".arcs .cross")
    assert "Bibliothek" in page.locator(".arcs").text_content()
    assert "committee" in page.locator(".arcs").text_content()
    assert page.locator(".token-rows .tokens").count() == 2
    page.get_by_label("Head", exact=True).select_option(label="decoder.L1H1")
    page.wait_for_selector(".matrix canvas")
    assert page.locator(".masked-sample").is_visible()


def test_right_to_left_text_keeps_its_direction_and_language(open_run_page):
    page = open_run_page(synthetic.report(synthetic.run(synthetic.RTL)), "attention/L2H1").page
    page.wait_for_selector(".matrix canvas")
    first = page.locator(".token-rows bdi").first
    assert first.get_attribute("dir") == "auto"
    assert first.get_attribute("lang") == "ar"
    positions = page.locator(".arcs .word").evaluate_all("all => all.map(e => e.getBoundingClientRect().x)")
    assert positions[0] > positions[-1]
    assert page.locator(".token-rows .tokens").first.evaluate("e => getComputedStyle(e).direction") == "rtl"


def test_512_tokens_are_usable(open_run_page):
    run_page = open_run_page(synthetic.report(synthetic.run(synthetic.LONG)))
    page = run_page.page
    page.locator('.map [data-head="L3H4"]').wait_for()
    start = time.perf_counter()
    page.evaluate("location.hash = '#/attention/L3H4'")
    page.wait_for_selector(".matrix canvas")
    page.locator(".matrix [aria-live]").wait_for()
    assert time.perf_counter() - start < 5
    assert page.locator(".minimap canvas").is_visible()
    assert page.locator("svg *").count() < 3000, "never an element per cell"
    page.get_by_role("button", name="Zoom in").click()
    page.get_by_role("button", name="Zoom in").click()
    assert "rows 1–128, columns 1–128" in page.locator(".matrix").inner_text()
    page.locator(".minimap canvas").click(position={"x": 90, "y": 90})
    assert "rows 1–128" not in page.locator(".matrix").inner_text()
    page.get_by_role("button", name="Whole matrix").click()
    page.locator(".matrix canvas").first.focus()
    page.keyboard.press("End")
    page.keyboard.press("PageDown")
    assert "[SEP]" in said(page)


def test_what_was_left_out_says_so(open_run_page):
    run = synthetic.run(synthetic.SMALL)
    run["attention"]["maps"][0][1] = None
    run["attention"]["maps"][0][2] = pack(np.zeros((1, 16, 16), np.uint8))
    run["attention"]["included"][2] = [3]
    run_page = open_run_page(synthetic.report(run), "attention/L1H0")
    run_page.page.wait_for_selector(".missing")
    assert "left out of the file" in run_page.page.locator(".missing").inner_text()
    run_page.go("attention/L2H0").wait_for_selector(".missing")
    run_page.go("attention/L2H3").wait_for_selector(".matrix canvas")


def test_switches_stay_when_the_head_changes(bert):
    page = bert.page
    page.get_by_label("Sentence", exact=True).select_option("2")
    page.get_by_role("button", name="Word pieces").click()
    page.get_by_label("Hide special tokens").uncheck()
    page.get_by_label("Hide weights under").fill("0.3")
    page.locator(".token-rows button").nth(4).click()
    page.get_by_role("button", name="Next head").click()
    page.wait_for_url(lambda url: "attention/L3H5" in url, timeout=3000)
    page.wait_for_selector(".matrix canvas")
    assert page.get_by_role("button", name="Word pieces").get_attribute("aria-pressed") == "true"
    assert not page.get_by_label("Hide special tokens").is_checked()
    assert page.get_by_label("Hide weights under 0.3").input_value() == "0.3"
    assert page.get_by_label("Sentence", exact=True).input_value() == "2"
    assert page.locator(".token-rows button").nth(4).get_attribute("aria-pressed") == "true"
    assert page.evaluate("document.activeElement.textContent") == "Next head"


def test_hidden_tokens_are_told_by_their_share(bert):
    page = bert.page
    captions = page.locator("figcaption").all_inner_texts()
    assert all(re.search(r"Among the tokens shown; \d+ % of the attention goes to hidden ones", text) for text in captions), captions
    assert re.search(r"\d+ % of the attention of “.*” \(1\) goes to hidden tokens", said(page))
    page.get_by_label("Hide special tokens").uncheck()
    assert "hidden" not in page.locator(".viewer").inner_text()


def peaked(n, to):
    weights = np.zeros((4, n, n), np.uint8)
    weights[:, np.arange(n), to] = 255
    return pack(weights)


def test_arcs_that_leave_the_window_are_stubs_with_their_target(open_run_page):
    run = synthetic.run(synthetic.Shape(kinds=(synthetic.Kind(layers=2, heads=4),), sentences=1, tokens=200, methods=2, points=2))
    to = np.arange(200) - 1
    to[:5] = 150
    run["attention"]["maps"][0][0] = peaked(200, to)
    page = open_run_page(synthetic.report(run), "attention/L0H1").page
    page.wait_for_selector(".matrix canvas")
    page.get_by_role("button", name="Word pieces").click()
    assert page.locator(".arcs .stub").count() == 5
    assert page.locator(".arcs .stub text").all_text_contents() == ["151"] * 5
    message = page.locator(".takeaway").first.inner_text()
    assert "Drawn are 40 arcs from tokens 1 to 40 of 200" in message
    assert "Of them 5 lead outside of this window" in message
    assert page.locator(".arcs .own").count() == 40
    tokens = run["attention"]["sentences"][0]["source"]["tokens"]
    assert f"goes most often to “{tokens[150]}” (151): in 6 of 200 rows" in page.locator(".takeaway").last.inner_text()


def test_unknown_tokens_and_hidden_separators_are_marked(open_run_page):
    run = synthetic.run(synthetic.SMALL)
    for sentence in run["attention"]["sentences"]:
        side = sentence["source"]
        side["unknown"] = [at == 3 for at in range(16)]
        side["special"][8], side["word"], side["words"], side["arcs"] = True, None, None, None
    page = open_run_page(synthetic.report(run), "attention/L1H1").page
    page.wait_for_selector(".matrix canvas")
    assert page.locator(".token-rows .token", has_text="[unknown]").count() == 1
    assert page.locator(".arcs .word", has_text="[unknown]").count() == 1
    assert "1 token is [unknown] to the tokenizer" in page.locator(".viewer").inner_text()
    assert page.locator(".token-rows .boundary").count() == 1
    assert page.locator(".arcs .boundary-line").count() == 1
    page.get_by_label("Hide special tokens").uncheck()
    assert page.locator(".boundary, .boundary-line").count() == 0


def test_the_table_of_cross_attention_has_nothing_to_agree_with(open_run_page):
    page = open_run_page(synthetic.report(synthetic.run(synthetic.TRANSLATION)), "attention/cross.L2H1").page
    page.wait_for_selector(".arcs .cross")
    page.get_by_role("button", name="Show as table").first.click()
    assert page.locator("thead").first.inner_text().split() == ["from", "to", "weight"]
    weights = page.locator("tbody tr td:last-child").all_inner_texts()
    assert all(len(weight.split(".")[-1]) <= 3 for weight in weights)
