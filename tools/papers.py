"""The papers' experiments on embedded models, by the commands that users have; makes the pages of docs/papers.

python tools/papers.py                     runs every paper and writes docs/papers/NAME.md with its figures; goes on after a stop
python tools/papers.py michel2019          one paper
python tools/papers.py --index             rewrites docs/papers.md alone: every item, its command, its page and its figures; in the pages of
                                           docs/papers and docs/findings, what stands in the paper, and where

Expected processor time on one core: voita2019 17 minutes, michel2019 10, li2021 19, budhraja2020 19, pande2021 3, budhraja2021 5; the index 1.
"""

from __future__ import annotations

import argparse
import json
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGES, INDEX, RUNS = ROOT / "docs" / "papers", ROOT / "docs" / "papers.md", ROOT / "build" / "papers"
FINDINGS = ROOT / "docs" / "findings"


@dataclass(frozen=True)
class Example:
    """Items of a paper on an embedded model: the model, its task, further words of the command, and the items; if empty, all that no other shows."""

    model: str
    task: str
    words: str = ""
    only: tuple[str, ...] = ()

    def command(self, name: str, out: str | Path, items: Sequence[str] = ()) -> list[str]:
        """Returns the words of the command that runs these items of a paper, or all of them."""
        only = ("--only", ",".join(items)) if items else ()
        return ["paper", name, self.model, "--task", self.task, *self.words.split(), *only, "--out", str(out)]

    @property
    def folder(self) -> str:
        """The name of the run folder; examples of one model share it."""
        return self.model.replace("/", "-")


ENTAILMENT, TAVI = "demo/entailment", "demo/entailment-tavi"
RARE = "demo/rare-words"
TRANSLATOR, TRANSLATION, FEW = "demo/translator", "demo/translation", "--limit 100"
OTHER = f"--other-task {TAVI}"
GATES = f"{FEW} --steps 300 --train-batch 16 --keep 50%,25%"
SCRATCH = "--steps 300 --train-batch 32 --keep 50% --scratch 1500steps --scratch-rate 0.001"
"""Training from scratch takes more examples and steps than the translator's few minutes allow."""
EXAMPLES = {
    "voita2019": (
        Example(TRANSLATOR, TRANSLATION, f"{GATES} --penalties 0.001,0.01,0.03 --embedded translation --frequent 60"),
        Example(ENTAILMENT, f"{ENTAILMENT}(size=4000)", SCRATCH, ("V12", "V17")),
        Example(ENTAILMENT, ENTAILMENT, f"--steps 300 --train-batch 16 --keep 50%,25% {OTHER}", ("V15",)),
        Example(RARE, RARE, "--embedded rare-words --frequent 60", ("V6", "V7", "V10")),
    ),
    "michel2019": (
        Example(ENTAILMENT, ENTAILMENT, OTHER),
        Example(TRANSLATOR, TRANSLATION, FEW, ("M3", "M12")),
    ),
    "li2021": (
        Example(ENTAILMENT, ENTAILMENT, "--steps 300 --train-batch 8 --keep 50%,25%"),
        Example(ENTAILMENT, ENTAILMENT, "--steps 200 --train-batch 8 --keep 25% --penalties 0.002,0.01,0.05", ("L8", "L9")),
        Example(TRANSLATOR, TRANSLATION, f"{FEW} --steps 200 --train-batch 8 --keep 50%,25%", ("L7",)),
    ),
    "budhraja2020": (
        Example(ENTAILMENT, ENTAILMENT, f"{OTHER} --recover 300steps --train-batch 8 --keep 50%,25%"),
        Example(ENTAILMENT, ENTAILMENT, "--pretrained demo/encoder --recover 600steps --rate 5e-4 --train-batch 16 --keep 50%", ("B2",)),
        Example(TRANSLATOR, TRANSLATION, f"{FEW} --recover 60steps --train-batch 8 --keep 50%", ("B4",)),
        Example("demo/encoder", "demo/text", "--recover 100steps --train-batch 8 --keep 50%", ("B6",)),
    ),
    "pande2021": (
        Example(
            "demo/encoder-english",
            "demo/text",
            f"--embedded english --tuned demo/entailment-english --other-task {ENTAILMENT}=demo/entailment-english",
        ),
    ),
    "budhraja2021": (
        Example(
            ENTAILMENT,
            ENTAILMENT,
            f"--tasks {ENTAILMENT},{TAVI} --against demo/entailment-english --recover 300steps --train-batch 16",
        ),
        Example("demo/encoder-english", "demo/text", "--tuned demo/entailment-english", ("X6",)),
    ),
}
"""Items that one embedded model cannot show (no cross-attention, no second language) are shown on another one, slow ones with fewer sizes."""


