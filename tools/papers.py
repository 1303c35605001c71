"""The papers' experiments on embedded models, by the commands that users have; makes the pages of docs/papers.

python tools/papers.py                     runs every paper and writes docs/papers/NAME.md with its figures; goes on after a stop
python tools/papers.py michel2019          one paper
python tools/papers.py --index             rewrites docs/papers.md alone: every item, its command and its figure, from the registry
"""

from __future__ import annotations

import argparse
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
    """The embedded model that a paper is shown on, its task, and further words of the command."""

    model: str
    task: str
    words: tuple[str, ...] = ()


EXAMPLES = {
    "voita2019": Example("demo/translator", "demo/translation", ("--embedded", "translation", "--frequent", "60")),
    "michel2019": Example("demo/entailment", "demo/entailment", ("--other-task", "demo/entailment-tavi")),
    "li2021": Example("demo/entailment", "demo/entailment"),
    "budhraja2020": Example("demo/entailment", "demo/entailment", ("--other-task", "demo/entailment-tavi")),
    "pande2021": Example("demo/encoder-english", "demo/text", ("--embedded", "english", "--tuned", "demo/entailment-english")),
    "budhraja2021": Example("demo/entailment", "demo/entailment"),
}


def list_items(name: str) -> list[dict[str, str]]:
    """Returns the items of a paper as its command lists them."""
    import json

    example = EXAMPLES[name]
    command = [
        "paper",
        name,
        example.model,
        "--task",
        example.task,
        *example.words,
        "--out",
        str(RUNS / f"list-{name}"),
        "--list",
        "--json",
    ]
    finished = subprocess.run([sys.executable, "-m", "headcount", *command, "--quiet"], capture_output=True, text=True, check=True)
    return json.loads(finished.stdout)["items"]


def write_index(names: list[str]) -> None:
    """Writes the index of all items."""
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
        "`RUN/papers/NAME/summary.md`, the reference in `references.bib`.",
        "The column *in the paper* was written from memory and is not checked against the papers yet.",
        "",
    ]
    for name in names:
        example = EXAMPLES[name]
        page = f" On an embedded model: [{name}](papers/{name}.md)." if (PAGES / f"{name}.md").is_file() else ""
        lines += [
            f"## {name}",
            "",
            f"States are those of `{example.model}` with `{' '.join(('--task', example.task, *example.words))}`.{page}",
            "",
        ]
        lines += ["| item | in the paper | what comes out | state |", "|---|---|---|---|"]
        lines += [f"| {item['id']} | {item['part']} | {item['title']} | {item['state']} |" for item in list_items(name)]
        lines += [""]
    INDEX.write_text("\n".join(lines).rstrip() + "\n", encoding="utf-8")


def run_paper(name: str, *, is_quick: bool) -> None:
    """Runs the experiments of a paper on its embedded model, and copies summary and figures to the documentation."""
    example, out = EXAMPLES[name], RUNS / (f"{name}-quick" if is_quick else name)
    words = ["paper", name, example.model, "--task", example.task, *example.words, *(["--quick"] if is_quick else []), "--out", str(out)]
    subprocess.run([sys.executable, "-m", "headcount", *words], check=True)
    folder, figures = out / "papers" / name, PAGES / name
    shutil.rmtree(figures, ignore_errors=True)
    text = (folder / "summary.md").read_text(encoding="utf-8").replace(str(ROOT) + "/", "")
    for link in re.findall(r"\]\(([^)]+\.svg)\)", text):
        (figures / link).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(folder / link, figures / link)
        text = text.replace(f"]({link})", f"]({name}/{link})")
    PAGES.mkdir(parents=True, exist_ok=True)
    (PAGES / f"{name}.md").write_text(text, encoding="utf-8")


def main() -> int:
    """Runs the command line."""
    from headcount.core.registry import PAPERS

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="PAPER", help="papers to run; all by default")
    parser.add_argument("--index", action="store_true", help="rewrite the index alone")
    parser.add_argument("--quick", action="store_true", help="the small version of every paper")
    arguments = parser.parse_args()
    known = [name for name in EXAMPLES if name in PAPERS.names()]
    for name in () if arguments.index else arguments.names or known:
        run_paper(name, is_quick=arguments.quick)
    write_index(known)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
