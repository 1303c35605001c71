"""The overhead of gates: a gated forward pass against a plain one, BERT-base shape, interleaved in one run, medians of ratios.

    python benchmarks/gates.py [--batch 8] [--length 128] [--rounds 40] [--threads 2]

Bound: at most 1.03 with one gate per head. Every round times each variant once, in an order that turns; the ratio of a round is taken against
the plain pass of the same round, so that a slow moment of the machine hits both.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable

import torch
from transformers import BertConfig, BertModel

import headcount as hc


def timed(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--length", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    model = BertModel(BertConfig()).eval()
    batch = {"input_ids": torch.randint(5, 30000, (options.batch, options.length))}
    heads = hc.HeadMap.of(model)
    gates = {
        "per head": hc.HeadGates(model, torch.rand(len(heads))),
        "per example": hc.HeadGates(model, torch.rand(options.batch, len(heads))),
    }

    def plain() -> None:
        model(**batch)

    def gated(name: str) -> None:
        with gates[name]:
            model(**batch)

    variants: dict[str, Callable[[], None]] = {"plain": plain} | {name: lambda name=name: gated(name) for name in gates}
    names = list(variants)
    times: dict[str, list[float]] = {name: [] for name in names}
    with torch.no_grad():
        for _ in range(3):
            for work in variants.values():
                work()
        for turn in range(options.rounds):
            for place in range(len(names)):
                name = names[(turn + place) % len(names)]
                times[name].append(timed(variants[name]))
    ratios = {name: [t / p for t, p in zip(times[name], times["plain"], strict=True)] for name in gates}
    result = {
        "shape": f"BERT-base, batch {options.batch}, length {options.length}, float32, {options.threads} threads, torch {torch.__version__}",
        "plain_seconds": statistics.median(times["plain"]),
        "ratio": {name: statistics.median(values) for name, values in ratios.items()},
        "quartiles": {name: statistics.quantiles(values, n=4)[::2] for name, values in ratios.items()},
        "rounds": options.rounds,
    }
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
