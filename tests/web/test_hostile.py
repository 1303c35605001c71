"""Text from models and data is never markup, code, style or an address: sixty hostile strings in every field do nothing."""

from __future__ import annotations

import pytest
import synthetic
from browsing import VIEWS
from hostile_fields import STRINGS, hostile

SHAPE = synthetic.Shape(kinds=(synthetic.Kind(layers=2, heads=3),), sentences=1, tokens=10, methods=2, points=2, seeds=1)
OWN_SCRIPTS = 2  # the data and the page's own
ELEMENTS = "script, iframe, object, embed, link, base, meta[http-equiv=refresh], video, audio, form[action], img, animate"


def payload(words):
    made = synthetic.report(synthetic.run(SHAPE), synthetic.run(SHAPE, seed=1))
    return hostile(made, words)


def test_there_are_sixty():
    assert len(set(STRINGS)) == 60


@pytest.mark.parametrize("part", range(5))
def test_a_hostile_string_does_nothing(open_run_page, part):
    of_part = STRINGS[part::5]
    for words in (
        of_part[start : start + 3] for start in range(0, len(of_part), 3)
    ):  # three strings in a report, one of them in each field
        run_page = open_run_page(payload(words))
        page = run_page.page
        for view in (*VIEWS, *(f"#{number} of {name}" for name in ("studies", "papers") for number in (0, 1))):
            if view in VIEWS:
                page.evaluate("view => { location.hash = `#/${view}` }", view)
            else:  # the pages of studies and of a paper, by their links
                number, name = int(view[1]), view.partition(" of ")[2]
                page.evaluate("name => { location.hash = `#/${name}` }", name)
                page.wait_for_timeout(30)
                page.locator(".verdicts a").nth(number).evaluate("e => e.click()")  # its text may be invisible
            page.wait_for_timeout(30)
            evaluation = page.evaluate(
                """([elements]) => ({
                  hacked: window.hacked ?? null,
                  elements: [...document.querySelectorAll(elements)].map((e) => e.outerHTML.slice(0, 60)),
                  handlers: [...document.querySelectorAll('*')].filter((e) => [...e.attributes].some((a) => a.name.startsWith('on'))).length,
                  links: [...document.querySelectorAll('[href], [src]')].map((e) => e.getAttribute('href') ?? e.getAttribute('src')),
                  main: document.querySelector('main')?.children.length ?? 0,
                  wide: document.documentElement.scrollWidth - innerWidth,
                  hidden: getComputedStyle(document.body).display,
                })""",
                [ELEMENTS],
            )
            assert evaluation["hacked"] is None, (words, view)
            assert len(evaluation["elements"]) == OWN_SCRIPTS, (words, view, evaluation["elements"])
            assert evaluation["handlers"] == 0, (words, view)
            assert all(link.startswith("#") for link in evaluation["links"]), (words, view, evaluation["links"])
            assert evaluation["main"] > 0, (words, view)
            assert evaluation["wide"] <= 0, (words, view)
            assert evaluation["hidden"] == "block", (words, view)
        page.close()
