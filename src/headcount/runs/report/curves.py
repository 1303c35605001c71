"""Pruned models of a run against the dense one, on the same examples, as the page shows them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from headcount.core.certificate import Certificate
from headcount.core.certificate_file import NAME, read_certificate
from headcount.core.errors import ArtifactError, OptionError
from headcount.core.evaluation import Evaluation, score_interval
from headcount.core.margin import Margin
from headcount.core.stats.metric_parts import MetricOfSums, find_metric_of_sums
from headcount.core.training_log import FEW_STEPS
from headcount.runs.artifacts import Artifact
from headcount.runs.report import contract
from headcount.runs.report.certificates import describe_bound
from headcount.runs.report.plain import format_count, round_number, round_or_none
from headcount.runs.report.repeat import PruneCommand, format_prune_call, prune_commands_by_method
from headcount.runs.results import (
    EVALUATION,
    PRUNED,
    ChosenModel,
    CostRecord,
    PrunedModelRow,
    PrunedRecord,
    choose_model,
    choose_row_index_by_kept_count,
    compare_pruned_with_dense,
    unpack_evaluation,
)
from headcount.runs.schema import HeadsRecord, RunRecord
from headcount.runs.store import Run

DENSE = "dense"
ID_DIGITS = 12


def dense_evaluation_of(run: Run) -> Evaluation | None:
    """Returns the evaluation of the dense model; None if the run has none."""
    artifact = run.results(EVALUATION).get(DENSE)
    return unpack_evaluation(artifact) if artifact is not None else None


class RunCurves(NamedTuple):
    """The curves of a run (None if nothing was pruned), the rows behind them with the tests of loss and metric, and notes on what is left out."""

    curves: contract.Curves | None
    rows: list[PrunedModelRow]
    notes: list[str]


def collect_curves(run: Run, record: RunRecord, heads: HeadsRecord, prune_command: PruneCommand) -> RunCurves:
    """Returns the curves of the pruned models of a run."""
    dense, artifacts = dense_evaluation_of(run), list(run.results(PRUNED).values())
    if dense is None or not artifacts:
        return RunCurves(None, [], [])
    current = _artifacts_on_current_data(record, artifacts)
    records = [(artifact, PrunedRecord.from_artifact(artifact)) for artifact in current]
    same = [artifact for artifact, pruned in records if (pruned.data, pruned.metric) == (dense.data, dense.metric)]
    notes = _notes_on_left_out_models(len(artifacts) - len(current), len(current) - len(same))
    if not same:
        return RunCurves(None, [], notes)
    total = find_metric_of_sums(dense.metric)
    if dense.metric and total is None:
        notes.append(f"How {dense.metric} is made of examples is not known here: bounds are of the loss alone.")
    margin = _margin_of(record)
    rows, margin = _rows_with_margin(dense, same, heads, margin, record.seed)
    hasty = sorted({row.method for row in rows if row.steps is not None and row.steps < FEW_STEPS})
    if hasty:
        notes.append(f"Trained for fewer than {FEW_STEPS} optimiser steps, too few to judge a method by: {'; '.join(hasty)}.")
    unchosen = sum(row.selection is None for row in rows)
    if unchosen:
        was = "was" if unchosen == 1 else "were"
        notes.append(
            f"{format_count(unchosen, 'pruned model')} {was} made by an earlier version, which did not evaluate on the selection split."
        )
    chosen = choose_model(rows, has_margin=margin is not None)
    points = _curve_points(run, record, dense, rows, same, heads, prune_command)
    points.sort(key=lambda point: (point["method"], point["keep"], point["seed"]))
    curves: contract.Curves = {
        "metric": dense.metric or "loss",
        "higher_is_better": dense.higher_is_better if dense.value is not None else False,
        "dense": _describe_dense(dense, total, PrunedRecord.from_artifact(same[0]).dense_cost, record.seed),
        "points": points,
        "margin": "" if margin is None else str(margin),
        "by_size": [rows[position].id for position in choose_row_index_by_kept_count(rows).values()],
        "sizes": _tested_points(rows, chosen),
        "chosen": _chosen_point(rows, chosen, points),
        "unit": max((len(block.heads) // block.n_kv_heads for block in heads.blocks if block.n_kv_heads and block.heads), default=1),
        "commands": prune_commands_by_method(record, run.folder.resolve().name, same, prune_command),
    }
    return RunCurves(curves, rows, notes)


def _margin_of(record: RunRecord) -> Margin | None:
    """Returns the margin that the command of a run states; None without one."""
    stated = record.config.get("margin")
    try:
        return Margin.parse(stated) if isinstance(stated, str) else None
    except OptionError:
        return None


def _rows_with_margin(
    dense: Evaluation, artifacts: Sequence[Artifact], heads: HeadsRecord, margin: Margin | None, seed: int
) -> tuple[list[PrunedModelRow], Margin | None]:
    """Returns the rows of pruned models, and the margin, or None where it does not fit what was measured."""
    try:
        return _pruned_rows(dense, artifacts, heads, margin, seed=seed), margin
    except OptionError:
        return _pruned_rows(dense, artifacts, heads, seed=seed), None


def _tested_points(rows: Sequence[PrunedModelRow], chosen: ChosenModel | None) -> list[contract.TestedPoint]:
    """Returns the sizes that were tested in order."""
    by_size = choose_row_index_by_kept_count(rows)
    return [
        {
            "point": rows[by_size[test.n_kept]].id,
            "keep": test.n_kept,
            "bound_text": describe_bound(test.certificate.quality),
            "verdict": test.certificate.verdict,
        }
        for test in (() if chosen is None else chosen.tests)
    ]


def _chosen_point(
    rows: Sequence[PrunedModelRow], chosen: ChosenModel | None, points: Sequence[contract.Point]
) -> contract.ChosenPoint | None:
    """Returns the point that the summary is about, with its verdict."""
    if chosen is None:
        return None
    point = next(point for point in points if point["id"] == rows[chosen.position].id)
    return {"point": point["id"], "verdict": point["verdict"]}


def _certificates_by_model_digest(run: Run) -> dict[str, Certificate]:
    """Returns the certificates beside the models that a run keeps, by the first digits of the model's artifact; damaged ones are left out."""
    certificates = {}
    for folder in run.models():
        try:
            if (folder / NAME).is_file():
                certificates[folder.name.rpartition(".")[2]] = read_certificate(folder / NAME)
        except ArtifactError:
            continue
    return certificates


