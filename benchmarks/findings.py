"""Do the findings of the six papers hold on real models? Their experiments as `headcount study` commands, on the models of benchmarks/results.py.

    python benchmarks/findings.py --data DATA --model MiniLM --sst2 SST2 --mrpc MRPC --out RUN [--only survivors layers …]

SST2 and MRPC are the folders that benchmarks/results.py made (its `--out`). Everything is kept in RUN and goes on after a stop; tables go to
docs/findings.md.
"""

from __future__ import annotations

import argparse
import csv
import io
import json
import sys
from collections.abc import Callable, Iterable
from contextlib import redirect_stdout
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from peers.sidebyside import put, table
from results import make_task, write
from transformers import AutoModelForSequenceClassification, AutoTokenizer

import headcount as hc
from headcount.app.main import main as headcount
from headcount.behaviour.corpus import read_corpus
from headcount.core.role_table import RoleTable
from headcount.data.readers.conllu import read_conllu
from headcount.pruning.recipe import Recipe
from headcount.pruning.training.fine_tune import fine_tune
from headcount.runs.store import Run
from headcount.studies._measure.survivors import compare_survivors, read_survivors, read_units
from headcount.workflows.roles import roles_into

DOCUMENT = Path(__file__).parents[1] / "docs" / "findings.md"
SENTENCES = 400
KINDS = {"positional": ("offset",), "syntactic": ("syntax",), "rare words": ("rare",)}
"""The roles of Voita et al. 2019."""
METHODS = (
    "surgeon + repair",
    "gradient + repair",
    "gradient(again=true) + repair",
    "fisher + repair",
    "ablation + repair",
    "gates + repair",
    "dsp:pipelined + repair",
    "random + repair",
)
EARLY = (0.02, 0.05, 0.1, 0.25, 0.5, 1.0)
"""Shares of the fine-tuning after which a checkpoint is kept."""
SIMILAR, APART = 4.0, 2.0
"""Pairs of STS-B of at least, and at most, this score (0 to 5) count as paraphrases, and as none."""


def study(*words: Any) -> dict[str, Any]:
    """What a command of headcount tells."""
    given = [str(word) for word in words]
    print("headcount", *given, flush=True)
    output = io.StringIO()
    with redirect_stdout(output):
        code = headcount([*given, "--json", "--quiet"])
    if code:
        sys.exit(code)
    return json.loads(output.getvalue())


def of_task(options: argparse.Namespace, name: str, *, test: Path | None = None) -> list[Any]:
    """The words that name a task of benchmarks/results.py."""
    files = getattr(options, name) / "files"
    pair = ["--text-pair-column", "text_pair"] if name == "mrpc" else []
    words = ["--task", "classification", "--train", files / "train.csv", "--eval", test or files / "test.csv", "--text-column", "text"]
    return [*words, "--label-column", "label", *pair, "--max-length", 128, "--truncate"]


def percent(value: float) -> str:
    return f"{100 * value:.0f} %"


def survivors(options: argparse.Namespace) -> str:
    """By method, how long heads with and without the roles of Voita et al. live in the comparisons of results.py."""
    rows = []
    for name in ("sst2", "mrpc"):
        folder = getattr(options, name)
        model = hc.load(folder / "tuned")
        sentences = list(read_conllu(options.data / "ud" / "en_ewt" / "en_ewt-ud-dev.conllu"))[:SENTENCES]
        with Run.lead(folder / "run", command="python benchmarks/findings.py") as run:
            found = roles_into(run, model, read_corpus(model, sentences, AutoTokenizer.from_pretrained(folder / "tuned")))
            kept = {key: sets for key, sets in read_survivors(run)[0].items() if key[0] in METHODS}
            _, overall = compare_survivors(merged(found), kept, units=read_units(run))
        for row in overall:
            if row.role in KINDS:
                shares = [percent(row.survive_with), percent(row.survive_without)]
                rows.append([name, row.role, row.method, row.heads_with, *shares, f"{row.p:.2g}", f"{row.q:.2g}"])
    return table(("task", "role", "method", "heads with it", "levels they survive", "levels the others survive", "p", "q"), rows, left=3)


def merged(found: RoleTable) -> RoleTable:
    """The roles of one kind as one role, by its name."""
    rows = {}
    for kind, families in KINDS.items():
        for row in found:
            if row.role.partition(":")[0] in families:
                before = rows.get((row.head, kind))
                rows[row.head, kind] = replace(row, role=kind, has_role=row.has_role or (before is not None and before.has_role))
    return RoleTable(tuple(rows.values()), found.heads)


def finetuned(options: argparse.Namespace) -> str:
    """How far the roles of heads move in the fine-tuning, layer by layer."""
    text, rows = options.data / "ud" / "en_ewt" / "en_ewt-ud-dev.conllu", []
    for name in ("sst2", "mrpc"):
        words = [options.model, getattr(options, name) / "tuned", "--text", text, "--limit", SENTENCES, "--auto", "AutoModel"]
        changes = study("study", "finetune-roles", *words)["changes"]
        for layer in sorted({layer_of(change) for change in changes}):
            here = [change for change in changes if layer_of(change) == layer]
            moved = sum(abs(change["difference"]) for change in here) / len(here)
            sure = sum(change["q"] <= 0.05 for change in here)
            separators = [change["difference"] for change in here if change["role"].startswith("delimiter")]
            lost, gained = (sum(c[a] and not c[b] for c in here) for a, b in (("had", "has"), ("has", "had")))
            delimiter_change = f"{sum(separators) / len(separators):+.2f}" if separators else ""
            rows.append([name, layer, f"{moved:.2f}", f"{sure} of {len(here)}", lost, gained, delimiter_change])
    header = ("task", "layer", "mean size of change", "changed (q ≤ 0.05)", "roles lost", "roles gained", "mean change of delimiter bias")
    return table(header, rows)


