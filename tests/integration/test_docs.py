"""The examples of the documentation run, page by page, in order."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"
BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
PAGES = sorted(page.name for page in DOCS.glob("*.md") if BLOCK.search(page.read_text(encoding="utf-8")))


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("page", PAGES)
def test_examples_run(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from headcount.importance import METHODS
    from headcount.roles import ROLES
    from headcount.surgery import unregister

    monkeypatch.chdir(tmp_path)
    for registry in (METHODS, ROLES):
        monkeypatch.setattr(registry, "_added", {})  # what an example registers is its own
    names: dict[str, object] = {"__name__": "__main__"}
    try:
        for block in BLOCK.findall((DOCS / page).read_text(encoding="utf-8")):
            exec(compile(block, page, "exec"), names)
    finally:
        unregister()


def test_links_lead_somewhere() -> None:
    root = DOCS.parent
    for page in [root / "README.md", root / "CONTRIBUTING.md", *DOCS.glob("*.md")]:
        for target in re.findall(r"\]\(([^)#:]+?)(?:#[^)]*)?\)", page.read_text(encoding="utf-8")):
            assert (page.parent / target).exists(), f"{page.name}: {target}"
