"""How long pruning, comparing and analysing take, told before they start: from one batch and one training step that are timed on this machine."""

from __future__ import annotations

import time
from collections.abc import Sequence

from torch import nn

from headcount.core.damage import examples_needed_for_harmless_head
from headcount.data.draw import limit_split_by_hash
from headcount.data.evaluate import evaluate
from headcount.data.task import Task
from headcount.importance.base import Importance
from headcount.models.head_map import HeadMap
from headcount.pruning.repair.repair import FIT_EXAMPLES
from headcount.pruning.spec import PruneSpec
from headcount.pruning.training.estimate import estimate_training_seconds
from headcount.workflows.analysis_spec import AnalysisSpec

TIMED = 32
"""Examples that are timed, after one pass that warms up."""
REPAIR_PASSES = 6
"""A repair runs two models over the examples of the fit and the check, and is compared with none."""


def measure_seconds_per_example(model: nn.Module, task: Task) -> float:
    """Returns the seconds that the evaluation of one example takes."""
    seconds, few = [], limit_split_by_hash(task, "calibration", TIMED)
    for _ in range(2):
        start = time.perf_counter()
        evaluate(model, few, split="calibration", progress=False)
        seconds.append(time.perf_counter() - start)
    return min(seconds) / len(few.calibration)


def estimate_pruning_seconds(
    model: nn.Module, task: Task, heads: HeadMap, specs: Sequence[PruneSpec], *, limit: int | None = None
) -> float:
    """Returns the seconds that some requests take: choices, repairs, training, and evaluations on the selection and the report split."""
    if not specs:
        return 0.0
    n_evaluated = sum(min(len(split), limit or len(split)) for split in (task.selection, task.report))
    n_calibration = min(len(task.calibration), FIT_EXAMPLES)
    n_examples = float(len(task.report))
    for spec in specs:
        repairs = (
            spec.repair if spec.repair is not None else spec.recover is None and spec.ablation == "zero" and not spec.method.info.trains
        )
        n_examples += n_evaluated + n_calibration * (spec.method.count_passes(len(heads)) + REPAIR_PASSES * repairs)
    return n_examples * measure_seconds_per_example(model, task) + estimate_training_seconds(model, task, specs)


def estimate_analysis_seconds(model: nn.Module, task: Task, heads: HeadMap, spec: AnalysisSpec, specs: Sequence[PruneSpec]) -> float:
    """Returns the seconds that an analysis takes, roles, profiles and latency left out."""
    measured = [method.info.measures_loss for method in map(Importance.parse, spec.by)]
    n_scored = min(len(task.calibration), spec.score_limit)
    n_examples = n_scored * sum(
        len(heads) / 2 if is_ablation else 3 for is_ablation in measured
    )  # an ablation runs the layers above its head
    if any(measured):
        n_examples += len(heads) / 2 * min(len(task.report), spec.verdict_limit or examples_needed_for_harmless_head(len(heads)))
    return n_examples * measure_seconds_per_example(model, task) + estimate_pruning_seconds(
        model, task, heads, specs, limit=spec.comparison_limit
    )
