"""What scores cost: gradients against training, memory against the number of examples, a billion parameters.

    python benchmarks/scores.py gradient [--batch 8] [--length 64] [--rounds 9] [--threads 1]
    python benchmarks/scores.py memory
    python benchmarks/scores.py billion [--length 256] [--examples 4]

`gradient` times gradient importance, per-example scores included, against a plain training step's forward and backward pass on the same batch, in
CPU time, interleaved; bound: 0.8 at most. `memory` scores 1,000 and 100,000 examples on the embedded encoder in processes of their own and compares
their peak memory. `billion` scores a LLaMA shape of a billion parameters in bfloat16 by gradient with checkpointing and by a forward-only
score, and reports the peak. Exact ablation is timed by benchmarks/ablation.py.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator

import torch
from transformers import BertConfig, BertForSequenceClassification, LlamaConfig, LlamaForCausalLM

import headcount as hc
from headcount.importance.score import score_all


def cpu(work: Callable[[], object]) -> float:
    start = time.process_time()
    work()
    return time.process_time() - start


def peak() -> float:
    """The most memory that this process has held, in GiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


def gradient(options: argparse.Namespace) -> dict:
    torch.manual_seed(0)
    model = BertForSequenceClassification(BertConfig())
    batch = {
        "input_ids": torch.randint(5, 30000, (options.batch, options.length)),
        "attention_mask": torch.ones(options.batch, options.length, dtype=torch.long),
        "labels": torch.randint(0, 2, (options.batch,)),
    }

    def train() -> None:
        model.train()
        model.zero_grad()
        model(**batch).loss.backward()

    def score() -> None:
        model.eval()
        hc.score(model, [batch], batch_size=options.batch)

    score(), train()
    rounds = [(cpu(train), cpu(score)) for _ in range(options.rounds)]
    ratios = [scored / trained for trained, scored in rounds]
    return {
        "what": f"gradient importance against forward + backward of training, BERT-base shape, batch {options.batch} x {options.length}",
        "ratio": statistics.median(ratios),
        "quartiles": statistics.quantiles(ratios, n=4)[::2],
        "training_cpu_seconds": statistics.median(trained for trained, _ in rounds),
    }


def examples(number: int) -> Iterator[dict]:
    """Batches of random token sequences, made one at a time."""
    source = torch.Generator().manual_seed(0)
    for start in range(0, number, 50):
        tokens = torch.randint(5, 220, (min(50, number - start), 16), generator=source)
        yield {"input_ids": tokens, "attention_mask": torch.ones_like(tokens), "labels": tokens}


def memory_of(options: argparse.Namespace) -> dict:
    model = hc.load("demo/encoder")
    before = peak()
    start = time.perf_counter()
    score_all(model, examples(options.examples), ["gradient", "fisher", "confidence", "output-norm", "fluctuation"])
    return {"examples": options.examples, "before_gib": before, "peak_gib": peak(), "seconds": time.perf_counter() - start}


def memory(options: argparse.Namespace) -> dict:
    runs = []
    for number in (1_000, 100_000):
        command = [sys.executable, __file__, "memory-of", "--examples", str(number), "--threads", str(options.threads)]
        runs.append(json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout))
    growth = (runs[1]["peak_gib"] - runs[0]["peak_gib"]) * 1024
    return {"what": "peak memory, five scores in one pass, embedded encoder", "runs": runs, "growth_mib": growth}


def billion(options: argparse.Namespace) -> dict:
    config = LlamaConfig(
        vocab_size=32000, hidden_size=2048, num_hidden_layers=18, num_attention_heads=16, num_key_value_heads=4, intermediate_size=7168
    )
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    model = LlamaForCausalLM(config).eval()
    torch.set_default_dtype(before)
    tokens = torch.randint(5, 32000, (options.examples, options.length), generator=torch.Generator().manual_seed(0))
    data = [{"input_ids": tokens[i : i + 1], "labels": tokens[i : i + 1]} for i in range(options.examples)]
    weights = peak()
    took = {}
    for name in ("gradient", "output-norm"):
        start = time.perf_counter()
        scores = hc.score(model, data, name, checkpointing=name == "gradient")
        took[name] = {"seconds": time.perf_counter() - start, "peak_gib": peak(), "n_examples": scores.n_examples}
    return {
        "what": f"LLaMA shape, {sum(p.numel() for p in model.parameters()):,} parameters, bfloat16, {options.examples} x {options.length} tokens",
        "with_weights_gib": weights,
        "scores": took,
    }


VERBS = {"gradient": gradient, "memory": memory, "memory-of": memory_of, "billion": billion}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("what", choices=VERBS)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--length", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--examples", type=int, default=4)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    result = VERBS[options.what](options)
    print(json.dumps({**result, "threads": options.threads, "torch": torch.__version__}, indent=2))


if __name__ == "__main__":
    main()
