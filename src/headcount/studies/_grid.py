"""Pruned models of several methods, sizes and seeds: scores over seeds, paired tests, and the heads that stay. Imports torch."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from statistics import mean

from headcount.core.evaluation import Evaluation, PairedDifference, compare_with
from headcount.core.heads import AttentionBlock, Head
from headcount.data.task import Task
from headcount.models.head_map import HeadMap
from headcount.pruning.prune import check_request
from headcount.pruning.spec import PruneSpec
from headcount.runs.artifacts import Artifact
from headcount.runs.results import fewest_steps, method_label, unpack_pruned
from headcount.runs.sweep import sweep
from headcount.studies._base import StudyContext
from headcount.studies._gated import average_evaluations, measure_drop
from headcount.studies._rows import SeedScores
from headcount.studies._tuning import note_training
from headcount.workflows.prune import Pruning


@dataclass(frozen=True)
class GridPoint:
    """One request, whatever its seed, on the report split.

    Attributes:
        method: The label of the request, without size and seed.
        n_kept: How many heads stay.
        seeds: The seeds.
        values: The metric, or the loss where there is none, of every seed.
        evaluation: The mean over seeds of the loss and of the metric's parts of each example.
        survivors: The heads that stay, by seed.
        change: The difference from the dense model on the same examples.
        artifacts: The artifact of every seed.
    """

    method: str
    n_kept: int
    seeds: tuple[int, ...]
    values: tuple[float, ...]
    evaluation: Evaluation
    survivors: tuple[frozenset[Head], ...]
    change: PairedDifference
    artifacts: tuple[Artifact, ...]

    @property
    def mean(self) -> float:
        """The mean over seeds."""
        return mean(self.values)

    @cached_property
    def scores(self) -> SeedScores:
        """The scores over seeds, with the 95 % interval of their mean by t from three seeds on."""
        return SeedScores.of(self.values, fewest_steps(self.artifacts[0]) if self.artifacts else None)


@dataclass(frozen=True)
class Grid:
    """The dense model and every point of a comparison on one task."""

    task: Task
    heads: HeadMap
    dense: Evaluation
    points: tuple[GridPoint, ...]

    def compare(self, point: GridPoint, control: GridPoint, *, seed: int = 0) -> PairedDifference:
        """Returns the difference of a point from another one on the same examples, seeds averaged example by example."""
        return compare_evaluations(control.evaluation, point.evaluation, self.task, seed=seed)

    def point(self, method: str, n_kept: int) -> GridPoint | None:
        """Returns the point of a method at a number of heads; None if it was not made."""
        return next((point for point in self.points if (point.method, point.n_kept) == (method, n_kept)), None)

    def find(self, spec: PruneSpec) -> GridPoint:
        """Returns the point of a request, whatever its seed; StopIteration if it was not made."""
        request = replace(spec.resolve_share(self.heads), seed=0)
        return next(point for point in self.points if replace(PruneSpec.from_dict(point.artifacts[0].content["spec"]), seed=0) == request)

    @property
    def methods(self) -> list[str]:
        """The methods in order."""
        return list(dict.fromkeys(point.method for point in self.points))


def make_pruning(context: StudyContext, task: Task | None = None) -> Pruning:
    """Returns the pruning of the model of a study into its run, on the task of the study or another one."""
    return Pruning(context.required_run, context.loaded.model, task or context.task, limit=context.limit, command=context.command)


def run_grid(context: StudyContext, pruning: Pruning, specs: Sequence[PruneSpec], *, keep_models: bool = False) -> Grid:
    """Makes and evaluates every request, those that the run holds already not again. Requests that differ in their seed alone are one point.

    With `keep_models` the run also keeps the models whose weights were trained, so that `Pruning.make` need not train them again.

    Raises:
        HeadcountError: a request is refused, before any work, or one of them fails.
    """
    for spec in specs:
        check_request(spec, pruning.model, pruning.heads)
    note_training(context, pruning, specs)
    dense = pruning.evaluate_dense()
    with context.progress("pruning", "models") as advance:
        jobs = [pruning.job(spec, save_model=keep_models and spec.n_steps(1) > 0) for spec in specs]
        artifacts, failed = sweep(pruning.run, jobs, provenance=pruning.provenance, progress=advance)
    for error in failed.values():
        raise error
    pruning.run.present(*artifacts)
    groups: dict[PruneSpec, list[tuple[PruneSpec, Artifact]]] = {}
    for spec, artifact in zip(specs, artifacts, strict=True):
        groups.setdefault(replace(spec.resolve_share(pruning.heads), seed=0), []).append((spec, artifact))
    points = [
        _make_point(pruning, dense, [spec.seed for spec, _ in group], [artifact for _, artifact in group]) for group in groups.values()
    ]
    return Grid(pruning.task, pruning.heads, dense, tuple(points))


def _make_point(pruning: Pruning, dense: Evaluation, seeds: Sequence[int], artifacts: Sequence[Artifact]) -> GridPoint:
    evaluations = [unpack_pruned(artifact) for artifact in artifacts]
    average = evaluations[0] if len(evaluations) == 1 else average_evaluations(evaluations, pruning.task)
    removed = [frozenset(map(Head.parse, artifact.content["removed"])) for artifact in artifacts]
    survivors = tuple(frozenset(pruning.heads) - heads for heads in removed)
    return GridPoint(
        method_label(artifacts[0]),
        round(mean(map(len, survivors))),
        tuple(seeds),
        tuple(evaluation.score for evaluation in evaluations),
        average,
        survivors,
        compare_evaluations(dense, average, pruning.task),
        tuple(artifacts),
    )


def compare_evaluations(first: Evaluation, second: Evaluation, task: Task, *, seed: int = 0) -> PairedDifference:
    """Returns the difference of the metric from the first to the second on the same examples, or of the loss where there is no metric.

    By Tango's score method if every example is right or wrong in both, else (corpus metrics, means over seeds) by a paired bootstrap.
    """
    if all(evaluation.parts is None or set(evaluation.parts[:, 0]) <= {0.0, 1.0} for evaluation in (first, second)):
        changes = compare_with(first, second, task.metric.total if task.metric else None, seed=seed)
        return changes.get("metric", changes["loss"])
    change = measure_drop(first, second, task, seed=seed).score
    return PairedDifference(change.difference, change.low, change.high, change.p, "paired bootstrap")


def count_by(blocks: Iterable[AttentionBlock], survivors: Iterable[frozenset[Head]], *, layers: bool = False) -> dict[str, float]:
    """Returns how many heads stay in each kind of attention, or in each layer of each kind, as the mean over sets of survivors."""
    sets = list(survivors)
    totals: dict[str, int] = {}
    for block in blocks:
        name = f"{block.kind} {block.layer}" if layers else block.kind
        totals[name] = totals.get(name, 0) + sum(len(kept.intersection(block.heads)) for kept in sets)
    return {name: total / len(sets) for name, total in totals.items()}
