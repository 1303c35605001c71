"""Run folders that must be refused: of later versions, damaged, locked, impossible, or with names that lead out of them."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from bad_kit import Call, Kit, as_nobody, case, line

import headcount as hc
from headcount.core.files import seal
from headcount.core.heads import Head
from headcount.runs.artifacts import Artifact, ArtifactKey
from headcount.runs.scores import all_scores, pack_scores
from headcount.runs.store import Run


def _read(kit: Kit, spoil: Callable[[Path], object]) -> Call:
    """Reading all scores of a spoilt run."""
    folder = kit.copy(kit.stock.run())
    spoil(folder)
    return lambda: all_scores(Run.open(folder))


def _reseal(path: Path, **values: Any) -> None:
    """Changes a sealed record and seals it anew: a fault of who wrote it, not of the disk."""
    content = {name: value for name, value in (json.loads(path.read_text()) | values).items() if name != "seal"}
    path.write_text(json.dumps({**content, "seal": seal(content)}))


def _artifact(folder: Path) -> Path:
    return sorted((folder / "artifacts" / "scores").glob("magnitude.*.artifact"))[0]


def _lead(folder: Path) -> Call:
    def take() -> None:
        with Run.lead(folder):
            pass

    return take


@case("run folders", "schema version 99", "Install a newer one")
def later_version(kit: Kit) -> Call:
    return _read(kit, lambda folder: _reseal(folder / "run.json", schema_version=99))


@case("run folders", "schema version 1;", "run its command in a new folder")
def earlier_version(kit: Kit) -> Call:
    return _read(kit, lambda folder: _reseal(folder / "run.json", schema_version=1))


@case("run folders", "run.json is damaged")
def version_of_text(kit: Kit) -> Call:
    return _read(kit, lambda folder: _reseal(folder / "run.json", schema_version="two"))


@case("run folders", "has no run.json", "Name a folder that a headcount command wrote")
def missing_record(kit: Kit) -> Call:
    return _read(kit, lambda folder: (folder / "run.json").unlink())


def _as_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


@case("run folders", "has no run.json", "Name a folder that a headcount command wrote")
def record_that_is_a_folder(kit: Kit) -> Call:
    return _read(kit, lambda folder: _as_folder(folder / "run.json"))


@case("run folders", "run.json is damaged or was edited")
def record_that_was_edited(kit: Kit) -> Call:
    def edit(folder: Path) -> None:
        text = (folder / "run.json").read_text()
        (folder / "run.json").write_text(text.replace('"seed": 0', '"seed": 1'))

    return _read(kit, edit)


@case("run folders", "run.json is damaged", "hook")
def record_with_an_unknown_field(kit: Kit) -> Call:
    return _read(kit, lambda folder: _reseal(folder / "run.json", hook="import os"))


@case("run folders", "run.json is no valid JSON")
def record_of_brackets(kit: Kit) -> Call:
    return _read(kit, lambda folder: (folder / "run.json").write_text("[" * 1_000_000))


def _loop(path: Path) -> None:
    path.unlink()
    path.symlink_to(path.name)


@case("run folders", "has no run.json", "Name a folder that a headcount command wrote")
def record_that_links_to_itself(kit: Kit) -> Call:
    return _read(kit, lambda folder: _loop(folder / "run.json"))


@case("run folders", "it ends before its first line does", "headcount score bert --out run")
def half_a_artifact(kit: Kit) -> Call:
    return _read(kit, lambda folder: os.truncate(_artifact(folder), 300))


@case("run folders", "it ends before its first line does", "headcount score bert --out run")
def empty_artifact(kit: Kit) -> Call:
    return _read(kit, lambda folder: os.truncate(_artifact(folder), 0))


@case("run folders", "it does not begin with the record of an artifact", "headcount score bert --out run")
def artifact_of_brackets(kit: Kit) -> Call:
    return _read(kit, lambda folder: _artifact(folder).write_bytes(b"[" * 1_000_000 + b"\n"))


@case("run folders", "is damaged", "headcount score bert --out run")
def flipped_bit_in_a_artifact(kit: Kit) -> Call:
    def flip(folder: Path) -> None:
        content = bytearray(_artifact(folder).read_bytes())
        content[len(content) // 2] ^= 1
        _artifact(folder).write_bytes(content)

    return _read(kit, flip)


@case("run folders", "is under another artifact's name", "headcount score bert --out run")
def artifact_under_the_name_of_another(kit: Kit) -> Call:
    def swap(folder: Path) -> None:
        other = sorted((folder / "artifacts" / "scores").glob("random.*.artifact"))[0]
        _artifact(folder).write_bytes(other.read_bytes())

    return _read(kit, swap)


@case("run folders", "is no regular file", "headcount score bert --out run")
def artifact_that_is_a_folder(kit: Kit) -> Call:
    return _read(kit, lambda folder: _as_folder(_artifact(folder)))


@case("run folders", "symbolic links", "headcount score bert --out run")
def artifact_that_links_to_itself(kit: Kit) -> Call:
    return _read(kit, lambda folder: _loop(_artifact(folder)))


@case("run folders", "is no regular file", "headcount score bert --out run")
def artifact_that_is_a_pipe(kit: Kit) -> Call:
    def pipe(folder: Path) -> None:
        path = _artifact(folder)
        path.unlink()
        os.mkfifo(path)

    return _read(kit, pipe)


@case("run folders", "its numbers are not those that were written", "headcount score bert --out run")
def artifact_of_two_gigabytes(kit: Kit) -> Call:
    return _read(kit, lambda folder: os.truncate(_artifact(folder), 2**31))


def _forge(folder: Path, content: dict[str, Any], arrays: dict[str, np.ndarray] | None = None, name: str = "magnitude") -> None:
    """An artifact with a good seal and bad content."""
    artifact = Artifact(ArtifactKey("scores", name, {"forged": True}), content, arrays or {}, {})
    position = folder / artifact.key.path_in_run
    position.write_bytes(artifact.pack())


@case("run folders", "the artifact of forged holds no scores")
def artifact_that_holds_no_scores(kit: Kit) -> Call:
    return _read(kit, lambda folder: _forge(folder, {"method": "forged"}, name="forged"))


@case("run folders", "the artifact of forged holds no scores", "its arrays are evil")
def artifact_with_arrays_of_another_kind(kit: Kit) -> Call:
    scores = hc.Scores((Head("", 0, 0),), (1.0,), "forged")
    return _read(kit, lambda folder: _forge(folder, pack_scores(scores)[0], {"evil": np.zeros(2)}, name="forged"))


@case("run folders", "the artifact of ../../../../tmp/headcount-was-here holds no scores")
def artifact_whose_name_leads_out(kit: Kit) -> Call:
    """Sealed well, under a name that climbs: it is read as what it is, never as a path."""
    return _read(kit, lambda folder: _forge(folder, {}, name="../../../../tmp/headcount-was-here"))


@case("run folders", "is damaged", "headcount score bert --out run")
def artifact_with_a_header_that_lies(kit: Kit) -> Call:
    def forge(folder: Path) -> None:
        artifact = Artifact(ArtifactKey("scores", "magnitude", {"forged": True}), {}, {"x": np.zeros(2)}, {})
        line_, _, payload = artifact.pack().partition(b"\n")
        payload = payload.replace(b'"shape":[2]', b'"shape":[9]')
        head = json.loads(line_) | {"sha256": hashlib.sha256(payload).hexdigest()}
        head["seal"] = seal(head)
        (folder / artifact.key.path_in_run).write_bytes(json.dumps(head).encode() + b"\n" + payload)

    return _read(kit, forge)


@case("run folders", "is not empty and holds no run", "name another folder")
def folder_of_other_things(kit: Kit) -> Call:
    kit.file("diary.txt", "dear diary")
    return _lead(kit.place)


@case("run folders", "is a file", "name a folder for the run")
def file_instead_of_a_folder(kit: Kit) -> Call:
    return _lead(kit.file("run", "x"))


@case("run folders", "is a file, not a folder", "name another path")
def folder_below_a_file(kit: Kit) -> Call:
    return _lead(kit.file("run", "x") / "below")


@case("run folders", "is not writable for you", "name another path")
def folder_that_may_not_be_written(kit: Kit) -> Call:
    folder = kit.place / "shut"
    folder.mkdir(mode=0o555)
    return as_nobody(_lead(folder / "run"))


@case("run folders", "cannot be worked in", "Permission denied")
def run_that_may_not_be_written(kit: Kit) -> Call:
    folder = kit.copy(kit.stock.run())
    for path in (*folder.rglob("*"), folder):
        path.chmod(0o555 if path.is_dir() else 0o444)
    return as_nobody(_lead(folder))


@case("run folders", "cannot be worked in", "Is a directory")
def lock_that_is_a_folder(kit: Kit) -> Call:
    folder = kit.copy(kit.stock.run())
    (folder / "lock").unlink(missing_ok=True)
    (folder / "lock").mkdir()
    return _lead(folder)


@case("run folders", "is not empty and holds no run", "name another folder")
def artifacts_that_are_a_file(kit: Kit) -> Call:
    folder = kit.place / "run"
    folder.mkdir()
    (folder / "artifacts").write_text("")
    return _lead(folder)


@case("run folders", "File name too long")
def folder_of_a_thousand_letters(kit: Kit) -> Call:
    return _lead(kit.place / ("r" * 1000))


@case("run folders", "holds no run that could be joined", "start its leading process first")
def nothing_to_join(kit: Kit) -> Call:
    def join() -> None:
        with Run.join(kit.place / "run"):
            pass

    return join


@case("run folders", "is a run of another model (bert", "name another folder")
def run_of_another_model(kit: Kit) -> Call:
    folder = kit.copy(kit.stock.run())
    return line("score", kit.stock.cut(), "--by", "magnitude", "--out", folder)


@case("run folders", "holds scores by magnitude, random", "choose one (--method NAME)")
def scores_of_a_run_with_several(kit: Kit) -> Call:
    return line("cut", kit.stock.plain(), "--scores", kit.stock.run(), "--keep", "6", "--out", kit.place / "out")
