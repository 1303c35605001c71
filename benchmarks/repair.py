"""The cost of a repair: CPU time relative to one dense forward pass over its calibration data, BERT-base shape, interleaved, medians of ratios.

    python benchmarks/repair.py [--examples 128] [--length 64] [--keep 0.25 0.5] [--rounds 5] [--threads 1]

Bound: at most 4. A repair is a dense and a pruned pass over the calibration data and the data that λ is chosen by (a quarter more), sums of products
in float64, and one system of equations per block and λ. Every round times the dense pass and each repair, in an order that turns.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from functools import partial

import torch
from transformers import BertConfig, BertForSequenceClassification

import headcount as hc
from headcount.data.task import pad
from headcount.models.observe import evaluating
from headcount.pruning.repair.repair import RepairSettings, refit


def timed(work: Callable[[], object]) -> float:
    start = time.process_time()
    work()
    return time.process_time() - start


def task_of(examples: int, length: int) -> hc.Task:
    made = torch.Generator().manual_seed(0)
    ids = torch.randint(5, 30000, (examples + examples // 4, length), generator=made)
    rows = [{"input_ids": row.tolist(), "labels": number % 2} for number, row in enumerate(ids)]
    return hc.Task("random", rows[:examples], rows[examples:], rows[examples:], pad)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--examples", type=int, default=128)
    parser.add_argument("--length", type=int, default=64)
    parser.add_argument("--keep", type=float, nargs="+", default=[0.25, 0.5])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    model = BertForSequenceClassification(BertConfig()).eval()
    task = task_of(options.examples, options.length)
    batches = [pad(task.calibration[start : start + 32]) for start in range(0, options.examples, 32)]
    heads = hc.HeadMap.of(model)
    generator = torch.Generator().manual_seed(1)

    def dense() -> None:
        with evaluating(model):
            for batch in batches:
                model(**batch)

    variants: dict[str, Callable[[], object]] = {"dense": dense}
    for share in options.keep:
        gone = torch.randperm(len(heads), generator=generator)[round(share * len(heads)) :].tolist()
        variants[f"keep {share:g}"] = partial(
            refit, model, hc.Plan.removing([heads[i] for i in gone]), task, RepairSettings(limit=options.examples)
        )
    names = list(variants)
    times: dict[str, list[float]] = {name: [] for name in names}
    dense()
    for turn in range(options.rounds):
        for place in range(len(names)):
            name = names[(turn + place) % len(names)]
            times[name].append(timed(variants[name]))
    ratios = {name: [t / d for t, d in zip(times[name], times["dense"], strict=True)] for name in names[1:]}
    shape = (
        f"BERT-base, {options.examples} examples of {options.length} tokens, float32, {options.threads} threads, torch {torch.__version__}"
    )
    result = {
        "shape": shape,
        "dense_seconds": statistics.median(times["dense"]),
        "ratio": {name: statistics.median(values) for name, values in ratios.items()},
        "range": {name: [min(values), max(values)] for name, values in ratios.items()},
        "rounds": options.rounds,
    }
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
