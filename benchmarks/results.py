"""What pruning costs on real data: fine-tunes a model on SST-2 or MRPC, then prunes it by every method that trains no weights.

    python benchmarks/results.py sst2 --data DATA --model MiniLM --out RUN [--methods …] [--keep 75%,50%,25%,12.5%] [--seeds 3]
    python benchmarks/results.py sst2 --data DATA --model MiniLM --out RUN --gated          # gates, pipelined DSP: gates on frozen weights
    python benchmarks/results.py sst2 --data DATA --model MiniLM --out RUN --trained        # joint DSP, L0, recovery at 25 and 12.5 %, one seed

Everything is kept in RUN and goes on after a stop. Scores are fitted on the training sentences, the number shown is on the test sentences.
"""

from __future__ import annotations

import argparse
import csv
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch
from curves import Curves, arguments, sizes
from transformers import AutoModelForSequenceClassification, AutoTokenizer

import headcount as hc
from headcount.data.open_task import open_task
from headcount.data.task import Task
from headcount.pruning.base import Pruner
from headcount.pruning.recipe import Recipe
from headcount.pruning.spec import PruneSpec
from headcount.pruning.training.fine_tune import fine_tune
from headcount.workflows.prune import build_grid

SCORES = ("confidence", "distance", "entropy", "magnitude", "output-norm", "activation-norm", "fluctuation", "wanda", "lrp")
LAYERS = ("layers:top", "layers:middle", "layers:bottom", "layers:consecutive", "layers:spread")
ROLES = ("role:prune", "role:spare", "role:prune(roles=offset)", "role:spare(roles=offset)")
UNTRAINED = ("surgeon", "gradient", "rank(by=gradient;again=true)", "fisher", "ablation", "random", *LAYERS, *ROLES, *SCORES)
PUBLISHED = {"tau": 1000.0, "cool": 0.67, "rate": 0.5, "init": "none", "settle": 0.0}
"""The schedule of Li et al. 2021 for MNLI."""
GATED = ("gates", "dsp:pipelined")
"""Train gates on frozen weights."""


def read_sst2(folder: Path, out: Path) -> tuple[Path, Path, Path]:
    made = []
    for name in ("train", "dev", "test"):
        lines = [line.rpartition("\t") for line in (folder / "sst2" / f"{name}.tsv").read_text().splitlines() if line.strip()]
        made.append(write(out / f"{name}.csv", ("text", "label"), [(text, label) for text, _, label in lines]))
    return made[0], made[1], made[2]


def read_mrpc(folder: Path, out: Path) -> tuple[Path, Path, Path]:
    found = {}
    for path in sorted((folder / "mrpc").glob("*train*")) + sorted((folder / "mrpc").glob("*test*")):
        lines = [line.split("\t") for line in path.read_text(encoding="utf-8-sig").splitlines()[1:]]
        found["train" if "train" in path.name else "test"] = [(line[3], line[4], line[0]) for line in lines if len(line) == 5]
    columns = ("text", "text_pair", "label")
    train, dev = found["train"][:-400], found["train"][-400:]
    return tuple(write(out / f"{n}.csv", columns, r) for n, r in (("train", train), ("dev", dev), ("test", found["test"])))  # pyright: ignore[reportReturnType]


