"""`headcount map`: the table of attention blocks."""

from __future__ import annotations

from dataclasses import asdict
from itertools import takewhile
from typing import Any, NamedTuple

from headcount.app.console.inputs import ModelOptions
from headcount.app.console.models import open_model_or_configuration
from headcount.app.console.session import Session
from headcount.core.heads import AttentionBlock
from headcount.models.head_map import HeadMap
from headcount.runs.report.certificates import describe_power
from headcount.surgery.savings import Savings, largest_savings

COLUMNS = ("block", "kind", "heads", "of", "KV", "dim", "layout", "module", "q k v → o", "also per head", "gate", "cut")
NUMBERS = ("heads", "of", "KV", "dim")
EXAMPLES = (500, 2000)
"""The numbers of examples whose power is told before a task is named."""
MODULES = ("block", "module", "q k v → o")


class ModulePaths(NamedTuple):
    """The path of the module that holds all four projections of a block, and their paths within it as text."""

    module: str
    projections: str


class GateOnlyBlocks(NamedTuple):
    """The names of blocks that can be gated but not cut, with commas, and the reason."""

    block_names: str
    reason: str


def _locate_modules(block: AttentionBlock) -> ModulePaths:
    paths = [projection.path for projection in (block.q, block.k, block.v, block.o)]
    levels = zip(*(path.split(".")[:-1] for path in paths), strict=False)
    common = [level[0] for level in takewhile(lambda level: len(set(level)) == 1, levels)]
    q, k, v, o = (".".join(path.split(".")[len(common) :]) for path in paths)
    return ModulePaths(".".join(common) or "(model)", f"{' '.join(dict.fromkeys((q, k, v)))} → {o}")


def _format_block_row(block: AttentionBlock) -> tuple[object, ...]:
    module, projections = _locate_modules(block)
    counts = (block.n_heads, block.n_original, block.n_kv_heads, block.head_dim)
    gate, cut = ("yes" if possible else "no" for possible in (block.n_heads > 0, block.can_cut and block.n_heads > 0))
    return (
        block.name,
        block.kind,
        *counts,
        block.layout,
        module,
        projections,
        ", ".join(block.dependent_tensors_and_arguments()),
        gate,
        cut,
    )


def _list_gate_only_blocks(heads: HeadMap) -> list[GateOnlyBlocks]:
    """Returns the blocks that can be gated but not cut, by their reason."""
    blocks: dict[str, list[str]] = {}
    for block in heads.blocks:
        if block.gate_only:
            blocks.setdefault(block.gate_only, []).append(block.name)
    return [GateOnlyBlocks(", ".join(names), reason) for reason, names in blocks.items()]


def _show_blocks(session: Session, rows: list[tuple[object, ...]]) -> None:
    """Prints one table, or two where the terminal is too narrow for it: the counts, and the modules."""
    width = sum(max(len(str(cell)) for cell in column) + 3 for column in zip(COLUMNS, *rows, strict=True))
    parts = (COLUMNS,) if width <= session.table_width else (tuple(c for c in COLUMNS if c not in MODULES[1:]), MODULES)
    for columns in parts:
        chosen = [COLUMNS.index(column) for column in columns]
        session.write_table(columns, [[row[i] for i in chosen] for row in rows], right_aligned=NUMBERS)


def _block_to_dict(block: AttentionBlock) -> dict[str, Any]:
    """Returns a block as plain data."""
    names = ("path", "kind", "layer", "n_heads", "n_original", "n_kv_heads", "head_dim", "value_dim", "layout", "can_cut", "gate_only")
    return {
        "block": block.name,
        **{name: getattr(block, name) for name in names},
        "heads": [str(head) for head in block.heads],
        **{projection.role: projection.path for projection in (block.q, block.k, block.v, block.o)},
        "per_head": list(block.dependent_tensors_and_arguments()),
        "can_gate": block.n_heads > 0,
    }


def _describe_savings(savings: Savings) -> str:
    """Returns what removing half of the heads saves at most."""
    parts = [f"{savings.parameters / savings.all_parameters:.1%} of {savings.all_parameters:,} parameters"]
    if savings.all_flops:
        parts.append(f"{savings.flops / savings.all_flops:.1%} of the FLOPs of a pass over {savings.tokens} tokens")
    if savings.all_kv_bytes:
        parts.append(f"{savings.kv_bytes / savings.all_kv_bytes:.1%} of {savings.all_kv_bytes:,} bytes of key-value cache per token")
    return f"removing {savings.n_removed} of {savings.n_heads} heads saves at most {', '.join(parts)}"


def show_map(session: Session, model_name: str, loading: ModelOptions) -> None:
    """Prints every attention block of a model, why some cannot be cut, and which modules were refused."""
    model, heads = open_model_or_configuration(session, model_name, loading)
    _show_blocks(session, [_format_block_row(block) for block in heads.blocks])
    if any(block.gate_only for block in heads.blocks):
        session.write_table(
            ("can be gated, not cut", "reason"), [(blocks.block_names, blocks.reason) for blocks in _list_gate_only_blocks(heads)]
        )
    if heads.refused:
        session.write_table(("refused", "class", "reason"), [(r.path, r.class_name, r.reason) for r in heads.refused])
    savings = largest_savings(model, heads) if any(block.can_cut and block.n_heads for block in heads.blocks) else None
    if savings is not None:
        session.write_line(_describe_savings(savings))
    for n_examples in EXAMPLES:
        session.write_note(describe_power(n_examples, "accuracy"))
    refused = [{"path": r.path, "class": r.class_name, "reason": r.reason} for r in heads.refused]
    names = {"model": model_name, "class": type(model).__name__, "model_type": heads.model_type}
    blocks = [_block_to_dict(block) for block in heads.blocks]
    saved = None if savings is None else asdict(savings)
    session.write_json({**names, "n_heads": len(heads), "blocks": blocks, "refused": refused, "savings": saved})
    if not next(model.parameters()).is_meta:
        session.suggest_next("check", model_name)
