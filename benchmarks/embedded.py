"""How good the embedded models are on the report split of their tasks, whole and without any head.

python benchmarks/embedded.py
"""

from __future__ import annotations

import torch
import transformers
from transformers import AutoTokenizer

import headcount as hc
from headcount.evaluate import Evaluation, evaluate
from headcount.surgery.source import local_folder
from headcount.tasks import open_task

TASKS = (
    ("encoder", "demo/text"),
    ("encoder", "demo/text-tavi"),
    ("encoder-english", "demo/text"),
    ("entailment", "demo/entailment"),
    ("entailment", "demo/entailment-tavi"),
    ("entailment-english", "demo/entailment"),
    ("translator", "demo/translation"),
    ("decoder", "demo/stories"),
)


def told(made: Evaluation) -> str:
    return f"{made.loss:.3f} ± {made.loss_stderr:.3f} | {made.metric} {made.value:.4g}"


def main() -> None:
    torch.set_num_threads(1)
    transformers.logging.disable_progress_bar()
    print("| model | heads | task | loss | metric | loss without heads | metric without heads |\n|---|---|---|---|---|---|---|")
    for name, task in TASKS:
        model = hc.load(f"demo/{name}")
        heads = hc.HeadMap.of(model)
        data = open_task(task, model, AutoTokenizer.from_pretrained(local_folder(f"demo/{name}")))
        whole = evaluate(model, data)
        with hc.HeadGates(model, torch.zeros(len(heads))):
            none = evaluate(model, data)
        print(f"| `demo/{name}` ({type(model).__name__}) | {len(heads)} | `{task}` | {told(whole)} | {told(none)} |", flush=True)


if __name__ == "__main__":
    main()
