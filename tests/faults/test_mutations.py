"""A campaign of damage to every kind of file that headcount writes: what is read is what was written, or a typed error says why not."""

from __future__ import annotations

import hashlib
import shutil
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch
from mutations import MUTATIONS, Removed, Victim
from torch import nn

import headcount as hc
from headcount.core.errors import ArtifactError, HeadcountError
from headcount.core.files import Problem, seal
from headcount.core.plan import Plan
from headcount.core.scores import Scores
from headcount.models.provenance import model_record, weight_hash
from headcount.models.tiny.build import tiny_model
from headcount.runs.check import RunCheck
from headcount.runs.describe import describe_run
from headcount.runs.store import Run
from headcount.surgery import manifest
from headcount.surgery.manifest import manifest_and_file_problems

SEEDS = 5


# What is written, and how it is read.


def make_folder(base: Path, seed: int) -> None:
    """A saved model, a run with results and a model of its own, and a plan."""
    from toys import task

    from headcount.workflows.evaluate import evaluate_into
    from headcount.workflows.score import score_into

    decoder = tiny_model("gpt2", dtype=torch.float32, seed=seed)
    hc.save(hc.cut(decoder, hc.Plan.removing([f"L0H{seed}", "L1H2"])), base / "model")
    model = classifier(seed)
    heads = hc.HeadMap.of(model)
    with Run.lead(base / "run", command="headcount score toy --out run") as run:
        run.stage_records(describe_run(model_record(model, "toy"), command="headcount score toy --out run", seed=seed), heads)
        score_into(run, model, task("encoder", 12), ["gradient", "magnitude"])
        evaluate_into(run, "whole", model, task("encoder", 12))
    plan = hc.Plan.removing([f"L0H{seed + 1}", "L1H4"], protected=["L0H5"])
    plan.write(base / "plan.json", heads, weights=weight_hash(model))


def classifier(seed: int) -> nn.Module:
    return tiny_model("bert", auto="AutoModelForSequenceClassification", num_labels=3, seed=seed)


def read_model(base: Path) -> Any:
    """Everything that load gives, as something that can be compared."""
    model = hc.load(base / "model")
    weights = {name: hashlib.sha256(value.numpy().tobytes()).hexdigest() for name, value in model.state_dict().items()}
    config = {name: value for name, value in model.config.to_dict().items() if name != "_name_or_path"}
    return type(model), weights, [str(head) for head in hc.HeadMap.of(model)], config, model.generation_config.to_dict()


def read_listed_model(base: Path) -> Any:
    """The same, and what heads.json says of it."""
    listed = manifest.read_manifest(base / "model")
    if listed is None:
        raise ArtifactError("the folder has no manifest, of which load warns")
    return listed, read_model(base)


def read_run(base: Path) -> Any:
    """Everything that a run shows."""
    run = Run.open(base / "run")
    shown = {
        f"{kind}/{name}": (
            artifact.key,
            artifact.content,
            artifact.provenance,
            {key: array.tobytes() for key, array in artifact.arrays.items()},
        )
        for kind in ("scores", "evaluation")
        for name, artifact in run.results(kind).items()
    }
    return run.record(), run.heads(), shown


def read_plan(base: Path) -> Any:
    """A plan as a command reads it: checked against the model that it is for."""
    plan, model = Plan.read(base / "plan.json"), classifier(0)
    plan.check(hc.HeadMap.of(model), weight_hash(model))
    return plan.removed, plan.protected


def read_tables(base: Path) -> Any:
    """The scores in the tables of a run."""
    return [Scores.read(base / "run" / name, only_method="gradient") for name in ("scores.csv", "scores.parquet")]


def check_model(base: Path) -> list[Problem]:
    return list(manifest_and_file_problems(base / "model"))


def check_run(base: Path) -> list[Problem]:
    return list(RunCheck(base / "run", manifest_and_file_problems).problems())


@dataclass(frozen=True)
class Subject:
    """A kind of file: which ones, how they are read, and how `headcount check` verifies them, where it does."""

    files: tuple[str, ...]
    read: Callable[[Path], Any]
    check: Callable[[Path], list[Problem]] | None


