"""Pruned models of several methods, sizes and seeds: their scores over seeds, paired tests between methods, and the heads that stay."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from itertools import combinations
from statistics import mean

import numpy as np

from headcount.core.evaluation import Evaluation, PairedDifference, loss_and_metric_of_pruned_minus_dense
from headcount.core.heads import Head
from headcount.core.metric_range import dense_score_plus_change_interval
from headcount.core.stats.corrected_rows import add_q_values
from headcount.core.stats.seed_parts import metric_of_second_minus_first, stack_parts_of_seeds
from headcount.core.stats.seed_scores import SeedScores
from headcount.core.stats.significance import single_interval_level
from headcount.core.survivors import mean_survivors_by_kind
from headcount.data.share_above_chance import Share
from headcount.data.task import Task
from headcount.models.head_map import HeadMap
from headcount.pruning.methods.random import RandomPruner
from headcount.pruning.spec import PruneSpec
from headcount.runs.artifacts import Artifact
from headcount.runs.results import method_label, steps_of_shortest_stage, unpack_pruned_evaluation
from headcount.workflows.prune import Pruning


@dataclass(frozen=True)
class GridPoint:
    """One request, whatever its seed, on the report split.

    Attributes:
        method: The label of the request, without size and seed.
        n_kept: How many heads stay.
        seeds: The seeds.
        values: The metric, or the loss where there is none, of every seed.
        evaluation: The mean over seeds of each example's loss and of the metric; its parts keep seeds apart.
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
        """The scores over seeds."""
        return SeedScores.from_value_of_each_seed(
            self.values, self.evaluation.metric, steps_of_shortest_stage(self.artifacts[0]) if self.artifacts else None
        )

    @property
    def is_control(self) -> bool:
        """Whether the heads were drawn over the whole model: the control of all other methods."""
        return self.artifacts[0].content["spec"]["method"] == RandomPruner().to_dict()

    def count_kept(self, heads: HeadMap, attention_kinds: Sequence[str]) -> int:
        """Returns how many heads of some kinds of attention (of all, if none are named) stay."""
        counts = mean_survivors_by_kind(heads.blocks, self.survivors)
        return round(sum(number for kind, number in counts.items() if not attention_kinds or kind in attention_kinds))


@dataclass(frozen=True)
class Grid:
    """The dense model and every point of a comparison on one task."""

    task: Task
    heads: HeadMap
    dense: Evaluation
    points: tuple[GridPoint, ...]

    @classmethod
    def from_artifacts(cls, pruning: Pruning, dense: Evaluation, artifacts: Sequence[Artifact]) -> Grid:
        """Returns the grid of finished pruned models; requests that differ in their seed alone are one point."""
        groups: dict[str, list[Artifact]] = {}
        for artifact in artifacts:
            request = {**artifact.content["spec"], "seed": 0}
            groups.setdefault(json.dumps(request, sort_keys=True), []).append(artifact)
        return cls(
            pruning.task, pruning.heads, dense, tuple(_average_artifacts_to_point(pruning, dense, group) for group in groups.values())
        )

    def point_minus_control(self, point: GridPoint, control: GridPoint, *, seed: int = 0) -> PairedDifference:
        """Returns the difference of a point from another one on the same examples, of means over seeds."""
        return evaluation_minus_baseline(control.evaluation, point.evaluation, self.task, seed=seed)

    def point_minus_dense(self, point: GridPoint, *, n_sizes: int, seed: int = 0) -> PairedDifference:
        """Returns the difference of a point from the dense model, with an interval that holds for all `n_sizes` points of its curve together."""
        return curve_point_minus_dense(self.dense, point.evaluation, self.task, n_sizes=n_sizes, seed=seed)

    def get_point(self, spec: PruneSpec) -> GridPoint:
        """Returns the point of a request, whatever its seed; StopIteration if it was not made."""
        request = replace(spec.resolve_share(self.heads), seed=0)
        return next(point for point in self.points if replace(PruneSpec.from_dict(point.artifacts[0].content["spec"]), seed=0) == request)

    @property
    def methods(self) -> list[str]:
        """The methods in order."""
        return list(dict.fromkeys(point.method for point in self.points))


