"""A causal language model with KV groups: perplexity against the bytes of its cache, and whether induction heads survive pruning.

    python benchmarks/language.py prune --data DATA --model smollm2-135m --out RUN --keep 50%     # sizes one by one: each goes on from RUN
    python benchmarks/language.py prune --data DATA --model smollm2-135m --out RUN                # all sizes in one table
    python benchmarks/language.py roles --data DATA --model smollm2-135m --out RUN                # induction heads, and which `prune` kept

Whole KV groups go, by methods that train nothing. Weights in a GGUF file are unpacked once, into RUN/model, which needs the package gguf.
Text is WikiText-2 in windows: the validation part chooses and repairs, one half of the test part judges, the other one is shown. Everything
is kept in RUN and goes on after a stop; tables go to docs/real-models.md.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from curves import Curves, arguments
from frozen import some
from peers.sidebyside import put, table
from results import untrained
from transformers import AutoModelForCausalLM, AutoTokenizer

import headcount as hc
from headcount.behaviour.corpus import read_corpus
from headcount.behaviour.spec import RoleSpec, parse_roles
from headcount.core.errors import ArtifactError
from headcount.core.role_table import RoleTable
from headcount.core.stats.significance import benjamini_hochberg
from headcount.data.open_task import open_task
from headcount.data.task import Task
from headcount.models.provenance import machine_of, model_record
from headcount.runs.artifacts import Artifact
from headcount.runs.describe import describe_run
from headcount.runs.store import Run
from headcount.studies._measure.survivors import SurvivorSets, read_survivors
from headcount.workflows.roles import roles_into

DOCUMENT = Path(__file__).parents[1] / "docs" / "real-models.md"
METHODS = ("surgeon", "gradient", "fisher", "random")
ROLES = ("induction", "offset:-1", "same")
REPEATS = 10_000


def opened(options: argparse.Namespace) -> tuple[Any, Any]:
    """The model and its tokenizer; of a GGUF file, an unpacked copy that is made once."""
    packed = sorted(options.model.glob("*.gguf"))
    folder = options.out / "model" if packed else options.model
    if packed and not (folder / "config.json").is_file():
        partial = options.out / "model.partial"
        unpacked(options.model, packed[0].name).save_pretrained(partial)
        AutoTokenizer.from_pretrained(options.model, gguf_file=packed[0].name).save_pretrained(partial)
        partial.rename(folder)
    return hc.load(folder), AutoTokenizer.from_pretrained(folder)


def unpacked(folder: Path, name: str) -> Any:
    """The model of a GGUF file in float32; transformers refuses to save the one that it reads."""
    read: Any = AutoModelForCausalLM.from_pretrained(folder, gguf_file=name, dtype=torch.float32)
    config = type(read.config).from_dict({key: value for key, value in read.config.to_dict().items() if key != "quantization_config"})
    made = type(read)(config)
    made.load_state_dict(read.state_dict())
    return made


def make_task(options: argparse.Namespace, model: Any, tokenizer: Any) -> Task:
    """WikiText-2 in windows, the first of each split."""
    files = [[options.data / "wikitext2" / f"{part}.txt"] for part in ("valid", "test")]
    task = open_task("lm", model, tokenizer, train=files[0], eval=files[1], max_length=options.length)
    return replace(some(task, options), name="wikitext-2")


def sizes(text: str, heads: hc.HeadMap) -> list[int]:
    """How many heads each share of the KV groups keeps, whole groups only."""
    units = heads.units()
    numbers = [int(float(share.strip("% ")) / 100 * len(units)) for share in text.split(",")]
    return [number * len(units[0]) for number in numbers]


def prune(options: argparse.Namespace) -> None:
    """Prints perplexity by size and method, and the order of the methods."""
    model, tokenizer = opened(options)
    task = make_task(options, model, tokenizer)
    wanted = untrained(options.methods.split(","), sizes(options.keep, hc.HeadMap.of(model)), options.seeds)
    made = Curves(options.out / "run", options.model.name, model, task, wanted, "python benchmarks/language.py")
    ordered = [f"{groups(made.heads, keep)} groups, by loss: {made.order(keep)}" for keep in made.keeps]
    parts = f"{len(task.calibration)} choose and repair, {len(task.selection)} judge, {len(task.report)} are shown"
    text = "\n\n".join([f"{made.describe_dense()}. Windows of {options.length} tokens: {parts}.", perplexities(made), *ordered])
    put(options.document, "language-prune", text)
    print(f"\n{text}\n{made.failed or ''}")


def groups(heads: hc.HeadMap, keep: int) -> str:
    units = heads.units()
    return f"{keep // len(units[0])} of {len(units)}"


def perplexities(made: Curves) -> str:
    """One line for each size and method: the measured cache, and the change from the dense model with its paired interval."""
    rows = []
    for keep in made.keeps:
        for method in made.methods:
            if (method, keep) in made.artifacts:
                rows.append([groups(made.heads, keep), method, *_line(made, method, keep)])
    header = ("KV groups", "method", "seeds", "KV bytes per token", "empty layers", "perplexity", "change (95 %)", "of the seeds")
    return table(header, rows, left=2)


def _line(made: Curves, method: str, keep: int) -> list[str]:
    artifacts, change = made.artifacts[method, keep], made.change(method, keep)
    values = [artifact.content["value"] for artifact in artifacts]
    bytes_left = [artifact.content["cost"]["kv_bytes_per_token"] for artifact in artifacts]
    whole = artifacts[0].content["whole_cost"]["kv_bytes_per_token"]
    return [
        str(len(artifacts)),
        f"{span(bytes_left, '{:,.0f}')} ({100 * np.mean(bytes_left) / whole:.0f} %)",
        span([empty(made.heads, artifact) for artifact in artifacts], "{:.0f}"),
        f"**{made.mean(method, keep).value:.2f}**",
        f"{change.difference:+.2f} ({change.low:+.2f} … {change.high:+.2f})",
        span(values, "{:.2f}") if len(values) > 1 else "",
    ]


def span(values: Sequence[float], form: str) -> str:
    """A number, or the smallest and the largest of several."""
    ends = [form.format(end) for end in (min(values), max(values))]
    return ends[0] if ends[0] == ends[1] else " … ".join(ends)


def empty(heads: hc.HeadMap, artifact: Artifact) -> int:
    """How many blocks an artifact left without any head."""
    gone = set(map(hc.Head.parse, artifact.content["removed"]))
    return sum(gone.issuperset(block.heads) for block in heads.blocks)


def roles(options: argparse.Namespace) -> None:
    """Prints the strongest heads of each role, and how many of those that have it are kept at each size."""
    model, tokenizer = opened(options)
    heads, folder = hc.HeadMap.of(model), options.out / "run"
    corpus = read_corpus(model, make_task(options, model, tokenizer), tokenizer)
    command = "python benchmarks/language.py roles"
    with Run.lead(folder, command=command) as run:
        record = model_record(model, options.model.name)
        run.describe(describe_run(record, command=command, seed=0, task="wikitext-2", machine=machine_of(model)), heads)
        found = roles_into(run, model, corpus, RoleSpec(parse_roles(ROLES), swaps=0))
    having = {role: [row for row in found if row.role == role and row.has_role] for role in ROLES}
    counts = ", ".join(f"`{role}` {len(rows)}" for role, rows in having.items())
    text = f"Of {len(heads)} heads have the role: {counts}.\n\n{strongest(found, options.top)}"
    put(options.document, "language-roles", text)
    print(f"\n{text}\n")
    try:
        kept = chosen(read_survivors(Run.open(folder))[0])
    except ArtifactError as error:
        raise SystemExit(f"{error}\nNothing is pruned yet, so that nothing can be said of what survives") from error
    text = survival({role: {row.head for row in rows} for role, rows in having.items() if rows}, heads, kept)
    put(options.document, "language-survival", text)
    print(f"\n{text}\n")


def strongest(found: RoleTable, top: int) -> str:
    """The heads with the largest bias for each role."""
    rows = []
    for role in ROLES:
        ranked = sorted((row for row in found if row.role == role), key=lambda row: -row.bias)
        rows += [
            [
                f"`{role}`",
                row.head,
                f"{row.bias:.2f} ({row.low:.2f} … {row.high:.2f})",
                f"{row.maximum:.1f}",
                f"{row.q:.1g}",
                f"{row.accuracy:.2f}",
                "yes" if row.has_role else "no",
            ]
            for row in ranked[:top]
        ]
    return table(("role", "head", "bias (95 %)", "of at most", "q", "accuracy", "has it"), rows, left=2)


def chosen(kept: SurvivorSets) -> SurvivorSets:
    """The survivors of every method and size; what is chosen does not depend on repair."""
    found: dict[tuple[str, int], Sequence[frozenset[hc.Head]]] = {}
    for (method, keep), sets in kept.items():
        found.setdefault((method.removesuffix(" + repair").removesuffix(" without repair"), keep), sets)
    return found


def survival(having: Mapping[str, set[hc.Head]], heads: hc.HeadMap, kept: SurvivorSets) -> str:
    """By role and method, the share of the heads with the role that each size keeps, against groups drawn at random; q over the table."""
    keeps = sorted({keep for _, keep in kept}, reverse=True)
    methods = list(dict.fromkeys(method for method, _ in kept))
    places = [(role, method, keep) for role in having for method in methods for keep in keeps if (method, keep) in kept]
    tested = {place: drawn(having[place[0]], heads, kept[place[1:]]) for place in places}
    q = dict(zip(places, benjamini_hochberg([p for _, p in tested.values()]), strict=True))
    rows = []
    for role, marked in having.items():
        for method in methods:
            line = [
                f"{100 * tested[role, method, k][0]:.0f} % (q = {q[role, method, k]:.2g})" if (method, k) in kept else "" for k in keeps
            ]
            rows.append([f"`{role}` ({len(marked)})", method, *line])
    header = ["role (heads)", "method", *(f"{groups(heads, keep)} groups: {100 * keep / len(heads):.0f} % of all heads" for keep in keeps)]
    return table(header, rows, left=2)


def drawn(marked: set[hc.Head], heads: hc.HeadMap, sets: Sequence[frozenset[hc.Head]]) -> tuple[float, float]:
    """The share of marked heads that stays, mean over seeds, and its two-sided p-value where as many groups are drawn at random."""
    counts = np.array([len(marked.intersection(unit)) for unit in heads.units()], dtype=float)
    random = np.random.Generator(np.random.Philox(0))
    size = len(heads.units()[0])
    chance = sum(random.permuted(np.tile(counts, (REPEATS, 1)), axis=1)[:, : len(one) // size].sum(1) for one in sets)
    middle = counts.mean() * sum(len(one) for one in sets) / size
    seen = sum(len(marked & one) for one in sets)
    p = (1 + int((np.abs(chance - middle) >= abs(seen - middle) - 1e-9).sum())) / (REPEATS + 1)
    return seen / (len(sets) * len(marked)), p


def main() -> None:
    parser = arguments(__doc__, METHODS, "75%,50%,25%")
    parser.add_argument("what", choices=("prune", "roles"))
    parser.add_argument("--length", type=int, default=128, help="tokens in a window")
    parser.add_argument("--calibration", type=int, default=32, help="windows that choose and repair, or show roles")
    parser.add_argument("--selection", type=int, default=8, help="windows that judge")
    parser.add_argument("--test", type=int, default=64, help="windows that are shown")
    parser.add_argument("--top", type=int, default=5, help="heads shown of each role")
    parser.add_argument("--document", type=Path, default=DOCUMENT)
    options = parser.parse_args()
    torch.set_num_threads(1)
    options.out.mkdir(parents=True, exist_ok=True)
    {"prune": prune, "roles": roles}[options.what](options)


if __name__ == "__main__":
    main()
