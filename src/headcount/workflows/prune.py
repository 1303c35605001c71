"""Pruning as artifacts of a run: a pruned model that is evaluated against the dense one, and a comparison of many, both resumable."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from torch import nn

from headcount.core.budget import Budget
from headcount.core.certificate import Certificate, TaskCertificate, certify_task
from headcount.core.errors import ArtifactError, HeadcountError
from headcount.core.evaluation import Evaluation
from headcount.core.files import model_path_or_name
from headcount.core.heads import Head
from headcount.core.margin import Margin
from headcount.core.plan import Plan
from headcount.core.sizes import SizeTest, certify_until_a_size_fails
from headcount.core.stats.metric_parts import MetricOfSums
from headcount.data.evaluate import evaluate, fingerprint_of_examples
from headcount.data.stream import Progress
from headcount.data.task import Task, task_key
from headcount.models.head_map import HeadMap
from headcount.models.modules import unwrap
from headcount.models.provenance import model_key, rounding_provenance, weight_hash
from headcount.pruning.base import Pruner
from headcount.pruning.prune import Pruned, check_request, prune_by_spec, rebuild
from headcount.pruning.spec import PruneSpec
from headcount.pruning.training.estimate import estimate_training_seconds
from headcount.pruning.training.fine_tune import train_from_scratch
from headcount.runs.artifacts import Artifact, ArtifactKey, safe_name
from headcount.runs.layout import MODELS
from headcount.runs.report.bench import Time
from headcount.runs.report.certificates import describe_bound, describe_clip, headline
from headcount.runs.report.plain import format_speed
from headcount.runs.results import (
    PRUNED,
    SELECTION,
    CostRecord,
    PrunedModelRow,
    PrunedRecord,
    certify_pruned,
    compare_pruned_with_dense,
    pack_example_arrays,
    unpack_pruned_evaluation,
)
from headcount.runs.store import Run
from headcount.runs.sweep import Job, sweep
from headcount.surgery.bench import bench
from headcount.surgery.certificate_file import attach_certificate as write_beside_model
from headcount.surgery.cost import Cost, cost
from headcount.surgery.load import load
from headcount.surgery.save import save
from headcount.workflows.analysis_spec import BenchSizes
from headcount.workflows.evaluate import evaluate_into

REVISION = 3
"""Raised where a method gives another result than before for the same request, so that a run does not take an older artifact for it."""
WORK = "work"


class Pruning:
    """Prunes one model on one task into a run; finished artifacts are read from there.

    Args:
        run: The run folder, opened for writing.
        model: The dense model.
        task: The task that heads are chosen on and models are evaluated on.
        limit: Examples of the report split that models are evaluated on; None for all.
        command: The command line for the model card.
        companions: A folder whose tokenizer files are saved with a model.
        bench_sizes: What latency is measured for; None to measure nothing.
        margin: How much worse a pruned model may be; None for bounds without a verdict.
        seed: Seeds the resampling of bounds and intervals.
    """

    def __init__(  # noqa: PLR0913 - three arguments, the rest by name
        self,
        run: Run,
        model: nn.Module,
        task: Task,
        *,
        limit: int | None = None,
        command: str = "",
        companions: Path | None = None,
        bench_sizes: BenchSizes | None = None,
        margin: Margin | None = None,
        seed: int = 0,
    ) -> None:
        self.run, self.model, self.task, self.limit, self.command = run, unwrap(model), task, limit, command
        self.companions, self.bench_sizes, self.margin, self.seed = companions, bench_sizes, margin, seed
        self.heads = HeadMap.of(self.model)
        self.provenance = rounding_provenance()
        self._shared: dict[Any, Any] = {}
        self.base_key = {**model_key(self.model), **task_key(task), "limit": limit, "revision": REVISION}
        self.base_key |= {split: fingerprint_of_examples(task, split) for split in ("calibration", "selection", "report")}

    @cached_property
    def dense_cost(self) -> Cost:
        """The cost of the dense model."""
        return cost(self.model, heads=self.heads)

    @property
    def metric_total(self) -> MetricOfSums | None:
        """What turns summed parts of the metric into the metric; None for a task without one."""
        return self.task.metric.total if self.task.metric else None

    def evaluate_dense(self) -> Evaluation:
        """Returns the evaluation of the dense model on the report split.

        Raises:
            OptionError: the margin does not fit the metric, or the metric of the dense model may be 0.
        """
        dense = evaluate_into(self.run, "dense", self.model, self.task, limit=self.limit)
        if self.margin is not None:
            certify_task(dense, dense, self.metric_total, self.margin, seed=self.seed)
        return dense

    def key(self, spec: PruneSpec) -> ArtifactKey:
        """Returns the key of the artifact of a request; it holds all options, defaults included."""
        resolved = spec.resolve_share(self.heads)
        return ArtifactKey(PRUNED, resolved.name, {**self.base_key, "spec": resolved.to_dict()})

    def is_finished(self, spec: PruneSpec) -> bool:
        """Whether the run holds the artifact of a request."""
        return self.run.find(self.key(spec)) is not None

    def make_job(self, spec: PruneSpec, *, save_model: bool = False) -> Job:
        """Returns the job of a sweep that computes a request, and saves its model if `save_model`."""
        return Job(self.key(spec), lambda: self._prune_and_evaluate(spec, save_model=save_model))

    def _prune_and_evaluate(
        self, spec: PruneSpec, *, save_model: bool, progress: Progress | None = None
    ) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        key = self.key(spec)
        folder = self.run.folder / WORK / key.digest[:24]
        pruned = self._find_choice_for_scratch(spec)
        if pruned is None:
            pruned = prune_by_spec(self.model, self.task, spec, heads=self.heads, folder=folder, progress=progress, shared=self._shared)
        if spec.scratch_recipe is not None:
            model, trained = train_from_scratch(
                self.model, pruned.plan, self.task, spec.scratch_recipe, seed=spec.seed, folder=folder / "scratch", progress=progress
            )
            history = [*pruned.history, *({"stage": "scratch", **entry} for entry in trained.history)]
            pruned = replace(pruned, model=model, history=history, steps={**pruned.steps, "scratch": trained.steps})
        selection = evaluate(pruned.model, self.task, split="selection", limit=self.limit)
        evaluation = evaluate(pruned.model, self.task, limit=self.limit)
        if save_model:
            self._save_model(key, spec, pruned, evaluation)
        shutil.rmtree(folder, ignore_errors=True)
        arrays = pack_example_arrays(evaluation) | pack_example_arrays(selection, SELECTION)
        return self._make_record(spec, pruned, evaluation, selection).to_dict(), arrays

    def _find_choice_for_scratch(self, spec: PruneSpec) -> Pruned | None:
        """Returns what was chosen for a control from scratch, with the dense model in place of its own, if the run holds the same request without.

        None for all other requests. Both must leave out the repair, and nothing may follow the choice, so that they record the same.
        """
        if spec.scratch is None or spec.repair is not False or spec.recover is not None:
            return None
        artifact = self.run.find(self.key(replace(spec, scratch=None, scratch_rate=PruneSpec.scratch_rate)))
        if artifact is None:
            return None
        record = PrunedRecord.from_artifact(artifact)
        plan = Plan.removing(record.removed, protected=spec.limits.protected)
        gates = None if record.gates is None else tuple(record.gates)
        history = [dict(entry) for entry in record.history]
        return Pruned(plan, self.model, history, {}, None, str(spec.method), gates, record.changed_weights, dict(record.steps))

    def _make_record(self, spec: PruneSpec, pruned: Pruned, evaluation: Evaluation, selection: Evaluation) -> PrunedRecord:
        """Returns the content of the artifact of a pruned model."""
        resolved = spec.resolve_share(self.heads)
        return PrunedRecord(
            spec=resolved.to_dict(),
            label=spec.label,
            arguments=resolved.arguments(),
            removed=[str(head) for head in pruned.plan.removed],
            gates=None if pruned.changed_weights else pruned.gates,
            history=pruned.history,
            steps=pruned.steps,
            repaired={
                name: {"share": fitted.ridge, "before": fitted.error_before, "after": fitted.error_after}
                for name, fitted in pruned.repaired.items()
            },
            loss=evaluation.loss,
            metric=evaluation.metric,
            higher_is_better=evaluation.higher_is_better,
            value=evaluation.value,
            n_examples=evaluation.n_examples,
            data=evaluation.data,
            cost=_to_cost_record(cost(pruned.model)),
            dense_cost=_to_cost_record(self.dense_cost),
            trained=spec.method.info.trains == "weights" or spec.recover is not None,
            changed_weights=pruned.changed_weights,
            within_rounding=[] if pruned.scores is None else list(map(str, pruned.scores.heads_within_rounding())),
            selection={"loss": selection.loss, "value": selection.value, "n_examples": selection.n_examples, "data": selection.data},
        )

    def load_or_make_model(self, spec: PruneSpec, progress: Progress | None = None) -> tuple[Artifact, nn.Module]:
        """Returns the artifact and the model of a request: loaded where the run holds both, else computed. A finished artifact is not changed."""
        key, artifact = self.key(spec), self.run.find(self.key(spec))
        problem = self.run.problem_of_saved_model(self.model_folder(key).name)
        if artifact is not None and self.model_folder(key).is_dir():
            try:
                if problem is not None:
                    raise ArtifactError(problem.text)
                return artifact, load(self.model_folder(key))
            except ArtifactError as error:
                self.run.warn(f"{error}; the model is made again")
        if artifact is not None and self._save_rebuilt_model_if_possible(spec, artifact):
            return artifact, load(self.model_folder(key))
        try:
            content, arrays = self._prune_and_evaluate(spec, save_model=True, progress=progress)
        except HeadcountError as error:
            self.run.log(f"failed: {PRUNED} {key.name}: {error}")
            raise
        artifact = artifact or self.run.commit(key, content, arrays, provenance=self.provenance)
        return artifact, load(self.model_folder(key))

    def _save_rebuilt_model_if_possible(self, spec: PruneSpec, artifact: Artifact) -> bool:
        """Saves the model of a finished artifact from its plan and gates, and returns whether these suffice: no weights were trained."""
        record = PrunedRecord.from_artifact(artifact)
        if record.changed_weights or spec.scratch is not None:
            return False
        plan = Plan.removing(record.removed, protected=spec.limits.protected)
        pruned = rebuild(self.model, self.task, spec, plan, record.gates, heads=self.heads)
        self._save_model(artifact.key, spec, pruned, unpack_pruned_evaluation(artifact))
        return True

    def _save_model(self, key: ArtifactKey, spec: PruneSpec, pruned: Pruned, evaluation: Evaluation) -> None:
        timings = self._measure_latency(key, pruned.plan.removed, lambda: pruned.model)
        certificate = certify_pruned(self.evaluate_dense(), evaluation, self.metric_total, seed=self.seed)
        save(
            pruned.model,
            self.model_folder(key),
            command=self.command or None,
            cost=(self.dense_cost, cost(pruned.model)),
            tokenizer=self.companions,
            notes=card_sentences(spec, certificate, timings),
            overwrite=True,
        )
        self.run.register_saved_model(self.model_folder(key))

    def _measure_latency(self, key: ArtifactKey, removed: Sequence[Head | str], load_small: Callable[[], nn.Module]) -> list[Time]:
        """Returns the latency of the dense, the masked and the cut model, measured once; nothing without `bench_sizes`."""
        if self.bench_sizes is None:
            return []
        bench_key = ArtifactKey("bench", key.name, {"of": key.digest, **asdict(self.bench_sizes)})
        artifact = self.run.find(bench_key)
        if artifact is None:
            models = {"dense": self.model, "masked": (self.model, Plan.removing(removed)), "removed": load_small()}
            timings = bench(models, **asdict(self.bench_sizes))
            artifact = self.run.commit(bench_key, {"rows": [asdict(timing) for timing in timings]}, provenance=self.provenance)
        self.run.register_results(artifact)
        return artifact.content["rows"]

    def latency_of(self, artifact: Artifact) -> list[Time]:
        """Returns the latency of the model of a finished artifact; nothing without `bench_sizes`."""
        return self._measure_latency(
            artifact.key, PrunedRecord.from_artifact(artifact).removed, lambda: load(self.model_folder(artifact.key))
        )

    def model_folder(self, key: ArtifactKey) -> Path:
        """Returns the folder of the model of an artifact."""
        return self.run.folder / MODELS / f"{safe_name(key.name)}.{key.digest[:8]}"

    def find_or_make_model_folder(self, spec: PruneSpec) -> Path:
        """Returns the folder of the model of a finished request, with its plan beside it; the model is made again where the run lacks it."""
        key = self.key(spec)
        artifact, folder = self.run.find(key), self.model_folder(key)
        if artifact is not None and folder.is_dir() and folder.name not in self.run.record().models:
            self.run.register_saved_model(folder)  # a worker saved it; only the leading process writes run.json
        if artifact is None or self.run.problem_of_saved_model(folder.name) is not None:
            artifact, _ = self.load_or_make_model(spec)
        self.write_plan(artifact)
        return folder

    def write_plan(self, artifact: Artifact) -> None:
        """Writes the plan of a pruned model beside the folder of its model."""
        folder = self.model_folder(artifact.key)
        plan = Plan.removing(PrunedRecord.from_artifact(artifact).removed)
        plan.write(folder.parent / f"{folder.name}.plan.json", self.heads, weights=self.base_key["weights"])

    def compare_all_with_dense(self, dense: Evaluation, artifacts: Sequence[Artifact]) -> list[PrunedModelRow]:
        """Returns one row per artifact, with its bound against the dense model."""
        return compare_pruned_with_dense(dense, artifacts, self.metric_total, self.heads.blocks, self.margin, seed=self.seed)

    def attach_certificate(self, artifact: Artifact, certificate: TaskCertificate, tests: Sequence[SizeTest] = ()) -> Certificate:
        """Returns the certificate of a kept model on its task, which is written beside it and into its card.

        `tests` are the sizes that were tested in order on the way to it.
        """
        folder, record = self.model_folder(artifact.key), self.run.record()
        opening = {name: value for name, value in (record.config.get("opened") or {}).items() if name != "model"}
        dense_name = model_path_or_name(record.model.name, record.config)
        run_certificate = Certificate(
            small=weight_hash(load(folder)),
            dense=self.base_key["weights"],
            margin="" if self.margin is None else str(self.margin),
            tasks=(certificate,),
            names=(folder.name, record.model.name),
            sizes=tuple(test.to_record() for test in tests),
            opening={"task": record.task or None, **opening, "against": dense_name, "other_tasks": []},
            provenance=self.provenance,
        )
        write_beside_model(folder, run_certificate)
        self.run.register_saved_model(folder)
        return run_certificate


def _to_cost_record(counted: Cost) -> CostRecord:
    return CostRecord(**asdict(counted))


@dataclass(frozen=True, slots=True)
class TrainingEstimate:
    """How much training lies ahead: how many models train, the fewest and most optimiser steps of one, and the seconds of all.

    `shortest` has the fewest steps of a single stage, such as the recovery.
    """

    models: int
    fewest: int
    most: int
    shortest: int
    seconds: float


def estimate_training(pruning: Pruning, specs: Sequence[PruneSpec]) -> TrainingEstimate | None:
    """Returns how long the requests that are not finished will train, from one step that is timed; None where none of them trains."""
    unfinished = [spec for spec in specs if not pruning.is_finished(spec)]
    stages = [steps for spec in unfinished if (steps := spec.n_steps_by_stage(len(pruning.task.calibration)))]
    if not stages:
        return None
    totals = [sum(steps) for steps in stages]
    seconds = estimate_training_seconds(pruning.model, pruning.task, unfinished)
    return TrainingEstimate(len(totals), min(totals), max(totals), min(map(min, stages)), seconds)


def card_sentences(spec: PruneSpec, certificate: TaskCertificate, timings: Sequence[Time]) -> list[str]:
    """Returns the sentences of a model card: how the model was made, how much worse it is than the dense model, at most, and its latency."""
    quality, by_loss = certificate.quality, certificate.by_loss
    task = f" of {certificate.task}" if certificate.task else ""
    sentences = [
        f"Pruned by {spec.label} (seed {spec.seed}).",
        f"{quality.quantity} {quality.small:.4g} on {certificate.n_examples} examples{task} that no choice was made on, the dense model's "
        f"{quality.dense:.4g}: {headline(certificate)}.",
    ]
    if by_loss is not None:
        bound = f"{describe_bound(by_loss)}, {describe_clip(certificate, by_loss)}"
        sentences.append(f"loss {by_loss.small:.4g}, the dense model's {by_loss.dense:.4g}: {bound}.")
    for batch, length in dict.fromkeys((row["batch"], row["length"]) for row in timings):
        by_model = {row["name"]: row for row in timings if (row["batch"], row["length"]) == (batch, length)}
        latencies = [
            f"{name} {1000 * row['seconds']:.1f} ms ({format_speed(row['speedup'], row.get('speedup_low'), row.get('speedup_high'))})"
            for name, row in by_model.items()
        ]
        sentences.append(f"Batch {batch}, length {length}: {', '.join(latencies)}; medians of {by_model['removed']['rounds']}.")
    return sentences


def build_grid(
    methods: Sequence[str | Pruner],
    keeps: Sequence[int | float | str],
    n_seeds: int,
    template: PruneSpec,
    *,
    first_seed: int = 0,
    n_training_seeds: int | None = None,
) -> list[PruneSpec]:
    """Returns all requests of a comparison.

    Args:
        methods: Pruners or importances, also with alternatives (`dsp(tau=1|10)`); random is always added.
        keeps: Numbers or shares of heads. A method that itself decides how many heads stay is there once, not for each of them.
        n_seeds: Number of seeds of methods with chance in them; other methods run once.
        template: The request that all others differ from in method, size and seed alone.
        first_seed: The first of the seeds.
        n_training_seeds: Number of seeds of methods that train; by default as many as the others.
    """
    pruners = Pruner.parse_grid([*methods, "random"])
    specs = []
    for pruner in pruners:
        number = (n_training_seeds or n_seeds) if pruner.info.trains else n_seeds if pruner.info.draws else 1
        floor: dict[str, Any] = {"floor": template.limits.floor, "protected": template.limits.protected, "unit": template.limits.unit}
        budgets = [Budget(**floor)] if pruner.sizing_option_text else [Budget(keep=keep, **floor) for keep in keeps]
        for budget in budgets:
            specs += [replace(template, method=pruner, budget=budget, seed=seed) for seed in range(first_seed, first_seed + number)]
    return specs


def check_requests(pruning: Pruning, specs: Sequence[PruneSpec]) -> None:
    """Raises HeadcountError for the first request that cannot be carried out."""
    for spec in specs:
        check_request(spec, pruning.model, pruning.heads)


class PruningOutcome(NamedTuple):
    """The evaluation of the dense model, the artifacts of all requests, and the errors of those that failed, by name."""

    dense: Evaluation
    artifacts: list[Artifact]
    failed: dict[str, HeadcountError]


def prune_until_a_size_fails(
    pruning: Pruning, spec: PruneSpec, kept_counts: Sequence[int], *, progress: Progress | None = None
) -> list[SizeTest]:
    """Returns the tests of a request at several numbers of heads that stay, from large to small up to the first that fails."""
    dense, artifacts = pruning.evaluate_dense(), dict[int, Artifact]()

    def prune_and_certify(n_kept: int) -> TaskCertificate:
        job = pruning.make_job(spec.resized(n_kept))
        artifacts[n_kept] = pruning.run.find_or_compute(job.key, job.compute, provenance=pruning.provenance)
        if progress is not None:
            progress(len(artifacts), len(kept_counts))
        return pruning.compare_all_with_dense(dense, [artifacts[n_kept]])[0].certificate

    tests = certify_until_a_size_fails(kept_counts, prune_and_certify)
    pruning.run.register_results(*artifacts.values())
    return tests


def prune_all(
    pruning: Pruning,
    specs: Sequence[PruneSpec],
    *,
    saves_model: Callable[[PruneSpec], bool] = lambda spec: False,
    progress: Progress | None = None,
) -> PruningOutcome:
    """Evaluates the dense model and makes the models of all requests.

    All requests are checked before any work. The run keeps the models of the requests that `saves_model` says yes to, if they are computed now.
    """
    check_requests(pruning, specs)
    dense = pruning.evaluate_dense()
    artifacts, failed = sweep(
        pruning.run,
        [pruning.make_job(spec, save_model=saves_model(spec)) for spec in specs],
        provenance=pruning.provenance,
        progress=progress,
    )
    pruning.run.register_results(*artifacts)
    return PruningOutcome(dense, artifacts, failed)
