"""Run folders: what was written comes back, and what is damaged, newer, older, foreign or of another model is refused or set aside."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest
from toys import shared, task

import headcount as hc
from headcount.core.errors import ArtifactError, NonFinite
from headcount.core.files import json_bytes, seal, sha256
from headcount.data.evaluate import evaluate
from headcount.importance.rankings import rank_heads, stabilities
from headcount.importance.score import score_all
from headcount.importance.settings import ScoreSettings
from headcount.models.gates import HeadGates
from headcount.models.provenance import model_record, rounding_provenance, weight_hash
from headcount.runs.artifacts import Artifact, ArtifactKey, Damaged, safe_name
from headcount.runs.describe import describe_run
from headcount.runs.schema import RunRecord
from headcount.runs.scores import all_scores, scores_of
from headcount.runs.store import Run
from headcount.workflows.evaluate import evaluate_into
from headcount.workflows.score import score_into

NAMES = ("gradient", "gradient:signed", "gradient:running", "ablation:mean", "fluctuation", "magnitude", "all-but-one")
FROZEN = Path(__file__).parents[1] / "frozen"


def record_of(kind: str, **facts: Any) -> RunRecord:
    return describe_run(model_record(shared(kind), kind), command="headcount score toy", seed=5, **facts)


def describe(run: Run, kind: str = "encoder", **facts: Any) -> Run:
    run.stage_records(record_of(kind, **facts), hc.HeadMap.of(shared(kind)))
    return run


@pytest.fixture(scope="module")
def found() -> dict[str, hc.Scores]:
    return score_all(shared("encoder"), task("encoder", 300), NAMES, ScoreSettings(seed=5))


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "run"
    with Run.lead(folder, command="headcount score toy") as run:
        describe(run, task="toy encoder", config={"by": list(NAMES)})
        score_into(run, shared("encoder"), task("encoder", 300), NAMES, ScoreSettings(seed=5))
    return folder


@pytest.fixture
def folder(tmp_path: Path, written: Path) -> Path:
    """A copy that a test may change."""
    return Path(shutil.copytree(written, tmp_path / "run"))


def same(back: hc.Scores, scores: hc.Scores) -> None:
    for field in fields(hc.Scores):
        if field.name not in ("samples", "damage"):
            assert getattr(back, field.name) == getattr(scores, field.name), (scores.method, field.name)
    assert (back.samples is None) == (scores.samples is None), scores.method
    if scores.samples is not None and back.samples is not None:
        assert np.array_equal(back.samples.sums, scores.samples.sums)
        assert np.array_equal(back.samples.weights, scores.samples.weights)
        assert back.samples.n == scores.samples.n
    assert (back.damage is None) == (scores.damage is None)
    if scores.damage is not None and back.damage is not None:
        assert back.damage.losses.dtype == np.float32 and np.array_equal(back.damage.losses, scores.damage.losses)
        assert (back.damage.answers is None) == (scores.damage.answers is None) and back.damage.documents is None


# What was written comes back.


def test_scores_come_back_as_they_were(folder: Path, found: dict[str, hc.Scores]) -> None:
    run = Run.open(folder)
    assert set(all_scores(run)) == set(NAMES)
    for name, scores in found.items():
        back = scores_of(run, name)
        same(back, scores)
        assert rank_heads(back, repeats=50) == rank_heads(scores, repeats=50)
    assert stabilities(scores_of(run, "gradient")) == stabilities(found["gradient"])


def test_scores_of_a_run_are_those_without_one_and_are_not_computed_twice(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from headcount.data import stream

    monkeypatch.setattr(stream, "_measure_within_memory", lambda *_: pytest.fail("computed again"))
    with Run.lead(folder) as run:
        describe(run)
        again = score_into(run, shared("encoder"), task("encoder", 300), NAMES, ScoreSettings(seed=5))
    assert list(again) == list(NAMES)


def test_normalised_scores_are_drawn_again_as_they_were(folder: Path, found: dict[str, hc.Scores]) -> None:
    scores = found["gradient"].normalise_by("layer")
    with Run.lead(folder) as run:
        describe(run)
        score_into(run, shared("encoder"), task("encoder", 300), NAMES, ScoreSettings(seed=5, normalise="layer"))
    back = scores_of(Run.open(folder), "gradient")
    same(back, scores)
    assert back.normalise == "layer" and np.array_equal(back.replicates(20), scores.replicates(20))


def test_the_folder_holds_what_the_schema_says(folder: Path) -> None:
    assert sorted(path.name for path in folder.iterdir()) == [
        "artifacts", "heads.json", "lock", "log.txt", "run.json", "scores.csv", "scores.parquet", "tables.json",
    ]  # fmt: skip
    names = sorted(path.name.split(".")[0] for path in (folder / "artifacts" / "scores").iterdir())
    assert names == sorted(safe_name(name).split(".")[0] for name in NAMES)
    assert not list((folder / "artifacts" / "chunk").iterdir()) and not list(folder.rglob(".*"))
    tables = json.loads((folder / "tables.json").read_text())["files"]
    assert tables == {name: sha256(folder / name) for name in ("scores.parquet", "scores.csv")}


def test_tables_hold_every_score(folder: Path, found: dict[str, hc.Scores]) -> None:
    csv, parquet = pandas.read_csv(folder / "scores.csv"), pandas.read_parquet(folder / "scores.parquet")
    assert csv.columns.tolist() == parquet.columns.tolist()
    for table in (csv, parquet):
        assert set(table["method"]) == set(NAMES)
        for name, scores in found.items():
            rows = table[table["method"] == name]
            assert rows["head"].tolist() == [str(head) for head in scores.heads]
            np.testing.assert_allclose(rows["score"], scores.values, rtol=1e-12)
    assert parquet["accuracy change"].notna().sum() == 2 * len(found["ablation:mean"].heads)


def test_evaluations_come_back_example_by_example(folder: Path) -> None:
    model, data = shared("encoder"), task("encoder", 300)
    heads = hc.HeadMap.of(model)
    with Run.lead(folder) as run:
        describe(run)
        complete = evaluate_into(run, "whole", model, data)
        with HeadGates(model, np.zeros(len(heads)).tolist()):
            none = evaluate_into(run, "none", model, data, gate_description={"gates": "all zero"})
        assert evaluate_into(run, "whole", model, data).value == complete.value
    assert np.array_equal(complete.losses, evaluate(model, data).losses) and not np.array_equal(complete.losses, none.losses)
    table = pandas.read_parquet(folder / "outcomes.parquet")
    assert np.array_equal(table[table["evaluation"] == "none"]["loss"], none.losses)
    assert Run.open(folder).results("evaluation")["whole"].content["value"] == complete.value


def test_the_record_tells_model_machine_data_and_heads(folder: Path, found: dict[str, hc.Scores]) -> None:
    record = Run.open(folder).record()
    assert record.model.weights == weight_hash(shared("encoder")) and record.model.class_name == "BertForSequenceClassification"
    assert record.config["by"] == list(NAMES) and record.versions["torch"] and record.machine["cpus"] and record.seed == 5
    assert record.data == {"toy encoder calibration": found["gradient"].data}
    heads = Run.open(folder).heads()
    assert [head for block in heads.blocks for head in block.heads] == [str(head) for head in hc.HeadMap.of(shared("encoder"))]


def test_every_artifact_says_what_it_was_made_of_and_on(folder: Path) -> None:
    artifact = Run.open(folder).results("scores")["gradient"]
    assert {"weights", "dtype", "attention", "device", "seed", "limit", "data", "method"} <= artifact.key.inputs.keys()
    assert artifact.provenance == rounding_provenance() and {"versions", "threads", "cpu"} <= artifact.provenance.keys()


def test_a_run_goes_on_where_it_began(folder: Path) -> None:
    before = Run.open(folder).record()
    with Run.lead(folder) as run:
        run.stage_records(record_of("encoder").model_copy(update={"created": "later"}), hc.HeadMap.of(shared("encoder")))
        score_into(run, shared("encoder"), task("encoder", 300), ["random"], ScoreSettings(seed=5))
    assert Run.open(folder).record().created == before.created
    assert set(all_scores(Run.open(folder))) == {*NAMES, "random"}


def test_results_are_keyed_by_what_determines_them_and_the_last_asked_for_are_shown(tmp_path: Path) -> None:
    options: list[tuple[str, dict[str, Any]]] = [
        ("gradient", {}),
        ("gradient", {"seed": 6}),
        ("gradient", {"limit": 10}),
        ("gradient", {"split": "report"}),
        ("gradient", {"normalise": "none"}),
        ("fisher", {}),
    ]
    observed_values: list[str] = []
    with Run.lead(tmp_path / "run") as run:
        describe(run)
        for by, more in [*options, *options]:
            score_into(run, shared("encoder"), task("encoder", 20), [by], ScoreSettings(**more))
            observed_values.append(run.record().results[f"scores/{by}"])
            assert scores_of(run, by).seed == more.get("seed", 0)
    assert len(set(observed_values)) == len(options) and observed_values[: len(options)] == observed_values[len(options) :]
    assert len(list((tmp_path / "run" / "artifacts" / "scores").iterdir())) == len(options)


def test_scores_do_not_depend_on_what_a_folder_held_before(tmp_path: Path) -> None:
    """A method that shares its pass with one that needs attention maps differs in the last bits: it is another artifact."""
    both, data = ["gradient", "confidence"], task("encoder", 40)
    for name, steps in {"fresh": [both], "grown": [["gradient"], both]}.items():
        with Run.lead(tmp_path / name) as run:
            describe(run)
            for methods in steps:
                score_into(run, shared("encoder"), data, methods)
    assert (tmp_path / "fresh" / "scores.csv").read_bytes() == (tmp_path / "grown" / "scores.csv").read_bytes()


def test_a_folder_to_which_nothing_was_written_vanishes(tmp_path: Path) -> None:
    with Run.lead(tmp_path / "run"):
        assert (tmp_path / "run" / "lock").exists()
    assert not (tmp_path / "run").exists()


# What is refused, and what is set aside.


def change(path: Path, **values: Any) -> None:
    """Changes a record as a release that seals it would."""
    content = {**json.loads(path.read_text()), **values}
    content["seal"] = seal(content)
    path.write_bytes(json_bytes(content))


def artifact_of(folder: Path, name: str = "gradient") -> Path:
    return next(path for path in (folder / "artifacts" / "scores").iterdir() if path.name.split(".")[:-2] == name.split(":"))


def rewrite(folder: Path, **content: Any) -> None:
    """Writes an artifact whose hashes are right and whose content is not."""
    path = artifact_of(folder)
    artifact = Artifact.unpack(path.read_bytes(), path)
    path.write_bytes(Artifact(artifact.key, {**artifact.content, **content}, artifact.arrays, artifact.provenance).pack())


DAMAGE: dict[str, tuple[Callable[[Path], Any], str]] = {
    "newer run": (lambda folder: change(folder / "run.json", schema_version=7), "schema version 7.*Install a newer"),
    "newer artifact": (
        lambda folder: artifact_of(folder).write_bytes(_version(artifact_of(folder).read_bytes(), 7)),
        "schema version 7; this headcount reads version 3. Install a newer",
    ),
    "edited run": (lambda folder: (folder / "run.json").write_text((folder / "run.json").read_text().replace("toy", "try")), "was edited"),
    "another record": (lambda folder: shutil.copy(folder / "heads.json", folder / "run.json"), "no RunRecord"),
    "a list": (lambda folder: (folder / "run.json").write_text("[]"), "damaged"),
    "no json": (lambda folder: (folder / "run.json").write_text("{"), "no valid JSON"),
    "no run": (
        lambda folder: (folder / "run.json").unlink(),
        "holds no run: it has no run.json.*Name a folder that a headcount command wrote",
    ),
    "other keys": (lambda folder: rewrite(folder, surprise=1), "holds no scores: surprise"),
    "other type": (lambda folder: rewrite(folder, values="many"), "holds no scores: values"),
    "too few values": (lambda folder: rewrite(folder, values=[1.0]), "1 values for 12 heads"),
    "no head": (lambda folder: rewrite(folder, heads=["L0X1"] * 12), "'L0X1' is no head address"),
    "a torn artifact": (
        lambda folder: artifact_of(folder).write_bytes(artifact_of(folder).read_bytes()[:50]),
        "truncated.*headcount score toy",
    ),
}


def _version(content: bytes, version: int) -> bytes:
    line, _, payload = content.partition(b"\n")
    head = {**json.loads(line), "artifact": version}
    head["seal"] = seal(head)
    return json.dumps(head).encode() + b"\n" + payload


@pytest.mark.parametrize("kind", DAMAGE)
def test_readers_are_told_of_damage(folder: Path, kind: str) -> None:
    spoiled, message = DAMAGE[kind]
    spoiled(folder)
    with pytest.raises(hc.HeadcountError, match=message):
        scores_of(Run.open(folder), "gradient")
    assert not (folder / "quarantine").exists()


@pytest.mark.parametrize("name", ["run.json", "heads.json", "tables.json", "scores.csv", "artifact"])
def test_what_is_damaged_is_set_aside_and_made_again(folder: Path, name: str) -> None:
    path = artifact_of(folder) if name == "artifact" else folder / name
    content, table = path.read_bytes(), (folder / "scores.csv").read_bytes()
    path.write_bytes(content[:-2])
    with (
        pytest.warns(UserWarning, match=rf"{path.name}.*moved to .*quarantine/0000\.{path.name}, to be computed again"),
        Run.lead(folder) as run,
    ):
        describe(run, task="toy encoder", config={"by": list(NAMES)})
        score_into(run, shared("encoder"), task("encoder", 300), NAMES, ScoreSettings(seed=5))
    assert (folder / "quarantine" / f"0000.{path.name}").read_bytes() == content[:-2]
    assert f"moves {path.relative_to(folder)}" in (folder / "log.txt").read_text()
    assert (folder / "scores.csv").read_bytes() == table
    assert path.read_bytes() == content or name == "run.json"
    assert set(all_scores(Run.open(folder))) == set(NAMES)


def test_a_newer_run_is_refused_and_left_alone(folder: Path) -> None:
    change(folder / "run.json", schema_version=7)
    before = (folder / "run.json").read_bytes()
    with pytest.raises(ArtifactError, match="schema version 7"), Run.lead(folder) as run:
        describe(run)
    assert (folder / "run.json").read_bytes() == before and not (folder / "quarantine").exists()


def test_a_run_of_schema_1_is_refused_with_the_reason(tmp_path: Path) -> None:
    old = Path(shutil.copytree(FROZEN / "run-v1", tmp_path / "old"))
    message = r"run.json has schema version 1; this headcount reads version 3. It was written before the first release"
    with pytest.raises(ArtifactError, match=message):
        Run.open(old)
    with pytest.raises(ArtifactError, match=message), Run.lead(old) as run:
        describe(run)
    for path in (FROZEN / "run-v1").rglob("*.json"):
        assert (old / path.relative_to(FROZEN / "run-v1")).read_bytes() == path.read_bytes()


def test_a_run_of_schema_2_is_refused_with_the_release_to_open_it_with(tmp_path: Path) -> None:
    """Frozen as release 0.1.0 wrote it."""
    old = Path(shutil.copytree(FROZEN / "run-v2", tmp_path / "old"))
    message = (
        r"run.json has schema version 2; this headcount reads version 3. Open it with headcount 0.1.0, or run its command in a new folder"
    )
    with pytest.raises(ArtifactError, match=message):
        Run.open(old)
    with pytest.raises(ArtifactError, match=message), Run.lead(old) as run:
        describe(run)
    for path in (FROZEN / "run-v2").rglob("*.*"):
        assert (old / path.relative_to(FROZEN / "run-v2")).read_bytes() == path.read_bytes()


def test_a_run_of_schema_3_opens(tmp_path: Path) -> None:
    """Frozen when schema 3 was made: if this fails, a release cannot read what users have."""
    folder = Path(shutil.copytree(FROZEN / "run-v3", tmp_path / "run"))
    run = Run.open(folder)
    scores = all_scores(run)
    assert list(scores) == ["ablation", "gradient", "magnitude"] and run.record().command == "headcount score toy"
    assert [str(head) for head in scores["gradient"].heads] == [head for block in run.heads().blocks for head in block.heads]
    assert all(verdict.rank for verdict in rank_heads(scores["gradient"], repeats=20))
    table = pandas.read_csv(folder / "scores.csv")
    np.testing.assert_allclose(table[table["method"] == "ablation"]["score"], scores["ablation"].values, rtol=1e-12)
    assert len(run.results("evaluation")["whole"].arrays["losses"]) == 20
    before = {path.name: path.read_bytes() for path in folder.iterdir() if path.suffix in (".csv", ".parquet")}
    with Run.lead(folder) as led:
        led.register_results()
    if before != {path.name: path.read_bytes() for path in folder.iterdir() if path.suffix in (".csv", ".parquet")}:
        for name in before:  # another release of pandas or pyarrow may write the same table in other bytes
            old, new = (
                pandas.read_parquet(at / name) if name.endswith("t") else pandas.read_csv(at / name) for at in (FROZEN / "run-v3", folder)
            )
            pandas.testing.assert_frame_equal(old, new)


def test_a_method_that_is_not_there_is_named_with_those_that_are(folder: Path) -> None:
    with pytest.raises(ArtifactError, match=r"no scores by 'wanda'; it has .*gradient:signed"):
        scores_of(Run.open(folder), "wanda")


def test_folders_that_cannot_take_a_run_are_refused_before_anything_is_written(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "foreign").mkdir()
    (tmp_path / "foreign" / "thesis.txt").write_text("")
    positions = {
        tmp_path / "file": "is a file; name a folder",
        tmp_path / "file" / "run": "is a file, not a folder",
        tmp_path / "foreign": "is not empty and holds no run",
    }
    for key, message in positions.items():
        with pytest.raises(ArtifactError, match=message), Run.lead(key):
            pass
    assert [path.name for path in (tmp_path / "foreign").iterdir()] == ["thesis.txt"]
    before = (folder / "run.json").read_bytes()
    with pytest.raises(ArtifactError, match=r"is a run of another model \(encoder, weights .*name another folder"), Run.lead(folder) as run:
        describe(run, "decoder")
    assert (folder / "run.json").read_bytes() == before


# Artifacts.


def test_a_artifact_holds_no_number_that_is_not_finite() -> None:
    spec = ArtifactKey("synthetic", "x", {})
    for bad in (float("nan"), float("inf")):
        with pytest.raises(NonFinite, match=r"values at \(1,\)\); it is not written"):
            Artifact(spec, {}, {"values": np.array([0.0, bad])}).pack()
        with pytest.raises(NonFinite, match="not finite; it is not written"):
            Artifact(spec, {"value": [{"deep": bad}]}).pack()


@pytest.mark.parametrize("name", ["../../etc/passwd", "/abs", "a" * 300, "ж✓", "", ".", "..", "con\0", "A/B\\C", "raw\udcff"])
def test_names_from_data_lead_nowhere_else(tmp_path: Path, name: str) -> None:
    with Run.lead(tmp_path / "run") as run:
        describe(run)
        made = run.commit(ArtifactKey(f"kind {name}", name, {"from": name}), {"text": name}, provenance={})
        assert run.find(made.key) == made
        paths: Iterable[Path] = (tmp_path / "run").rglob("*.artifact")
        assert [path.parent.parent for path in paths] == [tmp_path / "run" / "artifacts"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run"]


def test_names_that_look_alike_in_files_are_other_artifacts(tmp_path: Path) -> None:
    with Run.lead(tmp_path / "run") as run:
        for name in ("A b", "a.b", "a/b", "a" * 80, "a" * 81):
            run.commit(ArtifactKey("kind", name, {}), {"name": name}, provenance={})
        assert sorted(artifact.content["name"] for artifact in run.artifacts("kind")) == sorted(["A b", "a.b", "a/b", "a" * 80, "a" * 81])


def test_forged_records_of_artifacts_are_damage(tmp_path: Path) -> None:
    for head in (
        {},
        {"artifact": 3},
        {"artifact": 3, "bytes": "x"},
        {"artifact": 3, "bytes": 0, "sha256": 5},
        {"artifact": 3, "kind": 5, "name": []},
    ):
        line = json.dumps({**head, "seal": seal(head)}).encode() + b"\n"
        with pytest.raises(Damaged):
            Artifact.unpack(line, tmp_path / "x.artifact")


def test_runs_are_read_without_torch(folder: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from headcount.runs.store import Run; from headcount.runs.scores import scores_of\n"
        f"run = Run.open(Path({str(folder)!r}))\n"
        "assert scores_of(run, 'gradient').ranking() and run.heads().blocks\n"
        "assert not {'torch', 'transformers'} & set(sys.modules), 'torch was imported'\n"
    )
    outcome = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert outcome.returncode == 0, outcome.stderr[-2000:]


def test_without_locks_of_the_kernel_a_run_is_refused_and_all_else_works(folder: Path, tmp_path: Path) -> None:
    """As on Windows, where Python has no fcntl."""
    code = (
        "import sys; sys.modules['fcntl'] = None\n"
        "import headcount as hc; from headcount.core.errors import ArtifactError; from headcount.runs.store import Run\n"
        "hc.score, hc.prune, hc.analyze\n"
        f"assert Run.open({str(folder)!r}).heads().blocks\n"
        "from pathlib import Path\n"
        "try:\n"
        f"    with Run.lead(Path({str(tmp_path / 'new')!r})): raise SystemExit('taken')\n"
        "except ArtifactError as error: assert 'fcntl' in str(error) and 'Linux' in str(error)\n"
    )
    outcome = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert outcome.returncode == 0, outcome.stderr[-2000:]
    assert not (tmp_path / "new").exists()
