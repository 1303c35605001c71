"""The change of the heads that stay in the fine-tuning after pruning, against that of the same heads in the dense model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from headcount.core.errors import OptionError
from headcount.core.heads import Head
from headcount.core.plan import Plan
from headcount.core.stats.agreement import spearman
from headcount.core.stats.significance import paired_t
from headcount.importance.base import Importance
from headcount.pruning.prune import check_request
from headcount.pruning.recipe import Recipe
from headcount.pruning.spec import PruneSpec
from headcount.runs.artifacts import Artifact
from headcount.studies._base import StudyContext
from headcount.studies._gated import count_heads
from headcount.studies._results import correct_rows, describe_study_run
from headcount.studies._tuning import note_training, tune_model
from headcount.workflows.prune import Pruning

if TYPE_CHECKING:
    from headcount.studies.compensation import Compensation

QUANTITIES = ("q", "k", "v", "o", "importance")
REPEATS = 10_000


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

    @property
    def label(self) -> str:
        """The metric, or the loss where there is none, with its name."""
        return f"{self.metric or 'loss'} {self.loss if self.value is None else self.value:.4g}"

    @classmethod
    def of(cls, artifact: Artifact) -> TunedScore:
        """Returns the score in the artifact of a fine-tuning."""
        return cls(*(artifact.content[name] for name in ("loss", "metric", "value")))


@dataclass(frozen=True, slots=True)
class Changes:
    """The changes of the heads that stay.

    Attributes:
        removed: The heads that were pruned.
        scores: The fine-tuned models, `pruned` and `dense`.
        rows: Every part over all survivors and by layer.
        evenness: How evenly every part is spread over layers.
        heads: The change of every part of every head in both trainings.
    """

    removed: tuple[Head, ...]
    scores: Mapping[str, TunedScore]
    rows: list[ChangeRow]
    evenness: list[Evenness]
    heads: list[dict[str, str | float]]


def measure_compensation(study: Compensation, context: StudyContext) -> Changes:
    """Prunes the model, fine-tunes the pruned and the dense model by one recipe, and compares the changes of the heads that stay."""
    by = str(Importance.parse(study.by))
    run, loaded = context.required_run, context.loaded
    keep = count_heads(study.keep, len(loaded.heads))
    recipe = Recipe(epochs=study.epochs, steps=study.steps, rate=study.rate, train_batch=study.train_batch)
    request = PruneSpec.of(study.method, keep, repair=False, recipe=recipe, seed=context.seed)
    check_request(request, loaded.model, loaded.heads)
    if keep < 2:
        raise OptionError("compensation compares the heads that stay; keep 2 or more")
    describe_study_run(context, loaded, {"study": study.name, "spec": request.to_dict(), "by": by})
    task = context.task
    pruning = Pruning(run, loaded.model, task, limit=context.limit, command=context.command)
    note_training(context, pruning, [request])
    with context.progress(f"pruning by {study.method}") as advance:
        artifact, small = pruning.make(request, advance)
    small, plan = small.to(next(loaded.model.parameters()).device).eval(), Plan.removing(artifact.content["removed"])
    context.note(f"two fine-tunings of {recipe.n_steps(len(task.calibration))} optimiser steps each follow")
    with context.progress("fine-tuning the pruned model") as advance:
        pruned = tune_model(context, f"after {request.name}", small, recipe, by=by, progress=advance)
    with context.progress("fine-tuning the dense model") as advance:
        dense = tune_model(context, "dense", loaded.model, recipe, by=by, progress=advance)
    return compare_changes(pruned, dense, plan, seed=context.seed)


def compare_changes(pruned: Artifact, dense: Artifact, plan: Plan, *, seed: int = 0) -> Changes:
    """Compares the fine-tuning of the pruned model with that of the dense one, head by head.

    A difference is that of a head in the fine-tuning after pruning minus the same head in that of the dense model; intervals and p are those of a
    paired t over heads, which share their training and are not quite independent. Evenness is tested by permuting heads over layers.
    """
    heads = [Head.parse(head) for head in pruned.content["heads"]]
    index_of = {head: index for index, head in enumerate(dense.content["heads"])}
    after_pruning = pruned.arrays["changes"]
    of_dense = dense.arrays["changes"][[index_of[str(head)] for head in heads]]
    layer = np.array([str(head).rpartition("H")[0] for head in heads])
    n_lost = np.array([sum((removed.stack, removed.layer) == (head.stack, head.layer) for removed in plan.removed) for head in heads])
    members = {"all": np.ones(len(layer), dtype=bool)} | {str(name): layer == name for name in dict.fromkeys(layer.tolist())}
    rows: list[ChangeRow] = []
    evenness: list[Evenness] = []
    for number, part in enumerate(QUANTITIES):
        values = after_pruning[:, number], of_dense[:, number]
        rows += [compare_heads(part, name, values[0][is_member], values[1][is_member]) for name, is_member in members.items()]
        evenness.append(_test_evenness(part, values[0] - values[1], layer, n_lost, seed))
    by_head = []
    for index, head in enumerate(heads):
        numbers = {f"{part} pruned": float(after_pruning[index, number]) for number, part in enumerate(QUANTITIES)}
        numbers |= {f"{part} dense": float(of_dense[index, number]) for number, part in enumerate(QUANTITIES)}
        by_head.append({"head": str(head), **numbers})
    scores = {name: TunedScore.of(artifact) for name, artifact in (("pruned", pruned), ("dense", dense))}
    return Changes(tuple(plan.removed), scores, correct_rows(rows), evenness, by_head)


def compare_heads(part: str, layer: str, pruned: np.ndarray, dense: np.ndarray) -> ChangeRow:
    """Returns the mean difference over some heads; the uncertainty of a single head is unknown, so its interval and p are None."""
    gap = pruned - dense
    test = paired_t(gap) if len(gap) > 1 else None
    ends = (None, None, None) if test is None else (test.low, test.high, test.p)
    return ChangeRow(part, layer, len(gap), float(pruned.mean()), float(dense.mean()), float(gap.mean()), *ends)


def _test_evenness(part: str, gap: np.ndarray, layer: np.ndarray, n_lost: np.ndarray, seed: int) -> Evenness:
    """Tests whether layers differ, and whether survivors of layers that lost more heads change more; None where nothing varies."""
    random = np.random.Generator(np.random.Philox(seed))
    between = _variance_between(gap[None], layer)[0]
    permuted = _variance_between(random.permuted(np.tile(gap, (REPEATS, 1)), axis=1), layer)
    p = (1 + int((permuted >= between * (1 - 1e-9)).sum())) / (REPEATS + 1)
    total = float(gap.var())
    varies = len(set(n_lost.tolist())) > 1 and total > 0
    correlation = float(spearman(gap, n_lost.astype(float))) if varies else None
    return Evenness(part, float(between) / total if total else None, p, correlation)


def _variance_between(values: np.ndarray, layer: np.ndarray) -> np.ndarray:
    """Returns the variance between layers of each row of values."""
    names = sorted(set(layer.tolist()))
    means = np.stack([values[:, layer == name].mean(1) for name in names], 1)
    sizes = np.array([(layer == name).sum() for name in names])
    return ((means - values.mean(1, keepdims=True)) ** 2 * sizes).sum(1) / values.shape[1]
