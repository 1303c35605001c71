"""Run folders: what was written comes back, and what is damaged, newer, foreign or of another model is refused."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest
from toys import shared, task

import headcount as hc
from headcount.errors import ArtefactError
from headcount.importance import score_all, stabilities, verdicts
from headcount.runs import Run, describe_run
from headcount.runs.schema import RunRecord
from headcount.runs.weights import model_record, weight_hash

NAMES = ("gradient", "gradient:signed", "gradient:running", "ablation:mean", "fluctuation", "lrp:epsilon", "magnitude", "all-but-one")
FILES = ("gradient", "gradient.signed", "gradient.running", "ablation.mean", "fluctuation", "lrp.epsilon", "magnitude", "all-but-one")


def record_of(kind: str, **facts: Any) -> RunRecord:
    return describe_run(model_record(shared(kind), kind), command="headcount score", seed=0, **facts)


@pytest.fixture(scope="module")
def found() -> dict[str, hc.Scores]:
    slow = [name for name in NAMES if "lrp" in name]
    fast = score_all(shared("encoder"), task("encoder", 300), [name for name in NAMES if name not in slow], seed=5)
    return fast | score_all(shared("encoder"), task("encoder", 4), slow)


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory, found: dict[str, hc.Scores]) -> Path:
    record = record_of("encoder", task="toy", config={"by": list(NAMES)})
    made = Run.begin(tmp_path_factory.mktemp("runs") / "run", record, hc.HeadMap.of(shared("encoder")))
    for scores in found.values():
        made.write_scores(scores)
    return made.folder


@pytest.fixture
def run(tmp_path: Path, written: Path) -> Run:
    """A copy that a test may change."""
    return Run(Path(shutil.copytree(written, tmp_path / "run")))


def test_scores_come_back_as_they_were(run: Run, found: dict[str, hc.Scores]) -> None:
    assert set(run.methods()) == set(NAMES)
    for name, scores in found.items():
        back = Run.open(run.folder).scores(name)
        for field in fields(hc.Scores):
            if field.name != "samples":
                assert getattr(back, field.name) == getattr(scores, field.name), (name, field.name)
        assert (back.samples is None) == (scores.samples is None), name
        if scores.samples is not None and back.samples is not None:
            assert np.array_equal(back.samples.sums, scores.samples.sums)
            assert np.array_equal(back.samples.weights, scores.samples.weights)
            assert back.samples.n == scores.samples.n
        assert verdicts(back, repeats=50) == verdicts(scores, repeats=50)
    assert stabilities(run.scores("gradient")) == stabilities(found["gradient"])


def test_normalised_scores_are_drawn_again_as_they_were(run: Run, found: dict[str, hc.Scores]) -> None:
    scores = found["gradient"].normalised("layer")
    run.write_scores(scores)
    back = run.scores("gradient")
    assert back == scores and back.normalise == "layer"
    assert np.array_equal(back.replicates(20), scores.replicates(20))


def test_file_names_tell_method_and_variant(run: Run) -> None:
    assert {path.stem for path in (run.folder / "scores").glob("*.json")} == set(FILES)
    assert {path.stem for path in (run.folder / "scores").glob("*.safetensors")} == set(FILES) - {"magnitude", "gradient.running"}
    assert sorted(path.name for path in run.folder.iterdir()) == ["heads.json", "run.json", "scores", "scores.csv", "scores.parquet"]
    assert not list(run.folder.rglob(".*"))


def test_tables_hold_every_score(run: Run, found: dict[str, hc.Scores]) -> None:
    csv, parquet = pandas.read_csv(run.folder / "scores.csv"), pandas.read_parquet(run.folder / "scores.parquet")
    assert csv.columns.tolist() == parquet.columns.tolist()
    for table in (csv, parquet):
        assert set(table["method"]) == set(NAMES)
        for name, scores in found.items():
            rows = table[table["method"] == name]
            assert rows["head"].tolist() == [str(head) for head in scores.heads]
            np.testing.assert_allclose(rows["score"], scores.values, rtol=1e-12)
    assert parquet["accuracy change"].notna().sum() == 2 * len(found["ablation:mean"].heads)


def test_the_record_tells_model_machine_and_heads(run: Run) -> None:
    record = run.record()
    assert record.model.weights == weight_hash(shared("encoder")) and record.model.class_name == "BertForSequenceClassification"
    assert record.config["by"] == list(NAMES) and record.versions["torch"] and record.machine["cpus"]
    heads = run.heads()
    assert [head for block in heads.blocks for head in block.heads] == [str(head) for head in hc.HeadMap.of(shared("encoder"))]


def test_a_run_goes_on_where_it_began(run: Run, found: dict[str, hc.Scores]) -> None:
    before = run.record()
    again = Run.begin(run.folder, record_of("encoder").model_copy(update={"created": "later"}), hc.HeadMap.of(shared("encoder")))
    again.write_scores(found["gradient"])
    assert again.record().created == before.created
    assert set(again.methods()) == set(NAMES)


def test_results_are_keyed_by_what_determines_them(run: Run, found: dict[str, hc.Scores]) -> None:
    def key(scores: hc.Scores) -> str:
        return json.loads(run.write_scores(scores).read_text())["key"]

    options = [
        ("gradient", {}),
        ("gradient", {"seed": 6}),
        ("gradient", {"limit": 10}),
        ("fisher", {}),
        ("gradient", {"normalise": "layer"}),
    ]
    keys = [key(hc.score(shared("encoder"), task("encoder", 20), by, **more)) for by, more in options]
    assert len(set(keys)) == len(options)
    assert keys[0] == key(hc.score(shared("encoder"), task("encoder", 20)))


# What is refused.


def change(path: Path, **values: Any) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))


def spoil(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-3] ^= 1
    path.write_bytes(content)


DAMAGE: dict[str, tuple[Callable[[Path], None], str]] = {
    "damaged samples": (lambda folder: spoil(folder / "scores/gradient.safetensors"), r"gradient\.safetensors is missing or damaged"),
    "missing samples": (lambda folder: (folder / "scores/gradient.safetensors").unlink(), r"gradient\.safetensors is missing or damaged"),
    "newer scores": (lambda folder: change(folder / "scores/gradient.json", schema_version=2), "schema version 2.*Install a newer"),
    "newer run": (lambda folder: change(folder / "run.json", schema_version=7), "schema version 7.*Install a newer"),
    "other keys": (lambda folder: change(folder / "scores/gradient.json", surprise=1), "no ScoresRecord: surprise"),
    "other type": (lambda folder: change(folder / "scores/gradient.json", values="many"), "no ScoresRecord: values"),
    "too few values": (lambda folder: change(folder / "scores/gradient.json", values=[1.0]), "1 values for 12 heads"),
    "no head": (lambda folder: change(folder / "scores/gradient.json", heads=["L0X1"] * 12), "'L0X1' is no head address"),
    "no json": (lambda folder: (folder / "scores/gradient.json").write_text("{"), "no valid JSON"),
    "a list": (lambda folder: (folder / "run.json").write_text("[]"), "is no RunRecord"),
    "no run": (lambda folder: (folder / "run.json").unlink(), "holds no run: it has no run.json.*headcount score"),
}


@pytest.mark.parametrize("kind", DAMAGE)
def test_damage_is_named(run: Run, kind: str) -> None:
    spoiled, message = DAMAGE[kind]
    spoiled(run.folder)
    with pytest.raises(hc.HeadcountError, match=message):
        Run.open(run.folder).scores("gradient")


def test_a_method_that_is_not_there_is_named_with_those_that_are(run: Run) -> None:
    with pytest.raises(ArtefactError, match=r"no scores by 'wanda'; it has .*gradient:signed"):
        run.scores("wanda")


def test_folders_that_cannot_take_a_run_are_refused_before_anything_is_written(run: Run, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "foreign").mkdir()
    (tmp_path / "foreign" / "thesis.txt").write_text("")
    places = {
        tmp_path / "file": "is a file; name a folder",
        tmp_path / "file" / "run": "is a file, not a folder",
        tmp_path / "foreign": "is not empty and holds no run",
    }
    for place, message in places.items():
        with pytest.raises(ArtefactError, match=message):
            Run.check(place, record_of("encoder"))
        with pytest.raises(ArtefactError, match=message):
            Run.begin(place, record_of("encoder"), hc.HeadMap.of(shared("encoder")))
    assert [path.name for path in (tmp_path / "foreign").iterdir()] == ["thesis.txt"]
    before = (run.folder / "run.json").read_text()
    with pytest.raises(ArtefactError, match=r"is a run of another model \(encoder, weights .*name another folder"):
        Run.begin(run.folder, record_of("decoder"), hc.HeadMap.of(shared("decoder")))
    assert (run.folder / "run.json").read_text() == before


def test_runs_are_read_without_torch(run: Run) -> None:
    code = (
        "import sys; from pathlib import Path; from headcount.runs import Run\n"
        f"run = Run.open(Path({str(run.folder)!r}))\n"
        "assert run.scores('gradient').ranking() and run.heads().blocks\n"
        "assert not {'torch', 'transformers'} & set(sys.modules), 'torch was imported'\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
