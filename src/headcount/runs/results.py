"""Evaluations and pruned models as artifacts hold them, and how a pruned model differs from the dense one on the same examples. No torch here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any, TypedDict

import numpy as np

from headcount.core.evaluation import Evaluation, PairedDifference, compare_with
from headcount.core.stats.metric_parts import Total
from headcount.core.survivors import HeadBlock, Survivors
from headcount.core.training_log import FEW_STEPS
from headcount.runs.artifacts import Artifact

EVALUATION, PRUNED, COMPARISON = "evaluation", "pruned", "comparison"
FIELDS = ("task", "split", "n_examples", "metric", "higher_is_better", "value", "data")


def pack_evaluation(evaluation: Evaluation) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Returns the content and the arrays of the artifact of an evaluation."""
    arrays = {"losses": evaluation.losses} | ({} if evaluation.parts is None else {"parts": evaluation.parts})
    return {name: getattr(evaluation, name) for name in FIELDS}, arrays


def unpack_evaluation(artifact: Artifact) -> Evaluation:
    """Returns the evaluation in an artifact."""
    return Evaluation(
        **{name: artifact.content[name] for name in FIELDS}, losses=artifact.arrays["losses"], parts=artifact.arrays.get("parts")
    )


def unpack_pruned(artifact: Artifact) -> Evaluation:
    """Returns the evaluation in the artifact of a pruned model."""
    evaluated = {name: artifact.content[name] for name in ("n_examples", "metric", "higher_is_better", "value", "data")}
    return Evaluation(task="", split="report", losses=artifact.arrays["losses"], parts=artifact.arrays.get("parts"), **evaluated)


class CostRecord(TypedDict):
    """What a model costs, as `headcount.surgery.cost.Cost` counts it."""

    heads: int
    parameters: int
    bytes: int
    flops: int
    tokens: int
    kv_bytes_per_token: int


@dataclass(frozen=True, slots=True)
class PrunedRecord:
    """The content of the artifact of a pruned model.

    Attributes:
        spec: The request with all options (`PruneSpec.to_dict`), its budget in heads of the model.
        label: The request in words: the options that differ from their defaults.
        arguments: The same as arguments of `headcount.prune`.
        removed: The heads that were removed.
        gates: The values of tuned gates; None if there were none, or if weights changed.
        history: What choosing and training noted.
        steps: Optimiser steps by stage.
        repaired: Error of every refitted block before and after.
        data: Fingerprint of the examples that the model was evaluated on.
        cost: What the model costs.
        whole_cost: What the dense model costs.
        trained: Whether weights were trained, by the method or in a recovery.
        changed_weights: Whether weights changed, so that plan and gates alone do not give the model again.
        within_rounding: Heads whose score, which the choice was made by, is moved by rounding alone by more than its standard error.
    """

    spec: Mapping[str, Any]
    label: str
    arguments: Mapping[str, Any]
    removed: Sequence[str]
    gates: Sequence[float] | None
    history: Sequence[Mapping[str, Any]]
    steps: Mapping[str, int]
    repaired: Mapping[str, Mapping[str, float | None]]
    loss: float
    metric: str
    higher_is_better: bool
    value: float | None
    n_examples: int
    data: str
    cost: CostRecord
    whole_cost: CostRecord
    trained: bool
    changed_weights: bool = False
    within_rounding: Sequence[str] = ()

    @classmethod
    def of(cls, artifact: Artifact) -> PrunedRecord:
        """Returns the content of the artifact of a pruned model."""
        content = artifact.content
        optional = {"gates": content.get("gates"), "changed_weights": "gates" not in content}
        optional["within_rounding"] = content.get("within_rounding", ())
        return cls(**{field.name: content[field.name] for field in fields(cls) if field.name not in optional}, **optional)

    def to_dict(self) -> dict[str, Any]:
        """Returns the content as it is stored; `gates` is there if the weights did not change, `within_rounding` if it names a head."""
        stored = {field.name: getattr(self, field.name) for field in fields(self) if field.name != "changed_weights"}
        absent = {"gates"} if self.changed_weights else set()
        absent |= set() if self.within_rounding else {"within_rounding"}
        return {name: value for name, value in stored.items() if name not in absent}

    @property
    def budget(self) -> Mapping[str, Any]:
        """The budget of the request; empty if the method decides how many heads stay."""
        return self.spec["budget"] or {}


