"""Scores, parameters and distances of all heads, for maps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import mean
from typing import TYPE_CHECKING

import numpy as np
import torch
from jaxtyping import Float

from headcount.behaviour.profiles.numbers import mean_jensen_shannon_distances, n_affordable_queries
from headcount.core.heads import AttentionBlock
from headcount.core.scores import Scores
from headcount.data.chunks import batches
from headcount.importance.base import Importance
from headcount.importance.settings import ScoreSettings
from headcount.models.head_map import HeadMap
from headcount.models.modules import unwrap
from headcount.models.observe import Observation, observe
from headcount.studies._base import LoadedModel, StudyContext
from headcount.studies._results import describe_study_run
from headcount.workflows.score import score_into

if TYPE_CHECKING:
    from headcount.studies.importance_map import ImportanceMap

UNITS = {"entropy": "nats", "distance": "tokens"}
QUERIES, EXAMPLES = 256, 64
"""The most tokens whose attention is compared between heads, and the examples that they come from."""


@dataclass(frozen=True, slots=True)
class ScoreRow:
    """The score of a head with its interval, None where it has none, and its rank from the head that is kept longest."""

    head: str
    kind: str
    layer: int
    index: int
    value: float
    low: float | None
    high: float | None
    rank: int


@dataclass(frozen=True, slots=True)
class MappedScores:
    """The scores of all heads by one importance; `title` names it with its rule, if it has several, and `label` also with its normalisation."""

    method: str
    title: str
    label: str
    unit: str
    n_examples: int
    rows: list[ScoreRow]


@dataclass(frozen=True, slots=True)
class BlockParameters:
    """The parameters of the heads of an attention block, and the share of all parameters that belongs to them."""

    block: str
    kind: str
    n_heads: int
    per_head: int
    all_heads: int
    share: float


@dataclass(frozen=True, slots=True)
class HeadDistances:
    """The distance between the attention of every two heads of one kind, over so many tokens, and the layer of every head."""

    kind: str
    heads: tuple[str, ...]
    layers: tuple[str, ...]
    values: tuple[tuple[float, ...], ...]
    n_queries: int

    def mean_between_layers(self) -> dict[tuple[str, str], float | None]:
        """Returns the mean distance between the heads of every two layers, and between those of one layer; None for a layer of one head."""
        layers, means = dict.fromkeys(self.layers), {}
        for layer in layers:
            for other in layers:
                values = [
                    self.values[i][j]
                    for i, first in enumerate(self.layers)
                    for j, second in enumerate(self.layers)
                    if (first, second) == (layer, other) and i != j
                ]
                means[layer, other] = mean(values) if values else None
        return means


def score_heads(context: StudyContext, study: ImportanceMap) -> list[MappedScores]:
    """Returns the scores of all heads by every importance of the study, normalised as published."""
    describe_study_run(context, context.loaded, {"study": study.name, "by": list(study.by), "limit": context.limit})
    settings = ScoreSettings(seed=context.seed, limit=min(study.examples, context.limit or study.examples), batch_size=context.batch_size)
    with context.progress("scoring") as advance:
        by_method = score_into(context.run, context.loaded.model, context.task, study.by, settings, progress=advance)
    return [_tabulate_scores(scores, context.loaded.heads) for scores in by_method.values()]


def _tabulate_scores(scores: Scores, heads: HeadMap) -> MappedScores:
    ranks = {head: rank for rank, head in enumerate(scores.ranking(), 1)}
    ends, rows = [(None, None) if interval is None else (interval.low, interval.high) for interval in scores.intervals()], []
    for head, value, pair in zip(scores.heads, scores.values, ends, strict=True):
        rows.append(ScoreRow(str(head), heads.block_of(head).kind, head.layer, head.index, value, *pair, ranks[head]))
    rule = Importance.parse(scores.method).rule
    title, label = (f"{name} by the {rule}" if rule else name for name in (scores.method, scores.label))
    return MappedScores(scores.method, title, label, UNITS.get(scores.method, ""), scores.n_examples, rows)


def count_parameters_by_block(loaded: LoadedModel) -> list[BlockParameters]:
    """Returns the parameters of one head and of all heads of every block; heads of a KV group share those of K and V evenly."""
    total, rows = sum(parameter.numel() for parameter in unwrap(loaded.model).parameters()), []
    for block in loaded.heads.blocks:
        if block.n_heads:
            elements = sum(part.rows.count * part.unit_numel for part in block.slices)
            rows.append(BlockParameters(block.name, block.kind, block.n_heads, elements // block.n_heads, elements, elements / total))
    return rows


def measure_attention_distances(context: StudyContext) -> list[HeadDistances]:
    """Returns the mean Jensen–Shannon distance between the attention of every two heads of each kind, on the first examples of calibration."""
    kinds: dict[str, list[AttentionBlock]] = {}
    for block in context.loaded.heads.blocks:
        if block.n_heads:
            kinds.setdefault(block.kind, []).append(block)
    return [_measure_attention_distances_of_kind(context, kind, blocks) for kind, blocks in kinds.items()]


def _measure_attention_distances_of_kind(context: StudyContext, kind: str, blocks: Sequence[AttentionBlock]) -> HeadDistances:
    heads = [head for block in blocks for head in block.heads]
    data = batches(replace(context.task, batch_size=1), split="calibration", limit=min(EXAMPLES, context.limit or EXAMPLES))
    rows: list[np.ndarray] = []
    for observations in observe(context.loaded.model, data, blocks=blocks, outputs=False):
        rows += _attention_by_query(observations)
        if len(rows) >= n_affordable_queries(len(heads), rows[0].shape[-1], QUERIES):
            break
    matrix = mean_jensen_shannon_distances(rows)
    values = tuple(tuple(map(float, row)) for row in matrix)
    layers = tuple(str(head.layer) for head in heads)
    return HeadDistances(kind, tuple(map(str, heads)), layers, values, len(rows))


def _attention_by_query(block_observations: Sequence[Observation]) -> list[Float[np.ndarray, "heads keys"]]:
    """Returns the attention [heads, keys] of all blocks for every real token of one example."""
    maps = [observation.attention[0] for observation in block_observations if observation.attention is not None]
    attention = torch.cat(maps).double().cpu()  # [heads, q, k]
    return [attention[:, query].numpy() for query in block_observations[0].queries[0].nonzero().flatten().tolist()]
