"""Latency: how long a forward pass takes, of several models in one run, interleaved, so that noise of the machine meets all of them alike."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from statistics import median
from typing import Any

import torch
from torch import nn

from headcount.core.errors import DataError
from headcount.core.plan import Plan
from headcount.data.checks import n_positions
from headcount.models.dummy_inputs.text import probe_inputs
from headcount.models.gates import HeadGates
from headcount.models.modules import unwrap
from headcount.models.observe import evaluating, on_device
from headcount.runs.latency import BATCHES, LENGTHS, MIN_ROUNDS, Speedup
from headcount.surgery.verify import gate_values_of_plan


@dataclass(frozen=True, slots=True)
class Timing:
    """The median time of one pass in seconds with its quartiles, and how many times as fast it is as the first model, over the same rounds.

    The interval of the speed-up (95 %) is None below 15 rounds.
    """

    name: str
    batch: int
    length: int
    seconds: float
    low: float
    high: float
    speedup: float
    rounds: int
    speedup_low: float | None = None
    speedup_high: float | None = None


@dataclass(frozen=True, slots=True)
class _TimedModel:
    """A model to time, and the gates that mask its heads, if any."""

    model: nn.Module
    gates: HeadGates | None

    @classmethod
    def from_model_or_masked_model(cls, model_or_masked: nn.Module | tuple[nn.Module, Plan]) -> _TimedModel:
        if not isinstance(model_or_masked, tuple):
            return cls(unwrap(model_or_masked), None)
        gates = HeadGates(model_or_masked[0])
        gates.values = gate_values_of_plan(gates.heads, model_or_masked[1])
        return cls(gates.model, gates)

    def measure_pass_seconds(self, batch_size: int, n_tokens: int) -> float:
        """Returns the seconds of one forward pass."""
        inputs = repeat_probe_batch(self.model, batch_size, n_tokens)
        with evaluating(self.model), self.gates or nullcontext():
            start = time.perf_counter()
            self.model(**inputs)
            if next(self.model.parameters()).is_cuda:
                torch.cuda.synchronize()
            return time.perf_counter() - start


def repeat_probe_batch(model: nn.Module, batch_size: int, n_tokens: int) -> dict[str, Any]:
    """Returns a batch of a given size for a model: the probe batch, repeated; text of the given length."""
    inner: Any = unwrap(model)
    probe = probe_inputs(inner)
    text = next((name for name in ("input_ids", "decoder_input_ids") if name in probe), next(iter(probe)))
    inputs = {}
    for name, value in probe.items():
        if not isinstance(value, torch.Tensor) or not value.ndim:
            inputs[name] = value
            continue
        rows = value[:1].repeat(batch_size, *([1] * (value.ndim - 1)))
        if value.ndim == 2 and not value.is_floating_point() and value.shape[1] == probe[text].shape[1]:
            rows = rows.repeat(1, -(-n_tokens // rows.shape[1]))[:, :n_tokens]
        inputs[name] = rows
    return on_device(inputs, inner)


def bench(
    models: Mapping[str, nn.Module | tuple[nn.Module, Plan]],
    *,
    batches: Sequence[int] = BATCHES,
    lengths: Sequence[int] = LENGTHS,
    rounds: int = MIN_ROUNDS,
    progress: Callable[[int, int | None], None] | None = None,
) -> list[Timing]:
    """Returns timings of every model for every batch size and length, relative to the first model.

    Args:
        models: Models by name; a pair (model, plan) is that model with the plan's heads masked.
        batches: Batch sizes.
        lengths: Text lengths in tokens; a length beyond the positions that the models share is replaced by their number.
        rounds: How often each pass is timed, after one round that warms up; the interval of a speed-up needs 15.
        progress: Called with the number of finished cases, and of all.
    """
    if rounds < 1 or not models:
        raise DataError(f"a bench needs a model and at least one round, got {len(models)} models and {rounds} rounds")
    candidates = {name: _TimedModel.from_model_or_masked_model(model) for name, model in models.items()}
    limits = [limit for candidate in candidates.values() if (limit := n_positions(candidate.model)) is not None]
    cases = list(dict.fromkeys((batch, min(length, *limits)) if limits else (batch, length) for batch in batches for length in lengths))
    timings: list[Timing] = []
    for number, (batch, length) in enumerate(cases, 1):
        timings += _measure_timings(candidates, batch, length, rounds)
        if progress is not None:
            progress(number, len(cases))
    return timings


def measure_seconds_by_round(models: Mapping[str, nn.Module], batch_size: int, n_tokens: int, n_rounds: int) -> dict[str, list[float]]:
    """Returns the seconds of one pass of every model in every round; each round times all models, after one that warms up."""
    return _measure_candidate_seconds(
        {name: _TimedModel.from_model_or_masked_model(model) for name, model in models.items()}, batch_size, n_tokens, n_rounds
    )


def _measure_candidate_seconds(
    candidates: Mapping[str, _TimedModel], batch_size: int, n_tokens: int, n_rounds: int
) -> dict[str, list[float]]:
    times: dict[str, list[float]] = {name: [] for name in candidates}
    for turn in range(n_rounds + 1):
        for name, candidate in candidates.items():
            seconds = candidate.measure_pass_seconds(batch_size, n_tokens)
            if turn:  # the first round warms up
                times[name].append(seconds)
    return times


def _measure_timings(candidates: Mapping[str, _TimedModel], batch_size: int, n_tokens: int, n_rounds: int) -> list[Timing]:
    times = _measure_candidate_seconds(candidates, batch_size, n_tokens, n_rounds)
    base = next(iter(times.values()))
    timings = []
    for name, seconds in times.items():
        low, high = sorted(seconds)[len(seconds) // 4], sorted(seconds)[(3 * len(seconds)) // 4]
        speedup = Speedup.from_seconds_of_rounds(base, seconds)
        timings.append(Timing(name, batch_size, n_tokens, median(seconds), low, high, speedup.ratio, n_rounds, speedup.low, speedup.high))
    return timings