def _average_artifacts_to_point(pruning: Pruning, dense: Evaluation, artifacts: Sequence[Artifact]) -> GridPoint:
    evaluations = [unpack_pruned_evaluation(artifact) for artifact in artifacts]
    average = average_evaluations(evaluations, pruning.task)
    removed = [frozenset(map(Head.parse, artifact.content["removed"])) for artifact in artifacts]
    survivors = tuple(frozenset(pruning.heads) - heads for heads in removed)
    return GridPoint(
        method_label(artifacts[0]),
        round(mean(map(len, survivors))),
        tuple(artifact.content["spec"]["seed"] for artifact in artifacts),
        tuple(evaluation.score for evaluation in evaluations),
        average,
        survivors,
        evaluation_minus_baseline(dense, average, pruning.task, seed=pruning.seed),
        tuple(artifacts),
    )


def average_evaluations(evaluations: Sequence[Evaluation], task: Task) -> Evaluation:
    """Returns the mean over seeds of each example's loss, and of the metric of every seed; its parts [examples, seeds, parts] keep seeds apart.

    Seeds that agree on every example keep the parts of one of them.
    """
    first = evaluations[0]
    if len(evaluations) == 1:
        return first
    losses = np.mean([evaluation.losses for evaluation in evaluations], axis=0)
    parts = None if task.metric is None else stack_parts_of_seeds(evaluations)
    if parts is None:
        return replace(first, losses=losses)
    value = mean(evaluation.score for evaluation in evaluations)
    return replace(first, losses=losses, parts=parts[:, 0] if (parts == parts[:, :1]).all() else parts, value=value)


def evaluation_minus_baseline(
    baseline: Evaluation, evaluation: Evaluation, task: Task, *, seed: int = 0, level: float = 0.95
) -> PairedDifference:
    """Returns the metric of an evaluation minus that of the baseline on the same examples, or of the loss where there is no metric.

    `core.stats.seed_parts.metric_of_second_minus_first` says by which test.
    """
    if task.metric is None or baseline.parts is None or evaluation.parts is None:
        return loss_and_metric_of_pruned_minus_dense(baseline, evaluation, level=level)["loss"]
    return metric_of_second_minus_first(baseline, evaluation, task.metric.total, seed=seed, level=level)


def curve_point_minus_dense(dense: Evaluation, evaluation: Evaluation, task: Task, *, n_sizes: int, seed: int = 0) -> PairedDifference:
    """Returns the difference of one point of a pruning curve from the dense model, as `evaluation_minus_baseline` does.

    Its interval holds together with those of all `n_sizes` points of the curve, in 95 % of the cases; its p-value is of this point by itself.
    """
    return evaluation_minus_baseline(dense, evaluation, task, seed=seed, level=single_interval_level(n_sizes))


@dataclass(frozen=True, slots=True)
class MethodRow:
    """One method at one number of heads.

    Attributes:
        method: The label of the method, with every option that differs from its default.
        n_kept: How many heads stay, of the kinds of attention that may lose heads.
        share_removed: The share of these heads that went.
        n_seeds: How many seeds there are.
        steps: Optimiser steps of the shortest stage that trained; None where nothing trained.
        mean: The metric, or the loss where there is none, as the mean over seeds.
        interval: Its 95 % interval by t over seeds; None below three seeds.
        deviation: The standard deviation over seeds; None below three seeds.
        change: The difference of the mean over seeds from the dense model on the same examples.
        joint: The same, with an interval that holds for all sizes of the method together.
        against_random: The difference from random heads of the same number, likewise; None for these, and where there are none.
        kept_by_kind: How many heads of each kind of attention stay, as the mean over seeds.
        band: The score of the dense model plus the joint interval of the change, within the range of the metric.
        dense: The score of the dense model.
        task: The task, where several are compared.
        q: The p-value of `against_random`, corrected over all rows (Benjamini–Hochberg).
        share: The share of the dense model's score above chance that is left, with an interval that holds for all sizes of the method together;
            None where it was not measured.
    """

    method: str
    n_kept: int
    share_removed: float
    n_seeds: int
    steps: int | None
    mean: float
    interval: tuple[float | None, float | None]
    deviation: float | None
    change: PairedDifference
    joint: PairedDifference
    against_random: PairedDifference | None
    kept_by_kind: Mapping[str, float]
    band: tuple[float | None, float | None]
    dense: float
    task: str = ""
    q: float | None = None
    share: Share | None = None

    @property
    def p(self) -> float | None:
        """The p-value of no difference from random heads; None for these."""
        return None if self.against_random is None else self.against_random.p

    def to_dict(self) -> dict[str, object]:
        """Returns the row as plain data."""
        return asdict(self)

    def flatten(self) -> dict[str, object]:
        """Returns the row as plain data with one key for every number, as a table has it."""
        spread = {"mean": self.mean, "sd": self.deviation, "low": self.interval[0], "high": self.interval[1]}
        changes = _flatten_difference("dense", self.change) | _flatten_difference("random", self.against_random)
        survivors = {f"survivors_{kind.replace('-', '_')}": number for kind, number in self.kept_by_kind.items()}
        return {"method": self.method, "keep": self.n_kept, "seeds": self.n_seeds, **spread, **changes, "random_q": self.q, **survivors}


