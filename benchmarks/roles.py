"""What roles cost: all roles at once against a bare eager forward pass with attentions, BERT-base shape, CPU time, interleaved.

    python benchmarks/roles.py [--sentences 1000] [--batch 32] [--rounds 5] [--layers 12] [--threads 1] [--model MODEL --text FILE]
    python benchmarks/roles.py memory

Bound: at most 1.5 times without the estimate of false labels, 3 times with it. Sentences are embedded English with gold trees, so that syntactic
roles are tested too, or those of a file, for a model of your own. The fits of distance twins cost the same for many sentences as for few. `memory`
measures roles on 1,000 and on 10,000 sentences in processes of their own and compares their peaks.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable

import torch
from transformers import AutoModel, BertConfig, BertModel

import headcount as hc
from headcount.behaviour.corpus import read_corpus
from headcount.behaviour.views import corpus_examples
from headcount.data.chunks import chunks
from headcount.data.embedded.sentences import draw_sentences
from headcount.data.embedded.tokenizer import build_tokenizer


def cpu(work: Callable[[], object]) -> float:
    start = time.process_time()
    work()
    return time.process_time() - start


def make(options: argparse.Namespace):
    if options.model:
        model = hc.load(options.model, auto=AutoModel, attn_implementation="eager")
        return model, read_corpus(model, options.text, hc.load_tokenizer(options.model), limit=options.sentences)
    tokenizer = build_tokenizer(segments=True)
    torch.manual_seed(0)
    model = BertModel(BertConfig(vocab_size=len(tokenizer), num_hidden_layers=options.layers), add_pooling_layer=False).eval()
    model.set_attn_implementation("eager")
    return model, read_corpus(model, draw_sentences("english", options.sentences), tokenizer)


def speed(options: argparse.Namespace) -> dict:
    model, corpus = make(options)
    batches = [batch for block in chunks(corpus_examples(model, corpus)) for _, batch in block.batches(options.batch)]

    def bare() -> None:
        with torch.no_grad():
            for batch in batches:
                model(**batch, output_attentions=True)

    def roles() -> None:
        hc.roles(model, corpus, batch_size=options.batch, swaps=0, progress=False)

    def estimate() -> None:
        hc.roles(model, corpus, batch_size=options.batch, progress=False)

    bare(), roles()
    rounds = [(cpu(bare), cpu(roles), cpu(estimate)) for _ in range(options.rounds)]
    table = hc.roles(model, corpus, batch_size=options.batch, swaps=0, progress=False)
    ratios = {"without the estimate": [full / plain for plain, full, _ in rounds], "with it": [full / plain for plain, _, full in rounds]}
    return {
        "what": f"all {len(table.roles())} roles, {len(table.heads)} heads, {len(corpus.sentences)} sentences, batch {options.batch}",
        "ratio": {name: statistics.median(values) for name, values in ratios.items()},
        "range": {name: [min(values), max(values)] for name, values in ratios.items()},
        "bare_cpu_seconds": statistics.median(plain for plain, _, _ in rounds),
    }


def memory_of(options: argparse.Namespace) -> dict:
    model, corpus = make(options)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    start = time.perf_counter()
    hc.roles(model, corpus, batch_size=options.batch)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return {"sentences": options.sentences, "before_mib": before, "peak_mib": peak, "seconds": time.perf_counter() - start}


def memory(options: argparse.Namespace) -> dict:
    runs = []
    for number in (1_000, 10_000):
        command = [
            sys.executable,
            __file__,
            "memory-of",
            "--sentences",
            str(number),
            "--layers",
            str(options.layers),
            "--batch",
            str(options.batch),
        ]
        runs.append(json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout))
    extra = [run["peak_mib"] - run["before_mib"] for run in runs]
    return {"what": "memory beyond model and text", "runs": runs, "growth_mib": extra[1] - extra[0]}


def main() -> None:
    verbs = {"speed": speed, "memory": memory, "memory-of": memory_of}
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("what", choices=verbs, nargs="?", default="speed")
    parser.add_argument("--sentences", type=int, default=1000)
    parser.add_argument("--model")
    parser.add_argument("--text")
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    print(json.dumps({**verbs[options.what](options), "threads": options.threads, "torch": torch.__version__}, indent=2))


if __name__ == "__main__":
    main()
