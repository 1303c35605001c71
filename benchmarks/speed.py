"""Whether a cut model is as fast as its FLOPs promise: BERT-base shape, 50, 25 and 12.5 % of the heads, batch 1, 8, 32, interleaved, medians.

    python benchmarks/speed.py [--length 128] [--rounds 7] [--threads 1] [--shape bert|llama]

Bound: the measured speed-up is at least 0.9 of the ratio of FLOPs at batch 8 and 32; batch 1 is reported. CPU time, so that other work on the machine
counts less.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from typing import Any

import torch
from transformers import BertConfig, BertForSequenceClassification, LlamaConfig, LlamaForCausalLM

import headcount as hc
from headcount.models.observe import evaluating
from headcount.surgery.bench import repeat_probe_batch
from headcount.surgery.cost import cost


def made(shape: str) -> Any:
    torch.manual_seed(0)
    if shape == "bert":
        return BertForSequenceClassification(BertConfig()).eval()
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=4096, hidden_size=768, intermediate_size=2048, num_hidden_layers=12, num_attention_heads=12, num_key_value_heads=4
        )
    ).eval()


def smaller(model: Any, share: float) -> Any:
    """The same share of every layer's units goes, as a random plan would leave it."""
    heads, gone = hc.HeadMap.of(model), []
    for block in heads.blocks:
        units = [unit for unit in heads.units() if unit[0] in block.heads]
        gone += [head for unit in units[max(1, round(len(units) * share)) :] for head in unit]
    return hc.cut(model, hc.Plan.removing(gone))


def passed(model: Any, inputs: dict[str, Any]) -> float:
    with torch.no_grad(), evaluating(model):
        start = time.process_time()
        model(**inputs)
        return time.process_time() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--length", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--shape", choices=("bert", "llama"), default="bert")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    dense = made(options.shape)
    models = {"dense": dense, **{f"{100 * share:g} %": smaller(dense, share) for share in (0.5, 0.25, 0.125)}}
    for batch in (1, 8, 32):
        inputs = repeat_probe_batch(dense, batch, options.length)
        flops = {name: cost(model, inputs).flops for name, model in models.items()}
        times: dict[str, list[float]] = {name: [] for name in models}
        for turn in range(options.rounds + 1):
            for name, model in models.items():
                seconds = passed(model, inputs)
                times[name] += [seconds] if turn else []
        for name in list(models)[1:]:
            ratios = [whole / less for whole, less in zip(times["dense"], times[name], strict=True)]
            promised, measured = flops["dense"] / flops[name], statistics.median(ratios)
            row = {
                "batch": batch,
                "heads": name,
                "promised": round(promised, 3),
                "measured": round(measured, 3),
                "kept": round(measured / promised, 3),
            }
            print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
