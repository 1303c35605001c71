"""The embedded models: how good they are, with and without heads; the order of the methods at 25 % and 12.5 % of the heads, five seeds, paired tests.

    python benchmarks/embedded.py models                         # the table of docs/embedded.md
    python benchmarks/embedded.py entailment --out RUNS          # or translator, decoder
    python benchmarks/embedded.py encoder --out RUNS             # the translator's encoder heads: how many go for 0.15 BLEU
    python benchmarks/embedded.py defaults --out RUNS            # options of surgeon, L0 and DSP, chosen on the selection split

What is kept in RUNS goes on after a stop. Prints tables in Markdown.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from curves import Curves

import headcount as hc
from headcount.core.evaluation import Evaluation
from headcount.data.evaluate import evaluate
from headcount.data.open_task import open_task
from headcount.data.task import Task
from headcount.pruning.base import Pruner
from headcount.pruning.recipe import Recipe
from headcount.pruning.spec import PruneSpec
from headcount.workflows.prune import build_grid

TASKS = {"entailment": "demo/entailment", "translator": "demo/translation", "decoder": "demo/stories"}
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
RATES = {"entailment": 2e-4, "translator": 5e-4, "decoder": 5e-4}
TRAINED = 6400
METHODS = ("surgeon", "gradient", "rank(by=gradient;again=true)", "fisher", "ablation", "gates", "l0", "dsp", "dsp:pipelined", "random")
CHOICES = {
    "surgeon": [{}, {"rounds": 1}, {"rounds": 8}, {"rivals": "false"}, {"limit": 256}, {"limit": 1024}],
    "l0": [{}, {"init": "gradient"}, {"rate": 0.05}, {"rate": 0.2}, {"settle": 0.2}, {"settle": 0.6}],
    "dsp": [{}, {"spread": 1.0}, {"spread": 4.0}, {"rate": 0.05}, {"rate": 0.2}, {"settle": 0.3}, {"settle": 0.7}],
}
"""One option at a time, away from the default."""


def opened(name: str, chosen_on: str = "report") -> tuple[Any, Task]:
    """An embedded model, and its task with more to train on; for choices, the selection split in place of the report."""
    model = hc.load(f"demo/{name}")
    task = open_task(TASKS[name], model)
    more = open_task(f"{TASKS[name]}(size={TRAINED})", model)
    made = replace(task, calibration=more.calibration)
    return model, made if chosen_on == "report" else replace(made, report=made.selection)


def models(limit: int | None) -> None:
    """Loss (± standard error) and metric of every embedded model on the report split, as it is and with all heads gated to zero."""
    print("| model | heads | task | loss | metric | loss without heads | metric without heads |\n|" + "---|" * 7)
    for name, tasks in SHOWN.items():
        model = hc.load(f"demo/{name}")
        n_heads = len(hc.HeadMap.of(model))
        for task_name in tasks:
            task = open_task(f"demo/{task_name}", model)
            whole = evaluate(model, task, limit=limit)
            with hc.HeadGates(model, torch.zeros(n_heads)):
                bare = evaluate(model, task, limit=limit)
            row = f"| `demo/{name}` ({type(model).__name__}) | {n_heads} | `demo/{task_name}` | {shown(whole)} | {shown(bare)} |"
            print(row, flush=True)


def shown(found: Evaluation) -> str:
    """Two artifacts of a table: the loss and the metric."""
    name = {"bleu": "BLEU"}.get(found.metric, found.metric)
    return f"{found.loss:.3f} ± {found.loss_stderr:.3f} | {name} {found.value:.4g}"


def order(name: str, out: Path, limit: int | None, with_recovery: bool = True) -> None:
    model, task = opened(name)
    heads = hc.HeadMap.of(model)
    unit = max(map(len, heads.units()))
    keeps = [max(unit, round(share * len(heads) / unit) * unit) for share in (0.25, 0.125)]
    recipe = Recipe(rate=RATES[name], epochs=1.0)
    specs = build_grid(METHODS, keeps, 5, PruneSpec.of("random", 1, recipe=recipe))
    specs += build_grid(["gradient", "random"], keeps, 5, PruneSpec.of("random", 1, repair=False, recipe=recipe))
    recovered = [
        PruneSpec.of(method, keep, seed=seed, recover=1.0, recipe=recipe)
        for method in ("gradient", "random", "surgeon")
        for keep in keeps
        for seed in range(5)
    ]
    made = Curves(
        out / name, f"demo/{name}", model, task, [*specs, *(recovered if with_recovery else [])], "python benchmarks/embedded.py", limit
    )
    factor = 100.0 if made.dense.metric == "accuracy" else 1.0
    print(f"\n{made.describe_dense(factor)}\n")
    print(made.table(factor, 1 if factor > 1 or made.dense.metric == "BLEU" else 3))
    for keep in keeps:
        print(f"\n{keep} heads, by loss: {made.order(keep)}")
    print(made.failed)


def encoder(out: Path, limit: int | None) -> None:
    """How many of the encoder's heads go."""
    model, task = opened("translator")
    recipe = Recipe(rate=RATES["translator"], epochs=2.0)
    keeps = [24, 16, 12, 8, 6, 4, 2, 1]
    specs = build_grid(["surgeon", "dsp", "l0"], keeps, 1, PruneSpec.of("random", 1, kinds=("encoder-self",), recipe=recipe))
    made = Curves(out / "encoder", "demo/translator", model, task, specs, "python benchmarks/embedded.py encoder", limit)
    print(f"\n{made.describe_dense()}\n")
    print(made.table(1.0, 2))
    for method in made.methods:
        within = [keep for keep in keeps if made.change(method, keep).difference >= -0.15]
        print(f"{method}: {32 - min(within) if within else 'none'} of 32 go for at most 0.15 BLEU")


