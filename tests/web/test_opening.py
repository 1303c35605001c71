"""The file as a whole: no network, a strict policy, its size and speed, every width, dark and print, and the keyboard alone."""

from __future__ import annotations

import os
import re
import time
from pathlib import Path

import pytest
import synthetic
from browsing import VIEWS

from headcount.runs.report.page import render_page as page_of

BUNDLE = Path(__file__).parents[2] / "src" / "headcount" / "runs" / "report" / "bundle"
SHELL_LIMIT = 235_000
FILE_LIMIT = 2_150_000
"""Bytes of a report with all maps, studies and a paper; `headcount report` itself leaves maps out above `--max-mb`."""
TARGET = 24
"""Pixels that a finger needs."""


def test_the_shell_is_small_keeps_its_licences_and_names_no_host():
    script, style = (BUNDLE / name for name in ("app.js", "app.css"))
    assert len(script.read_bytes()) + len(style.read_bytes()) <= SHELL_LIMIT
    text = script.read_text(encoding="utf-8")
    for library in ("preact", "@preact/signals", "d3-array"):
        assert re.search(rf"{re.escape(library)} \d+\.\d+\.\d+", text), library
    assert "Permission is hereby granted" in text
    assert "Permission to use, copy, modify" in text
    hosts = set(re.findall(r"https?://([\w.-]+)", text + style.read_text(encoding="utf-8")))
    assert hosts <= {"www.w3.org"}, hosts


def test_sources_and_lock_name_no_registry():
    root = Path(__file__).parents[2] / "web"
    lock = (root / "package-lock.json").read_text(encoding="utf-8")
    assert '"resolved"' not in lock
    assert "registry" not in lock


def test_the_policy_allows_nothing_but_the_page_itself():
    text = page_of(synthetic.report(synthetic.bare()))
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', text)[1].replace("&#x27;", "'")
    assert "default-src 'none'" in policy
    assert re.search(r"script-src 'sha256-[\w+/=]+'", policy)
    assert "unsafe" not in policy
    assert not re.search(r"(?:src|connect-src)[^;]*(?:https?:|\*)", policy)


def test_a_bert_report_is_small_and_opens_within_a_second(open_run_page):
    run_page = open_run_page(synthetic.report(synthetic.run()))
    assert run_page.path.stat().st_size <= FILE_LIMIT
    times = []
    for _ in range(3):
        run_page.page.goto("about:blank")
        start = time.perf_counter()
        run_page.page.goto(run_page.path.as_uri(), wait_until="commit")
        run_page.page.locator('.map [data-head="L11H11"]').wait_for()
        times.append(time.perf_counter() - start)
    print(f"head map after {min(times):.2f} s, {run_page.path.stat().st_size:,} bytes")
    assert min(times) < 1, times


def test_offline_every_view_asks_for_nothing(open_run_page):
    run_page = open_run_page(synthetic.report(synthetic.run()), offline=True)
    for view in VIEWS:
        run_page.go(view).wait_for_timeout(150)
    assert set(run_page.requests) == {run_page.path.as_uri()}


@pytest.mark.parametrize("width", [320, 768, 1440])
def test_every_view_fits_its_screen(open_run_page, width, tmp_path):
    folder = Path(os.environ.get("HEADCOUNT_SHOTS", tmp_path))
    folder.mkdir(parents=True, exist_ok=True)
    for name, payload in (
        ("bert", synthetic.report(synthetic.run(), synthetic.run(seed=1))),
        ("gqa", synthetic.report(synthetic.run(synthetic.GQA))),
    ):
        run_page = open_run_page(payload, width=width)
        for view in VIEWS:
            page = run_page.go(view)
            page.wait_for_timeout(150)
            page.screenshot(path=folder / f"{name}-{view}-{width}.png", full_page=True)
            assert page.evaluate("document.documentElement.scrollWidth") <= width, (name, view)


