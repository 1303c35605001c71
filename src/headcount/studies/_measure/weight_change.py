"""The relative change of the weights of every head from one model to another, by layer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from headcount.core.errors import ArtifactError
from headcount.core.heads import Head
from headcount.core.stats.agreement import spearman
from headcount.core.stats.means import t_interval
from headcount.studies._base import Effort, StudyContext
from headcount.studies._results import describe_study_run
from headcount.studies._tuning import PARTS, relative_weight_changes, weights_by_head

PERMUTATIONS = 1000
SECONDS_PER_PARAMETER, SECONDS_PER_PERMUTATION = 2e-8, 2e-4
"""Orders of magnitude for the estimate: reading and comparing a weight, and correlating the heads of a stack once."""


@dataclass(frozen=True, slots=True)
class LayerPartChange:
    """One part of the heads of a layer: the mean of ‖ΔW_h‖/‖W_h‖ over heads, with its t interval; None for a single head."""

    part: str
    layer: str
    n_heads: int
    mean: float
    low: float | None
    high: float | None


@dataclass(frozen=True, slots=True)
class DepthTrend:
    """The rank correlation of the change of one part with the layer, over the heads of a stack, and its p-value by permutation."""

    part: str
    stack: str
    n_heads: int
    correlation: float
    p: float


def estimate_effort(context: StudyContext) -> Effort:
    """Returns the time to read another model of the same size, and that of the permutations; no example passes through either."""
    n_parameters = sum(parameter.numel() for parameter in context.loaded.model.parameters())
    n_tests = len(PARTS) * len({block.stack for block in context.loaded.heads.blocks})
    return Effort(seconds=n_parameters * SECONDS_PER_PARAMETER + n_tests * PERMUTATIONS * SECONDS_PER_PERMUTATION)


def measure_weight_changes(context: StudyContext, study_name: str, tuned_model_name: str) -> tuple[list[LayerPartChange], list[DepthTrend]]:
    """Returns the change of the weights by part and layer from the model of a study to another one with the same heads.

    Raises:
        ArtifactError: the models have different heads, or heads of different shape.
    """
    before = context.loaded
    describe_study_run(context, before, {"study": study_name, "tuned": tuned_model_name})
    after = context.sources.load_model(tuned_model_name, class_from_config=True)
    old, new = weights_by_head(before.model, before.heads), weights_by_head(after.model, after.heads)
    shapes = [{head: {part: tuple(matrix.shape) for part, matrix in parts.items()} for head, parts in each.items()} for each in (old, new)]
    if shapes[0] != shapes[1]:
        raise ArtifactError(f"{before.name} and {tuned_model_name} have different heads; compare a model with its fine-tuned self")
    changes = relative_weight_changes(old, new)
    heads = list(changes)
    values = {part: np.array([changes[head][part] for head in heads]) for part in PARTS}
    return mean_change_by_part_and_layer(heads, values), correlate_changes_with_depth(heads, values, seed=context.seed)


def mean_change_by_part_and_layer(heads: Sequence[Head], changes_by_part: dict[str, Float[np.ndarray, " heads"]]) -> list[LayerPartChange]:
    """Returns the mean change of every part in every layer, with an interval over the heads of the layer."""
    layer_of = np.array([str(head).rpartition("H")[0] for head in heads])
    rows = []
    for part, changes in changes_by_part.items():
        for layer in dict.fromkeys(layer_of.tolist()):
            own = changes[layer_of == layer]
            test = t_interval(own) if len(own) > 1 else None
            ends = (None, None) if test is None else (test.low, test.high)
            rows.append(LayerPartChange(part, str(layer), len(own), float(own.mean()), *ends))
    return rows


def correlate_changes_with_depth(
    heads: Sequence[Head], changes_by_part: dict[str, Float[np.ndarray, " heads"]], *, seed: int = 0
) -> list[DepthTrend]:
    """Returns the rank correlation of the change with the layer in every stack; stacks whose changes are all equal have none."""
    random = np.random.Generator(np.random.Philox(seed))
    rows = []
    for stack in dict.fromkeys(head.stack for head in heads):
        is_own = np.array([head.stack == stack for head in heads])
        layers = np.array([float(head.layer) for head in heads])[is_own]
        for part, changes in changes_by_part.items():
            own = changes[is_own]
            if own.std() == 0 or layers.std() == 0:
                continue
            observed = float(spearman(own, layers))
            permuted = np.array([float(spearman(random.permutation(own), layers)) for _ in range(PERMUTATIONS)])
            p = (1 + int((np.abs(permuted) >= abs(observed) - 1e-12).sum())) / (1 + len(permuted))
            rows.append(DepthTrend(part, stack, len(own), observed, p))
    return rows
