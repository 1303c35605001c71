"""Benchmark times of a run for the report: which pruned model they belong to, and how reliable they are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NotRequired, TypedDict

from headcount.runs.artifacts import Artifact
from headcount.runs.report import contract
from headcount.runs.report.curves import point_id_of
from headcount.runs.report.plain import round_number, round_or_none
from headcount.runs.results import PRUNED, PrunedRecord, method_label
from headcount.runs.store import Run

BENCH = "bench"
WIDE, FASTER = 1 / 3, 1.1
"""A time is noisy if its quartiles are further apart than WIDE of the median, or a masked model is more than FASTER times as fast."""


class Time(TypedDict):
    """A measured time of a pass as its artifact holds it: median, quartiles, and the speed-up over the dense model with its interval."""

    name: str
    batch: int
    length: int
    seconds: float
    low: float
    high: float
    speedup: float
    rounds: int
    speedup_low: NotRequired[float | None]
    speedup_high: NotRequired[float | None]


class FlaggedTime(Time):
    """A measured time with the flags of `flag_times`."""

    is_noisy: bool
    is_apart: bool
    is_odd: bool


class PrunedModel(TypedDict):
    """Point, method, number of heads and seed of a pruned model, each None if its artifact is missing."""

    point: str | None
    method: str | None
    keep: int | None
    seed: int | None


def collect_bench_rows(run: Run, n_heads: int) -> list[contract.BenchRow]:
    """Returns every measured time with the curve point of its model and the flags of `flag_times`."""
    pruned = {artifact.key.digest: artifact for artifact in run.results(PRUNED).values()}
    rows: list[contract.BenchRow] = []
    for name, artifact in run.results(BENCH).items():
        model = _describe_pruned_model(pruned.get(artifact.key.inputs["of"]), n_heads)
        for row in flag_times(artifact.content["rows"]):
            seconds, low, high, speedup = (round_number(row[key]) for key in ("seconds", "low", "high", "speedup"))
            ends = {"speedup_low": round_or_none(row.get("speedup_low")), "speedup_high": round_or_none(row.get("speedup_high"))}
            rows.append({"of": name, **model, **row, "seconds": seconds, "low": low, "high": high, "speedup": speedup, **ends})  # pyright: ignore[reportArgumentType]
    return rows


def _describe_pruned_model(artifact: Artifact | None, n_heads: int) -> PrunedModel:
    if artifact is None:
        return {"point": None, "method": None, "keep": None, "seed": None}
    record = PrunedRecord.from_artifact(artifact)
    keep, seed = n_heads - len(record.removed), record.spec["seed"]
    return {"point": point_id_of(artifact), "method": method_label(artifact), "keep": keep, "seed": seed}


def flag_times(rows: Sequence[Time]) -> list[FlaggedTime]:
    """Returns the times of the dense, the masked and the pruned model, each with three flags.

    `is_noisy`: the quartiles lie far apart. `is_apart`: the 95 % interval of the speed-up does not include 1. `is_odd`: a masked model
    is faster than the dense one, which is impossible, since masks save no work.
    """
    judged_rows: list[FlaggedTime] = []
    for row in rows:
        low, high = row.get("speedup_low"), row.get("speedup_high")
        is_apart = low is not None and high is not None and not low <= 1 <= high
        is_odd = row["name"] == "masked" and row["speedup"] > FASTER and is_apart
        judged_rows.append({**row, "is_noisy": row["high"] - row["low"] > WIDE * row["seconds"], "is_apart": is_apart, "is_odd": is_odd})
    return judged_rows
