"""What learned gates cost: a training step with DSP or L0 gates against the plain step, on the shape of MiniLM.

    python benchmarks/training.py [--rounds 15] [--batch 32] [--length 32] [--layers 6] [--heads 12] [--width 384]

A step is what the Trainer does: forward, backward, the step of AdamW, and, with gates, drawing them and moving them. CPU time, one thread, variants
interleaved in a new order every round, medians of the ratio to the plain step of the same round. Bound: 1.05 at most.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import time
from types import SimpleNamespace
from typing import Any

import torch
from transformers import BertConfig, BertForSequenceClassification

import headcount as hc
from headcount.core.budget import Budget
from headcount.data.metrics import ACCURACY
from headcount.data.task import pad
from headcount.pruning.base import PruneContext
from headcount.pruning.methods import dsp, l0
from headcount.pruning.training.gates import GateCallback


class Step:
    """One variant: its own copy of the model, its optimiser, its gates."""

    def __init__(self, config: BertConfig, batch: dict[str, Any], gates: str) -> None:
        torch.manual_seed(0)
        self.model = BertForSequenceClassification(config).train()
        self.optimiser = torch.optim.AdamW(self.model.parameters(), 1e-5)
        self.batch, self.number = batch, 0
        self.callback = self._callback(gates) if gates else None
        if self.callback is not None:
            self.callback._put_on_model()

    def _callback(self, gates: str) -> GateCallback:
        heads = hc.HeadMap.of(self.model)
        rows = [{"input_ids": [1, 2], "labels": 0}]
        task = hc.Task("none", rows, rows, rows, pad, metric=ACCURACY)
        name, _, variant = gates.partition(":")
        number = len(heads) // 4
        context = PruneContext(self.model, heads, task, Budget(keep=number))
        choice: Any = [variant] if variant else []
        gating = (
            l0.HardConcrete(context, l0.L0(*choice), number)
            if name == "l0"
            else dsp.SubsetGates(context, dsp.DSP(*choice, init="none"), number)
        )
        return GateCallback(self.model, gating)

    def run(self) -> float:
        start = time.process_time()
        now: Any = SimpleNamespace(global_step=self.number % 50, max_steps=100)
        where: Any = SimpleNamespace(device=torch.device("cpu"))
        if self.callback is not None:
            self.callback.on_step_begin(where, now, now)
        self.model(**self.batch).loss.backward()
        if self.callback is not None:
            self.callback.on_pre_optimizer_step(where, now, now)
        self.optimiser.step()
        self.optimiser.zero_grad()
        self.number += 1
        return time.process_time() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, value in {"rounds": 15, "batch": 32, "length": 32, "layers": 6, "heads": 12, "width": 384}.items():
        parser.add_argument(f"--{name}", type=int, default=value)
    options = parser.parse_args()
    torch.set_num_threads(1)
    config = BertConfig(
        num_hidden_layers=options.layers,
        num_attention_heads=options.heads,
        hidden_size=options.width,
        intermediate_size=4 * options.width,
    )
    batch = {
        "input_ids": torch.randint(5, 30000, (options.batch, options.length)),
        "attention_mask": torch.ones(options.batch, options.length, dtype=torch.long),
        "labels": torch.randint(0, 2, (options.batch,)),
    }
    steps = {name or "plain": Step(config, batch, name) for name in ("", "l0", "dsp", "dsp:fast", "dsp:straight")}
    for step in steps.values():
        step.run()
    took: dict[str, list[float]] = {name: [] for name in steps}
    for number in range(options.rounds):
        for name in random.Random(number).sample(sorted(steps), len(steps)):
            took[name].append(steps[name].run())
    found = {}
    for name in steps:
        ratios = sorted(a / b for a, b in zip(took[name], took["plain"], strict=True))
        quartiles = statistics.quantiles(ratios, n=4)
        found[name] = {"ratio": round(quartiles[1], 3), "quartiles": [round(quartiles[0], 3), round(quartiles[2], 3)]}
    print(json.dumps({"plain seconds": round(statistics.median(took["plain"]), 3), **found}, indent=1))


if __name__ == "__main__":
    main()
