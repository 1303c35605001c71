"""The examples of the documentation run, page by page, in order."""

from __future__ import annotations

import importlib.util
import re
from inspect import isclass
from pathlib import Path
from types import ModuleType

import pytest

from headcount.core.options import describe_options

DOCS = Path(__file__).parents[2] / "docs"
BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
PAGES = sorted(page.name for page in DOCS.glob("*.md") if BLOCK.search(page.read_text(encoding="utf-8")))


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.usefixtures("small_bench")
@pytest.mark.parametrize("page", PAGES)
def test_examples_run(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On splits of the embedded tasks that are a quarter as large, and latencies of small batches; the README below runs as it is."""
    from headcount.core.registry import KINDS
    from headcount.data.tasks import demo
    from headcount.surgery.load import unregister

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(demo, "SIZES", {split: size // 4 for split, size in demo.SIZES.items()})
    for registry in KINDS.values():
        monkeypatch.setattr(registry, "_registered", {})  # what an example registers is its own
    names: dict[str, object] = {"__name__": "__main__"}
    try:
        for block in BLOCK.findall((DOCS / page).read_text(encoding="utf-8")):
            exec(compile(block, page, "exec", dont_inherit=True), names)
    finally:
        unregister()


def test_the_readme_prints_what_it_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Numbers within two points: they differ in the last answers between kinds of CPU."""
    from headcount.surgery.load import unregister

    monkeypatch.chdir(tmp_path)
    (block,) = BLOCK.findall((DOCS.parent / "README.md").read_text(encoding="utf-8"))
    matches = re.findall(r"^print\(.*\)  # (.*)$", block, re.MULTILINE)
    try:
        exec(compile(block, "README.md", "exec", dont_inherit=True), {"__name__": "__main__"})
    finally:
        unregister()
    lines = [line for line in capsys.readouterr().out.splitlines() if line]
    heads, ranking, accuracies = matches
    assert heads in lines[0]
    assert lines[1] == ranking.partition(": ")[2]
    assert [float(value) for value in lines[2].split()] == pytest.approx([float(value) for value in accuracies.split()], abs=0.02)


def test_links_lead_somewhere() -> None:
    root = DOCS.parent
    for page in [root / "README.md", root / "CONTRIBUTING.md", *DOCS.glob("*.md")]:
        for target in re.findall(r"\]\(([^)#:]+?)(?:#[^)]*)?\)", page.read_text(encoding="utf-8")):
            assert (page.parent / target).exists(), f"{page.name}: {target}"
            assert page.parent == root or (page.parent / target).resolve().is_relative_to(DOCS), f"{page.name}: {target} is not in the site"


def test_the_design_names_what_is_there() -> None:
    """Rooms in their order, public names and commands."""
    import headcount as hc

    text = (DOCS / "design.md").read_text(encoding="utf-8")
    package = DOCS.parent / "src" / "headcount"
    contract = (DOCS.parent / "pyproject.toml").read_text(encoding="utf-8").partition("layers = [")[2].partition("]")[0]
    rooms = re.findall(r"headcount\.(\w+)", contract)[::-1]
    assert set(rooms) == {path.name for path in package.iterdir() if (path / "__init__.py").exists()}
    assert re.findall(r"^\| `(\w+)` \|", text.partition("## Rooms")[2].partition("## The shape")[0], re.MULTILINE) == rooms
    section = text.partition("## Public names")[2].partition("## Words")[0]
    table, _, commands = section.partition("The commands are")
    rows = "".join(row.split("|")[1] for row in table.splitlines() if row.startswith("| `"))
    assert sorted(re.findall(r"`(\w+)`", rows)) == sorted(set(hc.__all__) - {"__version__"})
    files = {path.stem.replace("_", "-") for path in (package / "app" / "cli").glob("[a-z]*.py")}
    assert set(re.findall(r"`([a-z-]+)`", commands)) == files


def site() -> ModuleType:
    spec = importlib.util.spec_from_file_location("site_pages", DOCS.parent / "tools" / "site.py")
    assert spec is not None and spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    return made


@pytest.mark.parametrize("kind", ["importance", "pruners", "roles"])
def test_every_method_has_a_page(kind: str) -> None:
    pages = site()
    for name, method in pages.methods(kind):
        text = pages.page(kind, name, method, DOCS / "figures")
        assert text.startswith(f"# {name}\n") and method.__doc__.partition("\n")[0] in text
        assert f"| Source | {method.info.source or 'headcount'} |" in text
        file = re.search(r"^File: `(.*)`\.$", text, re.MULTILINE)
        assert file is not None and (DOCS.parent / file[1]).is_file()
        for option in describe_options(method) if isclass(method) else ():
            assert f"| `{option['option']}` | {option['type']} | `{option['default']}` | {option['what']} |" in text
        assert name == "plan" or f"figures/{kind}-{name}.svg" in text, "make figures draws it; a plan names heads of one model"
        assert f"--by {name} " in text or f"--method {name} " in text or f"--only {name} " in text
