"""The experiments of the papers on real models, each by the one command that users have: `headcount paper`.

    python benchmarks/findings.py --data DATA --models MODELS --out RUN                 all of them in the small version; goes on after a stop
    python benchmarks/findings.py --data DATA --models MODELS --out RUN michel2019      one paper
    python benchmarks/findings.py --data DATA --models MODELS --out RUN --full          with all sizes, seeds and steps: many hours
    python benchmarks/findings.py --page                                                only writes docs/findings.md anew from docs/findings/*.json

DATA and MODELS are described in docs/benchmarks.md. Classifiers are fine-tuned first, by `headcount prune --new-head --keep 100%`. What came out
is kept in docs/findings: a page with figures and a small JSON file for each paper; docs/findings.md is made of the JSON files.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from verdicts import FINDINGS

ROOT = Path(__file__).resolve().parents[1]
PAGES, DOCUMENT = ROOT / "docs" / "findings", ROOT / "docs" / "findings.md"
GROUPS = Path(__file__).with_name("sib200_groups.csv")
"""The languages of SIB-200, English first: folder, family, and the size of CC-100, as the corpus that the encoder was trained on is not known."""
TITLES = {
    "michel2019": "Michel et al. 2019 on all-MiniLM-L6-v2, fine-tuned on SST-2",
    "michel2019-pairs": "Michel et al. 2019 on all-MiniLM-L6-v2, fine-tuned on MRPC, and pairs of STS-B",
    "michel2019-training": "Michel et al. 2019 on checkpoints of the fine-tuning of all-MiniLM-L6-v2 on SST-2",
    "budhraja2020": "Budhraja et al. 2020 on all-MiniLM-L6-v2, fine-tuned on SST-2",
    "budhraja2020-pairs": "Budhraja et al. 2020 on all-MiniLM-L6-v2, fine-tuned on MRPC, and pairs of STS-B",
    "li2021": "Li et al. 2021 on all-MiniLM-L6-v2, fine-tuned on SST-2",
    "voita2019": "Voita et al. 2019 on opus-mt-en-fr, Multi30k",
    "voita2019-sst2": "Voita et al. 2019 on all-MiniLM-L6-v2, fine-tuned on SST-2, English Web Treebank",
    "voita2019-pairs": "Voita et al. 2019 on all-MiniLM-L6-v2, fine-tuned on MRPC, and pairs of STS-B",
    "pande2021": "Pande et al. 2021 on all-mpnet-base-v2, English Web Treebank",
    "pande2021-tuned": "Pande et al. 2021 on all-MiniLM-L6-v2 before and after fine-tuning on SST-2, English Web Treebank",
    "budhraja2021-weights": "Budhraja et al. 2021 on the weights of a multilingual encoder before and after fine-tuning",
    "budhraja2021": "Budhraja et al. 2021 on a multilingual encoder of 3 layers, SIB-200",
}
QUICK_LIMITS = {"voita2019": 120, "michel2019": 600, "michel2019-pairs": 200}
"""Examples of each split in the small version, where these are not 300: translations are generated token by token; bounds need many."""
HEADER = """# Which findings hold

The experiments of the papers on real models, other ones than the papers': a finding that does not show here is not refuted.
Each section is one command, `headcount paper NAME MODEL …`, in its small version (`--quick`: few sizes, seeds, steps and examples)
unless it says otherwise; the linked page has all tables and figures.
The experiments on embedded models are in [The papers](papers.md), what pruning costs in [Results](results.md), roles of other models in
[Real models](real-models.md). What remains of the findings on roles beyond distance, on three languages: [Roles on treebanks](roles-on-treebanks.md).

