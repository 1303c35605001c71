"""The figures of the method pages, made on the embedded models: `make figures` writes docs/figures/*.svg (about a quarter of an hour).

Kinds or methods that are named are drawn alone: `python tools/figures.py roles importance/peak-norm`. `python tools/figures.py report` takes the
picture of the README, docs/report.png: the report of `headcount demo` in Chromium, on a machine that does nothing else, as latencies are in it.

An importance is shown as the map of its scores, a pruner as the heads it keeps and its curve, a role as its pattern and the map of its bias.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import shutil
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import torch
from matplotlib.figure import Figure
from transformers import AutoTokenizer

import headcount as hc
from headcount.app.main import main as main_of_headcount
from headcount.behaviour.base import Corpus, ProbeRole, Role, Side, View, make_wordless_sequence
from headcount.behaviour.corpus import read_corpus
from headcount.core.files import write_atomic
from headcount.core.registry import IMPORTANCES, PRUNERS, ROLES
from headcount.data.embedded.sentences import draw_sentences, draw_translations
from headcount.data.open_task import open_task
from headcount.data.text.annotated import Annotated, Word
from headcount.importance.settings import ScoreSettings
from headcount.models.provenance import machine_entries, model_record
from headcount.pruning.recipe import Recipe
from headcount.pruning.spec import PruneSpec
from headcount.runs.describe import describe_run
from headcount.runs.report import contract
from headcount.runs.report.collect import collect_report
from headcount.runs.report.figures import STYLE, draw_curves, draw_map, group_blocks_by_kind
from headcount.runs.store import Run
from headcount.surgery.source import local_folder
from headcount.workflows.prune import Pruning, build_grid, prune_all
from headcount.workflows.roles import roles_into
from headcount.workflows.score import score_into

KEEPS = (4, 8, 16, 24)
WIDTH = 1440
"""Pixels across in the picture of the report."""
PLAIN = {"dsp": "dsp", "layers": "layers:top", "role": "role:spare", "rank": "gradient"}
"""What stands for a file with several variants, or with an option that must be named."""
ASKED: set[str] = set()
"""The figures to draw, as `importance-gradient`; empty for all."""
Pattern = tuple[np.ndarray, list[str], list[str]]
"""Where a role looks, [q, k], and the words of both sides; none for patches and random tokens."""


def describe(run: Run, name: str, model: Any) -> None:
    """Notes an embedded model and its heads in a run."""
    record = describe_run(model_record(model, f"demo/{name}"), command="make figures", seed=0, machine=machine_entries(model))
    run.stage_records(record, hc.HeadMap.of(model))


def opened(run: Run, name: str) -> Any:
    """An embedded model, noted in a run."""
    model = hc.load(f"demo/{name}")
    describe(run, name, model)
    return model


def shown(run: Run) -> contract.RunData:
    """What the report shows of a run."""
    return collect_report(run).report["runs"][0]


def draw(place: Path, size: tuple[float, float], onto: Callable[[Any], None]) -> None:
    """Writes one figure, unless others were asked for; the same numbers give the same bytes."""
    if ASKED and place.stem not in ASKED:
        return
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=size, layout="constrained")
        onto(figure)
        packed = io.BytesIO()
        figure.savefig(packed, format="svg", metadata={"Date": None})
    place.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(place, packed.getvalue())
    print(place.name, flush=True)


def importances(work: Path, out: Path) -> None:
    """One map per importance; grouped KV heads are those of the decoder."""
    for name, task, by in (
        ("entailment", "demo/entailment", [name for name in IMPORTANCES.names() if name != "kv-group"]),
        ("decoder", "demo/stories", ["kv-group"]),
    ):
        with Run.lead(work / f"importance-{name}") as run:
            model = opened(run, name)
            score_into(run, model, open_task(task, model), by, ScoreSettings(limit=128))
            data = shown(run)
        for score in data["scores"]:
            method = score["name"].partition(":")[0]
            maps = group_blocks_by_kind(data["blocks"])
            height = 0.7 + sum(0.4 + 0.22 * len(rows) for _, rows in maps)
            values = score["values"], score["significant"]
            draw(
                out / f"importance-{method}.svg",
                (5.0, height),
                lambda figure, name=score["name"], values=values, maps=maps: draw_map(figure, maps, name, *values),
            )


def pruners(work: Path, out: Path) -> None:
    """What every pruner keeps at several sizes, and its curve."""
    methods = {name: PLAIN.get(name, name) for name in PRUNERS.names() if name != "plan"}  # a plan names heads of one model
    with Run.lead(work / "pruners") as run:
        model = opened(run, "entailment")
        task = open_task("demo/entailment(size=1600)", model)
        template = PruneSpec.of("random", 1, recipe=Recipe(rate=2e-4))
        pruning = Pruning(run, model, task, limit=500)
        prune_all(
            pruning, build_grid(list(methods.values()), KEEPS, 3, template), progress=lambda n, total: print(f"{n} of {total}", flush=True)
        )
        data = shown(run)
    for name, text in methods.items():
        own = build_grid([text], [1], 1, template)[0].label
        draw(out / f"pruners-{name}.svg", (7.0, 2.6), lambda figure, own=own: _pruner(figure, data, own))


def _pruner(figure: Any, data: contract.RunData, method: str) -> None:
    left, right = figure.subfigures(1, 2, width_ratios=(2, 3))
    curves = data["curves"]
    assert curves is not None
    points = [point for point in curves["points"] if point["method"] == method and point["seed"] == 0]
    least = [float(len(data["heads"]))] * len(data["heads"])
    for point in sorted(points, key=lambda point: -point["keep"]):
        gone = set(point["removed"])
        least = [value if head in gone else float(point["keep"]) for head, value in enumerate(least)]
    draw_map(left, group_blocks_by_kind(data["blocks"]), "kept down to", least)
    compared = [p for p in curves["points"] if p["method"] == method or p["method"].startswith("random")]
    draw_curves(right, {**curves, "points": compared}, len(data["heads"]))


def corpora() -> Iterator[tuple[str, Any, Any, Corpus]]:
    """The embedded models, each with what shows its roles."""
    for name in ("encoder", "translator", "entailment", "decoder"):
        model = hc.load(f"demo/{name}")
        tokenizer: Any = AutoTokenizer.from_pretrained(local_folder(f"demo/{name}"))
        if name == "encoder":
            yield name, model, tokenizer, read_corpus(model, draw_sentences("english", 200), tokenizer)
        elif name == "translator":
            how: Any = {"add_special_tokens": False, "end": (tokenizer.eos_token_id,)}
            yield name, model, tokenizer, read_corpus(model, draw_translations(number=200), tokenizer, **how)
        else:
            task = open_task({"entailment": "demo/entailment", "decoder": "demo/stories"}[name], model, tokenizer)
            yield name, model, tokenizer, read_corpus(model, task, tokenizer, limit=200)


def roles(work: Path, out: Path) -> None:
    """The pattern of every role, and the map of its bias on the first embedded model that can show it; of several in a file, the most marked."""
    left = set(ROLES.names())
    for name, model, tokenizer, corpus in corpora():
        with Run.lead(work / f"roles-{name}") as run:
            describe(run, name, model)
            table = roles_into(run, model, corpus)
            data = shown(run)
        for file in sorted(left & {row.role.partition(":")[0] for row in table}):
            best = max((row for row in table if row.role.partition(":")[0] == file), key=lambda row: row.bias).role
            values = {str(row.head): row.bias for row in table if row.role == best}
            biases = [values.get(head) for head in data["heads"]]
            maps = [
                (kind, rows)
                for kind, rows in group_blocks_by_kind(data["blocks"])
                if any(data["heads"][head] in values for row in rows for head in row["heads"])
            ]
            draw_role(
                out,
                file,
                pattern(best, _own(file, model) or corpus, tokenizer),
                lambda at, m=maps, r=best, b=biases: draw_map(at, m, f"{r}, bias", b),
            )
            left.remove(file)
    for file in sorted(left):
        draw_role(out, file, pattern(*_example(file)))


def draw_role(out: Path, file: str, drawn: Pattern, bias: Callable[[Any], None] | None = None) -> None:
    """A role's pattern, and the map of its bias beside it where there is one."""

    def both(figure: Any) -> None:
        left, right = figure.subfigures(1, 2) if bias is not None else (figure, None)
        sieve, queries, keys = drawn
        panel = left.subplots()
        panel.imshow(sieve, cmap="Greys", vmin=0.0, vmax=1.3)
        panel.set(title="where it looks", xlabel="key", ylabel="query")
        panel.set_xticks(range(len(keys)), keys, rotation=90)
        panel.set_yticks(range(len(queries)), queries)
        if bias is not None:
            bias(right)

    draw(out / f"roles-{file}.svg", (7.0, 3.2) if bias is not None else (3.2, 3.2), both)


