"""The figures of the method pages, made on the embedded models: `make figures` writes docs/figures/*.svg (about a quarter of an hour).

An importance is shown as the map of its scores, a pruner as the heads it keeps and its curve, a role as the map of its bias.
"""

from __future__ import annotations

import argparse
import io
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import matplotlib
import torch
from matplotlib.figure import Figure
from transformers import AutoTokenizer

import headcount as hc
from headcount.files import write_atomic
from headcount.importance import METHODS, score_into
from headcount.pruners import PRUNERS
from headcount.pruning import Pruning, Wish, compare, grid
from headcount.report.collect import collect
from headcount.report.figures import STYLE, draw_curves, draw_map, grids
from headcount.roles import ROLES, corpus_of, roles_into
from headcount.runs.store import Run, describe_run
from headcount.runs.weights import machine_of, model_record
from headcount.surgery.source import local_folder
from headcount.tasks import open_task
from headcount.text.embedded import embedded, embedded_translations
from headcount.training import Recipe

KEEPS = (4, 8, 16, 24)
PLAIN = {"dsp": "dsp", "layers": "layers:top", "role": "role:spare", "rank": "gradient"}
"""What stands for a file with several variants, or with an option that must be named."""


def opened(run: Run, name: str) -> Any:
    """An embedded model with its head map noted in a run."""
    model = hc.load(f"demo/{name}")
    run.describe(
        describe_run(model_record(model, f"demo/{name}"), command="make figures", seed=0, machine=machine_of(model)), hc.HeadMap.of(model)
    )
    return model


def shown(run: Run) -> dict[str, Any]:
    """What the report shows of a run."""
    return collect(run).report["runs"][0]


def draw(place: Path, size: tuple[float, float], onto: Callable[[Any], None]) -> None:
    """Writes one figure; the same numbers give the same bytes."""
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=size, layout="constrained")
        onto(figure)
        packed = io.BytesIO()
        figure.savefig(packed, format="svg", metadata={"Date": None})
    write_atomic(place, packed.getvalue())
    print(place.name, flush=True)


def importances(work: Path, out: Path) -> None:
    """One map per importance; grouped KV heads are those of the decoder."""
    for name, task, by in (
        ("entailment", "demo/entailment", [name for name in METHODS.names() if name != "kv-group"]),
        ("decoder", "demo/stories", ["kv-group"]),
    ):
        with Run.lead(work / f"importance-{name}") as run:
            model = opened(run, name)
            score_into(run, model, open_task(task, model), by, limit=128)
            data = shown(run)
        for score in data["scores"]:
            method = score["name"].partition(":")[0]
            maps = grids(data)
            height = 0.7 + sum(0.4 + 0.22 * len(rows) for _, rows in maps)
            draw(out / f"importance-{method}.svg", (5.0, height), lambda figure, score=score, maps=maps: draw_map(figure, maps, score))


def pruners(work: Path, out: Path) -> None:
    """What every pruner keeps at several sizes, and its curve."""
    methods = {name: PLAIN.get(name, name) for name in PRUNERS.names()}
    with Run.lead(work / "pruners") as run:
        model = opened(run, "entailment")
        task = open_task("demo/entailment", model, size=1600)
        wishes = grid(list(methods.values()), KEEPS, 3, Wish("random", 1, recipe=Recipe(rate=2e-4)))
        pruning = Pruning(run, model, task, limit=500)
        compare(pruning, wishes, progress=lambda done, total: print(f"{done} of {total} models", flush=True))
        data = shown(run)
    by_name = {point["method"]: point["method"] for point in data["curves"]["points"]}
    for name, text in methods.items():
        own = next(method for method in by_name if method.split(" ")[0] in (text, name, f"rank by {text}"))
        draw(out / f"pruners-{name}.svg", (7.0, 2.6), lambda figure, own=own: _pruner(figure, data, own))


def _pruner(figure: Any, data: dict[str, Any], method: str) -> None:
    left, right = figure.subfigures(1, 2, width_ratios=(2, 3))
    points = [point for point in data["curves"]["points"] if point["method"] == method and point["seed"] == 0]
    least = [float(len(data["heads"]))] * len(data["heads"])
    for point in sorted(points, key=lambda point: -point["keep"]):
        gone = set(point["removed"])
        least = [value if head in gone else float(point["keep"]) for head, value in enumerate(least)]
    score = {"name": "kept down to", "values": least, "significant": None}
    draw_map(left, grids(data), score)
    curves = {
        **data["curves"],
        "points": [p for p in data["curves"]["points"] if p["method"] == method or p["method"].startswith("random")],
    }
    draw_curves(right, curves, len(data["heads"]))


def corpora() -> Iterator[tuple[str, Any]]:
    """The embedded models, each with what shows its roles."""
    for name in ("encoder", "translator", "entailment", "decoder"):
        model = hc.load(f"demo/{name}")
        tokenizer: Any = AutoTokenizer.from_pretrained(local_folder(f"demo/{name}"))
        if name == "encoder":
            yield name, corpus_of(model, embedded("english", 200), tokenizer)
        elif name == "translator":
            how: Any = {"add_special_tokens": False, "end": (tokenizer.eos_token_id,)}
            yield name, corpus_of(model, embedded_translations(number=200), tokenizer, **how)
        else:
            task = open_task({"entailment": "demo/entailment", "decoder": "demo/stories"}[name], model, tokenizer)
            yield name, corpus_of(model, task, tokenizer, limit=200)


def roles(work: Path, out: Path) -> None:
    """The map of the bias of every role on the first embedded model that shows it: its most marked form, where a file has several."""
    done: set[str] = set()
    for name, corpus in corpora():
        with Run.lead(work / f"roles-{name}") as run:
            table = roles_into(run, opened(run, name), corpus, seed=0)
            data = shown(run)
        for file in ROLES.names():
            mine = [row for row in table if row.role.partition(":")[0] == file]
            if not mine or file in done:
                continue
            done.add(file)
            best = max(mine, key=lambda row: row.bias).role
            values = {str(row.head): row.bias for row in mine if row.role == best}
            score = {"name": f"{best}, bias", "values": [values.get(head) for head in data["heads"]], "significant": None}
            maps = [
                (kind, rows)
                for kind, rows in grids(data)
                if any(score["values"][head] is not None for row in rows for head in row["heads"])
            ]
            height = 0.7 + sum(0.4 + 0.22 * len(rows) for _, rows in maps)
            draw(out / f"roles-{file}.svg", (5.0, height), lambda figure, maps=maps, score=score: draw_map(figure, maps, score))
    print("no embedded model shows:", ", ".join(sorted(set(ROLES.names()) - done)), flush=True)


def main() -> None:
    """Makes the figures of one kind or of all."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("kinds", nargs="*", default=["importance", "pruners", "roles"])
    parser.add_argument("--out", type=Path, default=Path("docs/figures"))
    parser.add_argument("--work", type=Path, default=Path("build/figures"), help="runs, which go on after a stop")
    options = parser.parse_args()
    torch.set_num_threads(1)
    for kind in options.kinds:
        {"importance": importances, "pruners": pruners, "roles": roles}[kind](options.work, options.out)


if __name__ == "__main__":
    main()
