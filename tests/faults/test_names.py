"""Names found in data (models, tasks, metrics, methods, artifacts, tensors) never lead outside a run folder, whatever they are."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from bad_kit import Stock, line

import headcount as hc
from headcount.core.errors import HeadcountError
from headcount.core.files import add_seal, json_bytes
from headcount.models.provenance import model_record
from headcount.runs.artifacts import Artifact, ArtifactKey, safe_name
from headcount.runs.describe import describe_run
from headcount.runs.scores import all_scores, pack_scores
from headcount.runs.store import Run

NAMES = [
    "../../x",
    "../../../../../../../../tmp/x",
    "/etc/passwd",
    "//server/share",
    "..",
    ".",
    "",
    " ",
    "~root/x",
    "a/../../b",
    "..\\..\\x",
    "C:\\windows\\x",
    "CON",
    "x\0y",
    "\0",
    "x\ny",
    "x\x1b[2Jy",
    "a" * 300,
    "é" * 300,
    "\u202etxt.exe",
    "％2e％2e／x",
    "%2e%2e%2fx",
    "-rf",
    ".hidden",
    ".x.partial",
    "run.json",
    "lock",
    "\udcff",
    "🦆" * 80,
    "*?[x]",
    "$(touch x)",
    "x;y&z|w",
]


@pytest.fixture(scope="module")
def stock(tmp_path_factory: pytest.TempPathFactory) -> Stock:
    return Stock(tmp_path_factory.mktemp("names"))


def outside(folder: Path) -> set[str]:
    """Everything beside a run folder in its parent."""
    return {str(path) for path in folder.parent.rglob("*") if not path.is_relative_to(folder)}


@pytest.mark.parametrize("name", NAMES, ids=ascii)
def test_any_text_becomes_a_short_plain_file_name(name: str) -> None:
    made = safe_name(name)
    assert 0 < len(made.encode()) <= 60
    assert Path(made).name == made
    assert made not in (".", "..") and not made.startswith((".", "/")) and "\0" not in made
    path = ArtifactKey(name, name, {"name": name}).path_in_run
    assert path.parts[0] == "artifacts" and len(path.parts) == 3 and ".." not in path.parts
    assert len(path.name.encode()) < 255


@pytest.mark.parametrize("name", NAMES, ids=ascii)
def test_a_run_about_anything_stays_in_its_folder(stock: Stock, tmp_path: Path, name: str) -> None:
    """Model, task, metric, method, configuration and data all carry the name."""
    folder = tmp_path / "deep" / "run"
    folder.parent.mkdir()
    before = outside(folder)
    facts: dict[str, Any] = {"command": name, "seed": 0, "task": name, "config": {name: name}}
    heads = hc.HeadMap.of(stock.bert)
    scores = hc.Scores(heads.heads, tuple(float(i) for i in range(len(heads))), method=name, columns={name: (0.0,) * len(heads)}, data=name)
    content, _ = pack_scores(scores)
    with Run.lead(folder, command=name) as run:
        run.stage_records(describe_run(model_record(stock.bert, name), **facts), heads)
        run.log(name)
        artifact = run.commit(ArtifactKey("scores", name, {"metric": name}), content, provenance={name: name})
        if "\udcff" not in name:  # no table holds such text, and no method has it as its name
            run.register_results(artifact, data_fingerprints={name: name})
            assert set(all_scores(Run.open(folder))) == {name}
    assert outside(folder) == before
    for path in folder.rglob("*"):
        assert path.resolve().is_relative_to(folder.resolve())
        assert len(path.name.encode()) <= 255
    names = {path.name for path in folder.iterdir()}
    assert names <= {
        "run.json",
        "heads.json",
        "artifacts",
        "log.txt",
        "lock",
        "owner.json",
        "tables.json",
        "scores.csv",
        "scores.parquet",
    }, names


@pytest.mark.parametrize("name", NAMES, ids=ascii)
def test_a_artifact_that_names_another_place_is_read_as_what_it_is(stock: Stock, tmp_path: Path, name: str) -> None:
    """Copied under the name of a good artifact, a sealed artifact with a hostile name is found out."""
    folder = tmp_path / "run"
    with Run.lead(folder) as run:
        heads = hc.HeadMap.of(stock.bert)
        run.stage_records(describe_run(model_record(stock.bert, "bert"), command="headcount score bert", seed=0), heads)
        good = ArtifactKey("scores", "good", {})
        run.commit(good, {}, provenance={})
        forged = Artifact(ArtifactKey("scores", name, {}), {}, {}, {}).pack()
        (folder / good.path_in_run).write_bytes(forged)
    with pytest.raises(HeadcountError, match="under another artifact's name"):
        Run.open(folder).artifacts("scores")


@pytest.mark.parametrize("name", ["../../x", "/tmp/headcount-x", "..", "a/../b", "x\0y", "a" * 300])
def test_a_manifest_leads_nowhere(stock: Stock, tmp_path: Path, name: str) -> None:
    import shutil

    folder = Path(shutil.copytree(stock.cut(), tmp_path / "model"))
    listing = json.loads((folder / "heads.json").read_text())
    listing["files"][name] = next(iter(listing["files"].values()))
    (folder / "heads.json").write_bytes(json_bytes(add_seal(listing)))
    with pytest.raises(HeadcountError, match=r"outside the folder|is missing"):
        hc.load(folder)


def test_a_hub_cache_may_link_to_its_blobs(stock: Stock, tmp_path: Path) -> None:
    """What hub snapshots look like: links to ../../blobs are followed, others are not."""
    import shutil

    blobs, snapshot = tmp_path / "hub" / "blobs", tmp_path / "hub" / "snapshots" / "abc"
    shutil.copytree(stock.plain(), snapshot)
    blobs.mkdir()
    (blobs / "1234").write_text("[PAD]\n")
    (snapshot / "vocab.txt").symlink_to(os.path.relpath(blobs / "1234", snapshot))
    line("cut", snapshot, "--heads", "L0H1", "--out", tmp_path / "out")()
    assert (tmp_path / "out" / "vocab.txt").read_text() == "[PAD]\n"
    assert not (tmp_path / "out" / "vocab.txt").is_symlink()