def pattern(role: str, corpus: Corpus, tokenizer: Any = None) -> Pattern:
    """The sieve of a role on the sentence of the first twenty that has most of it in least space, with the words of both sides."""
    parsed = Role.parse(role)
    found = []
    for row in range(1 if corpus.grid else min(20, len(corpus.sentences))):
        queries, keys = _sides(corpus, row, "cross" in parsed.info.attention)
        sieve = parsed.sieve(View(queries, keys, corpus))[0].numpy()
        found.append((sieve.sum() / sieve.size, row, sieve, queries, keys))
    _, _, sieve, queries, keys = max(found, key=lambda one: one[:2])
    return sieve, _words(queries, tokenizer), _words(keys, tokenizer)


def _sides(corpus: Corpus, row: int, crossing: bool) -> tuple[Side, Side]:
    if corpus.grid:
        patches = corpus.grid[0] * corpus.grid[1]
        return Side.from_images(1, patches, patches), Side.from_images(1, patches, patches)
    own = Side.from_sentences([corpus.sentences[row]], len(corpus.sentences[row].ids))
    if not crossing:
        return own, own
    target = corpus.targets[row]
    return Side.from_sentences([target], len(target.ids) + 1, n_delimiters_before=1), own


def _words(side: Side, tokenizer: Any) -> list[str]:
    """What stands beside a row: nothing for patches and the random tokens of a probe."""
    if not side.sentences or not side.sentences[0].annotated.words:
        return []
    return ["start"] * side.n_front + tokenizer.convert_ids_to_tokens(list(side.sentences[0].ids))


