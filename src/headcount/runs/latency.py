"""Latency of the dense model and of cut ones, round by round, as artifacts hold it. No torch here."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from math import exp
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

    from headcount.runs.artifacts import Artifact

LATENCY = "latency"
DENSE = "dense"
BATCHES, LENGTHS = (1, 8, 32), (32, 128)
"""The rows and tokens of a pass that latency is measured for, unless others are named."""
MIN_ROUNDS = 15
"""The fewest rounds whose log-ratios give an interval of a speed-up."""


@dataclass(frozen=True, slots=True)
class Speedup:
    """How many times as fast a model is as another one: exp of the mean over rounds of ln (other / this), with its 95 % t interval.

    The ends and the p-value of no difference are None below `MIN_ROUNDS` rounds.
    """

    ratio: float
    low: float | None
    high: float | None
    p: float | None

    @classmethod
    def from_seconds_of_rounds(cls, dense_seconds: ArrayLike, seconds: ArrayLike) -> Self:
        """Returns the speed-up from the seconds of both models in the same rounds."""
        import numpy as np  # help texts do without

        from headcount.core.stats.means import t_interval

        log_ratios = np.log(np.asarray(dense_seconds, dtype=float)) - np.log(np.asarray(seconds, dtype=float))
        if len(log_ratios) < MIN_ROUNDS:
            return cls(exp(float(log_ratios.mean())), None, None, None)
        test = t_interval(log_ratios)
        return cls(exp(test.difference), exp(test.low), exp(test.high), test.p)


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
        speedup_low: The lower end of its 95 % interval, by t over rounds; None below 15 rounds, like the next two.
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
    speedup_low: float | None
    speedup_high: float | None
    p: float | None
    rounds: int
    device: str

    def to_dict(self) -> dict[str, object]:
        """Returns the row as plain data."""
        return asdict(self)


def unpack_latency(artifact: Artifact) -> list[LatencyRow]:
    """Returns a row for every model of an artifact of latency, the dense model first."""
    import numpy as np  # help texts do without

    content, rows = artifact.content, []
    for name, (method, keep) in content["models"].items():
        times = artifact.arrays[name]
        low, median, high = np.quantile(times, [0.25, 0.5, 0.75]).tolist()
        speedup = Speedup.from_seconds_of_rounds(artifact.arrays[DENSE], times)
        rows.append(
            LatencyRow(
                method=method,
                keep=keep,
                batch=content["batch"],
                length=content["length"],
                seconds=median,
                low=low,
                high=high,
                speedup=speedup.ratio,
                speedup_low=speedup.low,
                speedup_high=speedup.high,
                p=speedup.p,
                rounds=content["rounds"],
                device=content["machine"]["device"],
            )
        )
    return rows
