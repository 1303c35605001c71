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
    found = page.evaluate("() => axe.run(document, {resultTypes: ['violations']}).then((r) => r.violations)")
    return [
        f"{one['id']} ({one['impact']}): {one['help']}: {one['nodes'][0]['html'][:160]} {one['nodes'][0]['failureSummary'][:300]}"
        for one in found
        if one["impact"] in ("serious", "critical")
    ]


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("name", REPORTS)
def test_no_serious_problem(opened, name, scheme):
    need(AXE.exists(), "axe-core is not installed: npm ci in web/")
    one = opened(REPORTS[name](), scheme=scheme, width=1280 if scheme == "light" else 480)
    wanted = VIEWS if name in ("two runs", "heads alone") else ("overview", "pruning", "attention")
    if name == "two runs":
        wanted = (*wanted, "studies/layers", "papers/michel2019/M2", "papers/michel2019/M8")
    for view in wanted:
        page = one.go("head/L3H4" if view == "head" and name == "two runs" else view)
        page.wait_for_timeout(200)
        assert not problems(page), (view, *problems(page))


def test_open_tables_and_pinned_rows_too(opened):
    need(AXE.exists(), "axe-core is not installed: npm ci in web/")
    one = opened(synthetic.report(synthetic.run()))
    for view in ("overview", "pruning", "cost", "attention/L3H4"):
        page = one.go(view)
        page.wait_for_timeout(200)
        closed = page.get_by_role("button", name="Show as table")
        for _ in range(closed.count()):
            closed.first.click()
        if view.startswith("attention"):
            page.locator(".token-rows button").nth(3).click()
        assert not problems(page), (view, *problems(page))
