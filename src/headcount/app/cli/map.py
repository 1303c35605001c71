"""`headcount map`: every block of heads, where it lives, what can be gated and cut."""

from __future__ import annotations

from itertools import takewhile
from typing import TYPE_CHECKING, Any

from headcount.app.console.command import command
from headcount.app.console.options import AllowPickle, Auto, Model, TrustRemoteCode
from headcount.app.console.session import Session

if TYPE_CHECKING:
    from headcount.core.heads import AttentionBlock
    from headcount.models.head_map import HeadMap

COLUMNS = ("block", "kind", "heads", "of", "KV", "dim", "layout", "module", "q k v → o", "also per head", "gate", "cut")
NUMBERS = ("heads", "of", "KV", "dim")
PLACES = ("block", "module", "q k v → o")


def _places(block: AttentionBlock) -> tuple[str, str]:
    """The module that holds all four projections, and their paths from there."""
    paths = [projection.path for projection in (block.q, block.k, block.v, block.o)]
    levels = zip(*(path.split(".")[:-1] for path in paths), strict=False)
    common = [level[0] for level in takewhile(lambda level: len(set(level)) == 1, levels)]
    q, k, v, o = (".".join(path.split(".")[len(common) :]) for path in paths)
    return ".".join(common) or "(model)", f"{' '.join(dict.fromkeys((q, k, v)))} → {o}"


def _row(block: AttentionBlock) -> tuple[object, ...]:
    module, places = _places(block)
    counts = (block.n_heads, block.n_original, block.n_kv_heads, block.head_dim)
    gate, cut = ("yes" if possible else "no" for possible in (block.n_heads > 0, block.can_cut and block.n_heads > 0))
    return (block.name, block.kind, *counts, block.layout, module, places, ", ".join(block.dependents()), gate, cut)


def _reasons(heads: HeadMap) -> list[tuple[str, str]]:
    """Why blocks with heads cannot be cut, one row per reason."""
    blocks: dict[str, list[str]] = {}
    for block in heads.blocks:
        if block.gate_only:
            blocks.setdefault(block.gate_only, []).append(block.name)
    return [(", ".join(names), reason) for reason, names in blocks.items()]


def _show_blocks(session: Session, rows: list[tuple[object, ...]]) -> None:
    """One table, or two where the terminal is too narrow for it: the counts, and the places."""
    width = sum(max(len(str(cell)) for cell in column) + 3 for column in zip(COLUMNS, *rows, strict=True))
    parts = (COLUMNS,) if width <= session.width else (tuple(c for c in COLUMNS if c not in PLACES[1:]), PLACES)
    for columns in parts:
        chosen = [COLUMNS.index(column) for column in columns]
        session.table(columns, [[row[i] for i in chosen] for row in rows], right=NUMBERS)


def _entry(block: AttentionBlock) -> dict[str, Any]:
    names = ("path", "kind", "layer", "n_heads", "n_original", "n_kv_heads", "head_dim", "value_dim", "layout", "can_cut", "gate_only")
    return {
        "block": block.name,
        **{name: getattr(block, name) for name in names},
        "heads": [str(head) for head in block.heads],
        **{projection.role: projection.path for projection in (block.q, block.k, block.v, block.o)},
        "per_head": list(block.dependents()),
        "can_gate": block.n_heads > 0,
    }


@command
def run(
    session: Session,
    model: Model,
    auto: Auto = None,
    allow_pickle: AllowPickle = False,
    trust_remote_code: TrustRemoteCode = False,
) -> None:
    """Show every attention block: its heads, where it keeps them, what can be gated and cut. A configuration alone is enough."""
    from headcount.app.console.models import open_without_weights

    live, heads = open_without_weights(session, model, auto=auto, allow_pickle=allow_pickle, trust_remote_code=trust_remote_code)
    _show_blocks(session, [_row(block) for block in heads.blocks])
    if any(block.gate_only for block in heads.blocks):
        session.table(("can be gated, not cut", "reason"), _reasons(heads))
    if heads.refused:
        session.table(("refused", "class", "reason"), [(r.path, r.class_name, r.reason) for r in heads.refused])
    refused = [{"path": r.path, "class": r.class_name, "reason": r.reason} for r in heads.refused]
    names = {"model": model, "class": type(live).__name__, "model_type": heads.model_type}
    session.result({**names, "n_heads": len(heads), "blocks": [_entry(block) for block in heads.blocks], "refused": refused})
    if not next(live.parameters()).is_meta:
        session.next("check", model)
