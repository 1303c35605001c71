"""Evaluations and pruned models as artifacts hold them, and how a pruned model differs from the dense one on the same examples. No torch here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from math import inf, isnan
from typing import Any, TypedDict

import numpy as np

from headcount.core.certificate import TaskCertificate, certify_task
from headcount.core.evaluation import Evaluation
from headcount.core.margin import Margin
from headcount.core.sizes import SizeTest, certify_until_a_size_fails, smallest_certified
from headcount.core.stats.metric_parts import MetricOfSums
from headcount.core.survivors import HeadBlock, SurvivingHeads
from headcount.core.training_log import FEW_STEPS
from headcount.runs.artifacts import Artifact

EVALUATION, PRUNED, COMPARISON = "evaluation", "pruned", "comparison"
FLIPS = ("right_to_wrong", "wrong_to_right")
FIELDS = ("task", "split", "n_examples", "metric", "higher_is_better", "value", "data")


def pack_evaluation(evaluation: Evaluation) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Returns the content and the arrays of the artifact of an evaluation."""
    return {name: getattr(evaluation, name) for name in FIELDS}, pack_example_arrays(evaluation)


def unpack_evaluation(artifact: Artifact) -> Evaluation:
    """Returns the evaluation in an artifact."""
    return Evaluation(**{name: artifact.content[name] for name in FIELDS}, **_arrays_by_example(artifact))


def unpack_pruned_evaluation(artifact: Artifact) -> Evaluation:
    """Returns the evaluation on the report split in the artifact of a pruned model."""
    evaluated = {name: artifact.content[name] for name in ("n_examples", "metric", "higher_is_better", "value", "data")}
    return Evaluation(task="", split="report", **evaluated, **_arrays_by_example(artifact))


def _arrays_by_example(artifact: Artifact) -> dict[str, Any]:
    """Returns what an artifact holds example by example."""
    return {"losses": artifact.arrays["losses"]} | {name: artifact.arrays.get(name) for name in ("parts", "documents")}


def pack_example_arrays(evaluation: Evaluation, prefix: str = "") -> dict[str, np.ndarray]:
    """Returns what an evaluation holds example by example, as the arrays of an artifact."""
    arrays = {name: getattr(evaluation, name) for name in ("losses", "parts", "documents")}
    return {f"{prefix}{name}": values for name, values in arrays.items() if values is not None}


class CostRecord(TypedDict):
    """What a model costs, as `headcount.surgery.cost.Cost` counts it."""

    heads: int
    parameters: int
    bytes: int
    flops: int
    tokens: int
    kv_bytes_per_token: int


class SelectionRecord(TypedDict):
    """The results of a pruned model on the selection split, which choices between models are made by."""

    loss: float
    value: float | None
    n_examples: int
    data: str


STORED_AS = {"dense_cost": "whole_cost"}
"""Fields of a pruned model whose key in an artifact is another word, by field."""
SELECTION = "selection "
"""Before the names of arrays that hold the examples of the selection split."""


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
        dense_cost: What the dense model costs.
        trained: Whether weights were trained, by the method or in a recovery.
        changed_weights: Whether weights changed, so that plan and gates alone do not give the model again.
        within_rounding: Heads whose score, which the choice was made by, is moved by rounding alone by more than its standard error.
        selection: The results on the selection split; None in runs of earlier versions, which did not measure them.
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
    dense_cost: CostRecord
    trained: bool
    changed_weights: bool = False
    within_rounding: Sequence[str] = ()
    selection: SelectionRecord | None = None

    @classmethod
    def from_artifact(cls, artifact: Artifact) -> PrunedRecord:
        """Returns the content of the artifact of a pruned model."""
        content = artifact.content
        optional = {"gates": content.get("gates"), "changed_weights": "gates" not in content}
        optional |= {"within_rounding": content.get("within_rounding", ()), "selection": content.get("selection")}
        return cls(
            **{field.name: content[STORED_AS.get(field.name, field.name)] for field in fields(cls) if field.name not in optional},
            **optional,
        )

    def to_dict(self) -> dict[str, Any]:
        """Returns the content as it is stored; `gates` if the weights did not change, the last two if there is something in them."""
        stored = {field.name: getattr(self, field.name) for field in fields(self) if field.name != "changed_weights"}
        absent = {"gates"} if self.changed_weights else set()
        absent |= {name for name in ("within_rounding", "selection") if not stored[name]}
        return {STORED_AS.get(name, name): value for name, value in stored.items() if name not in absent}

    @property
    def budget(self) -> Mapping[str, Any]:
        """The budget of the request; empty if the method decides how many heads stay."""
        return self.spec["budget"] or {}


