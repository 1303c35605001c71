"""Benchmark times of a run for the report: which pruned model they belong to, and how reliable they are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from headcount.runs.artifacts import Artifact
from headcount.runs.report.curves import id_of
from headcount.runs.report.plain import short
from headcount.runs.results import PRUNED, method_label
from headcount.runs.store import Run

BENCH = "bench"
WIDE, FASTER = 1 / 3, 1.1
"""A time is noisy if its quartiles are further apart than WIDE of the median, or a masked model is more than FASTER times as fast."""
TIMES = ("seconds", "low", "high", "speedup")


def bench_of(run: Run, n_heads: int) -> list[dict[str, Any]]:
    """Returns every measured time with the curve point of its model and the flags of `judge_times`."""
    pruned = {artifact.key.digest: artifact for artifact in run.results(PRUNED).values()}
    rows = []
    for name, artifact in run.results(BENCH).items():
        model = {"of": name, **_model(pruned.get(artifact.key.inputs["of"]), n_heads)}
        for row in judge_times(artifact.content["rows"]):
            rows.append({**model, **row, **{key: short(row[key]) for key in TIMES}})
    return rows


def _model(artifact: Artifact | None, n_heads: int) -> dict[str, Any]:
    """Returns point, method, number of heads and seed of a pruned model, each None if its artifact is missing."""
    if artifact is None:
        return dict.fromkeys(("point", "method", "keep", "seed"))
    content, spec = artifact.content, artifact.content["spec"]
    return {"point": id_of(artifact), "method": method_label(artifact), "keep": n_heads - len(content["removed"]), "seed": spec["seed"]}


def judge_times(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Returns the times of the dense, the masked and the pruned model, each with three flags.

    `is_noisy`: the quartiles lie far apart. `is_apart`: the quartiles do not overlap those of the dense model. `is_odd`: a masked model
    is faster than the dense one, which is impossible, since masks save no work.
    """
    dense_rows = {(row["batch"], row["length"]): row for row in rows if row["name"] == "dense"}
    judged_rows = []
    for row in rows:
        dense = dense_rows.get((row["batch"], row["length"]))
        is_apart = dense is not None and (row["high"] < dense["low"] or dense["high"] < row["low"])
        is_odd = row["name"] == "masked" and row["speedup"] > FASTER and is_apart
        judged_rows.append({**row, "is_noisy": row["high"] - row["low"] > WIDE * row["seconds"], "is_apart": is_apart, "is_odd": is_odd})
    return judged_rows
