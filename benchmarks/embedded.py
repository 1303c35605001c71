"""The embedded models: how good they are, with and without heads. Prints the table of docs/embedded.md.

python benchmarks/embedded.py [--limit N]
"""

from __future__ import annotations

import argparse

import torch

import headcount as hc
from headcount.core.evaluation import Evaluation
from headcount.data.evaluate import evaluate
from headcount.data.open_task import open_task

SHOWN = {
    "encoder": ("text", "text-tavi"),
    "encoder-english": ("text",),
    "entailment": ("entailment", "entailment-tavi"),
    "entailment-english": ("entailment",),
    "translator": ("translation",),
    "rare-words": ("rare-words",),
    "decoder": ("stories",),
}
"""The tasks that each model is shown on."""


def print_models(limit: int | None) -> None:
    """Prints the loss (± standard error) and the metric of every model on the report split, as it is and with all heads gated to zero."""
    print("| model | heads | task | loss | metric | loss without heads | metric without heads |\n|" + "---|" * 7)
    for name, tasks in SHOWN.items():
        model = hc.load(f"demo/{name}")
        n_heads = len(hc.HeadMap.of(model))
        for task_name in tasks:
            task = open_task(f"demo/{task_name}", model)
            whole = evaluate(model, task, limit=limit)
            with hc.HeadGates(model, torch.zeros(n_heads)):
                bare = evaluate(model, task, limit=limit)
            row = f"| `demo/{name}` ({type(model).__name__}) | {n_heads} | `demo/{task_name}` | {format_cells(whole)} | {format_cells(bare)} |"
            print(row, flush=True)


def format_cells(found: Evaluation) -> str:
    """Returns two cells of a table: the loss and the metric."""
    name = {"bleu": "BLEU"}.get(found.metric, found.metric)
    return f"{found.loss:.3f} ± {found.loss_stderr:.3f} | {name} {found.value:.4g}"


def main() -> None:
    """Runs the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--limit", type=int, help="examples of the report split")
    torch.set_num_threads(1)
    print_models(parser.parse_args().limit)


if __name__ == "__main__":
    main()
