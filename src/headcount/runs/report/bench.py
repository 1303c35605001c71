"""The times of a run as the page shows them: of which pruned model they are, and how far they can be trusted."""

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
"""Quartiles that are further apart than this share of the median, and masks that speed a model up by more, are noise."""
TIMES = ("seconds", "low", "high", "speedup")


def bench_of(run: Run, n_heads: int) -> list[dict[str, Any]]:
    """Every time that was measured, with the point of its model and the verdicts on it."""
    pruned = {artifact.spec.key: artifact for artifact in run.results(PRUNED).values()}
    found = []
    for name, artifact in run.results(BENCH).items():
        of = {"of": name, **_model(pruned.get(artifact.spec.parts["of"]), n_heads)}
        for row in judged(artifact.content["rows"]):
            found.append({**of, **row, **{key: short(row[key]) for key in TIMES}})
    return found


def _model(artifact: Artifact | None, n_heads: int) -> dict[str, Any]:
    """What identifies a pruned model; nothing where its artifact is gone."""
    if artifact is None:
        return dict.fromkeys(("point", "method", "keep", "seed"))
    told, spec = artifact.content, artifact.content["spec"]
    return {"point": id_of(artifact), "method": method_label(artifact), "keep": n_heads - len(told["removed"]), "seed": spec["seed"]}


def judged(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The times of one model, its masked and its whole self, each with what a reader may take from it.

    `is_noisy`: the quartiles lie far apart. `is_apart`: they share nothing with those of the whole model, so that the difference of the medians is
    one. `is_odd`: a masked model that is faster than the whole one, which it cannot be, since masks save no work.
    """
    dense = {_size(row): row for row in rows if row["name"] == "dense"}
    found = []
    for row in rows:
        whole = dense.get(_size(row))
        is_apart = whole is not None and (row["high"] < whole["low"] or whole["high"] < row["low"])
        is_odd = row["name"] == "masked" and row["speedup"] > FASTER and is_apart
        found.append({**row, "is_noisy": row["high"] - row["low"] > WIDE * row["seconds"], "is_apart": is_apart, "is_odd": is_odd})
    return found


def _size(row: Mapping[str, Any]) -> tuple[int, int]:
    return row["batch"], row["length"]
