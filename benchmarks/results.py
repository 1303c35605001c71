"""What pruning costs on real pairs of model and data, by the commands that users have: `headcount compare`, `prune --margin` and `certify`.

    python benchmarks/results.py --data DATA --models MODELS --out RUN            all pairs; goes on after a stop
    python benchmarks/results.py --data DATA --models MODELS --out RUN sst2       one pair
    python benchmarks/results.py --page                                           only writes docs/results.md anew from benchmarks/results.json

DATA and MODELS are described in docs/benchmarks.md. What the commands found is kept in benchmarks/results.json, a small row for each model;
docs/results.md is made of that file and of nothing else.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from pathlib import Path
from typing import Any

from findings import Places, mrpc, sst2
from language import unpack_model
from peers.sidebyside import table

from headcount.core.metric_range import size_of_one_point

ROOT = Path(__file__).resolve().parents[1]
ROWS, PAGE = Path(__file__).with_suffix(".json"), ROOT / "docs" / "results.md"
SEEDS = 3
HEADER = """# Results

What pruning costs, in bounds. Written by `benchmarks/results.py` from what the commands in each section printed (kept in
`benchmarks/results.json`); do not edit. [Benchmarks](benchmarks.md#data) says what DATA and MODELS hold. Two cores, no GPU.

- **At most** is the bound of one pruned model: how much worse it is than the dense one at most (95 %, one-sided), on the report split of its
  data, paired example by example; nothing was chosen on these examples. Each bound holds for its cell alone. Behind it stands the verdict
  against the margin; *undecided* with the number of examples that would decide, where more of them can ([Statistics](statistics.md)).
- **Sizes tested in order**: for each size there is one model, which was chosen without the report split. Sizes are tested from large to small,
  each at 95 %, up to the first that fails, so that a size is certified wrongly in at most 5 % of the cases, however many sizes there are.
  Where a section has two such sentences, that holds for each by itself.
- **Over seeds** is a t interval over the means of the seeds. A method without chance in it has one model: its bounds are about that model.
- **Differences** between methods are paired over the examples of the report split, seeds averaged, with 95 % intervals, and q corrected over the
  pairs of the comparison. An interval that holds 0 decides nothing.
- Scores and repairs use at most 512 examples of the calibration split, where a method names no other number. Projections are refitted where that
  brings the predictions nearer to the dense model's ([Repair](repair.md)), but not in rows *without repair*.

Methods that train weights or gates are in [Which findings hold](findings.md): Li et al. 2021 and Voita et al. 2019.
"""


@dataclass(frozen=True)
class Pair:
    """A model and its data, and what is compared on them.

    Args:
        title: The heading of its section.
        about: What model and data are, in sentences.
        inputs: Returns the words of model and task, and makes the model where it is not there yet.
        methods: The methods of `compare`, the one first that the others are compared with.
        keep: The sizes, from large to small.
        margin: How much worse a smaller model may be.
        plain: Methods that are also compared without repair; random is always among them.
        smallest_by: The method of `prune --margin`; empty to leave it out.
        further: The task option of a second metric, by which the smallest certified model is certified too.
    """

    title: str
    about: str
    inputs: Callable[[Places], list[object]]
    methods: tuple[str, ...]
    keep: tuple[str, ...]
    margin: str
    plain: tuple[str, ...] = ()
    smallest_by: str = ""
    further: str = ""


def on_sst2(places: Places) -> list[object]:
    """Returns the words of MiniLM and SST-2."""
    model, task = sst2(places)
    return [model, *task]


def on_mrpc(places: Places) -> list[object]:
    """Returns the words of MiniLM and MRPC."""
    model, task = mrpc(places)
    return [model, *task]


def on_wikitext(places: Places) -> list[object]:
    """Returns the words of SmolLM2 and WikiText-2."""
    model = unpack_model(places.models / "smollm2-135m", places.out / "smollm2-135m")
    files = ["--train", places.data / "wikitext2" / "valid.txt", "--eval", places.data / "wikitext2" / "test.txt"]
    return [model, "--task", "lm", *files, "--max-length", 128, "--limit", 32]


FOUR_SIZES = ("75%", "50%", "25%", "12.5%")
PAIRS = {
    "sst2": Pair(
        "SST-2, MiniLM",
        "all-MiniLM-L6-v2 (6 layers of 12 heads), fine-tuned for an epoch on the 6,920 sentences of SST-2. "
        "Half of the test sentences are the report split, which is read whole.",
        on_sst2,
        ("surgeon", "gradient", "gradient(again=true;limit=256)", "fisher", "ablation(limit=128)"),
        FOUR_SIZES,
        "2pt",
        plain=("gradient",),
        smallest_by="gradient",
    ),
    "mrpc": Pair(
        "MRPC, MiniLM",
        "all-MiniLM-L6-v2, fine-tuned for three epochs on 4,076 pairs of sentences: are they paraphrases? "
        "Half of the test pairs are the report split, which is read whole.",
        on_mrpc,
        ("surgeon", "gradient"),
        ("75%", "50%", "25%"),
        "3pt",
        smallest_by="surgeon",
        further="metric=f1",
    ),
    "smollm2": Pair(
        "WikiText-2, SmolLM2",
        "SmolLM2-135M-Instruct (30 layers of 9 heads on 3 KV heads), unpacked from 4-bit weights to float32. Whole KV groups go, 3 heads each. "
        "Windows of 128 tokens without context before them, 32 in each split: few, so that the bounds are wide. "
        "A window counts for 0.5 nats a token at most.",
        on_wikitext,
        ("surgeon", "gradient", "fisher"),
        ("201", "135"),
        "10%",
    ),
    "entailment": Pair(
        "Embedded entailment",
        "`demo/entailment`, a small BERT (4 layers of 8 heads) trained for this project on pairs of sentences that a grammar makes. "
        "The report split has 1,000 pairs and is read whole. It comes along: neither DATA nor MODELS is needed.",
        lambda places: ["demo/entailment", "--task", "demo/entailment"],
        ("surgeon", "gradient", "gradient(again=true;limit=256)", "fisher", "ablation(limit=128)"),
        FOUR_SIZES,
        "2pt",
        plain=("gradient",),
        smallest_by="gradient",
    ),
    "translator": Pair(
        "Embedded translation",
        "`demo/translator`, a small Marian (4 + 4 layers of 8 heads; 96 heads, a third of each kind of attention) between two languages "
        "that a grammar makes. Greedy translations of 300 sentences of the report split. It comes along: neither DATA nor MODELS is needed.",
        lambda places: ["demo/translator", "--task", "demo/translation", "--limit", 300],
        ("surgeon", "gradient"),
        ("75%", "50%"),
        "1pt",
    ),
}


class Commands:
    """Runs commands of headcount, and notes them as the page shows them."""

    def __init__(self, places: Places) -> None:
        self.places, self.shown = places, list[str]()

    def ask(self, *words: object) -> dict[str, Any]:
        """Returns what a command prints with --json; one that certifies nothing ends with 1 and prints it too."""
        self.shown.append(self.show("headcount", *words))
        print(self.shown[-1], flush=True)
        command = [sys.executable, "-m", "headcount", *map(str, words), "--json"]
        done = subprocess.run(command, check=False, stdout=subprocess.PIPE, encoding="utf-8")
        if done.returncode > 1 or not done.stdout.strip():
            sys.exit(done.returncode or 1)
        return json.loads(done.stdout)

    def show(self, *words: object) -> str:
        """Returns a command with names in place of the folders of this machine."""
        text = " ".join(f"'{word}'" if "(" in str(word) else str(word) for word in words)
        for path, name in ((self.places.data, "DATA"), (self.places.models, "MODELS"), (self.places.out, "RUN")):
            text = text.replace(str(path), name)
        return text


def measure_pair(name: str, pair: Pair, places: Places) -> dict[str, Any]:
    """Returns the rows of a pair: everything that its section of the page shows."""
    run, words, commands = places.out / "results" / name, pair.inputs(places), Commands(places)
    grid = ["--keep", ",".join(pair.keep), "--seeds", SEEDS, "--margin", pair.margin]
    compared = commands.ask("compare", *words, "--methods", ",".join(pair.methods), *grid, "--out", run)
    content = {
        "dense": compared["dense"],
        "margin": pair.margin,
        "models": [shorten_model(row) for row in compared["rows"]],
        "methods": [keep_fields(row, "method", "keep", "seeds", "mean", "low", "high") for row in compared["methods"]],
        "differences": [keep_fields(row, "keep", "method", "other", "difference", "low", "high", "q") for row in compared["differences"]],
        "sizes": compared["sizes"],
        "chosen": [shorten_model(row) for row in compared["chosen_by_size"]],
    }
    if pair.plain:
        words_plain = ["--methods", ",".join(pair.plain), *grid, "--no-repair", "--out", f"{run}-plain"]
        content["models"] += [shorten_model(row) for row in commands.ask("compare", *words, *words_plain)["rows"]]
    if pair.smallest_by:
        by = ["--method", pair.smallest_by, "--margin", pair.margin, "--no-bench", "--out", f"{run}-smallest"]
        smallest = commands.ask("prune", *words, *by)
        content["smallest"] = {"method": pair.smallest_by, "sizes": smallest["sizes"]}
        if pair.further and smallest["folder"]:
            further = [*words[1:], "--task-option", pair.further, "--margin", pair.margin, "--out", f"{run}-further.json"]
            certificate = commands.ask("certify", smallest["folder"], "--against", words[0], *further)
            content["further"] = {"heads": smallest["rows"][0]["keep"], **certificate["tasks"][0]["quality"]}
    return {"commands": commands.shown, **content}


def keep_fields(row: Mapping[str, Any], *names: str) -> dict[str, Any]:
    """Returns some fields of a row, numbers with six digits."""
    return {name: float(f"{row[name]:.6g}") if isinstance(row[name], float) else row[name] for name in names}


def shorten_model(row: Mapping[str, Any]) -> dict[str, Any]:
    """Returns what the page needs of a pruned model."""
    quality = keep_fields(row["quality"], "bound", "verdict", "n_needed")
    survivors = row["survivors"]
    kinds = survivors["by_kind"]
    return {
        **keep_fields(row, "method", "keep", "removed", "seed", "value"),
        **quality,
        "survivors": kinds if len(kinds) > 1 else survivors["by_block"],
    }


def write_page() -> None:
    """Writes docs/results.md from the rows."""
    rows = read_rows()
    measured = {pair: rows[name] for name, pair in PAIRS.items() if name in rows}
    overview = table(
        ("model and data", "dense model", "n", "margin", "smallest certified size", "worse by at most"), list_outcomes(measured)
    )
    sections = [describe_pair(pair, content) for pair, content in measured.items()]
    PAGE.write_text("\n\n".join([HEADER.strip(), "## In one table", overview, *sections]) + "\n", encoding="utf-8")


def list_outcomes(measured: Mapping[Pair, Mapping[str, Any]]) -> list[list[str]]:
    """Returns a line for every pair: its dense model, and the smallest certified size by the models that the selection split chose."""
    lines = []
    for pair, content in measured.items():
        dense, total, scale = content["dense"], count_heads(content), Scale.of(content["dense"]["metric"])
        certified = [size for size in content["sizes"] if size["verdict"] == "certified"]
        outcome = (
            [f"{certified[-1]['n_kept']} of {total} heads", f"{scale.bound(certified[-1]['bound'])} {scale.unit}"]
            if certified
            else ["none", ""]
        )
        link = f"[{pair.title}](#{pair.title.lower().replace(',', '').replace(' ', '-')})"
        lines.append([link, f"{dense['metric']} {scale.value(dense['value'])}", f"{dense['n_examples']:,}", content["margin"], *outcome])
    return lines


def count_heads(content: Mapping[str, Any]) -> int:
    """Returns how many heads may go."""
    return content["models"][0]["keep"] + content["models"][0]["removed"]


def read_rows() -> dict[str, Any]:
    """Returns the rows of every pair that was measured."""
    return json.loads(ROWS.read_text(encoding="utf-8")) if ROWS.is_file() else {}


def describe_pair(pair: Pair, content: Mapping[str, Any]) -> str:
    """Returns the section of a pair."""
    dense, models = content["dense"], content["models"]
    total, scale = count_heads(content), Scale.of(dense["metric"])
    first = f"{pair.about} Dense model: {dense['metric']} {scale.value(dense['value'])} on {dense['n_examples']:,} examples."
    keeps = sorted({row["keep"] for row in models}, reverse=True)
    columns = [f"{keep} of {total} heads" if keep == keeps[0] else str(keep) for keep in keeps]
    parts = [f"## {pair.title}", first, "\n".join(f"    {command}" for command in content["commands"])]
    parts += [f"At most so many {scale.unit} worse, and the verdict against a margin of {content['margin']}:"]
    parts += [table(("method", "seed", *columns), bound_lines(models, keeps, scale), left=2)]
    parts += [describe_sizes("the model of each size that is best on the selection split", content["sizes"], content["margin"], scale)]
    if "smallest" in content:
        parts += [describe_sizes(f"`{content['smallest']['method']}` alone", content["smallest"]["sizes"], content["margin"], scale)]
    if "further" in content:
        parts += [describe_further(content["further"])]
    parts += [f"Over the {SEEDS} seeds of random heads, {dense['metric']} with its 95 % interval:"]
    seeded = [row for row in content["methods"] if row["low"] is not None]
    parts += [table(("method", *columns), by_method(seeded, keeps, scale.interval_over_seeds))]
    parts += [f"Difference from random heads of the same number, in {scale.unit} (95 %, q):"]
    against = [row for row in content["differences"] if row["other"] == "random"]
    parts += [table(("method", *columns), by_method(against, keeps, scale.difference))]
    reference = pair.methods[0]
    pairs = [turn_towards(row, reference) for row in content["differences"] if reference in (row["method"], row["other"])]
    others = [row for row in pairs if row["other"] != "random"]
    if others:
        parts += [f"Difference of {reference} from each other method, in {scale.unit} (95 %, q):"]
        lines = by_method([{**row, "method": row["other"]} for row in others], keeps, scale.difference)
        parts += [table((f"{reference} minus", *columns), lines)]
    parts += ["Heads that stay in the models that are best on the selection split:"]
    places = list(content["chosen"][0]["survivors"])
    chosen = [(row["keep"], row["method"], *(row["survivors"].get(place, 0) for place in places)) for row in content["chosen"]]
    parts += [table(("heads", "method", *places), chosen, left=2)]
    return "\n\n".join(parts)


@dataclass(frozen=True)
class Scale:
    """How numbers of a metric are shown: in points of `point`, with a sign that is positive where a model is better."""

    unit: str
    point: float
    digits: int

    @classmethod
    def of(cls, metric: str) -> Scale:
        """Returns the scale of a metric: points where one is a hundredth, else its own unit."""
        point = size_of_one_point(metric)
        return cls("points" if point < 1 else metric, point, 2 if metric == "perplexity" else 1)

    def value(self, value: float) -> str:
        """Returns a value of the metric."""
        return f"{value / self.point:.{self.digits}f}"

    def bound(self, bound: float) -> str:
        """Returns a bound, rounded up."""
        return f"{ceil(bound / self.point * 10**self.digits - 1e-9) / 10**self.digits:.{self.digits}f}"

    def interval_over_seeds(self, row: Mapping[str, Any]) -> str:
        """Returns a mean over seeds with its interval."""
        return f"{self.value(row['mean'])} ({self.value(row['low'])} … {self.value(row['high'])})"

    def difference(self, row: Mapping[str, Any]) -> str:
        """Returns a difference with its interval and q."""
        ends = [f"{row[name] / self.point:+.{self.digits}f}" for name in ("difference", "low", "high")]
        return f"{ends[0]} ({ends[1]} … {ends[2]}; {row['q']:.1g})"


def bound_lines(models: Iterable[Mapping[str, Any]], keeps: Sequence[int], scale: Scale) -> list[list[str]]:
    """Returns a line for every method and seed: the bound and the verdict at each size."""
    lines: dict[tuple[str, int], dict[int, str]] = {}
    seeded = {row["method"] for row in models if row["seed"]}
    for row in models:
        needed = f", n ≈ {row['n_needed']:,}" if row["verdict"] == "undecided" and row["n_needed"] else ""
        bound = scale.bound(row["bound"]) if row["bound"] > 0 else "better"
        lines.setdefault((row["method"], row["seed"]), {})[row["keep"]] = f"{bound} {row['verdict']}{needed}"
    return [
        [method, str(seed) if method in seeded else "", *(line.get(keep, "–") for keep in keeps)] for (method, seed), line in lines.items()
    ]


def by_method(rows: Iterable[Mapping[str, Any]], keeps: Sequence[int], describe: Callable[[Mapping[str, Any]], str]) -> list[list[str]]:
    """Returns a line for every method, with what `describe` says of it at each size."""
    lines: dict[str, dict[int, str]] = {}
    for row in rows:
        lines.setdefault(row["method"], {})[row["keep"]] = describe(row)
    return [[method, *(line.get(keep, "–") for keep in keeps)] for method, line in lines.items()]


def turn_towards(row: Mapping[str, Any], method: str) -> dict[str, Any]:
    """Returns the difference of `method` from the other one of a row."""
    if row["method"] == method:
        return dict(row)
    turned = {"method": method, "other": row["method"], "difference": -row["difference"], "low": -row["high"], "high": -row["low"]}
    return {**row, **turned}


def describe_sizes(candidate: str, sizes: Sequence[Mapping[str, Any]], margin: str, scale: Scale) -> str:
    """Returns the outcome of sizes that were tested in order, in a sentence."""
    tests = ", ".join(f"{test['n_kept']} heads (at most {scale.bound(test['bound'])} worse, {test['verdict']})" for test in sizes)
    certified = [test["n_kept"] for test in sizes if test["verdict"] == "certified"]
    outcome = f"The smallest certified size is **{certified[-1]} heads**" if certified else "**No size is certified**"
    return f"{outcome} against a margin of {margin}, by {candidate}. Sizes tested in order, each at 95 %: {tests}."


def describe_further(quality: Mapping[str, Any]) -> str:
    """Returns the bound of the smallest certified model by its second metric."""
    bound = Scale.of(quality["quantity"]).bound(quality["bound"])
    by = f"{quality['quantity']} that model with {quality['heads']} heads is at most {bound} points worse"
    return f"By {by}: {quality['verdict']} against a margin of {quality['margin']}."


def main() -> None:
    """Runs the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="PAIR", help=f"pairs to run, of {', '.join(PAIRS)}; all by default")
    parser.add_argument("--data", type=Path, help="the folder of data sets")
    parser.add_argument("--models", type=Path, help="the folder of models")
    parser.add_argument("--out", type=Path, help="the folder that keeps files, models and runs")
    parser.add_argument("--page", action="store_true", help="only write the page anew")
    options = parser.parse_args()
    if not options.page:
        if None in (options.data, options.models, options.out):
            parser.error("--data, --models and --out are needed")
        places = Places(options.data.resolve(), options.models.resolve(), options.out.resolve())
        for name in options.names or PAIRS:
            rows = {**read_rows(), name: measure_pair(name, PAIRS[name], places)}
            ROWS.write_text(json.dumps(rows, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    write_page()


if __name__ == "__main__":
    main()