def _notes_on_left_out_models(n_on_earlier_data: int, n_on_other_examples: int) -> list[str]:
    notes = []
    if n_on_earlier_data:
        subject = f"{format_count(n_on_earlier_data, 'pruned model')} of an earlier state of the run, made on other data,"
        notes.append(f"{subject} {'is' if n_on_earlier_data == 1 else 'are'} left out.")
    if n_on_other_examples:
        was, are = ("was", "is") if n_on_other_examples == 1 else ("were", "are")
        notes.append(
            f"{format_count(n_on_other_examples, 'pruned model')} {was} evaluated on other examples than the dense model and {are} left out."
        )
    return notes


def _artifacts_on_current_data(record: RunRecord, artifacts: Sequence[Artifact]) -> list[Artifact]:
    """Returns the artifacts that run.json lists and others made on the same data, without those that an earlier command left behind."""
    listed = [artifact for artifact in artifacts if record.results.get(f"{PRUNED}/{artifact.key.name}") == artifact.key.digest]
    listed_data = [_model_and_data_inputs(artifact) for artifact in listed]
    return [artifact for artifact in artifacts if not listed or _model_and_data_inputs(artifact) in listed_data]


def _model_and_data_inputs(artifact: Artifact) -> dict[str, Any]:
    """Returns the inputs of an artifact that identify its model and its data."""
    return {name: value for name, value in artifact.key.inputs.items() if name != "spec"}


def point_id_of(artifact: Artifact) -> str:
    """Returns the identifier of a point: the first digits of the digest of its artifact."""
    return artifact.key.digest[:ID_DIGITS]


def collect_point(run: Run, artifact: Artifact, prune_command: PruneCommand = format_prune_call) -> contract.Point:
    """Returns the point of one pruned model in the curves of its run."""
    record, heads, dense = run.record(), run.heads(), dense_evaluation_of(run)
    if dense is None:
        raise ArtifactError(f"{run.folder} holds no evaluation of the dense model to compare a pruned one with; evaluate it first")
    return _curve_points(run, record, dense, _pruned_rows(dense, [artifact], heads, seed=record.seed), [artifact], heads, prune_command)[0]