GROUPED = "headcount paper budhraja2021 MODEL --task TASK --language en=en.csv --language de=de.csv --groups groups.csv --only {} --out RUN"
ON_REAL_DATA = {name: {id: GROUPED.format(id) for id in ids} for name, ids in {"budhraja2021": ("X4", "X5")}.items()}
"""The commands of items that no embedded data can show; docs/findings has them on real data."""


@dataclass(frozen=True)
class ShownItem:
    """An item of a paper, and the example that shows it; without one, why none does."""

    id: str
    part: str
    title: str
    example: Example | None
    reason: str = ""

    def shell(self, name: str) -> str:
        """Returns the command that runs the item, to copy and paste."""
        if self.example is None:
            return ""
        is_first = self.example.model == EXAMPLES[name][0].model  # a run folder holds one model
        out = f"runs/{name}" if is_first else f"runs/{name}-{self.example.model.rpartition('/')[2]}"
        return shlex.join(["headcount", *self.example.command(name, out, [self.id])])


def run_command(words: Sequence[str], *, is_listed: bool = False) -> str:
    """Runs a command of headcount, and returns what it printed if it is one that lists."""
    command = [sys.executable, "-m", "headcount", *words]
    finished = subprocess.run(command, capture_output=is_listed, text=True, check=True)
    return finished.stdout if is_listed else ""


def list_items(name: str) -> list[ShownItem]:
    """Returns the items of a paper in their order, each with the example that shows it."""
    listed: dict[str, dict[Example, dict[str, str]]] = {}
    for example in EXAMPLES[name]:
        words = [*example.command(name, RUNS / f"list-{name}"), "--list", "--json", "--quiet"]
        for row in json.loads(run_command(words, is_listed=True))["items"]:
            listed.setdefault(row["id"], {})[example] = row
    items = []
    for id, rows in listed.items():
        named = [example for example in rows if id in example.only]
        example = next((one for one in named or rows if rows[one]["state"] == "runs" and (named or not one.only)), None)
        first = next(iter(rows.values()))
        items.append(ShownItem(id, first["part"], first["title"], example, "" if example else first["state"]))
    return items


def run_paper(name: str) -> None:
    """Runs the experiments of a paper on its embedded models, and writes its page with all items in their order."""
    items, sections, heads = list_items(name), dict[str, str](), []
    shutil.rmtree(PAGES / name, ignore_errors=True)
    for example in EXAMPLES[name]:
        own = [item.id for item in items if item.example == example]
        out = RUNS / name / example.folder
        run_command(example.command(name, out, own))
        text = copy_figures(name, out / "papers" / name)
        heads.append(text.partition("\n## ")[0].splitlines())
        sections |= {id: body for id, body in split_sections(text) if id in own}
    lines = [heads[0][0], "", "Made by `make papers`; every experiment names its command.", ""]
    for item in items:
        lines += [f'<a id="{item.id.lower()}"></a>', "", *format_item(name, item, sections.get(item.id, "")), ""]
    PAGES.mkdir(parents=True, exist_ok=True)
    (PAGES / f"{name}.md").write_text(re.sub(r"\n{3,}", "\n\n", "\n".join(lines)).rstrip() + "\n", encoding="utf-8")


def format_item(name: str, item: ShownItem, body: str) -> list[str]:
    """Returns the lines of the page about an item: what it is, its command, and what came out."""
    title = [f"## {item.id}: {item.title}", "", f"*{name}, {item.part}*", ""]
    if item.example is None:
        return [*title, f"Not shown: {item.reason}."]
    content = body.partition("*\n\n")[2] if body.startswith("*") else body
    return [*title, f"    {item.shell(name)}", "", content.strip()]


def copy_figures(name: str, folder: Path) -> str:
    """Copies the figures of a summary to the documentation, and returns it with links to them."""
    text = (folder / "summary.md").read_text(encoding="utf-8").replace(str(ROOT) + "/", "")
    for link in re.findall(r"\]\(([^)]+\.svg)\)", text):
        (PAGES / name / link).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(folder / link, PAGES / name / link)
        text = text.replace(f"]({link})", f"]({name}/{link})")
    return text


def split_sections(text: str) -> Iterator[tuple[str, str]]:
    """Yields the id of every experiment on a page and what stands below its heading."""
    for part in re.split(r"^## ", text, flags=re.MULTILINE)[1:]:
        heading, _, body = part.partition("\n")
        yield heading.partition(":")[0], body.partition('\n<a id="')[0].strip()