def write(path: Path, columns: tuple[str, ...], table: list[tuple[str, ...]]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([columns, *table])
    return path


def make_task(name: str, model, tokenizer, files: tuple[Path, Path, Path]) -> Task:
    pair = {"text_pair_column": "text_pair"} if name == "mrpc" else {}
    how = {"text_column": "text", "label_column": "label", "max_length": 128, "truncate": True, **pair}
    chosen, shown = (open_task("classification", model, tokenizer, train=[files[0]], eval=[path], **how) for path in files[1:])
    return replace(chosen, name=name, selection=[*chosen.selection, *chosen.report], report=[*shown.selection, *shown.report])


def tuned(options: argparse.Namespace, files: tuple[Path, Path, Path]):
    """The fine-tuned model, made once."""
    folder = options.out / "tuned"
    if not (folder / "config.json").is_file():
        torch.manual_seed(0)
        model = AutoModelForSequenceClassification.from_pretrained(options.model, num_labels=2)
        tokenizer = AutoTokenizer.from_pretrained(options.model)
        recipe = Recipe(epochs=options.epochs, rate=5e-5, train_batch=32)
        fine_tune(model, make_task(options.data_set, model, tokenizer, files), recipe, folder=options.out / "tuning")
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
    return hc.load(folder), AutoTokenizer.from_pretrained(folder)


def specs(options: argparse.Namespace, n_heads: int) -> list[PruneSpec]:
    keeps = sizes(options.keep, n_heads)
    recipe = Recipe(epochs=options.pruning_epochs, rate=5e-5, train_batch=32)
    if options.trained:
        few = sorted(keeps)[:2]
        gated = (("dsp", {}), ("dsp", PUBLISHED), ("l0", {}))
        trained = [PruneSpec.of(replace(Pruner.parse(method), **own), keep, recipe=recipe) for method, own in gated for keep in few]
        more = {"recover": options.pruning_epochs, "recipe": recipe}
        return trained + [PruneSpec.of(method, keep, **more) for method in ("gradient", "random") for keep in few]
    if options.gated:
        some = replace(recipe, epochs=0.5 * options.pruning_epochs)
        return [
            PruneSpec.of(method, keep, seed=seed, repair=True, recipe=some)
            for method in GATED
            for seed in range(options.seeds)
            for keep in keeps
        ]
    return untrained(options.methods.split(","), keeps, options.seeds, means=True)


def untrained(methods: Sequence[str], keeps: Sequence[int], seeds: int, *, means: bool = False) -> list[PruneSpec]:
    """Methods that train nothing, with repair; gradient and random without it too, and with `means` of removed heads in their place."""
    repaired = build_grid(methods, keeps, seeds, PruneSpec.of("random", 1, repair=True))
    others = [PruneSpec.of("random", 1, repair=False), *([PruneSpec.of("random", 1, ablation="mean")] if means else [])]
    return repaired + [spec for other in others for spec in build_grid(["gradient", "random"], keeps, seeds, other)]


def describe_results(curves: Curves) -> str:
    """Accuracy by method and size, what repair wins back, and the order of the methods by loss, in Markdown."""
    parts, plain, repaired = [curves.describe_dense(100.0), curves.table(100.0, 1)], "gradient without repair", "gradient + repair"
    for keep in curves.keeps:
        if {(plain, keep), (repaired, keep)} <= set(curves.artifacts) and curves.change(plain, keep).difference < 0:
            won = curves.recovered(plain, repaired, keep)
            parts.append(f"{keep} heads: repair wins back {100 * won:.0f} % of what gradient ranking loses")
    parts += [f"{keep} heads, by loss: {curves.order(keep)}" for keep in curves.keeps]
    return "\n\n".join(parts)


def main() -> None:
    parser = arguments(__doc__, UNTRAINED)
    parser.add_argument("data_set", choices=("sst2", "mrpc"))
    parser.add_argument("--epochs", type=float, default=3.0, help="of the fine-tuning before")
    parser.add_argument("--trained", action="store_true", help="methods that train weights, and recovery")
    parser.add_argument("--gated", action="store_true", help="methods that train gates alone, for half as long")
    parser.add_argument("--pruning-epochs", type=float, default=1.0, help="of methods that train, and of recovery")
    options = parser.parse_args()
    torch.set_num_threads(1)
    files = (read_sst2 if options.data_set == "sst2" else read_mrpc)(options.data, options.out / "files")
    model, tokenizer = tuned(options, files)
    task = make_task(options.data_set, model, tokenizer, files)
    wanted = specs(options, len(hc.HeadMap.of(model)))
    curves = Curves(options.out / "run", options.data_set, model, task, wanted, "python benchmarks/results.py")
    print(f"\n{describe_results(curves)}\n")
    print(curves.failed)


if __name__ == "__main__":
    main()