@dataclass(frozen=True, slots=True)
class MethodDifference:
    """The difference of a method from another one at the same number of heads, on the same examples, of means over seeds.

    `q` is corrected over all rows of its family (Benjamini–Hochberg): methods against random heads, or methods against each other.
    """

    n_kept: int
    method: str
    other: str
    change: PairedDifference
    task: str = ""
    q: float | None = None

    @property
    def p(self) -> float | None:
        """The p-value of no difference; None where the examples are too thin for one."""
        return self.change.p

    def to_dict(self) -> dict[str, object]:
        """Returns the row as plain data."""
        return asdict(self)

    def flatten(self) -> dict[str, object]:
        """Returns the row as plain data with one key for every number, as a table has it."""
        return {"keep": self.n_kept, "method": self.method, "other": self.other, **asdict(self.change), "q": self.q}


def _flatten_difference(prefix: str, change: PairedDifference | None) -> dict[str, object]:
    values = dict.fromkeys(("difference", "low", "high", "p", "by")) if change is None else asdict(change)
    return {f"{prefix}_{key}": value for key, value in values.items()}


def summarise_methods(
    grid: Grid, attention_kinds: Sequence[str] = (), *, seed: int = 0, measure_share: Callable[..., Share] | None = None
) -> list[MethodRow]:
    """Returns a row for every point of a grid, those of one method together, most heads first.

    `measure_share` takes a mean over seeds, and the `level` of an interval that holds for all sizes of the method together.
    """
    free = [block for block in grid.heads.blocks if not attention_kinds or block.kind in attention_kinds]
    controls = {point.count_kept(grid.heads, attention_kinds): point for point in grid.points if point.is_control}
    n_free, rows = sum(block.n_heads for block in free), []
    for method in grid.methods:
        points = sorted((point for point in grid.points if point.method == method), key=lambda point: -point.n_kept)
        for point in points:
            joint = grid.point_minus_dense(point, n_sizes=len(points), seed=seed)
            n_kept = point.count_kept(grid.heads, attention_kinds)
            control = None if point.is_control else controls.get(n_kept)
            rows.append(
                MethodRow(
                    method,
                    n_kept,
                    1 - n_kept / n_free,
                    point.scores.n_seeds,
                    point.scores.steps,
                    point.scores.mean,
                    (point.scores.low, point.scores.high),
                    point.scores.deviation,
                    point.change,
                    joint,
                    None if control is None else grid.point_minus_control(point, control, seed=seed),
                    mean_survivors_by_kind(grid.heads.blocks, point.survivors),
                    dense_score_plus_change_interval(grid.dense, joint),
                    grid.dense.score,
                    share=None if measure_share is None else measure_share(point.evaluation, level=single_interval_level(len(points))),
                )
            )
    return add_q_values(rows)


def compare_methods_in_pairs(grid: Grid, attention_kinds: Sequence[str] = (), *, seed: int = 0) -> list[MethodDifference]:
    """Returns every pair of methods other than random at each number of heads that both have."""
    by_size: dict[int, list[GridPoint]] = {}
    for point in grid.points:
        if not point.is_control:
            by_size.setdefault(point.count_kept(grid.heads, attention_kinds), []).append(point)
    rows = [
        MethodDifference(n_kept, first.method, second.method, grid.point_minus_control(first, second, seed=seed))
        for n_kept in sorted(by_size, reverse=True)
        for first, second in combinations(by_size[n_kept], 2)
    ]
    return add_q_values(rows)


def differences_from_random_and_between_methods(
    grid: Grid, rows: Sequence[MethodRow], attention_kinds: Sequence[str] = (), *, seed: int = 0
) -> list[MethodDifference]:
    """Returns the differences of all methods from random heads, as their rows have them, and those between every two other methods."""
    controls = {point.count_kept(grid.heads, attention_kinds): point.method for point in grid.points if point.is_control}
    against_random = [
        MethodDifference(row.n_kept, row.method, controls[row.n_kept], row.against_random, q=row.q)
        for row in rows
        if row.against_random is not None
    ]
    return [*against_random, *compare_methods_in_pairs(grid, attention_kinds, seed=seed)]