SUBJECTS: Mapping[str, Subject] = {
    "weights": Subject(("model/model.safetensors",), read_model, check_model),
    "configuration and manifest of a model": Subject(
        ("model/heads.json", "model/config.json", "model/generation_config.json"), read_listed_model, check_model
    ),
    "records of a run": Subject(("run/run.json", "run/heads.json"), read_run, check_run),
    "artifacts": Subject(
        ("run/artifacts/scores/gradient.*", "run/artifacts/evaluation/whole.*", "run/artifacts/scores/magnitude.*"), read_run, check_run
    ),
    "score tables": Subject(("run/scores.csv", "run/scores.parquet", "run/tables.json"), read_tables, check_run),
    "plans": Subject(("plan.json",), read_plan, None),
}


# The campaign.


@dataclass(frozen=True)
class Outcome:
    """What came of one damaged file: `equal`, `refused`, `wrong`, `raw` or `lost`, and the details for a message."""

    verdict: str
    details: str


def snapshot(base: Path) -> dict[str, bytes]:
    return {str(path.relative_to(base)): path.read_bytes() for path in sorted(base.rglob("*")) if path.is_file()}


def attempt(read: Callable[[], Any]) -> tuple[str, Any]:
    """(`value`, what was read), (`typed`, error) or (`raw`, error)."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return "value", read()
    except HeadcountError as error:
        return "typed", error
    except Exception as error:
        return "raw", error


def judge(subject: Subject, base: Path, expected: Any) -> Outcome:
    """Reads a damaged folder, and has it checked."""
    kind, value = attempt(lambda: subject.read(base))
    if kind == "raw":
        return Outcome("raw", f"{type(value).__name__}: {value}")
    if kind == "value" and value != expected:
        return Outcome("wrong", "another result was read")
    checked, problems = attempt(lambda: subject.check(base)) if subject.check is not None else ("value", None)
    if checked == "raw":
        return Outcome("raw", f"check: {type(problems).__name__}: {problems}")
    if kind == "typed" and checked == "value" and problems == []:
        return Outcome("wrong", f"headcount check passed a folder that is refused: {value}")
    return Outcome("equal" if kind == "value" else "refused", str(value)[:200] if kind == "typed" else "")


def damaged_files(base: Path, other: Path, subject: Subject, kind: str, seed: int) -> Iterator[tuple[Path, bytes]]:
    """The file that a kind of damage strikes by a seed, and its new bytes; nothing where it applies to none of the files."""
    draw = Random(f"{kind} {seed} {subject.files}")
    files = [next(base.glob(pattern)) for pattern in subject.files]
    order = [files[(seed + step) % len(files)] for step in range(len(files))]
    for path in order:
        counterpart = next(other.glob(subject.files[files.index(path)]))
        neighbours = [each for each in sorted(path.parent.iterdir()) if each.is_file() and each != path and each.stat().st_size]
        neighbour = draw.choice(neighbours).read_bytes() if neighbours else b"{}"
        content = MUTATIONS[kind](Victim(path, path.read_bytes(), counterpart.read_bytes(), neighbour), draw)
        if content is not None and (isinstance(content, Removed) or content != path.read_bytes()):
            yield path, content
            return


def campaign(base: Path, other: Path, names: list[str], seeds: range, *, until: str = "") -> tuple[Counter[str], list[str]]:
    """How often each verdict was reached, and what is not to be: wrong, raw and lost; ends at the first verdict `until`."""
    verdicts: Counter[str] = Counter()
    failures: list[str] = []
    for name in names:
        subject = SUBJECTS[name]
        expected = subject.read(base)
        for kind in MUTATIONS:
            for seed in seeds:
                for path, content in damaged_files(base, other, subject, kind, seed):
                    complete = snapshot(base)
                    path.unlink() if isinstance(content, Removed) else path.write_bytes(content)
                    spoilt = snapshot(base)
                    outcome = judge(subject, base, expected)
                    if snapshot(base) != spoilt:
                        outcome = Outcome("lost", "a reader changed the folder")
                    path.write_bytes(complete[str(path.relative_to(base))])
                    if outcome.verdict in ("equal", "refused") and subject.read(base) != expected:
                        outcome = Outcome("lost", "the restored folder reads otherwise")
                    verdicts[outcome.verdict] += 1
                    if outcome.verdict in ("wrong", "raw", "lost"):
                        failures.append(f"{name}, {kind}, seed {seed}, {path.name}: {outcome.verdict}: {outcome.details}")
                    if outcome.verdict == until:
                        return verdicts, failures
    return verdicts, failures


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The folder to damage, and another with files to take."""
    base = tmp_path_factory.mktemp("mutations")
    for seed, name in enumerate(("mine", "theirs")):
        make_folder(base / name, seed)
    return base / "mine", base / "theirs"