def _own(file: str, model: Any) -> Corpus | None:
    """The sequences that a role is tested on, where it has its own."""
    cls = ROLES.get(file)
    return cls().probe(model, 0) if issubclass(cls, ProbeRole) else None


def _example(file: str) -> tuple[str, Corpus, Any]:
    """What shows a role that no embedded model has: a grid of patches, a sentence with mentions, one with a word that a large text has but once."""
    if "image" in ROLES.get(file).info.attention:  # pyright: ignore[reportAttributeAccessIssue]
        return file, Corpus(grid=(4, 4)), None
    text = "the queen likes the king that sees the queen ."
    model, tokenizer = hc.load("demo/encoder"), AutoTokenizer.from_pretrained(local_folder("demo/encoder"))
    corpus = read_corpus(model, [_mentions(text), text.replace("king ", "")], tokenizer)
    if file != "rare":
        return file, corpus, tokenizer
    others = make_wordless_sequence([token for token in range(len(tokenizer), len(tokenizer) + 600) for _ in range(2)])
    return "rare:1", replace(corpus, sentences=(*corpus.sentences, others)), tokenizer


def _mentions(text: str) -> Annotated:
    """A sentence whose first two words are mentioned again near its end."""
    words, at = [], 0
    for form in text.split():
        words.append(Word(form, "", "", None, "", at, at + len(form)))
        at += len(form) + 1
    return Annotated(text, tuple(words), clusters=(((0, 2), (7, 9)),))


def picture(work: Path, out: Path) -> None:
    """The first page of the demo's report, down to the numbers of the slider."""
    from playwright.sync_api import sync_playwright

    demo = work / "demo"
    with contextlib.redirect_stdout(sys.stderr):
        if main_of_headcount(["demo", "--out", str(demo)]):
            sys.exit("the demo failed")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": WIDTH, "height": 900}, color_scheme="light")
        page.goto((demo / "entailment" / "report.html").resolve().as_uri())
        end = page.locator(".keep .stats").bounding_box()
        assert end is not None
        clip: Any = {"x": 0, "y": 0, "width": WIDTH, "height": end["y"] + end["height"] + 12}
        write_atomic(out.parent / "report.png", page.screenshot(full_page=True, clip=clip))
        browser.close()
    print("report.png", flush=True)


def main() -> None:
    """Makes the figures of one kind or of all."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    makers = {"importance": importances, "pruners": pruners, "roles": roles}
    parser.add_argument(
        "what",
        nargs="*",
        default=list(makers),
        metavar="KIND[/NAME]",
        help="importance, pruners or roles, or one method of these; or report",
    )
    makers["report"] = picture
    parser.add_argument("--out", type=Path, default=Path("docs/figures"))
    parser.add_argument("--work", type=Path, default=Path("build/figures"), help="runs, which go on after a stop")
    options = parser.parse_args()
    torch.set_num_threads(1)
    for what in options.what:
        kind, _, name = what.partition("/")
        if kind not in makers:
            parser.error(f"no kind '{kind}'; there are {', '.join(makers)}")
        ASKED.clear()
        ASKED.update([f"{kind}-{name}"] if name else [])
        makers[kind](options.work, options.out)


if __name__ == "__main__":
    main()
