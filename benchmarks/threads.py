"""Two threads, each with a model of its own: what the ownership of models and the order of random numbers cost.

    python benchmarks/threads.py [--rounds 41] [--seconds 0.1] [--write]

Two threads do the same work, each on its own BERT classifier: forward passes under `hc.mask`, or `hc.score` by gradient. Three variants run in
turn in every round: as it is; without the guards (ModelInUse, turns, and the order of random numbers, replaced inside this script by nothing and
by torch.random.fork_rng); and as it is, one model after the other in one thread. One torch thread, ratios of the same round, medians. CPU time
shows what the guards cost, wall time also whether threads wait for each other. Other work on the machine moves wall times: on two cores that are
busy anyway two threads are no faster than one, whatever the code does. Bound: with the guards at most 1.05 times the CPU time without them.
`--write` puts the table into docs/benchmarks.md.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import torch
from peers.sidebyside import put, table
from transformers import BertConfig, BertForSequenceClassification

import headcount as hc
from headcount.models import ownership, randomness

DOCUMENT = Path(__file__).parents[1] / "docs" / "benchmarks.md"
SHAPES = {"4 layers × 8 heads × 256, 8 × 64 tokens": (4, 8, 256, 8, 64), "2 layers × 4 heads × 32, 2 × 16 tokens": (2, 4, 32, 2, 16)}
COLUMNS = ("with guards / without, CPU", "with guards / without, wall", "one after the other / two threads, wall")
Work = Callable[[int], None]
"""Does its work so many times on one model."""


class Seconds(NamedTuple):
    """How long some work took, by the clock and in CPU time of this process."""

    wall: float
    cpu: float


@contextmanager
def hold_nothing(_model: Any, purpose: str, *, exclusive: bool = True) -> Iterator[ownership.Ownership]:
    """`ownership.holding` without a check, a lock or an entry."""
    yield ownership.Ownership(purpose, exclusive, threading.current_thread(), None)


@contextmanager
def fork_without_order(_model: Any, *, seed: int | None = None, devices: Any = None) -> Iterator[None]:
    """`randomness.pass_rng` as it was: torch's own, which knows of no other thread."""
    with torch.random.fork_rng(devices=devices):
        if seed is not None:
            torch.manual_seed(seed)
        yield


@contextmanager
def without_guards() -> Iterator[None]:
    """Replaces the guards in every module of headcount that has imported them."""
    replaced: dict[Any, Any] = {
        ownership.holding: hold_nothing,
        ownership.restrict_to_owner: lambda _model, function, module=None: function,
        ownership.taking_turns: lambda _model: nullcontext(),
        randomness.pass_rng: fork_without_order,
    }
    with ExitStack() as stack:
        for module in [module for name, module in sys.modules.items() if name.startswith("headcount.")]:
            for name, value in list(vars(module).items()):
                if getattr(value, "__hash__", None) and isinstance(value, Callable) and value in replaced:
                    stack.enter_context(patch.object(module, name, replaced[value]))
        stack.enter_context(patch.object(ownership, "_STATES", nullcontext()))
        yield


def make_works(shape: tuple[int, ...]) -> dict[str, list[Work]]:
    """For each kind of work, one per model."""
    n_layers, n_heads, width, n_rows, length = shape
    works: dict[str, list[Work]] = {"`hc.mask`, a forward pass": [], "`hc.score`, gradient": []}
    for seed in (0, 1):
        torch.manual_seed(seed)
        config = BertConfig(
            vocab_size=1000, num_hidden_layers=n_layers, num_attention_heads=n_heads, hidden_size=width, intermediate_size=4 * width
        )
        model = BertForSequenceClassification(config).eval()
        ids = torch.randint(5, 1000, (n_rows, length))
        inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
        labelled = {**inputs, "labels": torch.randint(0, 2, (n_rows,))}

        def mask(times: int, model: Any = model, inputs: dict[str, Any] = inputs) -> None:
            for _ in range(times):
                with torch.no_grad(), hc.mask(model, ["L0H1", "L1H0"]):
                    model(**inputs)

        def score(times: int, model: Any = model, batch: dict[str, Any] = labelled) -> None:
            for _ in range(times):
                hc.score(model, [batch], "gradient", batch_size=len(batch["labels"]))

        works["`hc.mask`, a forward pass"].append(mask)
        works["`hc.score`, gradient"].append(score)
    return works


def time_threads(works: list[Work], times: int) -> Seconds:
    """The time from the common start of one thread per work to the end of the last."""
    start_line = threading.Barrier(len(works) + 1)

    def run(work: Work) -> None:
        start_line.wait()
        work(times)

    threads = [threading.Thread(target=run, args=(work,)) for work in works]
    for thread in threads:
        thread.start()
    wall, cpu = time.perf_counter(), time.process_time()
    start_line.wait()
    for thread in threads:
        thread.join()
    return Seconds(time.perf_counter() - wall, time.process_time() - cpu)


def time_serial(works: list[Work], times: int) -> Seconds:
    wall, cpu = time.perf_counter(), time.process_time()
    for work in works:
        work(times)
    return Seconds(time.perf_counter() - wall, time.process_time() - cpu)


def measure(works: list[Work], rounds: int, seconds: float) -> dict[str, list[float]]:
    """The ratios of each round, by column of the table."""
    for work in works:
        work(2)
    times = max(1, round(seconds / max(time_serial(works[:1], 3).cpu / 3, 1e-6)))
    ratios: dict[str, list[float]] = {column: [] for column in COLUMNS}
    order = ("guarded", "bare", "serial")
    for number in range(rounds + 1):
        taken: dict[str, Seconds] = {}
        for variant in order[number % 3 :] + order[: number % 3]:
            with without_guards() if variant == "bare" else nullcontext():
                taken[variant] = (time_serial if variant == "serial" else time_threads)(works, times)
        guarded, bare, serial = (taken[variant] for variant in order)
        if number:  # the first round warms up
            for column, ratio in zip(COLUMNS, (guarded.cpu / bare.cpu, guarded.wall / bare.wall, serial.wall / guarded.wall), strict=True):
                ratios[column].append(ratio)
    return ratios


def summarise(ratios: list[float]) -> str:
    low, middle, high = statistics.quantiles(ratios, n=4)
    return f"{middle:.3f} ({low:.3f} – {high:.3f})"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=41)
    parser.add_argument("--seconds", type=float, default=0.1, help="CPU time of the work of one thread in one round")
    parser.add_argument("--write", action="store_true", help="put the table into docs/benchmarks.md")
    options = parser.parse_args()
    if options.rounds < 9:
        parser.error("--rounds must be 9 or more: fewer give no median on a shared machine")
    torch.set_num_threads(1)
    rows = []
    for shape_name, shape in SHAPES.items():
        for work_name, works in make_works(shape).items():
            ratios = measure(works, options.rounds, options.seconds)
            rows.append((work_name, shape_name, *map(summarise, ratios.values())))
            print(*rows[-1], sep=" | ", flush=True)
    text = table(("work of each thread", "BERT", *COLUMNS), rows, left=2)
    load = f"{options.rounds} rounds on {os.cpu_count()} cores; load average at the end {os.getloadavg()[0]:.1f}."
    print(f"\n{text}\n\n{load}")
    if options.write:
        put(DOCUMENT, "threads", f"{text}\n\n{load}")


if __name__ == "__main__":
    main()
