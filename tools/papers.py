"""The papers' experiments on embedded models, by the commands that users have; makes the pages of docs/papers.

python tools/papers.py                     runs every paper and writes docs/papers/NAME.md with its figures; goes on after a stop
python tools/papers.py michel2019          one paper
python tools/papers.py --index             rewrites docs/papers.md alone: every item, its command and its figure, from the registry
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGES, INDEX, RUNS = ROOT / "docs" / "papers", ROOT / "docs" / "papers.md", ROOT / "build" / "papers"


@dataclass(frozen=True)
class Example:
    """An embedded model that a paper is shown on, its task, further words of the command, the items to run (all, or those that `only` names).

    `is_quick` takes the small version of the command, where the whole one trains for hours.
    """

    model: str
    task: str
    words: tuple[str, ...] = ()
    only: tuple[str, ...] = ()
    is_quick: bool = False

    def command(self, name: str, out: Path) -> list[str]:
        """Returns the words of the command for a paper."""
        only = ("--only", ",".join(self.only)) if self.only else ()
        quick = ("--quick",) if self.is_quick else ()
        return ["paper", name, self.model, "--task", self.task, *self.words, *only, *quick, "--out", str(out)]


ENTAILMENT, TAVI = "demo/entailment", "demo/entailment-tavi"
TRANSLATOR, TRANSLATION, FEW = "demo/translator", "demo/translation", ("--limit", "100")
EXAMPLES = {
    "voita2019": (
        Example(TRANSLATOR, TRANSLATION, ("--embedded", "translation", "--frequent", "60", *FEW), is_quick=True),
        Example(ENTAILMENT, ENTAILMENT, ("--other-task", TAVI), only=("V15",), is_quick=True),
    ),
    "michel2019": (
        Example(ENTAILMENT, ENTAILMENT, ("--other-task", TAVI)),
        Example(TRANSLATOR, TRANSLATION, FEW, only=("M3", "M12"), is_quick=True),
    ),
    "li2021": (
        Example(ENTAILMENT, ENTAILMENT, is_quick=True),
        Example(TRANSLATOR, TRANSLATION, FEW, only=("L7",), is_quick=True),
    ),
    "budhraja2020": (
        Example(ENTAILMENT, ENTAILMENT, ("--other-task", TAVI, "--pretrained", "demo/encoder"), is_quick=True),
        Example(TRANSLATOR, TRANSLATION, FEW, only=("B4",), is_quick=True),
    ),
    "pande2021": (Example("demo/encoder-english", "demo/text", ("--embedded", "english", "--tuned", "demo/entailment-english")),),
    "budhraja2021": (
        Example(ENTAILMENT, ENTAILMENT, ("--tasks", f"{ENTAILMENT},{TAVI}", "--against", "demo/entailment-english")),
        Example("demo/encoder-english", "demo/text", ("--tuned", "demo/entailment-english"), only=("X6",)),
    ),
}
"""Items that one embedded model cannot show (no cross-attention, no second language) are shown on another one."""


def list_items(name: str, example: Example) -> list[dict[str, str]]:
    """Returns the items of a paper as its command lists them for an example."""
    command = [*example.command(name, RUNS / f"list-{name}"), "--list", "--json", "--quiet"]
    finished = subprocess.run([sys.executable, "-m", "headcount", *command], capture_output=True, text=True, check=True)
    return json.loads(finished.stdout)["items"]


def write_index(names: list[str]) -> None:
    """Writes the index of all items: what comes out, and on which embedded model it is shown."""
    lines = [
        "# The papers",
        "",
        "Written by `python tools/papers.py --index`; do not edit. One command runs the experiments of a paper on your model;",
        "it says beforehand what each item needs and how long all of them take, can be stopped, and goes on where it was:",
        "",
        "    headcount paper michel2019 MODEL --task TASK --out runs/michel        # all items; --list shows them, --quick is a small version",
        "    headcount paper michel2019 MODEL --task TASK --out runs/michel --only M8,M11",
        "",
        "Figures (SVG, PDF) and tables (csv, LaTeX) of an item are in `RUN/papers/NAME/ITEM/`, all of them with the paper's own values in",
        "`RUN/papers/NAME/summary.md`, the reference in `references.bib`. `--new-head` takes a pre-trained model without a head for the task:",
        'items prune first and train then. In Python: `hc.paper("michel2019", model, task, out=RUN, only=["M8"])`, see',
        "[Studies](studies.md#a-paper-in-python).",
        "The column *in the paper* was written from memory and is not checked against the papers yet.",
        "",
    ]
    for name in names:
        page = f"On embedded models: [{name}](papers/{name}.md), made by `make papers`." if (PAGES / f"{name}.md").is_file() else ""
        lines += [f"## {name}", "", *([page, ""] if page else [])]
        lines += ["| item | in the paper | what comes out | shown on |", "|---|---|---|---|"]
        rows: dict[str, list[str]] = {}
        for example in EXAMPLES[name]:
            for item in list_items(name, example):
                state = example.model if item["state"] == "runs" else item["state"]
                if item["id"] not in rows or item["state"] == "runs":
                    rows[item["id"]] = [item["id"], item["part"], item["title"], state]
        lines += [f"| {' | '.join(row)} |" for row in rows.values()]
        lines += [""]
    INDEX.write_text("\n".join(lines).rstrip() + "\n", encoding="utf-8")


def run_paper(name: str) -> None:
    """Runs the experiments of a paper on its embedded models, and copies summaries and figures to the documentation."""
    shutil.rmtree(PAGES / name, ignore_errors=True)
    parts = [run_example(name, number, example) for number, example in enumerate(EXAMPLES[name])]
    PAGES.mkdir(parents=True, exist_ok=True)
    (PAGES / f"{name}.md").write_text("\n".join(parts), encoding="utf-8")


def run_example(name: str, number: int, example: Example) -> str:
    """Runs the experiments of a paper on one model, copies their figures, and returns the summary; that of a further model has no title."""
    out = RUNS / f"{name}{f'-{number}' if number else ''}"
    subprocess.run([sys.executable, "-m", "headcount", *example.command(name, out)], check=True)
    folder = out / "papers" / name
    text = (folder / "summary.md").read_text(encoding="utf-8").replace(str(ROOT) + "/", "")
    for link in re.findall(r"\]\(([^)]+\.svg)\)", text):
        (PAGES / name / link).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(folder / link, PAGES / name / link)
        text = text.replace(f"]({link})", f"]({name}/{link})")
    title = text.partition("\n")[0]
    return text.replace(title, f"## On {example.model}", 1) if number else text


def main() -> int:
    """Runs the command line."""
    from headcount.core.registry import PAPERS

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="PAPER", help="papers to run; all by default")
    parser.add_argument("--index", action="store_true", help="rewrite the index alone")
    arguments = parser.parse_args()
    known = [name for name in EXAMPLES if name in PAPERS.names()]
    for name in () if arguments.index else arguments.names or known:
        run_paper(name)
    write_index(known)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
