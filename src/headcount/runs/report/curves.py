"""Pruned models of a run against the whole one, on the same examples, as the page shows them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from headcount.core.errors import ArtifactError
from headcount.core.evaluation import Evaluation, interval
from headcount.core.stats.metric_parts import Total, total_of
from headcount.runs.artifacts import Artifact
from headcount.runs.report.commands import command_of, commands_of
from headcount.runs.report.plain import plural, short
from headcount.runs.results import EVALUATION, FEW_STEPS, PRUNED, best_of, rows_of, smallest_safe, unpack_evaluation, worse_by
from headcount.runs.schema import HeadsRecord, RunRecord
from headcount.runs.store import Run

DENSE = "dense"
COSTS = ("parameters", "bytes", "flops", "kv_bytes_per_token")
ID_DIGITS = 12


def dense_of(run: Run) -> Evaluation | None:
    """The evaluation of the whole model, if there is one."""
    artifact = run.results(EVALUATION).get(DENSE)
    return unpack_evaluation(artifact) if artifact is not None else None


def curves_of(run: Run, record: RunRecord, heads: HeadsRecord) -> tuple[dict[str, Any] | None, list[dict[str, Any]], list[str]]:
    """The curves, or None where nothing was pruned; the rows behind them, with the tests of loss and metric; and what is not in them."""
    dense, artifacts = dense_of(run), list(run.results(PRUNED).values())
    if dense is None or not artifacts:
        return None, [], []
    current = _current(record, artifacts)
    same = [artifact for artifact in current if artifact.content["data"] == dense.data and artifact.content["metric"] == dense.metric]
    notes = _left_out(len(artifacts) - len(current), len(current) - len(same))
    if not same:
        return None, [], notes
    total = total_of(dense.metric)
    if dense.metric and total is None:
        notes.append(f"How {dense.metric} is made of examples is not known here: changes are tested by the loss alone.")
    table = _table(dense, same, heads)
    hasty = sorted({row["method"] for row in table if row["steps"] is not None and row["steps"] < FEW_STEPS})
    if hasty:
        notes.append(f"Trained for fewer than {FEW_STEPS} optimiser steps, too few to judge a method by: {'; '.join(hasty)}.")
    best = best_of(table)
    points = _points(run, record, dense, table, same, heads)
    points.sort(key=lambda point: (point["method"], point["keep"], point["seed"]))
    made = {
        "metric": dense.metric or "loss",
        "higher_is_better": dense.higher_is_better if dense.value is not None else False,
        "dense": _dense(dense, total, same[0].content["whole_cost"]),
        "points": points,
        "smallest_safe": smallest_safe(table),
        "best": {"point": table[best.at]["id"], "is_safe": best.is_safe} if best is not None else None,
        "unit": max((len(block.heads) // block.n_kv_heads for block in heads.blocks if block.n_kv_heads and block.heads), default=1),
        "commands": commands_of(record, run.folder.resolve().name, same),
    }
    return made, table, notes


def _left_out(earlier: int, elsewhere: int) -> list[str]:
    found = []
    if earlier:
        told = f"{plural(earlier, 'pruned model')} of an earlier state of the run, made on other data,"
        found.append(f"{told} {'is' if earlier == 1 else 'are'} left out.")
    if elsewhere:
        was, left = ("was", "is") if elsewhere == 1 else ("were", "are")
        found.append(f"{plural(elsewhere, 'pruned model')} {was} evaluated on other examples than the whole model and {left} left out.")
    return found


def _current(record: RunRecord, artifacts: Sequence[Artifact]) -> list[Artifact]:
    """The artifacts that run.json lists, and others that were made on the same data: what an earlier command left behind is no part of its curves."""
    listed = [artifact for artifact in artifacts if record.results.get(f"{PRUNED}/{artifact.key.name}") == artifact.key.digest]
    known = [_made_on(artifact) for artifact in listed]
    return [artifact for artifact in artifacts if not listed or _made_on(artifact) in known]


def _made_on(artifact: Artifact) -> dict[str, Any]:
    """The model and the data of an artifact."""
    return {name: value for name, value in artifact.key.inputs.items() if name != "wish"}


def id_of(artifact: Artifact) -> str:
    """What a point is told from all others by: the first digits of the key of its artifact."""
    return artifact.key.digest[:ID_DIGITS]


def point_of(run: Run, artifact: Artifact) -> dict[str, Any]:
    """The point of one pruned model, as it stands in the curves of its run."""
    record, heads, dense = run.record(), run.heads(), dense_of(run)
    if dense is None:
        raise ArtifactError(f"{run.folder} holds no evaluation of the whole model, so a pruned one has nothing to stand beside")
    return _points(run, record, dense, _table(dense, [artifact], heads), [artifact], heads)[0]


def _table(dense: Evaluation, artifacts: Sequence[Artifact], heads: HeadsRecord) -> list[dict[str, Any]]:
    n_heads = sum(len(block.heads) for block in heads.blocks)
    made = rows_of(dense, artifacts, total_of(dense.metric), n_heads)
    return [{**row, "id": id_of(artifact), "keep": n_heads - row["removed"]} for row, artifact in zip(made, artifacts, strict=True)]


def _points(
    run: Run, record: RunRecord, dense: Evaluation, table: Sequence[Mapping[str, Any]], artifacts: Sequence[Artifact], heads: HeadsRecord
) -> list[dict[str, Any]]:
    places = {head: i for i, head in enumerate(head for block in heads.blocks for head in block.heads)}
    name = run.folder.resolve().name
    return [
        _point(row, artifact, dense, places, command_of(record, name, artifact)) for row, artifact in zip(table, artifacts, strict=True)
    ]


def _dense(dense: Evaluation, total: Total | None, cost: Mapping[str, Any]) -> dict[str, Any]:
    value = dense.loss if dense.value is None else dense.value
    low, high = interval(dense, total)
    return {
        "value": short(value),
        "loss": short(dense.loss),
        "n_examples": dense.n_examples,
        "low": short(low),
        "high": short(high),
        **{name: cost[name] for name in (*COSTS, "tokens")},
    }


def _point(row: Mapping[str, Any], artifact: Artifact, dense: Evaluation, places: Mapping[str, int], command: str) -> dict[str, Any]:
    told, wish = artifact.content, artifact.content["wish"]
    what = "metric" if "metric p" in row else "loss"
    value = row["loss"] if row["value"] is None else row["value"]
    base = dense.loss if dense.value is None else dense.value
    shown = what == "metric" or row["value"] is None
    return {
        "id": row["id"],
        "method": row["method"],
        "is_random": wish["method"] == "random",
        "is_trained": told["trained"],
        "keep": row["keep"],
        "seed": row["seed"],
        "value": short(value),
        "loss": short(row["loss"]),
        "difference": short(value - base),
        "low": short(row[f"{what} low"]) if shown else None,
        "high": short(row[f"{what} high"]) if shown else None,
        "p": short(row[f"{what} p"], 3),
        "test": row[f"{what} by"],
        "loss_difference": short(row["loss difference"]),
        "loss_p": short(row["loss p"], 3),
        "worse_by": worse_by(row),
        "is_repaired": bool(told["repaired"]) or wish.get("ablation") == "mean",
        "removed": [places[head] for head in told["removed"] if head in places],
        **{name: told["cost"][name] for name in COSTS},
        "command": command,
    }