Written by `benchmarks/findings.py` from what the commands measured; do not edit.
"""


@dataclass(frozen=True)
class Places:
    """Where data and models are, and where everything is kept."""

    data: Path
    models: Path
    out: Path


def headcount(*words: object, result: Path | None = None) -> None:
    """Runs a command of headcount, and ends the program if it fails; a paper of which some items failed still writes its `result`."""
    command = [sys.executable, "-m", "headcount", *map(str, words)]
    print("headcount", *map(str, words), flush=True)
    if subprocess.run(command, check=False).returncode and not (result is not None and result.is_file()):
        sys.exit(1)


def write_table(path: Path, rows: Iterable[Sequence[str]], columns: Sequence[str]) -> Path:
    """Writes a csv file once, and returns its path."""
    if not path.is_file():
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("w", encoding="utf-8", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(columns)
            writer.writerows(rows)
    return path


def read_tsv(path: Path, columns: Sequence[int], *, has_header: bool) -> list[list[str]]:
    """Returns some columns of a file with tabs and without quotes."""
    lines = path.read_text(encoding="utf-8").splitlines()[1 if has_header else 0 :]
    return [[line.split("\t")[column] for column in columns] for line in lines]


def classification(train: Path, test: Path, *, has_pairs: bool = False) -> list[object]:
    """Returns the words of a classification task."""
    columns = ["--text-column", "text", "--label-column", "label", "--max-length", 128, "--truncate"]
    columns += ["--text-pair-column", "pair"] if has_pairs else []
    return ["--task", "classification", "--train", train, "--eval", test, *columns]


def tune_classifier(places: Places, name: str, model: Path, task: Sequence[object], *, epochs: int, rate: float) -> Path:
    """Returns the folder of a model that was given a head and fine-tuned; trains it where it is not there yet."""
    run = places.out / f"dense-{name}"
    words = ["--new-head", "--keep", "100%", "--method", "random", "--no-repair", "--recover", epochs, "--rate", rate]
    if not (run / "models").is_dir():
        headcount("prune", model, *words, *task, "--out", run)
    return next(path for path in (run / "models").iterdir() if path.is_dir())


def sst2(places: Places) -> tuple[Path, list[object]]:
    """Returns MiniLM as a classifier of SST-2, and the words of its task."""
    files = [
        write_table(
            places.out / "files" / f"sst2-{name}.csv",
            read_tsv(places.data / "sst2" / f"{name}.tsv", (0, 1), has_header=False),
            ("text", "label"),
        )
        for name in ("train", "test")
    ]
    task = classification(*files)
    return tune_classifier(places, "sst2", places.models / "all-MiniLM-L6-v2", task, epochs=1, rate=1e-4), task


def mrpc(places: Places) -> tuple[Path, list[object]]:
    """Returns MiniLM as a classifier of paraphrases in MRPC, and the words of its task."""
    columns = ("text", "pair", "label")
    files = [
        write_table(
            places.out / "files" / f"mrpc-{name}.csv",
            read_tsv(places.data / "mrpc" / f"msr_paraphrase_{name}.txt", (3, 4, 0), has_header=True),
            columns,
        )
        for name in ("train", "test")
    ]
    task = classification(*files, has_pairs=True)
    return tune_classifier(places, "mrpc", places.models / "all-MiniLM-L6-v2", task, epochs=3, rate=1e-4), task


def sts_pairs(places: Places) -> Path:
    """Returns a file of pairs of STS-B for the task of MRPC: those of similarity 4 or more are paraphrases, those of 2 or less are none."""
    rows = []
    for name in ("train", "dev", "test"):
        with (places.data / "stsb" / f"stsb-en-{name}.csv").open(encoding="utf-8", newline="") as file:
            rows += [(text, pair, str(int(float(score) >= 4))) for text, pair, score in csv.reader(file) if not 2 < float(score) < 4]
    return write_table(places.out / "files" / "stsb-pairs.csv", rows, ("text", "pair", "label"))


def on_sst2(places: Places) -> list[object]:
    """Returns the words of a paper on SST-2."""
    model, task = sst2(places)
    return [model, *task]


def on_pairs(*items: str) -> Callable[[Places], list[object]]:
    """Returns the words of items of a paper on MRPC, with the pairs of STS-B as the other task."""

    def words(places: Places) -> list[object]:
        model, task = mrpc(places)
        return [model, *task, "--other-task", sts_pairs(places), "--only", ",".join(items)]

    return words


def michel2019_training(places: Places) -> list[object]:
    """Returns the words of M13 on checkpoints of a fine-tuning."""
    task = sst2(places)[1]
    training = ["--new-head", "--start", "model", "--train-steps", 300, "--only", "M13"]
    return [places.models / "all-MiniLM-L6-v2", *task, *training]


def budhraja2020(places: Places) -> list[object]:
    """Returns the words of Budhraja et al. 2020 on SST-2."""
    return [*on_sst2(places), "--pretrained", places.models / "all-MiniLM-L6-v2"]


def treebank(places: Places) -> list[object]:
    """Returns the words that name the English Web Treebank."""
    return ["--text", places.data / "ud" / "en_ewt" / "en_ewt-ud-dev.conllu"]


def voita2019_sst2(places: Places) -> list[object]:
    """Returns the words of the items of Voita et al. 2019 on roles, on SST-2."""
    return [*on_sst2(places), *treebank(places), "--only", "V3,V10,V14"]


def voita2019_pairs(places: Places) -> list[object]:
    """Returns the words of the items of Voita et al. 2019 on roles and on several tasks, on MRPC."""
    return [*on_pairs("V3", "V10", "V14", "V15")(places), *treebank(places)]


def voita2019(places: Places) -> list[object]:
    """Returns the words of Voita et al. 2019 on English–French sentences, with the trees of the English Web Treebank for roles."""
    files: list[Path] = []
    for name in ("train", "test_2016_flickr"):
        for language in ("en", "fr"):
            path = places.out / "files" / f"multi30k-{name}.{language}"
            path.parent.mkdir(parents=True, exist_ok=True)
            source = next((places.data / "multi30k").glob(f"{name}*.{language}.gz"))
            path.write_bytes(gzip.decompress(source.read_bytes()))
            files.append(path)
    train, test = files[:2], files[2:]
    words = ["--train", train[0], "--train", train[1], "--eval", test[0], "--eval", test[1]]
    return [places.models / "opus-mt-en-fr", *treebank(places), "--task", "translation", *words, "--max-length", 64, "--truncate"]


def pande2021(places: Places) -> list[object]:
    """Returns the words of Pande et al. 2021 on the English Web Treebank."""
    return [places.models / "all-mpnet-base-v2", *treebank(places), *sst2(places)[1], "--new-head"]


def pande2021_tuned(places: Places) -> list[object]:
    """Returns the words of the items of Pande et al. 2021 on what fine-tuning changes."""
    model, task = sst2(places)
    return [places.models / "all-MiniLM-L6-v2", *treebank(places), *task, "--new-head", "--tuned", model, "--only", "P9,P10"]


def budhraja2021_weights(places: Places) -> list[object]:
    """Returns the words of X6: the pre-trained encoder and the fine-tuned one."""
    model, *words = budhraja2021(places)
    return [places.models / "multilingual", *words, "--new-head", "--tuned", model, "--only", "X6"]


def budhraja2021(places: Places) -> list[object]:
    """Returns the words of Budhraja et al. 2021 on the topics of SIB-200."""
    folder = places.out / "files"
    with GROUPS.open(encoding="utf-8", newline="") as file:
        places_of = {row["language"]: places.data / "sib200" / row["folder"] for row in csv.DictReader(file)}
    columns = ("text", "label")

    def convert(language: str, part: str) -> Path:
        rows = read_tsv(places_of[language] / f"{part}.tsv", (2, 1), has_header=True)
        return write_table(folder / f"sib-{part}-{language}.csv", rows, columns)

    tests = {language: convert(language, "test") for language in places_of}
    task = classification(convert("en", "train"), tests["en"])
    model = tune_classifier(places, "sib200", places.models / "multilingual", task, epochs=8, rate=2e-4)
    languages = [word for name, path in tests.items() for word in ("--language", f"{name}={path}")]
    english = tune_classifier(places, "sib200-en", places.models / "all-MiniLM-L6-v2", task, epochs=8, rate=2e-4)
    return [model, *task, *languages, "--groups", GROUPS, "--against", english]


PAPERS: dict[str, Callable[[Places], list[object]]] = {
    "michel2019": on_sst2,
    "michel2019-pairs": on_pairs("M6", "M9"),
    "michel2019-training": michel2019_training,
    "li2021": on_sst2,
    "voita2019": voita2019,
    "voita2019-sst2": voita2019_sst2,
    "voita2019-pairs": voita2019_pairs,
    "budhraja2020": budhraja2020,
    "budhraja2020-pairs": on_pairs("B8", "B9"),
    "pande2021": pande2021,
    "pande2021-tuned": pande2021_tuned,
    "budhraja2021": budhraja2021,
    "budhraja2021-weights": budhraja2021_weights,
}
"""The experiments by name, the paper and where they are made: the words of their command."""


def run_paper(places: Places, name: str, *, is_full: bool) -> None:
    """Runs the experiments of a paper, and keeps its page, figures and sentences."""
    out = places.out / (name if is_full else f"{name}-quick")
    small = ["--quick", "--limit", QUICK_LIMITS.get(name, 300)]
    paper = name.partition("-")[0]
    folder, page = out / "papers" / paper, PAGES / name
    headcount("paper", paper, *PAPERS[name](places), *([] if is_full else small), "--out", out, result=folder / "summary.md")
    shutil.rmtree(page, ignore_errors=True)
    text = (folder / "summary.md").read_text(encoding="utf-8")
    for path, shown in ((places.data, "DATA"), (places.models, "MODELS"), (places.out, "RUN"), (GROUPS.parent, "benchmarks")):
        text = text.replace(str(path), shown)
    for link in re.findall(r"\]\(([^)]+\.svg)\)", text):
        (page / link).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(folder / link, page / link)
        text = text.replace(f"]({link})", f"]({name}/{link})")
    (PAGES / f"{name}.md").write_text(text, encoding="utf-8")
    sections = re.findall(r"^## (\w+): (.*)\n\n\*(.*)\*\n\n(.*)$", text, re.MULTILINE)
    rows = [
        {"item": item, "title": title, "part": part.partition(", ")[2], "sentence": sentence, "tables": read_tables(folder / item.lower())}
        for item, title, part, sentence in sections
    ]
    content = {"paper": name, "version": "full" if is_full else "quick", "items": rows}
    (PAGES / f"{name}.json").write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def read_tables(folder: Path) -> dict[str, list[dict[str, object]]]:
    """Returns the printed tables of an item by name, each as records; nothing if it was not measured."""
    if not (folder / "result.json").is_file():
        return {}
    result = json.loads((folder / "result.json").read_text(encoding="utf-8"))
    tables = {table["name"]: table for table in result["tables"] if table["is_printed"]}
    names = {name: [column["name"] for column in table["columns"]] for name, table in tables.items()}
    return {name: [dict(zip(names[name], row, strict=True)) for row in table["rows"]] for name, table in tables.items()}


def list_findings() -> list[str]:
    """Returns the lines of the table of findings: the value of the paper, ours, and whether the finding holds."""
    note = (
        "The column *published* is checked against the texts of Voita et al. and Michel et al. and the abstracts of both papers by Budhraja et al.; "
        "what it says of Li et al. and Pande et al., and the values on MNLI, is from memory."
    )
    lines = ["## In one table", "", note, "", "| finding | published | here | verdict |", "|---|---|---|---|"]
    for finding in FINDINGS:
        path = PAGES / f"{finding.experiment}.json"
        rows = json.loads(path.read_text(encoding="utf-8"))["items"] if path.is_file() else []
        tables = next((row.get("tables", {}) for row in rows if row["item"] == finding.item), {})
        verdict = finding.judge(tables)
        link = f"[{finding.item}](findings/{finding.experiment}.md)" if path.is_file() else finding.item
        lines.append(f"| {finding.claim} ({link}) | {finding.published} | {verdict.here} | {verdict.sentence} |")
    return [*lines, ""]


def write_page() -> None:
    """Writes docs/findings.md from the JSON files."""
    lines = [HEADER, *list_findings()]
    for name, title in TITLES.items():
        path = PAGES / f"{name}.json"
        if not path.is_file():
            lines += [f"## {title}", "", "Not measured yet.", ""]
            continue
        content = json.loads(path.read_text(encoding="utf-8"))
        version = "The small version." if content["version"] == "quick" else "In full."
        lines += [
            f"## {title}",
            "",
            f"{version} Tables and figures: [{name}](findings/{name}.md).",
            "",
            "| item | experiment | what came out |",
            "|---|---|---|",
        ]
        lines += [f"| {row['item']} | {row['title']} | {row['sentence'].replace('|', chr(92) + '|')} |" for row in content["items"]]
        lines.append("")
    DOCUMENT.write_text("\n".join(lines).rstrip() + "\n", encoding="utf-8")


def main() -> None:
    """Runs the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="PAPER", help="papers to run; all by default")
    parser.add_argument("--data", type=Path, help="the folder of data sets")
    parser.add_argument("--models", type=Path, help="the folder of models")
    parser.add_argument("--out", type=Path, help="the folder that keeps files, models and runs")
    parser.add_argument("--full", action="store_true", help="all sizes, seeds and steps")
    parser.add_argument("--page", action="store_true", help="only write the page anew")
    options = parser.parse_args()
    if not options.page:
        if None in (options.data, options.models, options.out):
            parser.error("--data, --models and --out are needed")
        places = Places(options.data.resolve(), options.models.resolve(), options.out.resolve())
        for name in options.names or PAPERS:
            run_paper(places, name, is_full=options.full)
    write_page()


if __name__ == "__main__":
    main()
