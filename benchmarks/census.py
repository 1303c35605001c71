"""A census of every model type of the installed transformers: are its heads found, do their gates act, does a cut equal the gate?

    python benchmarks/census.py                 all types, writes docs/census.md (about half an hour on two cores)
    python benchmarks/census.py bert gpt2       some types, prints only

Every type is built from its own default configuration, shrunk by rules (headcount.testing.shrink), with random weights in float64, in a
process of its own. A type that cannot be shrunk is built at full size on the meta device, where heads can be found but nothing runs.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import tempfile
import time
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

SECONDS = 120
DOCUMENT = Path(__file__).parents[1] / "docs" / "census.md"


def build(model_type: str) -> tuple[Any, str]:
    """The tiny model, or the full-size one on the meta device with the reason why."""
    import torch

    from headcount.errors import HeadcountError
    from headcount.testing.shrink import model_class, tiny_model

    try:
        return tiny_model(model_type), ""
    except HeadcountError as error:
        reason = str(error)
    from transformers import CONFIG_MAPPING

    with torch.device("meta"):
        return model_class(model_type)(CONFIG_MAPPING[model_type]()), reason


def has_attention(model: Any) -> bool:
    return any("ttention" in type(module).__name__ or "Attn" in type(module).__name__ for module in model.modules())


def examine(model_type: str) -> dict[str, Any]:
    """One row: found (full, part, no), gated (blocks proven of blocks), cut (blocks proven of blocks), and the reasons."""
    from headcount.errors import HeadcountError
    from headcount.heads import HeadMap

    row: dict[str, Any] = {"type": model_type, "found": "no", "gated": "", "meaning": "", "cut": "", "note": ""}
    try:
        model, reason = build(model_type)
    except Exception as error:  # whatever stops transformers from building a type is the answer
        return row | {"found": "not built", "note": " ".join(f"{type(error).__name__}: {error}".split())[:160]}
    row["class"] = type(model).__name__
    row["attention"] = has_attention(model)
    try:
        heads = HeadMap.of(model)
    except HeadcountError as error:
        return row | {"note": str(error).partition(": ")[2][:200] if row["attention"] else "no attention"}
    row["found"] = "part" if heads.refused else "full"
    row["heads"], row["blocks"] = len(heads), len(heads.blocks)
    row["attention"] = True
    notes = [f"{r.class_name}: {r.reason}" for r in heads.refused]
    if reason:
        notes.append(f"not run: {reason}")
    else:
        prove(model, heads, row, notes)
    row["note"] = "; ".join(dict.fromkeys(notes))[:300]
    return row


def prove(model: Any, heads: Any, row: dict[str, Any], notes: list[str]) -> None:
    from headcount.archs.inputs import probe_inputs
    from headcount.testing.laws import DoesNotApply, Subject, cut_equals_gate, every_gate_acts, gate_zero_is_no_attention

    try:
        subject = Subject(model, heads, probe_inputs(model))
        every_gate_acts(subject)
        row["gated"] = "yes"
    except Exception as error:  # models fail in many ways on random weights; the row says how
        notes.append(" ".join(f"{type(error).__name__}: {error}".split())[:200])
        return
    try:
        gate_zero_is_no_attention(subject)
        row["meaning"] = "yes"
    except Exception as error:  # models fail in many ways on random weights; the row says how
        notes.append(" ".join(f"{error}".split())[:160])
    notes.extend(sorted({f"gate only: {b.gate_only}" for b in heads.blocks if b.gate_only}))
    try:
        cut_equals_gate(subject)
        row["cut"] = "yes"
    except DoesNotApply:
        return  # gate only, as noted
    except Exception as error:  # models fail in many ways on random weights; the row says how
        notes.append(" ".join(f"{error}".split())[:200])


def in_a_process(model_type: str) -> dict[str, Any]:
    """Examines a type in a forked process with a time limit, so that a crash or a hang costs one row only."""
    with tempfile.NamedTemporaryFile("r", suffix=".json") as file:
        child = os.fork()
        if child == 0:
            signal.alarm(SECONDS)
            code = 1
            try:
                sys.stdout = sys.stderr = open(os.devnull, "w")  # noqa: SIM115, PTH123 - the process ends in a moment
                Path(file.name).write_text(json.dumps(examine(model_type)))
                code = 0
            finally:
                os._exit(code)
        _, status = os.waitpid(child, 0)
        text = file.read()
    if not text:
        end = f"stopped after {SECONDS} s" if os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGALRM else "the process died"
        return {"type": model_type, "found": "not built", "gated": "", "cut": "", "note": end}
    return json.loads(text)


def summary(rows: list[dict[str, Any]]) -> list[str]:
    import torch
    import transformers

    attention = [row for row in rows if row.get("attention")]
    found = Counter(row["found"] for row in attention)
    return [
        f"transformers {transformers.__version__}, torch {torch.__version__.partition('+')[0]}. {len(rows)} registered model types; "
        f"{len(attention)} of those that can be built here have attention.",
        "",
        "| | types |",
        "|---|---:|",
        f"| all attention blocks found | {found['full']} |",
        f"| some found, the others refused by name | {found['part']} |",
        f"| refused by name | {found['no']} |",
        f"| every gate proven to change the output, in a real forward pass | {sum(row['gated'] == 'yes' for row in rows)} |",
        f"| … and a gate of zero proven equal to attention probabilities of zero | {sum(row.get('meaning') == 'yes' for row in rows)} |",
        f"| cut proven equal to the gate (uneven counts, empty blocks) | {sum(row['cut'] == 'yes' for row in rows)} |",
        f"| no attention | {sum(row['found'] == 'no' and not row.get('attention') for row in rows)} |",
        f"| not built here (reason in the table) | {sum(row['found'] == 'not built' for row in rows)} |",
    ]


def document(rows: list[dict[str, Any]]) -> str:
    head = [
        "# Census of model types",
        "",
        "Made by `python benchmarks/census.py`; do not edit. Every type is built from its default configuration, shrunk by rules, with",
        "random weights. *found*: every attention module is either taken in (full) or refused by name (part, no). *gated*: the gate of every",
        "head found changes the output. *= no attention*: gating equals zeroing the attention probabilities (the old head_mask). *cut*: cutting",
        "uneven head counts and emptying the first and the last block gives what the gates give, to 1e-9.",
        "",
    ]
    table = ["", "| type | class | found | heads | gated | = no attention | cut | note |", "|---|---|---|---:|---|---|---|---|"]
    for row in sorted(rows, key=lambda row: row["type"].lower()):
        note = row["note"].replace("|", "\\|").replace("<", "&lt;")
        cells = [
            row["type"],
            row.get("class", ""),
            row["found"],
            row.get("heads", ""),
            row["gated"],
            row.get("meaning", ""),
            row["cut"],
            note,
        ]
        table.append(f"| {' | '.join(map(str, cells))} |")
    return "\n".join([*head, *summary(rows), *table, ""])


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("types", nargs="*", help="model types; all registered ones by default")
    parser.add_argument("--out", type=Path, default=DOCUMENT, help="where the document goes when all types are examined")
    wanted = parser.parse_args()
    warnings.filterwarnings("ignore")
    import torch
    import transformers

    from headcount.testing import laws  # noqa: F401 - imported once, before the forks
    from headcount.testing.shrink import model_types

    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    rows, types, start = [], wanted.types or model_types(), time.monotonic()
    for number, model_type in enumerate(types, 1):
        row = in_a_process(model_type)
        rows.append(row)
        spent = time.monotonic() - start
        print(
            f"[{number}/{len(types)} {spent:.0f}s] {model_type}: {row['found']} {row['gated']} {row['cut']} {row['note'][:110]}",
            file=sys.stderr,
        )
        if wanted.types:
            print(json.dumps(row, indent=2))
    print("\n".join(summary(rows)))
    if not wanted.types:
        wanted.out.write_text(document(rows), encoding="utf-8")


if __name__ == "__main__":
    main()