@dataclass(frozen=True, slots=True)
class PrunedRow:
    """One pruned model in a table: what it is, its results, and its difference from the dense model on the same examples."""

    method: str
    keep: int
    """Heads that stay; of the kinds of attention that may lose heads, where the request names some."""
    removed: int
    seed: int
    steps: int | None
    """Optimiser steps of the shortest stage that trained; None where nothing trained."""
    loss: float
    value: float | None
    higher_is_better: bool
    changes: Mapping[str, PairedDifference]
    """The differences of `loss` and, where it is tested, of `metric`."""
    parameters: int
    id: str = ""
    """The first digits of the artifact's key."""
    survivors: Survivors = field(default_factory=Survivors)
    """The heads that stay, of all kinds of attention."""
    within_rounding: tuple[str, ...] = ()
    """Heads whose score, which the choice was made by, is moved by rounding alone by more than its standard error."""

    def to_dict(self) -> dict[str, Any]:
        """Returns the row as plain data, one key for every number (`loss difference`, `metric p`, …), and the survivors under their own."""
        plain = {name: getattr(self, name) for name in ("method", "keep", "removed", "seed", "steps", "loss", "value", "higher_is_better")}
        changes = {f"{name} {field}": value for name, change in self.changes.items() for field, value in asdict(change).items()}
        return {**plain, **changes, "parameters": self.parameters, "survivors": self.survivors.to_dict()}

    def worse_by(self, alpha: float = 0.05) -> list[str]:
        """Returns by what the model is significantly worse than the dense one: its metric, its loss, both or neither.

        Either counts: an overconfident model loses accuracy while its loss falls, and a metric of few examples sees little.
        """
        sign = 1 if self.higher_is_better else -1
        loss, metric = self.changes["loss"], self.changes.get("metric")
        worse = ["metric"] if metric is not None and metric.p < alpha and sign * metric.difference < 0 else []
        return worse + (["loss"] if loss.p < alpha and loss.difference > 0 else [])


def compare_pruned(dense: Evaluation, artifacts: Sequence[Artifact], total: Total | None, blocks: Sequence[HeadBlock]) -> list[PrunedRow]:
    """Returns one row per pruned model, with its differences from the dense model; `total` makes the metric of its parts."""
    rows = []
    n_heads = sum(len(block.heads) for block in blocks)
    for artifact in artifacts:
        record = PrunedRecord.of(artifact)
        rows.append(
            PrunedRow(
                method=method_label(artifact),
                keep=record.budget.get("keep") or n_heads - len(record.removed),
                removed=len(record.removed),
                seed=record.spec["seed"],
                steps=fewest_steps(artifact),
                loss=record.loss,
                value=record.value,
                higher_is_better=record.higher_is_better,
                changes=compare_with(dense, unpack_pruned(artifact), total),
                parameters=record.cost["parameters"],
                survivors=Survivors.of(blocks, record.removed),
                within_rounding=tuple(record.within_rounding),
            )
        )
    return rows


def fewest_steps(artifact: Artifact) -> int | None:
    """Returns the optimiser steps of the shortest stage that trained a model; None where nothing trained."""
    return min(artifact.content.get("steps", {}).values(), default=None)


def method_label(artifact: Artifact) -> str:
    """Returns the method of a pruned model as tables and the report name it; it says so where too few steps were taken to judge the method."""
    steps = fewest_steps(artifact)
    few = "" if steps is None or steps >= FEW_STEPS else f", only {steps} step{'s' if steps != 1 else ''}"
    return artifact.content["label"] + few


def smallest_safe(rows: Sequence[PrunedRow], *, alpha: float = 0.05) -> dict[str, int | None]:
    """Returns, by method, the fewest heads with no significant loss, neither of the metric nor in the loss, by any seed; None where all lose.

    A model that lost no head is the dense one, and says nothing about what can go.
    """
    smallest: dict[str, int | None] = {}
    for method in dict.fromkeys(row.method for row in rows):
        own = [row for row in rows if row.method == method and row.removed]
        worse = {row.keep for row in own if row.worse_by(alpha)}
        smallest[method] = min({row.keep for row in own} - worse, default=None)
    return smallest


@dataclass(frozen=True, slots=True)
class Best:
    """The best pruned model by the position of its row, and whether that many heads are without a significant loss by its method."""

    at: int
    is_safe: bool


def find_best(rows: Sequence[PrunedRow]) -> Best | None:
    """Returns the smallest model of a method without a significant loss by any seed; where every number of heads loses, the largest.

    Of models with as many heads, the one with the least loss. None where no model lost a head.
    """
    smallest = set(smallest_safe(rows).items())
    pruned = [at for at, row in enumerate(rows) if row.removed]
    safe = [at for at in pruned if (rows[at].method, rows[at].keep) in smallest]
    if not pruned:
        return None

    def order(at: int) -> tuple[int, float, str, int]:
        row = rows[at]
        return (row.keep if safe else -row.keep, row.loss, row.method, row.seed)

    return Best(min(safe or pruned, key=order), bool(safe))
