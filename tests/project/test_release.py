"""What a release is made of: versions that agree, a source archive that tests, site and CI can run from, dependencies that are declared."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest
from packaging.version import Version

import headcount

ROOT = Path(__file__).parents[2]
SOURCES = ROOT / "src" / "headcount"
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
PROJECT = PYPROJECT["project"]
PLACES = [entry.removeprefix("/") for entry in PYPROJECT["tool"]["hatch"]["build"]["targets"]["sdist"]["include"]]
FOR_USERS = ("ray", "onnx", "spacy", "stanza", "vision", "figures", "serve")
LARGEST = 4 * 2**20


def tracked() -> list[str]:
    if not (ROOT / ".git").exists():
        pytest.skip("no repository, as in an unpacked source archive")
    return subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split("\0")[:-1]


def named(requirements: list[str]) -> set[str]:
    """The distributions that requirements ask for."""
    return {re.split(r"[^\w.-]", requirement)[0].lower().replace("_", "-") for requirement in requirements}


def imported(*folders: str) -> set[str]:
    """The distributions that the files of folders import, wherever in them."""
    files = [path for folder in folders for path in (ROOT / folder).rglob("*.py")]
    modules: set[str] = set()
    for path in files:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                modules |= {name.name.partition(".")[0] for name in node.names}
            elif isinstance(node, ast.ImportFrom) and node.level == 0:
                modules.add(str(node.module).partition(".")[0])
    known, ours = packages_distributions(), {"headcount"} | {path.stem for path in files if (ROOT / "src") not in path.parents}
    return {known.get(module, [module])[0].lower().replace("_", "-") for module in modules - sys.stdlib_module_names - ours}


def test_versions_agree() -> None:
    """The citation names the last release; a version under development has a section of its own, named after the release to come."""
    citation = dict(re.findall(r"^(version|date-released): (\S+)$", (ROOT / "CITATION.cff").read_text(encoding="utf-8"), re.MULTILINE))
    sections = re.findall(r"^## (.+)$", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert f"{citation['version']} – {citation['date-released']}" in sections
    current, released = Version(headcount.__version__), Version(citation["version"])
    if current.is_devrelease:
        assert sections[0] == f"{current.base_version}, unreleased"
        assert current > released
    else:
        assert current == released


def test_every_file_of_the_repository_is_in_the_source_archive() -> None:
    assert [position for position in PLACES if not (ROOT / position).exists()] == []
    always = {"pyproject.toml"}
    assert [name for name in tracked() if name not in always and not any(name == p or name.startswith(f"{p}/") for p in PLACES)] == []


def test_files_that_the_package_reads_are_in_it_and_small() -> None:
    models = [f"data/embedded/models/{name}/model.safetensors" for name in ("encoder", "entailment", "translator", "decoder", "rare-words")]
    for name in ("py.typed", "runs/report/bundle/app.js", "runs/report/bundle/app.css", *models):
        assert (SOURCES / name).is_file(), name
    assert [path for path in SOURCES.rglob("*") if path.is_file() and path.stat().st_size > LARGEST] == []
    for name in (PROJECT["readme"], *PROJECT["license-files"]):
        assert (ROOT / name).is_file(), name


def test_what_is_imported_is_declared() -> None:
    needed, extras = named(PROJECT["dependencies"]), PROJECT["optional-dependencies"]
    declared = needed | named([one for extra in FOR_USERS for one in extras[extra]])
    actual = imported("src")
    assert actual - declared == {"ipython"}, "imported where a notebook has imported it already, and nowhere else"
    assert needed - actual == set(), "declared, but not imported"
    assert imported("tests", "tools") - declared - named(extras["test"] + extras["docs"] + extras["check"]) == set()


def test_pinned_versions_name_everything_that_is_declared() -> None:
    """CI installs what `make` asks for: each of it has a version in constraints.txt."""
    expected = set(PROJECT["dependencies"])
    for extra in ("test", "check", "docs", "onnx", "ray"):
        expected |= set(PROJECT["optional-dependencies"][extra])
    pinned = named([line for line in (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines() if line and line[0] != "#"])
    assert named(list(expected)) - pinned == set()


def test_tools_and_benchmarks_come_in_by_the_doors_of_packages() -> None:
    private = re.compile(
        r"^\s*(?:from|import) headcount\S*\._(?!measure\b|paper\b)\w+", re.MULTILINE
    )  # what a study measures, and the items of a paper, are used apart from them
    paths = [path for folder in ("tools", "benchmarks") for path in (ROOT / folder).rglob("*.py")]
    assert paths and [path.name for path in paths if private.search(path.read_text(encoding="utf-8"))] == []
