"""Scores by type of attention, and the rise of the loss without some or all heads of a type."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from torch import nn

from headcount.core.evaluation import Evaluation
from headcount.core.heads import Head
from headcount.core.scores import Scores
from headcount.core.stats.means import MeanDifference, mean_interval
from headcount.data.evaluate import evaluate
from headcount.data.mask import mask
from headcount.data.task import Task
from headcount.importance.base import Importance
from headcount.importance.score import score
from headcount.models.head_map import HeadMap
from headcount.studies._base import StudyContext


@dataclass(frozen=True, slots=True)
class TypeRow:
    """One type of attention: its heads, their mean score with the interval over examples, and the rise of the loss without some of them.

    The interval is None for scores without examples, such as norms of weights; `share` of all scores unless all have one sign and some are not 0.
    A single head has no lower half: what is without it is None.
    """

    kind: str
    n_heads: int
    mean: float
    low: float | None
    high: float | None
    share: float | None
    without_half: MeanDifference | None
    without_all: MeanDifference
    metric: float | None
    metric_without_half: float | None
    metric_without_all: float | None
    n_examples: int


def compare_attention_types(
    model: nn.Module,
    task: Task,
    heads: HeadMap,
    scores: Scores,
    ranking_scores: Scores | None = None,
    *,
    limit: int | None = None,
    batch_size: int | None = None,
    seed: int = 0,
) -> list[TypeRow]:
    """Returns a row for every type of attention in the model; scores come from calibration, losses from the report split.

    Means and shares are those of `scores`, which should not be normalised by layer: every layer would then have the same share. The lower half of a
    type is that of `ranking_scores`, by default of the same scores. `seed` seeds the resampling of the means.
    """
    dense = evaluate(model, task, limit=limit, batch_size=batch_size)
    indices_by_kind: dict[str, list[int]] = {}
    for index, head in enumerate(heads):
        indices_by_kind.setdefault(heads.block_of(head).kind, []).append(index)
    values = np.asarray(scores.values)
    replicates = None if scores.samples is None else scores.replicates(seed=seed)
    total = float(values.sum()) if (values >= 0).all() or (values <= 0).all() else 0.0
    lowest_first = (ranking_scores or scores).ranking()[::-1]
    rows = []
    for kind, indices in indices_by_kind.items():
        members = {scores.heads[index] for index in indices}
        order = [head for head in lowest_first if head in members]
        half = _evaluate_without(model, task, order[: len(order) // 2], limit, batch_size) if len(order) > 1 else None
        every = _evaluate_without(model, task, order, limit, batch_size)
        ends = (None, None) if replicates is None else np.quantile(replicates[:, indices].mean(1), [0.025, 0.975]).tolist()
        rows.append(
            TypeRow(
                kind=kind,
                n_heads=len(indices),
                mean=float(values[indices].mean()),
                low=ends[0],
                high=ends[1],
                share=float(values[indices].sum() / total) if total else None,
                without_half=None if half is None else mean_interval(half.losses - dense.losses),
                without_all=mean_interval(every.losses - dense.losses),
                metric=dense.value,
                metric_without_half=None if half is None else half.value,
                metric_without_all=every.value,
                n_examples=dense.n_examples,
            )
        )
    return rows


def _evaluate_without(model: nn.Module, task: Task, removed: Sequence[Head], limit: int | None, batch_size: int | None) -> Evaluation:
    with mask(model, removed):
        return evaluate(model, task, limit=limit, batch_size=batch_size)


def measure_attention_types(context: StudyContext, importance_name: str) -> tuple[Scores, list[TypeRow]]:
    """Returns the ranking of the heads by an importance, and a row for every type of attention."""
    importance = Importance.parse(importance_name)
    model, task, limit, batch_size = context.loaded.model, context.task, context.limit, context.batch_size
    with context.progress("scoring") as advance:
        raw = score(model, task, str(importance), normalise="none", seed=context.seed, limit=limit, batch_size=batch_size, progress=advance)
    ranking = raw.normalise_by(importance.info.normalise)
    return ranking, compare_attention_types(
        model, task, context.loaded.heads, raw, ranking, limit=limit, batch_size=batch_size, seed=context.seed
    )