def read_places(name: str) -> dict[str, tuple[str, list[str]]]:
    """Returns where each item stands in the paper, and the lines about what the paper reports, by the id of the item."""
    from headcount import HeadMap, load, load_tokenizer, open_task
    from headcount.runs.paper_files import published_to_markdown
    from headcount.studies._paper import Paper, PaperSubject

    model = load(TRANSLATOR)
    task = open_task(TRANSLATION, model, load_tokenizer(TRANSLATOR), limit=8)
    items = Paper.parse(name).items(PaperSubject(HeadMap.of(model), task, has_text=True))
    return {item.id: (item.part, published_to_markdown(item.published) if item.published else []) for item in items}


def refresh_page(path: Path, name: str, places: Mapping[str, tuple[str, list[str]]]) -> None:
    """Rewrites on a page what it says about the paper itself: where each item stands in it, and what it reports."""
    sections = re.split(r"^(?=## )", path.read_text(encoding="utf-8"), flags=re.MULTILINE)
    for number, section in enumerate(sections):
        id = section.removeprefix("## ").partition(":")[0]
        if section.startswith("## ") and id in places:
            sections[number] = refresh_section(section, name, *places[id])
    path.write_text(re.sub(r"\n{3,}", "\n\n", "".join(sections)).rstrip() + "\n", encoding="utf-8")


def refresh_section(section: str, name: str, place: str, published: Sequence[str]) -> str:
    """Returns the section of an item with its place in the paper, and what the paper reports before the notes at its end."""
    text = re.sub(rf"^\*{name}, .*\*$", f"*{name}, {place}*", section, count=1, flags=re.MULTILINE)
    text = re.sub(r"As published:\n\n(?:[^|\n].*\n\n)?(?:\|.*\n)+\n?", "", text)
    if not published or "\nNot measured: " in text or "\nNot shown: " in text:
        return text
    end = re.search(r"\n*((?:^- .*\n*)*)((?:<a id=.*\n*)?)\Z", text, re.MULTILINE)
    assert end is not None
    return "\n\n".join([text[: end.start()], *(part.strip() for part in ("\n".join(published), end[1], end[2]) if part), ""])


def write_index(names: list[str]) -> None:
    """Writes the index of all items: what comes out, the command that makes it, its section of the page, and its figures."""
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
        "[Studies](studies.md#a-paper-in-python). Items with models that are not trained (rankings, random heads as they are) need a model",
        "that is fine-tuned already; this command does it, and keeps the model in `runs/dense/models`:",
        "",
        "    headcount prune MODEL --task TASK --new-head --method random --keep 100% --no-repair --recover 3 --out runs/dense",
        "",
        "`--quick` sets sizes, seeds and (unless `--steps` says otherwise) steps itself, and refuses options that say otherwise.",
        "",
        "Below, every command runs as it is, on models that come with the package; on your own put its name and that of your task in their place.",
        "The item leads to its tables and its verdict, the words below its command to its figures.",
        "Places in Voita et al. and Michel et al., those of L1, L2 and L13 in Li et al., and all references are checked against the papers; the",
        "other places in Li et al., and what summaries show as published by Li et al. and Pande et al., are from memory.",
        "",
    ]
    for name in names:
        page = PAGES / f"{name}.md"
        sections = dict(split_sections(page.read_text(encoding="utf-8"))) if page.is_file() else {}
        intro = f"On embedded models: [{name}](papers/{name}.md), made by `make papers`." if sections else ""
        lines += [f"## {name}", "", *([intro, ""] if intro else []), "| item | in the paper | what comes out | command and figures |"]
        lines += ["|---|---|---|---|", *(format_row(name, item, sections) for item in list_items(name)), ""]
    INDEX.write_text("\n".join(lines).rstrip() + "\n", encoding="utf-8")


def format_row(name: str, item: ShownItem, sections: dict[str, str]) -> str:
    """Returns the row of an item: its page, its command, and links to its figures."""
    is_anchored = f'<a id="{item.id.lower()}">' in (PAGES / f"{name}.md").read_text(encoding="utf-8") if sections else False
    link = f"[{item.id}](papers/{name}.md{f'#{item.id.lower()}' if is_anchored else ''})" if item.id in sections else item.id
    figures = re.findall(rf"\]\(({name}/[^)]+/([^)/]+)\.svg)\)", sections.get(item.id, ""))
    drawn = ", ".join(f"[{title}](papers/{path})" for path, title in dict.fromkeys(figures))
    command = f"`{item.shell(name)}`" if item.example else item.reason
    if item.id in ON_REAL_DATA.get(name, {}):
        command = f"`{ON_REAL_DATA[name][item.id]}`<br>on real data: [findings](findings/{name}.md)"
    return f"| {link} | {item.part} | {item.title} | {command}{f'<br>{drawn}' if drawn else ''} |"


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
    for name in known:
        places = read_places(name)
        for page in (PAGES / f"{name}.md", FINDINGS / f"{name}.md", *FINDINGS.glob(f"{name}-*.md")):
            if page.is_file():
                refresh_page(page, name, places)
    write_index(known)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
