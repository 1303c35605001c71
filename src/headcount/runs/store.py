"""A run: a folder of finished artifacts. Work in it can be stopped, killed, copied and resumed; every file appears complete or not at all.

One process leads a run (`Run.lead`), others may join it as workers (`Run.join`), any process may read it (`Run.open`). A damaged file is moved to
`quarantine/`, noted in the log and computed again by processes that lead or work; a reader raises Damaged.
"""

from __future__ import annotations

import os
import re
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from headcount.core import html as notebook
from headcount.core.errors import ArtifactError, NonFinite
from headcount.core.files import (
    PARTIAL,
    Problem,
    append_line,
    is_file,
    make_folder,
    move,
    read_json,
    remove,
    remove_folder,
    write_atomic,
)
from headcount.core.folders import finish_replacement
from headcount.core.heads import HeadIndex
from headcount.runs.artifacts import SUFFIX, Artifact, ArtifactKey, Damaged, Foreign, read_artifact_bytes, safe_name
from headcount.runs.describe import describe_heads, timestamp, versions
from headcount.runs.layout import (
    ARTIFACTS,
    HEADS,
    LOG,
    MODELS,
    QUARANTINE,
    RESULT_KINDS,
    RUN,
    artifact_path_of_title,
    create_run_folder_if_missing,
    is_run,
)
from headcount.runs.lock import RunLock, kernel_locks
from headcount.runs.records import AnyRecord, hash_of_record, read_record, write_record
from headcount.runs.schema import HeadsRecord, ModelRecord, RunRecord

Computed = tuple[Mapping[str, Any], Mapping[str, np.ndarray]]
"""Content and arrays of an artifact."""
_WEIGHTS = re.compile(rb'"weights": "([0-9a-f]{64})"')


