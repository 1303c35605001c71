"""Verification of a run folder: reads every file and reports what is damaged, missing or another run's."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

from headcount.core.errors import ArtifactError, HeadcountError
from headcount.core.files import Problem, is_file, sha256
from headcount.core.plan import Plan
from headcount.runs.artifacts import SUFFIX, Artifact, Damaged, Foreign, read_artifact_bytes
from headcount.runs.layout import ARTIFACTS, HEADS, MODELS, RESULT_KINDS, RUN, artifact_path_of_title
from headcount.runs.records import AnyRecord, hash_of_record, read_record
from headcount.runs.results import PRUNED
from headcount.runs.schema import HeadsRecord, RunRecord, TablesRecord
from headcount.runs.scores import KIND as SCORES
from headcount.runs.scores import unpack_scores
from headcount.runs.store import Run
from headcount.runs.tables import TABLES, is_same_table, table_files

BENCH, PLAN = "bench", ".plan.json"
ModelCheck = Callable[[Path], Iterator[Problem]]
"""Yields the problems of a saved model, given its folder; passed in because this room does not read models."""


class RunCheck:
    """The verification of one run folder; `checked` counts the files that were read."""

    def __init__(self, folder: Path, check_model: ModelCheck) -> None:
        self.folder, self.check_model, self.checked = folder, check_model, 0
        self.run = Run(folder)
        self.digests: set[str] = set()
        self.removed: dict[str, list[str]] = {}

    def problems(self) -> Iterator[Problem]:
        """Yields every problem of the folder; raises ArtifactError only for a run of another schema version."""
        record, problems = self._read_and_check_record(RUN, RunRecord)
        yield from problems
        heads, problems = self._read_and_check_record(HEADS, HeadsRecord)
        yield from problems
        if heads is not None and record is not None and hash_of_record(heads) != record.heads:
            yield Problem("foreign", HEADS, f"{self.folder / HEADS} is another run's: its hash is not the one in {RUN}; restore it")
        yield from self._check_artifacts(record)
        if record is None:
            return
        for title in self.run.missing_results(record):
            path = str(artifact_path_of_title(title, record.results[title]))
            text = f"{self.folder / path} is missing, though {RUN} lists it as {title:.100}; run the command again: {record.command}"
            yield Problem("missing", path, text)
        yield from self._check_tables(record)
        yield from self._check_models(record)
        yield from self._check_plans(record)

    def _read_and_check_record(self, file_name: str, record_type: type[AnyRecord]) -> tuple[AnyRecord | None, list[Problem]]:
        path = self.folder / file_name
        if not is_file(path):
            return None, [Problem("missing", file_name, f"{path} is missing; copy the run folder again, or run its command again")]
        self.checked += 1
        try:
            return read_record(path, record_type), []
        except Damaged as error:
            return None, [_problem_of_error(file_name, error)]

    def _check_artifacts(self, record: RunRecord | None) -> Iterator[Problem]:
        benchmarks: list[tuple[str, Artifact]] = []
        for path in sorted((self.folder / ARTIFACTS).rglob(f"*{SUFFIX}")):
            self.checked += 1
            name = str(path.relative_to(self.folder))
            try:
                artifact = Artifact.unpack(read_artifact_bytes(path), path)
                if artifact.key.kind == SCORES:
                    unpack_scores(artifact)
            except (HeadcountError, OSError) as error:
                yield _problem_of_error(name, error)
                continue
            self.digests.add(artifact.key.digest)
            if artifact.key.kind == PRUNED:
                self.removed[artifact.key.digest[:8]] = artifact.content.get("removed", [])
            if str(artifact.key.path_in_run) != name:
                yield Problem(
                    "foreign",
                    name,
                    f"{path} is in the folder of another kind than its own ({artifact.key.kind}); move it back, or remove it",
                )
            elif record is not None and artifact.key.digest not in record.results.values():
                if artifact.key.kind in RESULT_KINDS and artifact.key.weight_hash not in (None, record.model.weights, *record.compared):
                    text = f"{path} is of another model (weights {artifact.key.weight_hash}) than the run, and {RUN} does not list it; remove it"
                    yield Problem("foreign", name, text)
                benchmarks += [(name, artifact)] if artifact.key.kind == BENCH else []
        for name, artifact in benchmarks:
            if artifact.key.inputs.get("of") not in self.digests:
                yield Problem("foreign", name, f"{self.folder / name} holds the times of a model that this run does not have; remove it")

    def _tables_from_artifacts(self, record: RunRecord) -> dict[str, bytes] | None:
        """Returns the tables that the artifacts give; None if the run was stopped before it wrote them, or an artifact is unusable."""
        if any(self.run.unlisted_result_files(record)):
            return None
        try:
            return dict(table_files(self.run))
        except HeadcountError:  # a damaged or foreign artifact is reported by itself
            return None

    def _check_tables(self, record: RunRecord) -> Iterator[Problem]:
        if not is_file(self.folder / TABLES):
            if record.results:
                yield Problem("missing", TABLES, f"{self.folder / TABLES} is missing, though the run has results; run its command again")
            return
        listing, problems = self._read_and_check_record(TABLES, TablesRecord)
        yield from problems
        if listing is None:
            return
        fresh = self._tables_from_artifacts(record)
        for name, listed in listing.files.items():
            path = self.folder / name
            if Path(name).name != name or not is_file(path):
                yield Problem("missing", name, f"{path} is missing, though {TABLES} lists it; run the command of the run again")
                continue
            self.checked += 1
            if sha256(path) not in (listed, listing.before.get(name)):
                yield Problem(
                    "damaged", name, f"{path} is damaged or was edited: its hash is not the one in {TABLES}; run the command again"
                )
            elif fresh is not None and name not in listing.before and not (name in fresh and is_same_table(path, fresh[name])):
                yield Problem("foreign", name, f"{path} does not follow from the artifacts of this run; run the command of the run again")

    def _check_models(self, record: RunRecord) -> Iterator[Problem]:
        existing = [path.name for path in (self.folder / MODELS).glob("*") if path.is_dir() and not path.name.startswith(".")]
        for name in sorted({*record.models, *existing}):
            try:
                problem = self.run.problem_of_saved_model(name)
            except ArtifactError as error:
                problem = _problem_of_error(f"{MODELS}/{name}/{HEADS}", error)
            if problem is not None:
                yield problem
                continue
            for problem in self.check_model(self.folder / MODELS / name):
                yield problem._replace(path=f"{MODELS}/{name}/{problem.path}")
            self.checked += sum(path.is_file() for path in (self.folder / MODELS / name).iterdir())

    def _check_plans(self, record: RunRecord) -> Iterator[Problem]:
        """Yields the plans beside models that are unsealed, for other weights, or that remove other heads than the artifact of the model."""
        for path in sorted((self.folder / MODELS).glob(f"*{PLAN}")):
            self.checked += 1
            name, digest = f"{MODELS}/{path.name}", path.name.removesuffix(PLAN).rpartition(".")[2]
            try:
                plan = Plan.read(path)
            except HeadcountError as error:
                yield _problem_of_error(name, error)
                continue
            weights = plan.model_identity.weights if plan.model_identity is not None else ""
            if weights not in (record.model.weights, *record.compared) or sorted(map(str, plan.removed)) != sorted(
                self.removed.get(digest, [])
            ):
                yield Problem("foreign", name, f"{path} is not the plan of a model of this run; run the command that pruned it again")


def _problem_of_error(path_in_run: str, error: Exception) -> Problem:
    return Problem("foreign" if isinstance(error, Foreign) else "damaged", path_in_run, str(error))
