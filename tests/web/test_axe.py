"""axe-core finds nothing serious or critical in any view, light and dark, with much data, with little, and on a narrow screen."""

from __future__ import annotations

import pytest
import synthetic
from browsing import AXE, VIEWS, need

REPORTS = {
    "two runs": lambda: synthetic.report(synthetic.run(), synthetic.run(seed=1) | {"name": "second"}),
    "key-value groups": lambda: synthetic.report(synthetic.run(synthetic.GQA)),
    "three kinds": lambda: synthetic.report(synthetic.run(synthetic.TRANSLATION)),
    "heads alone": lambda: synthetic.report(synthetic.bare()),
}


def problems(page):
    page.evaluate(AXE.read_text(encoding="utf-8"))
    evaluation = page.evaluate("() => axe.run(document, {resultTypes: ['violations']}).then((r) => r.violations)")
    return [
        f"{one['id']} ({one['impact']}): {one['help']}: {one['nodes'][0]['html'][:160]} {one['nodes'][0]['failureSummary'][:300]}"
        for one in evaluation
        if one["impact"] in ("serious", "critical")
    ]


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("name", REPORTS)
def test_no_serious_problem(open_run_page, name, scheme):
    need(AXE.exists(), "axe-core is not installed: npm ci in web/")
    run_page = open_run_page(REPORTS[name](), scheme=scheme, width=1280 if scheme == "light" else 480)
    expected = VIEWS if name in ("two runs", "heads alone") else ("overview", "pruning", "attention")
    if name == "two runs":
        expected = (*expected, "studies/layers", "papers/michel2019/M2", "papers/michel2019/M8")
    for view in expected:
        page = run_page.go("head/L3H4" if view == "head" and name == "two runs" else view)
        page.wait_for_timeout(200)
        assert not problems(page), (view, *problems(page))


def test_open_tables_and_pinned_rows_too(open_run_page):
    need(AXE.exists(), "axe-core is not installed: npm ci in web/")
    run_page = open_run_page(synthetic.report(synthetic.run()))
    for view in ("overview", "pruning", "cost", "attention/L3H4"):
        page = run_page.go(view)
        page.wait_for_timeout(200)
        closed = page.get_by_role("button", name="Show as table")
        for _ in range(closed.count()):
            closed.first.click()
        if view.startswith("attention"):
            page.locator(".token-rows button").nth(3).click()
        assert not problems(page), (view, *problems(page))
