"""A run: a folder of finished artifacts that can be stopped, killed, copied and taken up again; every file appears whole or not at all.

One process leads a run (`Run.lead`), others may join it as workers (`Run.join`), anybody may read it (`Run.open`). What is found damaged while
leading or working is moved to `quarantine/`, named in the log, and computed again; a reader is told about it.
"""

from __future__ import annotations

import os
import platform
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np

from headcount.core import html as notebook
from headcount.core.errors import ArtifactError, NonFinite
from headcount.core.files import (
    PARTIAL,
    Problem,
    append_line,
    check_place,
    finish_replacement,
    is_file,
    is_folder,
    make_folder,
    move,
    read_json,
    remove,
    remove_folder,
    write_atomic,
)
from headcount.core.heads import HeadIndex
from headcount.runs.artifacts import SUFFIX, Artifact, ArtifactKey, Damaged, Foreign, read_artifact, safe_name
from headcount.runs.lock import LOCK, RunLock, kernel_locks
from headcount.runs.records import Kind, hash_of, read_record, write_record
from headcount.runs.schema import BlockRecord, HeadsRecord, ModelRecord, RunRecord

PACKAGES = ("headcount", "torch", "transformers", "numpy", "scipy")
RUN, HEADS, LOG, ARTIFACTS, QUARANTINE, MODELS = "run.json", "heads.json", "log.txt", "artifacts", "quarantine", "models"
SHOWN = ("scores", "roles", "profiles", "evaluation", "pruned")
"""Kinds of artifacts that are results of the run's model."""
_WEIGHTS = re.compile(rb'"weights": "([0-9a-f]{64})"')


def versions() -> dict[str, str]:
    """The releases that results may depend on."""
    found = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def describe_run(model: ModelRecord, **facts: Any) -> RunRecord:
    """What run.json says of a run that begins now: its `facts` (command, seed, task, config), the versions and the machine."""
    now = datetime.now(UTC).isoformat(timespec="seconds")
    machine = {"system": platform.platform(), "cpus": os.cpu_count(), **facts.pop("machine", {})}
    return RunRecord(created=now, updated=now, model=model, versions=versions(), machine=machine, **facts)