class Run:
    """A run by its folder."""

    def __init__(self, folder: Path, lock: RunLock | None = None) -> None:
        self.folder, self.lock = folder, lock
        self.expects_workers = False
        self._pending: tuple[RunRecord, HeadsRecord] | None = None

    def __repr__(self) -> str:
        return f"Run({str(self.folder)!r})"

    # Locking a folder.

    @classmethod
    @contextmanager
    def lead(cls, folder: Path, *, command: str = "") -> Iterator[Run]:
        """Locks a run folder, created if needed, while the context lasts; raises Busy at once if another process leads it."""
        kernel_locks()  # before a folder is created that could not be locked
        is_new = create_run_folder_if_missing(folder)
        lock = RunLock(folder, join=False, command=command)
        run = cls(folder, lock)
        try:
            with lock.exclude_workers() as is_alone:
                if is_alone:
                    run._remove_partial_files()
            yield run
        finally:
            lock.close(remove_empty_folder=is_new)

    @classmethod
    @contextmanager
    def join(cls, folder: Path) -> Iterator[Run]:
        """Works on the artifacts of a run beside its leading process."""
        if not is_run(folder):
            raise ArtifactError(f"{folder} holds no run that could be joined; start its leading process first")
        lock = RunLock(folder, join=True)
        try:
            yield cls(folder, lock)
        finally:
            lock.close()

    @classmethod
    def open(cls, folder: str | Path) -> Run:
        """Opens an existing run for reading; raises ArtifactError for the first record or result that is damaged, missing or another run's."""
        folder = Path(folder)
        if not is_file(folder / RUN):
            raise ArtifactError(f"{folder} holds no run: it has no {RUN}. Name a folder that a headcount command wrote")
        run = cls(folder)
        run.check_complete()
        return run

    @property
    def leads(self) -> bool:
        """Whether this process leads the run, alone or with workers."""
        return self.lock is not None and not self.lock.joined

    # Description: run.json and heads.json.

    def stage_records(self, record: RunRecord, heads: HeadIndex) -> None:
        """Sets run.json and heads.json, to be written with the first artifact; raises ArtifactError for another model than the run's."""
        before = self.read_intact_record(RUN, RunRecord)
        if before is not None:
            self._check_same_model(before, record)
            unchanged = {name: getattr(before, name) for name in ("created", "data", "models", "compared")}
            record = record.model_copy(update={**unchanged, "results": self._results_with_artifacts(before)})
        known = self.read_intact_record(HEADS, HeadsRecord)
        if known is not None and before is not None and hash_of_record(known) != before.heads and self.leads:
            self.quarantine(self.folder / HEADS, Foreign(self._foreign_heads_message()))
        heads_record = describe_heads(heads)
        self._pending = (record.model_copy(update={"heads": hash_of_record(heads_record)}), heads_record) if self.leads else None

    def stage_records_of_same_model(self, source_run: Run, *, command: str, seed: int) -> None:
        """Describes the run as one of the model of another run; raises ArtifactError if it is a run of another model already."""
        their_record, before = source_run.record(), self.read_intact_record(RUN, RunRecord)
        if before is not None:
            self._check_same_model(before, their_record)
        elif self.leads:
            changes = {"command": command, "created": timestamp(), "updated": timestamp(), "seed": seed, "versions": versions()}
            no_results = {"data": {}, "models": {}, "compared": (), "results": {}}
            self._pending = their_record.model_copy(update={**changes, **no_results}), source_run.heads()

    def _results_with_artifacts(self, record: RunRecord) -> dict[str, str]:
        """Returns the results that run.json lists and whose artifacts exist; the leading process warns about the missing ones."""
        missing = self.missing_results(record)
        if missing and self.leads:
            text = (
                f"{RUN} lists {', '.join(missing)[:300]}, whose artifacts are missing; they are computed again if this command needs them"
            )
            self.log(text)
            self.warn(f"{self.folder}: {text}")
        return {title: digest for title, digest in record.results.items() if title not in missing} if self.leads else dict(record.results)

    def missing_results(self, record: RunRecord) -> list[str]:
        """Returns the results (`kind/name`) that run.json lists and whose artifacts are missing."""
        return [
            title for title, digest in record.results.items() if not os.path.lexists(self.folder / artifact_path_of_title(title, digest))
        ]

    def _foreign_heads_message(self) -> str:
        return f"{self.folder / HEADS} is another run's: its hash is not the one in {RUN}"

    def check_complete(self) -> None:
        """Raises ArtifactError unless run.json, heads.json and the listed artifacts exist and belong together; reads no results."""
        record = self.record()
        self.heads()
        missing = self.missing_results(record)
        if missing:
            number = f"{len(missing)} result{'s' if len(missing) > 1 else ''}"
            raise ArtifactError(
                f"{self.folder / RUN} lists {number} whose artifacts are missing (first: {missing[0]:.100}): the folder was "
                f"copied in part, or {RUN} is another run's. Copy it again with all its artifacts, or run its command again: {record.command}"
            )
        is_foreign = self._make_foreign_test()
        for path in self.unlisted_result_files(record):
            if _mentions_other_weights(path, record.model.weights) and (artifact := self._read_intact_artifact(path)) is not None:
                is_foreign(artifact)

    def _write_pending_records(self) -> None:
        """Writes the records that `stage_records` set, once."""
        if self._pending is not None:
            (record, heads), self._pending = self._pending, None
            self.log(f"begins: {record.command}")
            write_record(self.folder / HEADS, heads)
            write_record(self.folder / RUN, record)

    def check_model(self, model: ModelRecord) -> None:
        """Raises ArtifactError for another model than the run's, before any work is done for it."""
        before = self.read_intact_record(RUN, RunRecord)
        if before is not None:
            self._check_same_model(before, before.model_copy(update={"model": model}))

    def _check_same_model(self, before: RunRecord, now: RunRecord) -> None:
        if before.model.weights != now.model.weights:
            raise ArtifactError(
                f"{self.folder} is a run of another model ({before.model.name}, weights {before.model.weights[:12]}; this one has "
                f"{now.model.weights[:12]}); name another folder"
            )

    def record(self) -> RunRecord:
        """Returns the content of run.json."""
        return read_record(self.folder / RUN, RunRecord)

    def has_records_of_model(self, model_name: str) -> bool:
        """Whether the run is described already, as one of the model of that name."""
        is_described = self._pending is not None or is_file(self.folder / RUN)
        return is_described and self._current_record().model.name == model_name

    def _current_record(self) -> RunRecord:
        """Returns the content of run.json, or the pending one."""
        return self.record() if self._pending is None else self._pending[0]

    def heads(self) -> HeadsRecord:
        """Returns the content of heads.json; raises Foreign if its hash is not the one in run.json."""
        heads = read_record(self.folder / HEADS, HeadsRecord)
        if hash_of_record(heads) != self.record().heads:
            raise Foreign(f"{self._foreign_heads_message()}. Run the command of the run again, or restore it")
        return heads

    def read_intact_record(self, file_name: str, record_type: type[AnyRecord]) -> AnyRecord | None:
        """Returns a record of the folder, None if it is missing or damaged; the leading process moves a damaged one to the quarantine."""
        path = self.folder / file_name
        if not path.is_file():
            return None
        try:
            return read_record(path, record_type)
        except Damaged as error:
            if self.lock is None or self.leads:
                self.quarantine(path, error)
            return None

    # Artifacts.

    def find(self, key: ArtifactKey) -> Artifact | None:
        """Returns the finished artifact of a key, or None; a damaged one is moved to the quarantine, to be computed again."""
        return self._read_intact_artifact(self.folder / key.path_in_run)

    def _read_intact_artifact(self, path: Path) -> Artifact | None:
        """Returns the artifact in a file, None if it is missing or was moved to the quarantine; a reader gets Damaged or Foreign instead."""
        try:
            return _read_artifact_if_present(path)
        except Damaged as error:
            if self.lock is None:
                raise Damaged(f"{error}. Run the command that made it again: {self._command_of_run()}") from error
        with self.lock.lock_quarantine():  # another process may have moved the file and computed it again meanwhile
            try:
                return _read_artifact_if_present(path)
            except Damaged as error:
                self._move_to_quarantine(path, error)
                return None

    def commit(
        self,
        key: ArtifactKey,
        content: Mapping[str, object],
        arrays: Mapping[str, np.ndarray] | None = None,
        *,
        provenance: Mapping[str, object],
    ) -> Artifact:
        """Writes a finished artifact; it is safely on disk when this returns."""
        artifact = Artifact(key, content, arrays or {}, provenance)
        path = self.folder / key.path_in_run
        artifact_bytes = artifact.pack()
        self._write_pending_records()
        make_folder(path.parent)
        write_atomic(path, artifact_bytes)
        return artifact

    def find_or_compute(self, key: ArtifactKey, compute: Callable[[], Computed], *, provenance: Mapping[str, object]) -> Artifact:
        """Returns the artifact of a key, computed only if it is not finished yet."""
        return self.find(key) or self.commit(key, *compute(), provenance=provenance)

    def artifacts(self, kind: str) -> list[Artifact]:
        """Returns all finished artifacts of a kind, ordered by name and digest."""
        return list(self.iter_artifacts(kind))

    def iter_artifacts(self, kind: str) -> Iterator[Artifact]:
        """Yields the artifacts of a kind one by one, so that only one is in memory."""
        is_foreign = self._make_foreign_test() if kind in RESULT_KINDS and is_file(self.folder / RUN) else None
        for path in sorted((self.folder / ARTIFACTS / safe_name(kind)).glob(f"*{SUFFIX}")):
            artifact = self._read_intact_artifact(path)
            if artifact is not None and not (is_foreign is not None and is_foreign(artifact)):
                yield artifact

    def unlisted_result_files(self, record: RunRecord) -> Iterator[Path]:
        """Yields the files of results that run.json does not list: of a command that was stopped, or of another run."""
        listed = {artifact_path_of_title(title, digest) for title, digest in record.results.items()}
        for kind in RESULT_KINDS:
            for path in sorted((self.folder / ARTIFACTS / kind).glob(f"*{SUFFIX}")):
                if path.relative_to(self.folder) not in listed:
                    yield path

    def _make_foreign_test(self) -> Callable[[Artifact], bool]:
        """Returns a function that tells whether an unlisted artifact is of another model; for a reader it raises Foreign, else it warns.

        Artifacts of models that the run compares with its own are left out without a warning.
        """
        record = self._current_record()
        listed = set(record.results.values())

        def is_foreign(artifact: Artifact) -> bool:
            weights = artifact.key.weight_hash
            if weights is None or weights == record.model.weights or artifact.key.digest in listed:
                return False
            if weights in record.compared:
                return True
            text = (
                f"{self.folder / artifact.key.path_in_run} is of another model (weights {weights[:12]}; the run is of {record.model.name}, "
                f"{record.model.weights[:12]}), and {RUN} does not list it"
            )
            if self.lock is None:
                raise Foreign(f"{text}. Remove it, or restore the {RUN} that belongs to it")
            self.warn(f"{text}; it is not shown")
            return True

        return is_foreign

    def discard(self, key: ArtifactKey) -> None:
        """Removes an artifact that was merged into another one."""
        remove(self.folder / key.path_in_run)

    # Results: the artifacts that run.json lists, by kind and name.

    def register_results(self, *artifacts: Artifact, data_fingerprints: Mapping[str, str] | None = None) -> None:
        """Lists the artifacts as results in run.json, with the fingerprints of their data, and writes the tables again."""
        if not self.leads:
            return
        from headcount.runs.tables import write_tables

        self._write_pending_records()
        record = self.record()
        titles = {f"{artifact.key.kind}/{artifact.key.name}": artifact.key.digest for artifact in artifacts}
        changes = {"results": {**record.results, **titles}, "data": {**record.data, **(data_fingerprints or {})}, "updated": timestamp()}
        write_record(self.folder / RUN, record.model_copy(update=changes))
        write_tables(self)

    def results(self, kind: str) -> dict[str, Artifact]:
        """Returns the results of a kind by name: the artifacts that run.json lists, and unlisted ones whose name is unique."""
        listed, artifacts = self.record().results, self.artifacts(kind)
        n_of_name = Counter(artifact.key.name for artifact in artifacts)
        by_name: dict[str, Artifact] = {}
        for artifact in artifacts:
            digest = listed.get(f"{kind}/{artifact.key.name}")
            if digest == artifact.key.digest or (digest is None and n_of_name[artifact.key.name] == 1):
                by_name[artifact.key.name] = artifact
        return by_name

    # Models in models/.

    def register_compared_weights(self, weight_hash: str) -> None:
        """Notes in run.json that the run compares its model with weights of this hash, so that artifacts of it belong here."""
        if self.leads:
            self._write_pending_records()
            record = self.record()
            if weight_hash not in (record.model.weights, *record.compared):
                write_record(
                    self.folder / RUN, record.model_copy(update={"compared": (*record.compared, weight_hash), "updated": timestamp()})
                )

    def register_saved_model(self, folder: Path) -> None:
        """Notes the seal of a model in models/ in run.json, so that another one in its place, or none, is noticed."""
        if self.leads:
            self._write_pending_records()
            record = self.record()
            changes = {"models": {**record.models, folder.name: _seal_of_saved_model(folder)}, "updated": timestamp()}
            write_record(self.folder / RUN, record.model_copy(update=changes))

    def problem_of_saved_model(self, folder_name: str) -> Problem | None:
        """Returns the problem of a folder in models/: not listed in run.json, missing, or another model; its weights are not read."""
        path, is_described = self.folder / MODELS / folder_name, self._pending is not None or is_file(self.folder / RUN)
        listed = self._current_record().models.get(folder_name) if is_described else None
        finish_replacement(path)
        if listed is None:
            text = (
                f"{path} is not listed in {RUN}: another run's, or left by a command that was stopped; run that again, or remove the folder"
            )
            return Problem("foreign", f"{MODELS}/{folder_name}", text)
        if not is_file(path / HEADS):
            return Problem(
                "missing",
                f"{MODELS}/{folder_name}",
                f"{path} is missing, though {RUN} lists it; run the command again: {self._command_of_run()}",
            )
        if _seal_of_saved_model(path) != listed:
            text = f"{path} is another model than the one that {RUN} lists; run the command again: {self._command_of_run()}"
            return Problem("foreign", f"{MODELS}/{folder_name}", text)
        return None

    def models(self) -> list[Path]:
        """Returns the folders of the saved models; raises ArtifactError for one that is missing or another run's."""
        existing = [path.name for path in (self.folder / MODELS).glob("*") if path.is_dir() and not path.name.startswith(".")]
        names = sorted({*self.record().models, *existing})
        for name in names:
            if (problem := self.problem_of_saved_model(name)) is not None:
                raise ArtifactError(problem.text)
        return [self.folder / MODELS / name for name in names]

    def report(self, out: Path | None = None, *, max_mb: float = 2.0) -> Path:
        """Writes the report of the run as one HTML file, by default `report.html` in its folder, and returns its path."""
        from headcount.runs.report.write import write_report

        return write_report(self, None, out, max_mb=max_mb)

    def _repr_html_(self) -> str:
        """Returns a table of the run for notebooks."""
        record = self.record()
        kinds = Counter(name.partition("/")[0] for name in record.results)
        rows = [("model", f"{record.model.name} ({record.model.class_name})"), ("task", record.task), ("command", record.command)]
        rows += [("updated", record.updated), ("results", ", ".join(f"{number} {kind}" for kind, number in sorted(kinds.items())))]
        return notebook.html_table(("run", str(self.folder)), rows, "run.report() writes the report and returns its path")

    # Log and damaged files.

    def log(self, text: str) -> None:
        """Adds a line to the log."""
        append_line(self.folder / LOG, f"{timestamp()} {os.getpid()} {text}")

    @contextmanager
    def log_non_finite_error(self, work: str) -> Iterator[None]:
        """Logs a NonFinite error raised within the context, if the folder holds a run."""
        try:
            yield
        except NonFinite as error:
            if is_file(self.folder / RUN):
                self.log(f"failed (non-finite): {work}: {error}")
            raise

    def quarantine(self, path: Path, error: Exception) -> None:
        """Moves a damaged file to the quarantine, with a line in the log and a warning; for a reader it raises the error instead."""
        if self.lock is None:
            raise error
        with self.lock.lock_quarantine():
            self._move_to_quarantine(path, error)

    def _move_to_quarantine(self, path: Path, error: Exception) -> None:
        make_folder(self.folder / QUARANTINE)
        number = sum(1 for _ in (self.folder / QUARANTINE).iterdir())
        target = self.folder / QUARANTINE / f"{number:04d}.{path.name}"
        self.log(f"moves {path.relative_to(self.folder)} to {target.relative_to(self.folder)}: {error}")
        move(path, target)
        self.warn(f"{error}; moved to {target}, to be computed again")

    def warn(self, text: str) -> None:
        """Warns the user about a file that was damaged, missing or another run's."""
        warnings.warn(text, stacklevel=3)

    def _command_of_run(self) -> str:
        try:
            return self.record().command
        except ArtifactError:
            return "headcount …"

    def _remove_partial_files(self) -> None:
        """Removes incomplete files of processes that died."""
        for path in list(self.folder.rglob(f".*{PARTIAL}")):
            if path.is_dir() and not path.is_symlink():
                remove_folder(path)
            else:
                remove(path)


def _mentions_other_weights(path: Path, weight_hash: str) -> bool:
    """Whether the beginning of an artifact's file names other weights: a quick test before the file is read."""
    try:
        with path.open("rb") as file:
            named = _WEIGHTS.findall(file.read(1 << 16))
    except OSError:
        return False
    return any(digest.decode() != weight_hash for digest in named)


def _seal_of_saved_model(folder: Path) -> str:
    """Returns the seal of a saved model, from its heads.json."""
    content = read_json(folder / HEADS)
    return str(content.get("seal")) if isinstance(content, dict) else ""


def _read_artifact_if_present(path: Path) -> Artifact | None:
    try:
        return Artifact.unpack(read_artifact_bytes(path), path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise Damaged(f"{path} cannot be read: {error}") from error
