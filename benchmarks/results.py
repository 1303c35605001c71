"""What pruning costs on real data: fine-tunes a model on SST-2 or MRPC, then prunes it by every method that trains no weights.

    python benchmarks/results.py sst2 --data DATA --model MiniLM --out RUN [--methods …] [--keep 75%,50%,25%,12.5%] [--seeds 3]
    python benchmarks/results.py sst2 --data DATA --model MiniLM --out RUN --trained        # joint DSP, L0, recovery at 25 and 12.5 %, one seed

Everything is kept in RUN and goes on after a stop. Scores are fitted on the training sentences, the number shown is on the test sentences.
"""

from __future__ import annotations

import argparse
import csv
from dataclasses import replace
from pathlib import Path

import torch
from torch.utils.data import ConcatDataset
from transformers import AutoModelForSequenceClassification, AutoTokenizer

import headcount as hc
from headcount.data import Task
from headcount.pruning import Pruning, Wish, compare, grid, rows, smallest_safe
from headcount.runs.store import Run, describe_run
from headcount.runs.weights import made_on, model_record
from headcount.tasks import open_task
from headcount.training import Recipe, fine_tune

UNTRAINED = ("surgeon", "surgeon(rounds=4)", "gradient", "rank(by=gradient;again=true)", "fisher", "ablation", "random")


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
    return replace(
        chosen, name=name, selection=ConcatDataset([chosen.selection, chosen.report]), report=ConcatDataset([shown.selection, shown.report])
    )


def tuned(options: argparse.Namespace, files: tuple[Path, Path, Path]):
    """The fine-tuned model, made once."""
    folder = options.out / "tuned"
    if not (folder / "config.json").is_file():
        torch.manual_seed(0)
        model = AutoModelForSequenceClassification.from_pretrained(options.model, num_labels=2)
        tokenizer = AutoTokenizer.from_pretrained(options.model)
        recipe = Recipe(epochs=options.epochs, rate=5e-5, batch=32)
        fine_tune(model, make_task(options.data_set, model, tokenizer, files), recipe, folder=options.out / "tuning")
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
    return hc.load(folder), AutoTokenizer.from_pretrained(folder)


def wishes(options: argparse.Namespace, n_heads: int) -> list[Wish]:
    keeps = [hc.Budget(fraction=float(share.strip("% ")) / 100).heads(n_heads) for share in options.keep.split(",")]
    if options.trained:
        few = sorted(keeps)[:2]
        recipe = Recipe(epochs=1.0, rate=5e-5, batch=32)
        made = [Wish(method, keep, recipe=recipe) for method in ("dsp", "l0") for keep in few]
        return made + [Wish(m, keep, recover=1.0, repair=True, options=o, recipe=recipe) for m, o in (("rank", {"by": "gradient"}), ("random", {}))
                       for keep in few]  # fmt: skip
    repaired = grid(options.methods.split(","), keeps, options.seeds, Wish("random", 1, repair=True))
    plain = grid(["gradient", "random"], keeps, options.seeds, Wish("random", 1, repair=False))
    return repaired + plain


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("data_set", choices=("sst2", "mrpc"))
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--methods", default=",".join(UNTRAINED))
    parser.add_argument("--keep", default="75%,50%,25%,12.5%")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--epochs", type=float, default=3.0)
    parser.add_argument("--trained", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    files = (read_sst2 if options.data_set == "sst2" else read_mrpc)(options.data, options.out / "files")
    model, tokenizer = tuned(options, files)
    task, heads = make_task(options.data_set, model, tokenizer, files), hc.HeadMap.of(model)
    with Run.lead(options.out / "run", command="benchmarks/results.py") as run:
        machine = {name: value for name, value in made_on().items() if name != "versions"}
        run.describe(describe_run(model_record(model, options.data_set), command="benchmarks/results.py", seed=0, machine=machine), heads)
        pruning = Pruning(run, model, task)
        done = compare(pruning, wishes(options, len(heads)), progress=lambda n, total: print(f"{n} of {total}", flush=True))
        dense, cells, failed = done
        table = rows(pruning, dense, cells)
    print(f"dense: {dense.metric} {dense.value:.4f}, loss {dense.loss:.4f}, {dense.n_examples} examples")
    print("| method | heads | seed | accuracy | change (95 %) | p | loss |\n|---|---:|---:|---:|---|---:|---:|")
    for row in table:
        low, high = row["metric low"], row["metric high"]
        print(
            f"| {row['method']} | {row['keep']} | {row['seed']} | {100 * row['value']:.1f} | {100 * row['metric difference']:+.1f} "
            f"({100 * low:+.1f} … {100 * high:+.1f}) | {row['metric p']:.2g} | {row['loss']:.3f} |"
        )
    print(smallest_safe(table), failed)


if __name__ == "__main__":
    main()