def _pruned_rows(
    dense: Evaluation, artifacts: Sequence[Artifact], heads: HeadsRecord, margin: Margin | None = None, *, seed: int
) -> list[PrunedModelRow]:
    n_heads = sum(len(block.heads) for block in heads.blocks)
    rows = compare_pruned_with_dense(dense, artifacts, find_metric_of_sums(dense.metric), heads.blocks, margin, seed=seed)
    return [replace(row, id=point_id_of(artifact), keep=n_heads - row.removed) for row, artifact in zip(rows, artifacts, strict=True)]


def _curve_points(
    run: Run,
    record: RunRecord,
    dense: Evaluation,
    rows: Sequence[PrunedModelRow],
    artifacts: Sequence[Artifact],
    heads: HeadsRecord,
    prune_command: PruneCommand,
) -> list[contract.Point]:
    head_indices = {head: i for i, head in enumerate(head for block in heads.blocks for head in block.heads)}
    name, certificates = run.folder.resolve().name, _certificates_by_model_digest(run)
    return [
        _curve_point(
            row, artifact, dense.value, head_indices, prune_command(record, name, artifact, None), certificates.get(artifact.key.digest[:8])
        )
        for row, artifact in zip(rows, artifacts, strict=True)
    ]


def _describe_dense(dense: Evaluation, total: MetricOfSums | None, cost: CostRecord, seed: int) -> contract.Dense:
    value = dense.loss if dense.value is None else dense.value
    low, high = score_interval(dense, total, seed=seed)
    return {
        "value": round_number(value),
        "loss": round_number(dense.loss),
        "n_examples": dense.n_examples,
        "low": round_or_none(low),
        "high": round_or_none(high),
        "parameters": cost["parameters"],
        "bytes": cost["bytes"],
        "flops": cost["flops"],
        "kv_bytes_per_token": cost["kv_bytes_per_token"],
        "tokens": cost["tokens"],
    }


def _curve_point(
    row: PrunedModelRow,
    artifact: Artifact,
    dense_value: float | None,
    head_indices: Mapping[str, int],
    command: str,
    certificate: Certificate | None,
) -> contract.Point:
    record, task = PrunedRecord.from_artifact(artifact), row.certificate
    quality, sign = task.quality, 1 if row.value is not None and row.higher_is_better else -1
    low, high = sorted((-sign * quality.bound, -sign * quality.at_least))
    by_metric = row.value is None or quality.quantity != "loss"
    stated = certificate is not None and certificate.verdict is not None and task.verdict is None
    return {
        "id": row.id,
        "method": row.method,
        "is_random": record.arguments["method"] == "random",
        "is_trained": record.trained,
        "keep": row.keep,
        "seed": row.seed,
        "value": round_number(row.loss if row.value is None else row.value),
        "loss": round_number(row.loss),
        "difference": round_number(row.difference if by_metric or dense_value is None or row.value is None else row.value - dense_value),
        "low": round_or_none(low) if by_metric else None,
        "high": round_or_none(high) if by_metric else None,
        "bound": round_or_none(quality.bound),
        "bound_text": describe_bound(quality),
        "procedure": quality.procedure,
        "margin": certificate.margin if stated and certificate is not None else quality.margin,
        "verdict": certificate.verdict if stated and certificate is not None else task.verdict,
        "right_to_wrong": None if task.right_to_wrong is None else len(task.right_to_wrong),
        "wrong_to_right": None if task.wrong_to_right is None else len(task.wrong_to_right),
        "loss_difference": round_or_none((task.by_loss or quality).small - (task.by_loss or quality).dense),
        "is_repaired": bool(record.repaired) or record.spec["ablation"] == "mean",
        "removed": [head_indices[head] for head in record.removed if head in head_indices],
        "parameters": record.cost["parameters"],
        "bytes": record.cost["bytes"],
        "flops": record.cost["flops"],
        "kv_bytes_per_token": record.cost["kv_bytes_per_token"],
        "command": command,
    }