class Run:
    """A run by its folder."""

    def __init__(self, folder: Path, hold: RunLock | None = None) -> None:
        self.folder, self.hold = folder, hold
        self.expects_workers = False
        self._due: tuple[RunRecord, HeadsRecord] | None = None

    def __repr__(self) -> str:
        return f"Run({str(self.folder)!r})"

    # Taking a folder.

    @classmethod
    @contextmanager
    def lead(cls, folder: Path, *, command: str = "") -> Iterator[Run]:
        """Takes a run folder, or makes one, for as long as the context lasts; Busy at once if another process has it."""
        kernel_locks()  # before a folder is made that could not be taken
        made = _prepare(folder)
        hold = RunLock(folder, join=False, command=command)
        run = cls(folder, hold)
        try:
            with hold.alone() as alone:
                if alone:
                    run._sweep()
            yield run
        finally:
            hold.close(vanish=made)

    @classmethod
    @contextmanager
    def join(cls, folder: Path) -> Iterator[Run]:
        """Works on the artifacts of a run beside the process that leads it."""
        if not _is_run(folder):
            raise ArtifactError(f"{folder} holds no run that could be joined; start the same command without --join first")
        hold = RunLock(folder, join=True)
        try:
            yield cls(folder, hold)
        finally:
            hold.close()

    @classmethod
    def open(cls, folder: str | Path) -> Run:
        """An existing run, to read; ArtifactError names the first record or result that is damaged, missing or another run's."""
        folder = Path(folder)
        if not is_file(folder / RUN):
            raise ArtifactError(f"{folder} holds no run: it has no {RUN}. Make one with: headcount score MODEL --task TASK --out {folder}")
        run = cls(folder)
        run.check_whole()
        return run

    @property
    def leads(self) -> bool:
        """Whether this process has the folder for itself and its workers."""
        return self.hold is not None and not self.hold.joined

    # What the run is about.

    def describe(self, record: RunRecord, heads: HeadIndex) -> None:
        """Says what is computed now, in run.json and heads.json, as soon as there is something to keep; refuses another model than the run's."""
        before = self._known(RUN, RunRecord)
        if before is not None:
            self._check_model(before, record)
            unchanged = {name: getattr(before, name) for name in ("created", "data", "models", "compared")}
            record = record.model_copy(update={**unchanged, "results": self._present_results(before)})
        known = self._known(HEADS, HeadsRecord)
        if known is not None and before is not None and hash_of(known) != before.heads and self.leads:
            self.set_aside(self.folder / HEADS, Foreign(self._foreign_heads()))
        now = HeadsRecord(blocks=[_block(block) for block in heads.blocks])
        self._due = (record.model_copy(update={"heads": hash_of(now)}), now) if self.leads else None

    def _present_results(self, record: RunRecord) -> dict[str, str]:
        """The results that run.json lists and whose artifacts are there; of others the process that leads says that they are gone."""
        missing = self.missing_results(record)
        if missing and self.leads:
            text = (
                f"{RUN} lists {', '.join(missing)[:300]}, whose artifacts are gone; they are computed again if this command asks for them"
            )
            self.log(text)
            self.warn(f"{self.folder}: {text}")
        return {title: key for title, key in record.results.items() if title not in missing} if self.leads else dict(record.results)

    def missing_results(self, record: RunRecord) -> list[str]:
        """The results that run.json lists and whose artifacts are not there, by kind and name."""
        return [title for title, key in record.results.items() if not os.path.lexists(self.folder / listed_path(title, key))]

    def _foreign_heads(self) -> str:
        return f"{self.folder / HEADS} is another run's: its hash is not the one in {RUN}"

    def check_whole(self) -> None:
        """Raises ArtifactError unless run.json, heads.json and the artifacts that they name belong together and are there; reads no results."""
        record = self.record()
        self.heads()
        missing = self.missing_results(record)
        if missing:
            number = f"{len(missing)} result{'s' if len(missing) > 1 else ''}"
            raise ArtifactError(
                f"{self.folder / RUN} lists {number} whose artifacts are missing (first: {missing[0]:.100}): the folder was "
                f"copied in part, or {RUN} is another run's. Copy it again with all its artifacts, or run its command again: {record.command}"
            )
        is_foreign = self._foreign_test()
        for path in self.find_unlisted(record):
            if _mentions_other_weights(path, record.model.weights) and (artifact := self._whole(path)) is not None:
                is_foreign(artifact)

    def _write_due(self) -> None:
        """Writes what `describe` said, once."""
        if self._due is not None:
            (record, heads), self._due = self._due, None
            self.log(f"begins: {record.command}")
            write_record(self.folder / HEADS, heads)
            write_record(self.folder / RUN, record)

    def check_model(self, model: ModelRecord) -> None:
        """Refuses, before work is done for it, another model than the run's."""
        before = self._known(RUN, RunRecord)
        if before is not None:
            self._check_model(before, before.model_copy(update={"model": model}))

    def _check_model(self, before: RunRecord, now: RunRecord) -> None:
        if before.model.weights != now.model.weights:
            raise ArtifactError(
                f"{self.folder} is a run of another model ({before.model.name}, weights {before.model.weights[:12]}; this one has "
                f"{now.model.weights[:12]}); name another folder"
            )

    def record(self) -> RunRecord:
        """What run.json says."""
        return read_record(self.folder / RUN, RunRecord)

    def _current(self) -> RunRecord:
        """What run.json says, or will say as soon as there is something to keep."""
        return self.record() if self._due is None else self._due[0]

    def heads(self) -> HeadsRecord:
        """What heads.json says; Foreign if run.json says that it is another run's."""
        heads = read_record(self.folder / HEADS, HeadsRecord)
        if hash_of(heads) != self.record().heads:
            raise Foreign(f"{self._foreign_heads()}. Run the command of the run again, or restore it")
        return heads

    def _known(self, name: str, kind: type[Kind]) -> Kind | None:
        """A record of the folder, if it is there and whole; a damaged one goes aside, which is the business of the process that leads."""
        path = self.folder / name
        if not path.is_file():
            return None
        try:
            return read_record(path, kind)
        except Damaged as error:
            if self.hold is None or self.leads:
                self.set_aside(path, error)
            return None

    # Artifacts.

    def find(self, spec: ArtifactKey) -> Artifact | None:
        """The finished artifact of that key, or None; a damaged one goes aside, so that it is computed again."""
        return self._whole(self.folder / spec.path)

    def _whole(self, path: Path) -> Artifact | None:
        """The artifact of a file, or None if there is none any more or it is damaged; a reader is told of damage and of foreign artifacts."""
        try:
            return _read_artifact(path)
        except Damaged as error:
            if self.hold is None:
                raise Damaged(f"{error}. Run the command that made it again: {self._command()}") from error
        with self.hold.mending():  # another process may have found the same damage, and mended it meanwhile
            try:
                return _read_artifact(path)
            except Damaged as error:
                self._move_aside(path, error)
                return None

    def commit(
        self, spec: ArtifactKey, content: Mapping[str, Any], arrays: Mapping[str, np.ndarray] | None = None, *, made: Mapping[str, Any]
    ) -> Artifact:
        """Writes a finished artifact; from when this returns it is never lost."""
        artifact = Artifact(spec, content, arrays or {}, made)
        path = self.folder / spec.path
        packed = artifact.pack()
        self._write_due()
        make_folder(path.parent)
        write_atomic(path, packed)
        return artifact

    def artifact(
        self, spec: ArtifactKey, compute: Callable[[], tuple[Mapping[str, Any], Mapping[str, np.ndarray]]], *, made: Mapping[str, Any]
    ) -> Artifact:
        """The artifact of that key, computed only if it is not finished yet."""
        return self.find(spec) or self.commit(spec, *compute(), made=made)

    def artifacts(self, kind: str) -> list[Artifact]:
        """All finished artifacts of a kind, in the order of their names and keys; readers are told of damaged ones."""
        return list(self.each(kind))

    def each(self, kind: str) -> Iterator[Artifact]:
        """The same, one after another."""
        is_foreign = self._foreign_test() if kind in SHOWN and is_file(self.folder / RUN) else None
        for path in sorted((self.folder / ARTIFACTS / safe_name(kind)).glob(f"*{SUFFIX}")):
            artifact = self._whole(path)
            if artifact is not None and not (is_foreign is not None and is_foreign(artifact)):
                yield artifact

    def find_unlisted(self, record: RunRecord) -> Iterator[Path]:
        """The files of results that run.json does not list: finished by a command that was stopped, or another run's."""
        listed = {listed_path(title, key) for title, key in record.results.items()}
        for kind in SHOWN:
            for path in sorted((self.folder / ARTIFACTS / kind).glob(f"*{SUFFIX}")):
                if path.relative_to(self.folder) not in listed:
                    yield path

    def _foreign_test(self) -> Callable[[Artifact], bool]:
        """Tells whether a result is of another model than the run's and not listed; a reader gets Foreign, who works here a warning.

        Artifacts of models that the run compares with its own are no results of it either, and nobody is told.
        """
        record = self._current()
        listed = set(record.results.values())

        def is_foreign(artifact: Artifact) -> bool:
            weights = artifact.spec.weights
            if weights is None or weights == record.model.weights or artifact.spec.key in listed:
                return False
            if weights in record.compared:
                return True
            text = (
                f"{self.folder / artifact.spec.path} is of another model (weights {weights[:12]}; the run is of {record.model.name}, "
                f"{record.model.weights[:12]}), and {RUN} does not list it"
            )
            if self.hold is None:
                raise Foreign(f"{text}. Remove it, or restore the {RUN} that belongs to it")
            self.warn(f"{text}; it is not shown")
            return True

        return is_foreign

    def discard(self, spec: ArtifactKey) -> None:
        """Removes an artifact that has gone into another one."""
        remove(self.folder / spec.path)

    # Results: the artifacts that the folder shows, by kind and name.

    def present(self, *artifacts: Artifact, data: Mapping[str, str] | None = None) -> None:
        """Makes these artifacts the results of their kind and name, notes the fingerprints of their data, and writes the tables anew."""
        if not self.leads:
            return
        from headcount.runs.tables import write_tables

        self._write_due()
        record = self.record()
        shown = {f"{artifact.spec.kind}/{artifact.spec.name}": artifact.spec.key for artifact in artifacts}
        changes = {"results": {**record.results, **shown}, "data": {**record.data, **(data or {})}, "updated": _now()}
        write_record(self.folder / RUN, record.model_copy(update=changes))
        write_tables(self)

    def results(self, kind: str) -> dict[str, Artifact]:
        """The artifacts of a kind that the folder shows, by name: the ones last asked for, and those alone of their name."""
        shown, artifacts = self.record().results, self.artifacts(kind)
        number = Counter(artifact.spec.name for artifact in artifacts)
        found: dict[str, Artifact] = {}
        for artifact in artifacts:
            wanted = shown.get(f"{kind}/{artifact.spec.name}")
            if wanted == artifact.spec.key or (wanted is None and number[artifact.spec.name] == 1):
                found[artifact.spec.name] = artifact
        return found

    # Models that are kept in models/.

    def admit(self, weights: str) -> None:
        """Notes in run.json that the run compares its model with one of these weights, so that artifacts of it belong here."""
        if self.leads:
            self._write_due()
            record = self.record()
            if weights not in (record.model.weights, *record.compared):
                write_record(self.folder / RUN, record.model_copy(update={"compared": (*record.compared, weights), "updated": _now()}))

    def list_model(self, folder: Path) -> None:
        """Notes the seal of a model in models/ in run.json, so that another one in its place, or none, is noticed."""
        if self.leads:
            self._write_due()
            record = self.record()
            changes = {"models": {**record.models, folder.name: _seal_of(folder)}, "updated": _now()}
            write_record(self.folder / RUN, record.model_copy(update=changes))

    def problem_of_model(self, name: str) -> Problem | None:
        """What is wrong with a folder in models/ as run.json lists it: missing, or another model; its own files are not read."""
        path, is_described = self.folder / MODELS / name, self._due is not None or is_file(self.folder / RUN)
        listed = self._current().models.get(name) if is_described else None
        finish_replacement(path)
        if listed is None:
            text = (
                f"{path} is not listed in {RUN}: another run's, or left by a command that was stopped; run that again, or remove the folder"
            )
            return Problem("foreign", f"{MODELS}/{name}", text)
        if not is_file(path / HEADS):
            return Problem(
                "missing", f"{MODELS}/{name}", f"{path} is missing, though {RUN} lists it; run the command again: {self._command()}"
            )
        if _seal_of(path) != listed:
            text = f"{path} is another model than the one that {RUN} lists; run the command again: {self._command()}"
            return Problem("foreign", f"{MODELS}/{name}", text)
        return None

    def models(self) -> list[Path]:
        """The folders of the models that are kept; ArtifactError for one that is missing or another run's."""
        there = [path.name for path in (self.folder / MODELS).glob("*") if path.is_dir() and not path.name.startswith(".")]
        names = sorted({*self.record().models, *there})
        for name in names:
            if (problem := self.problem_of_model(name)) is not None:
                raise ArtifactError(problem.text)
        return [self.folder / MODELS / name for name in names]

    def report(self, out: Path | None = None, *, max_mb: float = 2.0) -> Path:
        """Writes the report of the run, in its folder unless told, and says where it is; it opens in any browser."""
        from headcount.runs.report.write import write_report

        return write_report(self, None, out, max_mb=max_mb)

    def _repr_html_(self) -> str:
        """What ran and what is there, for notebooks."""
        record = self.record()
        kinds = Counter(name.partition("/")[0] for name in record.results)
        rows = [("model", f"{record.model.name} ({record.model.class_name})"), ("task", record.task), ("command", record.command)]
        rows += [("updated", record.updated), ("results", ", ".join(f"{number} {kind}" for kind, number in sorted(kinds.items())))]
        return notebook.table(("run", str(self.folder)), rows, "run.report() writes the report and says where it is")

    # Notes and damage.

    def log(self, text: str) -> None:
        """Adds a line to the log."""
        append_line(self.folder / LOG, f"{_now()} {os.getpid()} {text}")

    @contextmanager
    def noting_failure(self, what: str) -> Iterator[None]:
        """Logs a number that is not finite before it ends the work, unless there is nothing that a log could tell about."""
        try:
            yield
        except NonFinite as error:
            if is_file(self.folder / RUN):
                self.log(f"failed (non-finite): {what}: {error}")
            raise

    def set_aside(self, path: Path, why: Exception) -> None:
        """Moves a damaged file to the quarantine, says so, and leaves its place free; a reader is told only."""
        if self.hold is None:
            raise why
        with self.hold.mending():
            self._move_aside(path, why)

    def _move_aside(self, path: Path, why: Exception) -> None:
        make_folder(self.folder / QUARANTINE)
        number = sum(1 for _ in (self.folder / QUARANTINE).iterdir())
        target = self.folder / QUARANTINE / f"{number:04d}.{path.name}"
        self.log(f"sets aside {path.relative_to(self.folder)} as {target.relative_to(self.folder)}: {why}")
        move(path, target)
        self.warn(f"{why}; moved to {target}, to be computed again")

    def warn(self, text: str) -> None:
        """Tells the user about something that was mended."""
        import warnings

        warnings.warn(text, stacklevel=3)

    def _command(self) -> str:
        try:
            return self.record().command
        except ArtifactError:
            return "headcount …"

    def _sweep(self) -> None:
        """Removes what processes that died were writing."""
        for path in list(self.folder.rglob(f".*{PARTIAL}")):
            if path.is_dir() and not path.is_symlink():
                remove_folder(path)
            else:
                remove(path)