@dataclass(frozen=True, slots=True)
class PrunedModelRow:
    """One pruned model in a table: what it is, its results, and how much worse it is than the dense model, at most, on the same examples."""

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
    certificate: TaskCertificate
    """The bound on the report split, which holds for this row alone; the verdict, if there is a margin."""
    parameters: int
    id: str = ""
    """The first digits of the artifact's key."""
    survivors: SurvivingHeads = field(default_factory=SurvivingHeads)
    """The heads that stay, of all kinds of attention."""
    within_rounding: tuple[str, ...] = ()
    """Heads whose score, which the choice was made by, is moved by rounding alone by more than its standard error."""
    selection: SelectionRecord | None = None
    """The results on the selection split; None in runs of earlier versions."""

    @property
    def n_kept(self) -> int:
        """How many heads stay, of all kinds of attention."""
        return len(self.survivors.heads)

    @property
    def difference(self) -> float:
        """The metric minus the dense model's, or the loss where there is no metric."""
        return self.certificate.quality.small - self.certificate.quality.dense

    @property
    def selection_sort_key(self) -> tuple[float, float]:
        """A number that is smaller for a better model on the selection split, by the metric, and the loss there; infinite if not measured."""
        if self.selection is None:
            return inf, inf
        value, loss = self.selection["value"], self.selection["loss"]
        quality = loss if value is None else -value if self.higher_is_better else value
        return (inf if isnan(quality) else quality), (inf if isnan(loss) else loss)

    def to_dict(self) -> dict[str, Any]:
        """Returns the row as plain data: its bounds, the counts of examples whose answers changed, and the survivors under their own key."""
        plain = {name: getattr(self, name) for name in ("method", "keep", "removed", "seed", "steps", "loss", "value", "higher_is_better")}
        quality, by_loss = self.certificate.quality, self.certificate.by_loss
        flips = {name: None if (changed := getattr(self.certificate, name)) is None else len(changed) for name in FLIPS}
        return {
            **plain,
            "difference": self.difference,
            "quality": asdict(quality),
            "by_loss": None if by_loss is None else asdict(by_loss),
            "n_examples": self.certificate.n_examples,
            "verdict": self.certificate.verdict,
            **flips,
            "selection": self.selection,
            "parameters": self.parameters,
            "survivors": self.survivors.to_dict(),
        }


def compare_pruned_with_dense(
    dense: Evaluation,
    artifacts: Sequence[Artifact],
    metric_of_sums: MetricOfSums | None,
    blocks: Sequence[HeadBlock],
    margin: Margin | None = None,
    *,
    seed: int = 0,
) -> list[PrunedModelRow]:
    """Returns one row per pruned model, with its bound against the dense model; `metric_of_sums` makes the metric of its parts.

    A metric that is not known example by example is compared by the loss. `seed` seeds the resampling.
    """
    rows = []
    n_heads = sum(len(block.heads) for block in blocks)
    for artifact in artifacts:
        record = PrunedRecord.from_artifact(artifact)
        rows.append(
            PrunedModelRow(
                method=method_label(artifact),
                keep=record.budget.get("keep") or n_heads - len(record.removed),
                removed=len(record.removed),
                seed=record.spec["seed"],
                steps=steps_of_shortest_stage(artifact),
                loss=record.loss,
                value=record.value,
                higher_is_better=record.higher_is_better,
                certificate=certify_pruned(dense, unpack_pruned_evaluation(artifact), metric_of_sums, margin, seed=seed),
                parameters=record.cost["parameters"],
                survivors=SurvivingHeads.after_removal(blocks, record.removed),
                within_rounding=tuple(record.within_rounding),
                selection=record.selection,
            )
        )
    return rows