def layer_of(change: dict[str, Any]) -> int:
    return int(change["head"].removeprefix("L").partition("H")[0])


def transfer(options: argparse.Namespace) -> str:
    """Scores of one model on its own test pairs and on pairs of another collection."""
    pairs = list(csv.DictReader((options.data / "stsb" / "stsb-en-test.csv").open(encoding="utf-8"), fieldnames=("a", "b", "score")))
    sure = [
        (pair["a"], pair["b"], str(int(float(pair["score"]) >= SIMILAR))) for pair in pairs if not APART < float(pair["score"]) < SIMILAR
    ]
    other = write(options.out / "stsb.csv", ("text", "text_pair", "label"), sure)
    model = options.mrpc / "tuned"
    for name, test in (("mrpc", None), ("stsb", other)):
        words = [*of_task(options, "mrpc", test=test), "--by", "ablation,gradient", "--split", "report", "--limit", 200]
        study("score", model, *words, "--out", options.out / "transfer" / name)
    found = study("study", "transfer", *(options.out / "transfer" / name for name in ("mrpc", "stsb")))["pairs"]
    rows = [
        [
            pair["method"],
            *(f"{pair[by]['value']:.2f} ({pair[by]['low']:.2f} … {pair[by]['high']:.2f})" for by in ("pearson", "spearman")),
            f"{pair['lowest']['shared']} of {pair['lowest']['k']} ({pair['lowest']['expected'] * pair['lowest']['k']:.1f} by chance)",
        ]
        for pair in found
    ]
    return table(("score", "Pearson", "Spearman", "lowest quarter shared"), rows)


class Snapshots:
    """Keeps a model at some steps of its training."""

    def __init__(self, model: Any, tokenizer: Any, folder: Path) -> None:
        self.model, self.tokenizer, self.folder, self.done = model, tokenizer, folder, set[float]()

    def __call__(self, done: int, total: int | None) -> None:
        """After some steps."""
        due = [share for share in EARLY if total and done >= share * total and share not in self.done]
        if due:
            self.done.update(due)
            place = self.folder / f"checkpoint-{done}"
            self.model.save_pretrained(place)
            self.tokenizer.save_pretrained(place)


def dynamics(options: argparse.Namespace) -> str:
    """The pruning curve of checkpoints of a fine-tuning on SST-2."""
    folder = options.out / "training"
    if not (folder / "done").is_file():
        torch.manual_seed(0)
        model = AutoModelForSequenceClassification.from_pretrained(options.model, num_labels=2)
        tokenizer = AutoTokenizer.from_pretrained(options.model)
        files = options.sst2 / "files"
        task = make_task("sst2", model, tokenizer, (files / "train.csv", files / "dev.csv", files / "test.csv"))
        fine_tune(model, task, Recipe(epochs=1.0, rate=5e-5, train_batch=32), progress=Snapshots(model, tokenizer, folder))
        (folder / "done").touch()
    words = [*of_task(options, "sst2"), "--limit", 600, "--keep", "75%,50%,25%,12.5%", "--hold", 0.95]
    found = study("study", "dynamics", folder, *words, "--out", options.out / "dynamics")
    steps = {one["step"]: one for one in found["checkpoints"]}
    keeps = sorted({row["keep"] for row in found["rows"]}, reverse=True)
    rows = []
    for step, one in sorted(steps.items()):
        here = {row["keep"]: row for row in found["rows"] if row["step"] == step}
        rows.append([step, percent(one["value"]), *(percent(here[keep]["value"]) for keep in keeps)])
    return table(("examples seen", "accuracy", *(f"{keep} heads" for keep in keeps)), rows)


def layers(options: argparse.Namespace) -> str:
    """What the loss of a block of layers costs."""
    rows = []
    for name in ("sst2", "mrpc"):
        words = [getattr(options, name) / "tuned", *of_task(options, name), "--limit", 600, "--out", options.out / f"layers-{name}"]
        found = study("study", "layers", *words)
        for row in found["rows"]:
            change = [f"{100 * row[f'metric {part}']:+.1f}" for part in ("difference", "low", "high")]
            rows.append([name, row["name"], percent(row["value"]), f"{change[0]} ({change[1]} … {change[2]})"])
    return table(("task", "without", "accuracy", "change in points"), rows, left=2)


PARTS: dict[str, Callable[[argparse.Namespace], str]] = {
    "survivors": survivors,
    "finetuned": finetuned,
    "transfer": transfer,
    "dynamics": dynamics,
    "layers": layers,
}


def parts(names: Iterable[str], options: argparse.Namespace) -> None:
    for name in names:
        text = PARTS[name](options)
        put(options.document, f"findings-{name}", text)
        print(f"\n{text}\n", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    for name in ("data", "model", "sst2", "mrpc", "out"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    parser.add_argument("--only", choices=PARTS, nargs="+", default=list(PARTS))
    parser.add_argument("--document", type=Path, default=DOCUMENT)
    options = parser.parse_args()
    torch.set_num_threads(1)
    parts(options.only, options)


if __name__ == "__main__":
    main()
