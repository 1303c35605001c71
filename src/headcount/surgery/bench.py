"""Latency: how long a forward pass takes, of several models in one run, interleaved, so that noise of the machine meets all of them alike."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from statistics import median
from typing import Any

import torch
from torch import nn

from headcount.core.errors import DataError
from headcount.data.checks import positions
from headcount.models.dummy_inputs.text import probe_inputs
from headcount.models.gates import HeadGates
from headcount.models.head_map import HeadMap
from headcount.models.modules import unwrap
from headcount.models.observe import evaluating, on_device
from headcount.surgery.verify import gates_of

BATCHES, LENGTHS = (1, 8, 32), (32, 128)


@dataclass(frozen=True, slots=True)
class Timing:
    """The median time of one pass in seconds with its quartiles, and how often the first model's pass fits into it."""

    name: str
    batch: int
    length: int
    seconds: float
    low: float
    high: float
    speedup: float
    rounds: int


def inputs_of(model: nn.Module, batch: int, length: int) -> dict[str, Any]:
    """A batch of that size for a model: the probe batch, repeated; text of that length."""
    inner: Any = unwrap(model)
    probe = probe_inputs(inner)
    made = {}
    for name, value in probe.items():
        if not isinstance(value, torch.Tensor) or not value.ndim:
            made[name] = value
            continue
        rows = value[:1].repeat(batch, *([1] * (value.ndim - 1)))
        if value.ndim == 2 and not value.is_floating_point() and value.shape[1] == probe[_text(probe)].shape[1]:
            rows = rows.repeat(1, -(-length // rows.shape[1]))[:, :length]
        made[name] = rows
    return on_device(made, inner)


def _text(probe: Mapping[str, Any]) -> str:
    return next((name for name in ("input_ids", "decoder_input_ids") if name in probe), next(iter(probe)))


def bench(
    models: Mapping[str, nn.Module | tuple[nn.Module, Any]],
    *,
    batches: Sequence[int] = BATCHES,
    lengths: Sequence[int] = LENGTHS,
    rounds: int = 5,
    progress: Callable[[int, int | None], None] | None = None,
) -> list[Timing]:
    """Timings of every model for every batch size and length; a pair (model, plan) is that model masked. The first model is the measure."""
    if rounds < 1 or not models:
        raise DataError(f"a bench needs a model and at least one round, got {len(models)} models and {rounds} rounds")
    found: list[Timing] = []
    most = min((limit for made in models.values() if (limit := positions(unwrap(_model(made)))) is not None), default=None)
    cases = [(batch, min(length, most or length)) for batch in batches for length in lengths]
    cases = list(dict.fromkeys(cases))
    for number, (batch, length) in enumerate(cases):
        found += _case(models, batch, length, rounds)
        if progress is not None:
            progress(number + 1, len(cases))
    return found


def _model(made: Any) -> nn.Module:
    return made[0] if isinstance(made, tuple) else made


def _case(models: Mapping[str, Any], batch: int, length: int, rounds: int) -> list[Timing]:
    times: dict[str, list[float]] = {name: [] for name in models}
    for turn in range(rounds + 1):
        for name, made in models.items():
            seconds = _once(made, batch, length)
            if turn:  # the first round warms up
                times[name].append(seconds)
    base = median(next(iter(times.values())))
    return [
        Timing(
            name, batch, length, median(seen), sorted(seen)[len(seen) // 4], sorted(seen)[(3 * len(seen)) // 4], base / median(seen), rounds
        )
        for name, seen in times.items()
    ]


def _once(made: Any, batch: int, length: int) -> float:
    model = unwrap(_model(made))
    inputs = inputs_of(model, batch, length)
    with ExitStack() as stack:
        stack.enter_context(evaluating(model))
        if isinstance(made, tuple):
            stack.enter_context(HeadGates(model, gates_of(HeadMap.of(model), made[1])))
        start = time.perf_counter()
        model(**inputs)
        if next(model.parameters()).is_cuda:
            torch.cuda.synchronize()
        return time.perf_counter() - start