def certify_pruned(
    dense: Evaluation, small: Evaluation, metric_of_sums: MetricOfSums | None, margin: Margin | None = None, *, seed: int = 0
) -> TaskCertificate:
    """Returns the certificate of a pruned model, by the loss where its metric is not known example by example."""
    if metric_of_sums is not None and dense.parts is not None and small.parts is not None:
        return certify_task(dense, small, metric_of_sums, margin, seed=seed)
    by_loss: dict[str, Any] = {"value": None, "metric": "", "parts": None}
    share = margin if margin is not None and margin.share is not None else None
    return certify_task(replace(dense, **by_loss), replace(small, **by_loss), None, share)


def steps_of_shortest_stage(artifact: Artifact) -> int | None:
    """Returns the optimiser steps of the shortest stage that trained a model; None where nothing trained."""
    return min(artifact.content.get("steps", {}).values(), default=None)


def method_label(artifact: Artifact) -> str:
    """Returns the method of a pruned model as tables and the report name it; it says so where too few steps were taken to judge the method."""
    steps = steps_of_shortest_stage(artifact)
    few = "" if steps is None or steps >= FEW_STEPS else f", only {steps} step{'s' if steps != 1 else ''}"
    return artifact.content["label"] + few


def choose_row_index_by_kept_count(rows: Sequence[PrunedModelRow]) -> dict[int, int]:
    """Returns the position of the row that the selection split chooses for every number of heads of the model, most heads first.

    The best metric on the selection split decides, then the least loss there, then method and seed by name. A model that lost no head is the dense
    one, and no candidate; one that was not evaluated on the selection split is none either.
    """
    chosen: dict[int, int] = {}

    def selection_key_of_row(row_index: int) -> tuple[tuple[float, float], str, int]:
        return rows[row_index].selection_sort_key, rows[row_index].method, rows[row_index].seed

    candidates = [position for position, row in enumerate(rows) if row.removed and row.selection is not None]
    for position in sorted(candidates, key=lambda position: (-rows[position].n_kept, selection_key_of_row(position))):
        chosen.setdefault(rows[position].n_kept, position)
    return chosen


@dataclass(frozen=True, slots=True)
class ChosenModel:
    """The pruned model that a run speaks of first: its row, and the sizes that were tested on the way to it.

    Attributes:
        position: The position of its row.
        tests: The sizes that were tested in order, up to the first that failed; empty without a margin.
    """

    position: int
    tests: tuple[SizeTest, ...] = ()

    @property
    def is_certified(self) -> bool:
        """Whether the model holds the margin."""
        return smallest_certified(self.tests) is not None


def choose_model(rows: Sequence[PrunedModelRow], *, has_margin: bool) -> ChosenModel | None:
    """Returns the smallest certified model, or the first that failed; without a margin, the best one by the selection split.

    None if no model lost a head. Which models are candidates is decided by the selection split alone; of models that are equally good there, the
    one with the fewest heads is taken.
    """
    by_size = choose_row_index_by_kept_count(rows)
    if not by_size:
        return None
    if not has_margin:
        return ChosenModel(min(by_size.values(), key=lambda at: (rows[at].selection_sort_key[0], rows[at].n_kept)))
    tests = certify_until_a_size_fails(by_size, lambda n_kept: rows[by_size[n_kept]].certificate)
    return ChosenModel(by_size[(smallest_certified(tests) or tests[0]).n_kept], tuple(tests))
