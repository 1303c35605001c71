"""The page in Debian's Chromium, from a file, with every request and error written down."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from browsing import need

from headcount.runs.report.page import render_page as page_of


@dataclass
class Opened:
    """A page that is open, and what it did."""

    page: Any
    path: Path
    requests: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)

    def go(self, view: str) -> Any:
        """Loads the file anew at a view."""
        self.page.goto("about:blank")
        self.page.goto(f"{self.path.as_uri()}#/{view}")
        self.page.wait_for_selector("main")
        return self.page


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        need(None, "playwright is not installed: pip install playwright")
        raise
    chromium = need(shutil.which("chromium"), "chromium is not installed: apt-get install chromium")
    with sync_playwright() as playwright:
        # Containers run as root, where Chromium's sandbox does not start.
        started = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        yield started
        started.close()


@pytest.fixture
def open_run_page(browser: Any, tmp_path: Path) -> Iterator[Callable[..., Opened]]:
    """Writes a report to a file and opens it; fails afterwards if the page went wrong or asked for anything but the file."""
    made: list[Opened] = []
    contexts = []

    def start(report: Any, view: str = "overview", *, width: int = 1280, scheme: str = "light", **options: Any) -> Opened:
        path = tmp_path / f"report-{len(made)}.html"
        path.write_text(page_of(report), encoding="utf-8")
        context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme, accept_downloads=True, **options)
        contexts.append(context)
        one = Opened(context.new_page(), path)
        one.page.on("request", lambda request: one.requests.append(request.url))
        one.page.on("pageerror", lambda error: one.errors.append(str(error)))
        one.page.on("console", lambda message: one.errors.append(message.text) if message.type in ("error", "warning") else None)
        one.go(view)
        made.append(one)
        return one

    yield start
    for context in contexts:
        context.close()
    for one in made:
        assert not one.errors, one.errors
        assert all(url.startswith((one.path.as_uri(), "about:", "blob:null")) for url in one.requests), one.requests
