"""Scores of a run: finished scores are taken from its folder, the others are computed chunk by chunk and stored there."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import nullcontext
from dataclasses import replace
from typing import Any, NamedTuple

from torch import nn

from headcount.core.damage import LEVEL, HeadVerdicts
from headcount.core.errors import HeadcountError, OptionError, PlanError, RoundingError, UnknownName
from headcount.core.scores import Scores
from headcount.core.tolerance import TOLERANCE, Tolerance
from headcount.data.stream import Progress, broadcast_from_first, fingerprint, rank_and_world_size
from headcount.data.task import Data, task_key
from headcount.importance.base import BlockImportance, Importance
from headcount.importance.score import ScoringResult, compute_scores, parse_methods, reading_of
from headcount.importance.settings import ScoreSettings
from headcount.importance.shared_pass import shared_needs
from headcount.models.modules import unwrap
from headcount.models.provenance import model_key, rounding_provenance
from headcount.runs.artifacts import Artifact, ArtifactKey
from headcount.runs.chunks import Chunks, PassInputs, discard_chunks, find_passes_with_chunks
from headcount.runs.scores import DAMAGE, KIND, pack_scores, unpack_scores
from headcount.runs.store import Run


def score_into(
    run: Run | None,
    model: nn.Module,
    data: Data,
    by: Iterable[str | Importance],
    settings: ScoreSettings = ScoreSettings(),
    *,
    progress: Progress | None = None,
    kind: str = KIND,
) -> dict[str, Scores]:
    """Returns the scores of several methods by label, and stores them in a run: what is finished there is not computed again.

    A method fails alone, after the others are stored, if it gives a number that is not finite or if its scores are lost in rounding. Of several
    processes that torchrun started, only the first has the run.

    Args:
        run: the run; None stores nothing.
        model: the model to score.
        data: a task, a dataset or batches; None if no method reads data.
        by: methods as text or objects.
        settings: how the data are read and scores are normalised.
        progress: called with the number of examples done and of all examples.
        kind: the kind of artifact that the scores are stored as.

    Raises:
        HeadcountError: the error of the first method that failed.
    """
    methods = {str(method): method for method in parse_methods(by)}
    if broadcast_from_first(run is not None):
        assert run is not None or rank_and_world_size()[0] != 0
        result = _RunScoring(run, unwrap(model), data, methods, settings, progress, kind).find_or_compute()
    else:
        result = compute_scores(model, data, list(methods.values()), settings, progress=progress)
    result.raise_first_failure()
    return {label: result.scores[label] for label in methods}


def judge_into(  # noqa: PLR0913 - four arguments, the rest are options by name
    run: Run | None,
    model: nn.Module,
    data: Data,
    by: Iterable[str | Importance],
    settings: ScoreSettings = ScoreSettings(),
    *,
    tolerance: str | float | Tolerance = TOLERANCE,
    level: float = LEVEL,
    progress: Progress | None = None,
) -> dict[str, HeadVerdicts]:
    """Returns the verdict on every head removed alone, by label of each method that measures the loss, from damage on the report split.

    Rankings rest on the calibration split and have no part in it; the damage is stored in the run as artifacts of the kind "damage".

    Args:
        run: the run; None stores nothing.
        model: the model.
        data: a task.
        by: methods; those that do not measure the loss are left out.
        settings: how the data are read; split, normalisation and adaptive stopping are set here.
        tolerance: what a safe head costs at most: nats of loss, or points of right answers ("0.5pt").
        level: the confidence.
        progress: called with the number of examples done and of all examples.

    Raises:
        OptionError: the tolerance is out of range, or in points where answers are not right or wrong.
    """
    size, methods = Tolerance.parse(tolerance), [method for method in parse_methods(by) if method.info.measures_loss]
    if not methods:
        return {}
    settings = replace(settings, split="report", normalise="none", adaptive=None, generate=False)
    scores = score_into(run, model, data, methods, settings, progress=progress, kind=DAMAGE)
    return {label: score.judge_heads(size, level=level) for label, score in scores.items()}


class ChunkedPass(NamedTuple):
    """A pass over data: where its chunks are stored, and all its methods by label, also those whose scores are not missing."""

    chunks: Chunks
    methods: Mapping[str, Importance]


class _RunScoring:
    """One call of `score_into` with a run; `run` is None in processes that do not lead."""

    def __init__(
        self,
        run: Run | None,
        model: nn.Module,
        data: Data,
        methods: Mapping[str, Importance],
        settings: ScoreSettings,
        progress: Progress | None,
        kind: str,
    ) -> None:
        self.kind = kind
        self.run, self.model, self.data, self.settings, self.progress = run, model, data, settings, progress
        self.methods = methods
        self.provenance = rounding_provenance()
        self.needs = shared_needs(methods.values())
        self.data_key: dict[str, Any] = {}
        if any(method.reads_data for method in methods.values()):
            self.data_key = {**task_key(data), "fingerprint": fingerprint(reading_of(model, data, settings))}
        self.shared_parts = {**model_key(model), **settings.to_dict(), "data": self.data_key}
        """The parts of artifact keys that all methods have in common."""

    def key(self, method: Importance) -> ArtifactKey:
        """Returns the artifact key of a method's scores. Methods that share a pass depend on what all of them need."""
        parts = {"method": method.to_dict(), **self.shared_parts, "normalise": method.scaling(self.settings.normalise)}
        if method.reads_data:
            parts["needs"] = self.needs if isinstance(method, BlockImportance) else []
        else:
            parts |= {"data": {}, "split": None, "limit": None}
        return ArtifactKey(self.kind, str(method), parts)

    def find_or_compute(self) -> ScoringResult:
        """Returns the scores, and the errors of methods that failed."""
        artifacts: dict[str, Artifact] = {}
        if self.run is not None:
            stored = {label: self.run.find(self.key(method)) for label, method in self.methods.items()}
            artifacts = {label: artifact for label, artifact in stored.items() if artifact is not None}
        scores = broadcast_from_first({label: unpack_scores(artifact) for label, artifact in artifacts.items()})
        failures: dict[str, HeadcountError] = {}
        missing = {label: method for label, method in self.methods.items() if label not in scores}
        if missing:
            computed, new_artifacts = self._compute_and_store(missing)
            scores |= computed.scores
            artifacts |= new_artifacts
            failures = computed.failures
        if self.run is not None:
            self._register_results(self.run, artifacts, failures)
        return ScoringResult(scores, failures)

    def _compute_and_store(self, missing: Mapping[str, Importance]) -> tuple[ScoringResult, dict[str, Artifact]]:
        chunks, methods = (None, missing) if self.run is None else self._open_chunks(self.run, missing)
        with nullcontext() if self.run is None else self.run.log_non_finite_error(", ".join(methods)):
            result = compute_scores(
                self.model,
                self.data,
                broadcast_from_first(list(methods.values())),
                self.settings,
                progress=self.progress,
                chunk_store=chunks,
                earlier_needs=self.needs,
            )
        scores = {label: table for label, table in result.scores.items() if label in missing}
        artifacts: dict[str, Artifact] = {}
        if self.run is not None and chunks is not None:
            for label, table in scores.items():
                artifacts[label] = self.run.commit(self.key(missing[label]), *pack_scores(table), provenance=self.provenance)
            if not result.failures:
                chunks.clear()
        return ScoringResult(scores, result.failures), artifacts

    def _open_chunks(self, run: Run, missing: Mapping[str, Importance]) -> ChunkedPass:
        """Returns the pass to compute: one that was stopped, if it has all methods that are missing, else a new one of these."""
        in_order = self.settings.adaptive is not None
        if in_order and not run.leads:
            raise PlanError("an adaptive run decides chunk by chunk what to examine next, so that no worker can join it")
        methods = dict(missing)
        streamed = {label for label, method in missing.items() if method.reads_data}
        if streamed and (
            stopped := find_passes_with_chunks(run, lambda parts: self._is_same_pass(parts) and streamed <= parts["methods"].keys())
        ):
            methods |= {label: Importance.parse(label) for label in stopped[0]["methods"] if label not in missing}
        options = {label: method.to_dict() for label, method in sorted(methods.items()) if method.reads_data}
        goal = [self.key(method) for method in methods.values()]
        parts = {"methods": options, "needs": self.needs, **self.shared_parts}
        chunks = Chunks(run, "+".join(options) or "weights", parts, self.provenance, goal=goal, in_order=in_order)
        return ChunkedPass(chunks, methods)

    def _is_same_pass(self, parts: PassInputs) -> bool:
        """Whether chunks belong to a pass over the same data under the same settings, whose methods still have the same options."""
        if "methods" not in parts or parts != {"methods": parts["methods"], "needs": self.needs, **self.shared_parts}:
            return False
        return all(_label_has_options(label, options) for label, options in parts["methods"].items())

    def _register_results(self, run: Run, artifacts: Mapping[str, Artifact], failures: Mapping[str, HeadcountError]) -> None:
        if not failures and run.leads:
            discard_chunks(run, lambda parts: self._is_same_pass(parts) and parts["methods"].keys() <= artifacts.keys())
        for label, error in failures.items():
            run.log(f"failed ({'rounding' if isinstance(error, RoundingError) else 'non-finite'}): {label}: {error}")
        data_print = {f"{self.data_key['task']} {self.settings.split}": self.data_key["fingerprint"]} if self.data_key else {}
        run.register_results(*artifacts.values(), data_fingerprints=data_print)


def _label_has_options(label: str, options: Mapping[str, object]) -> bool:
    """Whether a label names a method with exactly these options here; False where it is not installed."""
    try:
        return Importance.parse(label).to_dict() == options
    except (UnknownName, OptionError):
        return False