@pytest.fixture
def copied(folders: tuple[Path, Path], shm: Path) -> tuple[Path, Path]:
    return Path(shutil.copytree(folders[0], shm / "mine")), folders[1]


@pytest.mark.parametrize("name", SUBJECTS)
def test_a_damaged_file_reads_as_written_or_is_refused(copied: tuple[Path, Path], name: str) -> None:
    verdicts, failures = campaign(*copied, [name], range(1))
    assert not failures, "\n".join(failures)
    assert verdicts["refused"] >= len(MUTATIONS) // 2, verdicts


@pytest.mark.faults
def test_a_campaign_of_damage_to_every_kind_of_file(copied: tuple[Path, Path], figure: Callable[..., None]) -> None:
    assert len(MUTATIONS) >= 12 and len(SUBJECTS) >= 5 and SEEDS >= 5
    verdicts, failures = campaign(*copied, list(SUBJECTS), range(SEEDS))
    assert not failures, "\n".join(failures)
    figure(
        "campaign mutations",
        tried=sum(verdicts.values()),
        kinds=len(MUTATIONS),
        files=len(SUBJECTS),
        seeds=SEEDS,
        **{verdict: verdicts[verdict] for verdict in ("lost", "wrong", "raw")},
    )


# The campaign finds bugs: each takes one verification away.


def accept_files(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(manifest, "check_files_match", lambda *_: None)


def accept_manifest(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(manifest, "seal", lambda content: content.get("seal"))
    patch.setattr(manifest, "_manifest_bytes", lambda _: b"")
    patch.setattr(manifest, "read_bounded", lambda *_: b"")


def accept_records(patch: pytest.MonkeyPatch) -> None:
    from headcount.runs import records

    patch.setattr(records, "seal", lambda content: content.get("seal") or seal(content))
    patch.setattr(records, "_to_sealed_json", lambda _: type("Any", (bytes,), {"__eq__": lambda *_: True, "__ne__": lambda *_: False})())


def accept_artifacts(patch: pytest.MonkeyPatch) -> None:
    from headcount.runs import artifacts

    patch.setattr(artifacts, "seal", lambda content: content.get("seal"))
    patch.setattr(artifacts, "_header_line", lambda _: type("Any", (bytes,), {"__eq__": lambda *_: True, "__ne__": lambda *_: False})())


def accept_tables(patch: pytest.MonkeyPatch) -> None:
    from headcount.core import score_tables as tables

    patch.setattr(tables, "check_table_hash", lambda _: None)


def accept_plans(patch: pytest.MonkeyPatch) -> None:
    from headcount.core import plan

    patch.setattr(plan, "seal", lambda content: content.get("seal"))


PLANTED = {
    "weights": accept_files,
    "configuration and manifest of a model": accept_manifest,
    "records of a run": accept_records,
    "artifacts": accept_artifacts,
    "score tables": accept_tables,
    "plans": accept_plans,
}


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_acceptance_bug_is_found(copied: tuple[Path, Path], name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    PLANTED[name](monkeypatch)
    verdicts, failures = campaign(*copied, [name], range(2), until="wrong")
    assert verdicts["wrong"], failures
