"""Latency of the dense model and of cut ones, round by round, as artifacts hold it. No torch here."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from math import exp

import numpy as np

from headcount.core.stats.significance import paired_t
from headcount.runs.artifacts import Artifact

LATENCY = "latency"
DENSE = "dense"


@dataclass(frozen=True, slots=True)
class LatencyRow:
    """A model at one batch size and length.

    Attributes:
        method: The method that chose its heads; `dense` for the dense model.
        keep: How many heads it has.
        batch: Rows of a pass.
        length: Tokens of a row.
        seconds: The median of the time of a pass over all rounds.
        low: Its lower quartile.
        high: Its upper quartile.
        speedup: How many times as fast as the dense model: the exponential of the mean over rounds of ln (dense / this).
        speedup_low: The lower end of its 95 % interval, by t over rounds.
        speedup_high: The upper end.
        p: The p-value of no difference, by the same test.
        rounds: The number of rounds.
        device: The device.
    """

    method: str
    keep: int
    batch: int
    length: int
    seconds: float
    low: float
    high: float
    speedup: float
    speedup_low: float
    speedup_high: float
    p: float
    rounds: int
    device: str

    def to_dict(self) -> dict[str, object]:
        """Returns the row as plain data."""
        return asdict(self)


def unpack_latency(artifact: Artifact) -> list[LatencyRow]:
    """Returns a row for every model of an artifact of latency, the dense model first."""
    content, rows = artifact.content, []
    dense_times = np.log(artifact.arrays[DENSE])
    for name, (method, keep) in content["models"].items():
        times = artifact.arrays[name]
        low, median, high = np.quantile(times, [0.25, 0.5, 0.75]).tolist()
        ratios = paired_t(dense_times - np.log(times))
        rows.append(
            LatencyRow(
                method=method,
                keep=keep,
                batch=content["batch"],
                length=content["length"],
                seconds=median,
                low=low,
                high=high,
                speedup=exp(ratios.difference),
                speedup_low=exp(ratios.low),
                speedup_high=exp(ratios.high),
                p=ratios.p,
                rounds=content["rounds"],
                device=content["machine"]["device"],
            )
        )
    return rows