def test_what_is_pressed_is_large_enough(open_run_page):
    run_page = open_run_page(synthetic.report(synthetic.run()), width=320)
    for view in VIEWS:
        page = run_page.go(view)
        page.wait_for_timeout(150)
        small = page.evaluate(
            """(size) => [...document.querySelectorAll('button, select, input, summary, .cell, nav a, .head-link')]
              .filter((e) => e.offsetParent && e.getBoundingClientRect().width > 0)
              .filter((e) => { const b = (e.closest('label') ?? e).getBoundingClientRect(); return b.width < size || b.height < size })
              .map((e) => e.outerHTML.slice(0, 90))""",
            TARGET,
        )
        assert not small, (view, small[:5])


def test_wide_parts_scroll_by_themselves_and_by_keys(open_run_page):
    page = open_run_page(synthetic.report(synthetic.run()), "data", width=320).page
    region = page.get_by_role("region", name="Heads, table")
    assert region.evaluate("e => e.scrollWidth > e.clientWidth && e.tabIndex === 0")
    region.focus()
    page.keyboard.press("ArrowRight")
    page.wait_for_timeout(300)
    assert region.evaluate("e => e.scrollLeft") > 0


def test_colours_follow_the_system_and_the_switch(open_run_page):
    run_page = open_run_page(synthetic.report(synthetic.run(synthetic.SMALL)), scheme="dark")
    page = run_page.page
    ground = "getComputedStyle(document.documentElement).backgroundColor"

    def shows(theme):
        page.locator(f"html[data-theme={theme}]").wait_for(timeout=3000)

    shows("dark")
    dark = page.evaluate(ground)
    page.get_by_label("Colours", exact=True).select_option("light")
    shows("light")
    assert page.evaluate(ground) != dark
    page.reload()
    shows("light")
    page.get_by_label("Colours", exact=True).select_option("auto")
    page.emulate_media(color_scheme="light")
    shows("light")
    page.emulate_media(color_scheme="dark")
    shows("dark")


def test_print_high_contrast_and_still_pictures(open_run_page):
    run_page = open_run_page(synthetic.report(synthetic.run(synthetic.SMALL)))
    page = run_page.page
    page.emulate_media(media="print")
    assert not page.locator("nav").is_visible()
    assert not page.locator(".slider input").is_visible()
    assert not any(button.is_visible() for button in page.get_by_role("button", name="Copy", include_hidden=True).all())
    assert page.locator(".map .cell").first.is_visible()
    page.emulate_media(media="screen", forced_colors="active")
    colours = page.locator(".map .cell").evaluate_all("all => new Set(all.map((e) => getComputedStyle(e).backgroundColor)).size")
    assert colours > 3, "the map keeps its colours"
    page.emulate_media(forced_colors="none", reduced_motion="reduce")
    assert page.locator(".toast").evaluate_all("all => all.every((e) => getComputedStyle(e).animationName === 'none')")


def test_with_the_keyboard_alone(open_run_page):
    """From the first key to a plan in the clipboard, without a pointer."""
    run_page = open_run_page(synthetic.report(synthetic.run(synthetic.SMALL)))
    page = run_page.page
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Skip to the view"
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "view"
    reach(page, "e.getAttribute('role') === 'gridcell'")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Space")
    assert "1 head selected" in page.locator(".selection").inner_text()
    reach(page, "e.type === 'range'")
    before = page.locator(".slider h2").inner_text()
    page.keyboard.press("ArrowLeft")
    assert page.locator(".slider h2").inner_text() != before
    reach(page, "e.textContent.startsWith('Copy plan')")
    page.keyboard.press("Enter")
    page.locator("#said", has_text="plan").wait_for(state="attached")


def reach(page, text: str) -> None:
    """Presses Tab until the focus is where it should be."""
    for _ in range(80):
        page.keyboard.press("Tab")
        if page.evaluate(f"(() => {{ const e = document.activeElement; return {text} }})()"):
            outline = page.evaluate("(() => { const s = getComputedStyle(document.activeElement); return s.outlineStyle })()")
            assert outline != "none", f"focus cannot be seen at {text}"
            return
    raise AssertionError(f"no Tab leads to {text}")
