"""The model card of a cut model. Names found in data are quoted as text, never as markup."""

from __future__ import annotations

import html
import json
from collections.abc import Sequence

from headcount.surgery.manifest import Manifest

LABELS = {
    "heads": "attention heads",
    "parameters": "parameters",
    "bytes": "bytes of parameters",
    "flops": "FLOPs of a pass",
    "kv_bytes_per_token": "bytes of key-value cache per token",
}


def inline_code(value: str) -> str:
    """A string as inline code that no Markdown or HTML reader takes for markup, nor a terminal for a command."""
    printable = "".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in " ".join(value.split()))
    return f"`{html.escape(printable.replace('`', chr(39)), quote=False) or ' '}`"


def inline_code_in_table(value: str) -> str:
    """The same for a cell of a table, which a bar would end."""
    return inline_code(value).replace("|", "\\|")


def _format_cost_table(cost: dict[str, dict[str, float]]) -> list[str]:
    rows = ["| | before | after |", "|---|---:|---:|"]
    labels = {**LABELS, "flops": f"FLOPs of a pass over {cost['before']['tokens']:.0f} tokens"} if "tokens" in cost["before"] else LABELS
    rows += [
        f"| {label} | {cost['before'][name]:,.0f} | {cost['after'][name]:,.0f} |" for name, label in labels.items() if name in cost["after"]
    ]
    return [*rows, ""]


def format_card(manifest: Manifest, loads_without_headcount: bool, unrestored_names: Sequence[str] = ()) -> str:
    """The text of README.md for a saved model; `unrestored_names` are the tensors that loading without headcount may not restore."""
    front = {"library_name": "transformers", "tags": ["headcount", "pruned", "attention-heads"]}
    lines = [
        "---",
        *(f"{key}: {json.dumps(value)}" for key, value in front.items()),
        "---",
        "",
        "# A transformer with fewer attention heads",
        "",
    ]
    total = sum(block.of for block in manifest.blocks)
    n_left = sum(len(block.heads) for block in manifest.blocks)
    lines += [
        f"{inline_code(manifest.model_class)} with {n_left} of its {total} attention heads, cut and verified by headcount {manifest.headcount}.",
        "",
    ]
    lines += [*(f"- {inline_code(sentence)}" for sentence in manifest.notes), ""] if manifest.notes else []
    if manifest.cost:
        lines += _format_cost_table(manifest.cost)
    lines += ["| block | heads kept | of |", "|---|---|---:|"]
    lines += [f"| {inline_code_in_table(b.block)} | {', '.join(map(str, b.heads)) or 'none'} | {b.of} |" for b in manifest.blocks]
    lines += ["", "## How to load it", "", "```python", "import headcount as hc", 'model = hc.load("path/to/this/folder")', "```", ""]
    if loads_without_headcount:
        lines += ["The head counts are uniform, so plain `from_pretrained` of transformers loads it too.", ""]
        if unrestored_names:
            others = f" and {len(unrestored_names) - 1} more" if len(unrestored_names) > 1 else ""
            lines += [
                f"It does not read `heads.state` ({inline_code(unrestored_names[0])}{others}) and may compute these tensors anew or set them to "
                "zero; after `headcount.register()` it reads them.",
                "",
            ]
    else:
        lines += [
            "Plain `from_pretrained` of transformers refuses these head counts; after `headcount.register()` it accepts them. "
            "`headcount.export(model, folder)` makes a copy of full size that every tool can load.",
            "",
        ]
    if manifest.command:
        lines += ["## The command that made it", "", inline_code(manifest.command), ""]
    return "\n".join(lines)
