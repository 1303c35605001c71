"""Induction heads of a causal language model: which heads have the role, beside the previous and the duplicate token.

    python benchmarks/language.py --data DATA --model smollm2-135m --out RUN

Weights in a GGUF file are unpacked once, into RUN/model, which needs the package gguf. Text is WikiText-2 in windows. Everything is kept in RUN
and goes on after a stop; the table goes to docs/real-models.md, the strongest heads also to language.json, which `treebanks.py` compares with those
of release 0.1.0.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import torch
from peers.sidebyside import put, table
from transformers import AutoModelForCausalLM, AutoTokenizer

import headcount as hc
from headcount.behaviour.corpus import read_corpus
from headcount.behaviour.spec import RoleSpec, parse_roles
from headcount.core.files import write_json
from headcount.core.role_table import COMPARED_DEFINITIONS, RoleScore, RoleTable
from headcount.data.open_task import open_task
from headcount.models.provenance import machine_entries, model_record
from headcount.runs.describe import describe_run
from headcount.runs.store import Run
from headcount.workflows.roles import roles_into

DOCUMENT = Path(__file__).parents[1] / "docs" / "real-models.md"
RESULTS = Path(__file__).with_suffix(".json")
ROLES = ("induction", "offset:-1", "same")
HEADS_OF_RELEASE_0_1 = {
    "induction": ("L18H6", "L17H4", "L17H5", "L17H3", "L18H7"),
    "offset:-1": ("L16H0", "L11H1", "L1H2", "L2H1", "L19H3"),
    "same": ("L5H6", "L8H0", "L14H3", "L2H4", "L7H7"),
}
"""The strongest heads of SmolLM2-135M-Instruct by release 0.1.0, with random sequences that all repeat after 24 tokens."""


def unpack_model(source: Path, folder: Path) -> Path:
    """Returns the folder of a model in plain weights: `source`, or `folder`, where the GGUF file in it is unpacked once, to float32."""
    packed = next(source.glob("*.gguf"), None)
    if packed is None:
        return source
    if not (folder / "config.json").is_file():
        partial = folder.with_name(f"{folder.name}.partial")
        _unpack_weights(source, packed.name).save_pretrained(partial)
        AutoTokenizer.from_pretrained(source, gguf_file=packed.name).save_pretrained(partial)
        partial.rename(folder)
    return folder


def _unpack_weights(folder: Path, name: str) -> Any:
    """Returns the model of a GGUF file; transformers refuses to save the one that it reads."""
    read: Any = AutoModelForCausalLM.from_pretrained(folder, gguf_file=name, dtype=torch.float32)
    config = type(read.config).from_dict({key: value for key, value in read.config.to_dict().items() if key != "quantization_config"})
    made = type(read)(config)
    made.load_state_dict(read.state_dict())
    return made


def rank_heads(roles: RoleTable, role: str, top: int) -> list[RoleScore]:
    """Returns the rows of the heads with the largest bias for a role."""
    return sorted((row for row in roles if row.role == role), key=lambda row: -row.bias)[:top]


def write_strongest(roles: RoleTable, top: int) -> str:
    """Returns the table of the heads with the largest bias for each role."""
    rows = [
        [
            f"`{role}`",
            row.head,
            f"{row.bias:.2f} ({row.low:.2f} … {row.high:.2f})",
            f"{row.maximum:.1f}",
            "–" if row.excess is None else f"{row.excess:.2f} ({row.excess_low:.2f} … {row.excess_high:.2f})",
            f"{row.q:.1g}",
            f"{row.accuracy:.2f}",
            "yes" if row.has_role else "no",
        ]
        for role in ROLES
        for row in rank_heads(roles, role, top)
    ]
    return table(("role", "head", "bias (95 %)", "of at most", "excess mass (95 %)", "q", "accuracy", "has it"), rows, left=2)


def summarise(roles: RoleTable, top: int) -> dict[str, Any]:
    """Returns the strongest heads of each role, and how many heads have it by each definition, as plain data."""
    by_definition = {name: roles.relabel(name) for name in COMPARED_DEFINITIONS}
    return {
        "strongest": {role: [{"head": str(row.head), "bias": row.bias} for row in rank_heads(roles, role, top)] for role in ROLES},
        "labels": {
            role: {name: sum(row.has_role for row in table if row.role == role) for name, table in by_definition.items()} for role in ROLES
        },
        "heads_of_release_0_1": HEADS_OF_RELEASE_0_1,
    }


def main() -> None:
    """Writes how many heads have each role, and the strongest."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="the folder of the data sets")
    parser.add_argument("--model", type=Path, required=True, help="the folder of the model")
    parser.add_argument("--out", type=Path, required=True, help="where everything is kept; a run that was stopped goes on from there")
    parser.add_argument("--length", type=int, default=128, help="tokens in a window")
    parser.add_argument("--limit", type=int, default=32, help="windows of each split")
    parser.add_argument("--top", type=int, default=5, help="heads shown of each role")
    parser.add_argument("--document", type=Path, default=DOCUMENT)
    options = parser.parse_args()
    torch.set_num_threads(1)
    options.out.mkdir(parents=True, exist_ok=True)
    folder = unpack_model(options.model, options.out / "model")
    model, tokenizer = hc.load(folder), AutoTokenizer.from_pretrained(folder)
    files = [[options.data / "wikitext2" / f"{part}.txt"] for part in ("valid", "test")]
    task = open_task("lm", model, tokenizer, train=files[0], eval=files[1], max_length=options.length, limit=options.limit)
    heads, command = hc.HeadMap.of(model), "python benchmarks/language.py"
    with Run.lead(options.out / "roles", command=command) as run:
        record = model_record(model, options.model.name)
        run.stage_records(describe_run(record, command=command, seed=0, task="wikitext-2", machine=machine_entries(model)), heads)
        roles = roles_into(run, model, read_corpus(model, task, tokenizer), RoleSpec(parse_roles(ROLES), swaps=0))
    counts = ", ".join(f"`{role}` {sum(row.role == role and row.has_role for row in roles)}" for role in ROLES)
    text = f"Of {len(heads)} heads have the role: {counts}.\n\n{write_strongest(roles, options.top)}"
    put(options.document, "language-roles", text)
    write_json(RESULTS, summarise(roles, options.top))
    print(f"\n{text}\n")


if __name__ == "__main__":
    main()
