"""The change of the heads that stay in the fine-tuning after pruning, against that of the same heads in the dense model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from jaxtyping import Float, Shaped

from headcount.core.errors import OptionError
from headcount.core.evaluation import Evaluation, PairedDifference
from headcount.core.heads import Head
from headcount.core.plan import Plan
from headcount.core.stats.agreement import spearman
from headcount.core.stats.corrected_rows import add_q_values
from headcount.core.stats.means import t_interval
from headcount.core.stats.seed_scores import SeedScores
from headcount.data.task import Task
from headcount.importance.base import Importance
from headcount.pruning.prune import check_request
from headcount.pruning.recipe import Recipe
from headcount.pruning.spec import PruneSpec
from headcount.runs.artifacts import Artifact
from headcount.runs.results import unpack_pruned_evaluation
from headcount.studies._base import STEP_BATCH, Effort, StudyContext
from headcount.studies._gated import resolve_kept_count
from headcount.studies._results import describe_study_run
from headcount.studies._tuning import SCORED, announce_training, tune_model
from headcount.workflows.grid import average_evaluations, evaluation_minus_baseline
from headcount.workflows.prune import Pruning

if TYPE_CHECKING:
    from headcount.studies.compensation import Compensation

QUANTITIES = ("q", "k", "v", "o", "importance")
REPEATS = 10_000


def estimate_effort(study: Compensation, context: StudyContext) -> Effort:
    """Returns the evaluations, the importances before and after every training, and the steps of all trainings."""
    n_train, n_report = len(context.task.calibration), len(context.task.report)
    recipe = Recipe(epochs=study.epochs, steps=study.steps, train_batch=study.train_batch)
    scoring = 4 * study.seeds * 3 * min(n_train, SCORED, context.limit or SCORED)
    evaluating = (3 * study.seeds + 1) * min(n_report, context.limit or n_report)
    return Effort(passes=scoring + evaluating, steps=2 * study.seeds * recipe.n_steps(n_train) * study.train_batch / STEP_BATCH)


@dataclass(frozen=True, slots=True)
class ChangeRow:
    """One part of the heads of a layer, or of all layers: its mean change in both trainings, and the paired difference over heads.

    `part` is a projection, whose change is relative, or the importance, of which it is the logarithm of the ratio after to before. The uncertainty
    of a single head is unknown: its interval, p and q are None.
    """

    part: str
    layer: str
    heads: int
    pruned: float
    dense: float
    difference: float
    low: float | None
    high: float | None
    p: float | None
    q: float | None = None


@dataclass(frozen=True, slots=True)
class Evenness:
    """How evenly the differences of one part are spread over layers; None where nothing varies.

    `p` is that of heads permuted over layers.
    """

    part: str
    share_between_layers: float | None
    p: float
    correlation_with_heads_lost: float | None


@dataclass(frozen=True, slots=True)
class TunedScore:
    """The loss and the metric of a fine-tuned model."""

    loss: float
    metric: str
    value: float | None

    @classmethod
    def from_artifact(cls, artifact: Artifact) -> TunedScore:
        """Returns the score in the artifact of a fine-tuning."""
        return cls(*(artifact.content[name] for name in ("loss", "metric", "value")))


@dataclass(frozen=True, slots=True)
class CompensationResult:
    """The changes of the heads that stay.

    Attributes:
        removed: The heads that were pruned, by the first seed.
        scores: The fine-tuned models of every seed, `pruned` and `dense`.
        rows: Every part over all survivors and by layer.
        evenness: How evenly every part is spread over layers.
        heads: The change of every part of every head in both trainings.
    """

    removed: tuple[Head, ...]
    scores: Mapping[str, tuple[TunedScore, ...]]
    rows: list[ChangeRow]
    evenness: list[Evenness]
    heads: list[dict[str, str | float]]
    quality: tuple[QualityRow, ...] = ()
    metric: str = ""
    n_examples: int = 0


@dataclass(frozen=True, slots=True)
class QualityRow:
    """The metric (or the loss) of one model over seeds, and its differences from the dense model as it is and after the same training.

    Differences are paired over examples.
    """

    model: str
    scores: SeedScores
    against_dense: PairedDifference | None
    against_tuned: PairedDifference | None


class TrainingPair(NamedTuple):
    """The fine-tuning of a pruned model, that of the dense model by the same seed, and the plan of the former."""

    pruned: Artifact
    dense: Artifact
    plan: Plan


def measure_compensation(study: Compensation, context: StudyContext) -> CompensationResult:
    """Prunes the model, fine-tunes the pruned and the dense model by one recipe, and compares the changes of the heads that stay."""
    by = str(Importance.parse(study.by))
    run, loaded = context.required_run, context.loaded
    keep = resolve_kept_count(study.keep, len(loaded.heads))
    recipe = Recipe(epochs=study.epochs, steps=study.steps, rate=study.rate, train_batch=study.train_batch)
    request = PruneSpec.of(study.method, keep, repair=False, recipe=recipe, seed=context.seed)
    check_request(request, loaded.model, loaded.heads)
    if keep < 2:
        raise OptionError("compensation compares the heads that stay; keep 2 or more")
    describe_study_run(context, loaded, {"study": study.name, "spec": request.to_dict(), "by": by})
    task = context.task
    pruning = Pruning(run, loaded.model, task, limit=context.limit, command=context.command, seed=context.seed)
    requests = [replace(request, seed=context.seed + number) for number in range(study.seeds)]
    announce_training(context, pruning, requests)
    n_steps = recipe.n_steps(len(task.calibration))
    context.note(f"{2 * len(requests)} fine-tunings of {n_steps} optimiser steps each follow")
    trainings: list[TrainingPair] = []
    before: list[Evaluation] = []
    for each in requests:
        with context.progress(f"pruning by {study.method}") as advance:
            artifact, small = pruning.load_or_make_model(each, advance)
        small, plan = small.to(next(loaded.model.parameters()).device).eval(), Plan.removing(artifact.content["removed"])
        with context.progress("fine-tuning the pruned model") as advance:
            pruned = tune_model(context, f"after {each.name}", small, recipe, importance=by, seed=each.seed, progress=advance)
        with context.progress("fine-tuning the dense model") as advance:
            dense = tune_model(context, "dense", loaded.model, recipe, importance=by, seed=each.seed, progress=advance)
        trainings.append(TrainingPair(pruned, dense, plan))
        before.append(unpack_pruned_evaluation(artifact))
    untouched = pruning.evaluate_dense()
    quality = compare_quality_before_and_after_training(untouched, before, trainings, task, seed=context.seed)
    changes = compare_changes_after_pruning_with_dense(trainings, seed=context.seed)
    return replace(changes, quality=tuple(quality), metric=untouched.metric or "loss", n_examples=untouched.n_examples)


def compare_quality_before_and_after_training(
    dense: Evaluation, pruned: Sequence[Evaluation], trainings: Sequence[TrainingPair], task: Task, *, seed: int = 0
) -> list[QualityRow]:
    """Returns the quality of the dense and the pruned model before and after training, so that it shows how much of the score came back."""
    models = {
        "dense": [dense],
        "dense, fine-tuned": [_evaluation_after_training(training.dense, dense) for training in trainings],
        "pruned": list(pruned),
        "pruned, fine-tuned": [_evaluation_after_training(training.pruned, dense) for training in trainings],
    }
    means = {name: group[0] if len(group) == 1 else average_evaluations(group, task) for name, group in models.items()}
    rows = []
    for name, evaluations in models.items():
        values = tuple(evaluation.score for evaluation in evaluations)
        against = [
            None if name == control else evaluation_minus_baseline(means[control], means[name], task, seed=seed)
            for control in ("dense", "dense, fine-tuned")
        ]
        rows.append(QualityRow(name, SeedScores.from_value_of_each_seed(values, dense.metric), *against))
    return rows


def _evaluation_after_training(artifact: Artifact, like: Evaluation) -> Evaluation:
    return replace(like, losses=artifact.arrays["losses"], value=artifact.content["value"], parts=artifact.arrays.get("parts"))


def compare_changes_after_pruning_with_dense(trainings: Sequence[TrainingPair], *, seed: int = 0) -> CompensationResult:
    """Compares the fine-tuning of the pruned models with those of the dense one, head by head; a head is averaged over the seeds in which it stays.

    A difference is that of a head in the fine-tuning after pruning minus the same head in that of the dense model; intervals and p are those of a
    paired t over heads, which share their training and are not quite independent. Evenness is tested by permuting heads over layers.
    """
    by_name: dict[str, list[tuple[np.ndarray, np.ndarray]]] = {name: [] for name in trainings[0].dense.content["heads"]}
    for pruned, dense, _ in trainings:
        of_dense_heads = dict(zip(dense.content["heads"], dense.arrays["changes"], strict=True))
        for name, changes in zip(pruned.content["heads"], pruned.arrays["changes"], strict=True):
            by_name[name].append((changes, of_dense_heads[name]))
    heads = [Head.parse(name) for name, pairs in by_name.items() if pairs]
    after_pruning, of_dense = (np.array([np.mean([pair[side] for pair in by_name[str(head)]], 0) for head in heads]) for side in (0, 1))
    layer = np.array([str(head).rpartition("H")[0] for head in heads])
    removed = [head for _, _, plan in trainings for head in plan.removed]
    n_lost = np.array(
        [sum((removed_head.stack, removed_head.layer) == (head.stack, head.layer) for removed_head in removed) for head in heads]
    ) / len(trainings)
    members = {"all": np.ones(len(layer), dtype=bool)} | {str(name): layer == name for name in dict.fromkeys(layer.tolist())}
    rows: list[ChangeRow] = []
    evenness: list[Evenness] = []
    for number, part in enumerate(QUANTITIES):
        values = after_pruning[:, number], of_dense[:, number]
        rows += [
            summarise_pruned_minus_dense_changes(part, name, values[0][is_member], values[1][is_member])
            for name, is_member in members.items()
        ]
        evenness.append(_test_evenness_over_layers(part, values[0] - values[1], layer, n_lost, seed))
    by_head = []
    for index, head in enumerate(heads):
        numbers = {f"{part} pruned": float(after_pruning[index, number]) for number, part in enumerate(QUANTITIES)}
        numbers |= {f"{part} dense": float(of_dense[index, number]) for number, part in enumerate(QUANTITIES)}
        by_head.append({"head": str(head), **numbers})
    scores = {"pruned": tuple(TunedScore.from_artifact(pruned) for pruned, _, _ in trainings)}
    scores["dense"] = tuple(TunedScore.from_artifact(dense) for _, dense, _ in trainings)
    return CompensationResult(tuple(trainings[0].plan.removed), scores, add_q_values(rows), evenness, by_head)


def summarise_pruned_minus_dense_changes(
    part: str, layer: str, pruned_changes: Float[np.ndarray, " heads"], dense_changes: Float[np.ndarray, " heads"]
) -> ChangeRow:
    """Returns the mean difference over some heads; the uncertainty of a single head is unknown, so its interval and p are None."""
    gap = pruned_changes - dense_changes
    test = t_interval(gap) if len(gap) > 1 else None
    ends = (None, None, None) if test is None else (test.low, test.high, test.p)
    return ChangeRow(part, layer, len(gap), float(pruned_changes.mean()), float(dense_changes.mean()), float(gap.mean()), *ends)


def _test_evenness_over_layers(
    part: str,
    differences: Float[np.ndarray, " heads"],
    layer_names: Shaped[np.ndarray, " heads"],
    n_heads_lost_in_layer: Float[np.ndarray, " heads"],
    seed: int,
) -> Evenness:
    """Tests whether layers differ, and whether survivors of layers that lost more heads change more; None where nothing varies."""
    random = np.random.Generator(np.random.Philox(seed))
    between = _variance_between_layers(differences[None], layer_names)[0]
    permuted = _variance_between_layers(random.permuted(np.tile(differences, (REPEATS, 1)), axis=1), layer_names)
    p = (1 + int((permuted >= between * (1 - 1e-9)).sum())) / (REPEATS + 1)
    total = float(differences.var())
    varies = len(set(n_heads_lost_in_layer.tolist())) > 1 and total > 0
    correlation = float(spearman(differences, n_heads_lost_in_layer.astype(float))) if varies else None
    return Evenness(part, float(between) / total if total else None, p, correlation)


def _variance_between_layers(
    values: Float[np.ndarray, "rows heads"], layer_names: Shaped[np.ndarray, " heads"]
) -> Float[np.ndarray, " rows"]:
    """Returns the variance between layers of each row of values."""
    names = sorted(set(layer_names.tolist()))
    means = np.stack([values[:, layer_names == name].mean(1) for name in names], 1)
    sizes = np.array([(layer_names == name).sum() for name in names])
    return ((means - values.mean(1, keepdims=True)) ** 2 * sizes).sum(1) / values.shape[1]