def defaults(out: Path, limit: int | None) -> None:
    """Every option alone, two seeds, 25 % and 12.5 % of the heads: the mean loss on the selection split."""
    for name in ("entailment", "translator"):
        model, task = opened(name, "selection")
        total = len(hc.HeadMap.of(model))
        recipe = Recipe(rate=RATES[name], epochs=1.0)
        specs = [
            PruneSpec.of(replace(Pruner.parse(method), **options), keep, seed=seed, recipe=recipe)
            for method, choices in CHOICES.items()
            for options in choices
            for keep in (total // 4, total // 8)
            for seed in range(2 if method != "surgeon" else 1)
        ]
        made = Curves(
            out / f"defaults-{name}",
            f"demo/{name}",
            model,
            replace(task, metric=None),
            specs,
            "python benchmarks/embedded.py defaults",
            limit,
        )
        print(f"\n{name}: loss on the selection split, dense {made.dense.loss:.4f}\n")
        print("| method | " + " | ".join(f"{keep} heads" for keep in made.keeps) + " |\n|---|" + "---:|" * len(made.keeps))
        for method in made.methods:
            print(f"| {method} | " + " | ".join(f"{made.mean(method, keep).loss:.4f}" for keep in made.keeps) + " |")
        print(made.failed)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("what", choices=("models", *TASKS, "encoder", "defaults"))
    parser.add_argument("--out", type=Path, help="Where runs are kept; needed by all but models.")
    parser.add_argument("--limit", type=int, help="Examples of the report.")
    parser.add_argument("--without-recovery", action="store_true", help="Leave out the models that are trained after the cut.")
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.what == "models":
        models(options.limit)
    elif options.out is None:
        parser.error(f"{options.what} keeps its runs: name a folder with --out")
    elif options.what in TASKS:
        order(options.what, options.out, options.limit, not options.without_recovery)
    else:
        {"encoder": encoder, "defaults": defaults}[options.what](options.out, options.limit)


if __name__ == "__main__":
    main()