def listed_path(title: str, key: str) -> Path:
    """Where the artifact of a result lies that run.json lists under `kind/name`."""
    kind, _, name = title.partition("/")
    return Path(ARTIFACTS) / safe_name(kind) / f"{safe_name(name)}.{key[:24]}{SUFFIX}"


def _mentions_other_weights(path: Path, weights: str) -> bool:
    """Whether the beginning of an artifact's file names other weights: a quick look, before the whole is read."""
    try:
        with path.open("rb") as file:
            named = _WEIGHTS.findall(file.read(1 << 16))
    except OSError:
        return False
    return any(digest.decode() != weights for digest in named)


def _seal_of(folder: Path) -> str:
    """The seal of a saved model, as its heads.json says."""
    content = read_json(folder / HEADS)
    return str(content.get("seal")) if isinstance(content, dict) else ""


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def _read_artifact(path: Path) -> Artifact | None:
    try:
        return Artifact.unpack(read_artifact(path), path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise Damaged(f"{path} cannot be read: {error}") from error


def _is_run(folder: Path) -> bool:
    return is_file(folder / RUN) or is_file(folder / LOCK) or is_folder(folder / ARTIFACTS)


def _prepare(folder: Path) -> bool:
    """Makes the folder of a run unless it is there; whether it was made."""
    try:
        made = not folder.exists()
        if not _is_run(folder):
            _check_fresh(folder)
    except OSError as error:
        raise ArtifactError(f"{folder} cannot hold a run: {error}") from error
    make_folder(folder)
    return made


def _check_fresh(folder: Path) -> None:
    if folder.exists() and not folder.is_dir():
        raise ArtifactError(f"{folder} is a file; name a folder for the run")
    check_place(folder)
    if folder.exists() and any(folder.iterdir()):
        raise ArtifactError(f"{folder} is not empty and holds no run; name another folder")


def _block(block: Any) -> BlockRecord:
    names = ("name", "kind", "stack", "layer", "path", "n_original", "n_kv_heads", "head_dim", "can_cut")
    return BlockRecord(heads=[str(head) for head in block.heads], **{name: getattr(block, name) for name in names})
