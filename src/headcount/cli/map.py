"""`headcount map`: every block of heads, where it lives, what can be gated and cut."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import typer

from headcount.cli._options import AllowPickle, Auto, Json, Model, Quiet, Verbose
from headcount.cli._session import session

if TYPE_CHECKING:
    from headcount.heads import AttentionBlock

COLUMNS = ("block", "kind", "heads", "of", "KV", "head dim", "layout", "module", "q k v → o", "also per head", "gate", "cut")
NUMBERS = ("heads", "of", "KV", "head dim")


def _places(block: AttentionBlock) -> tuple[str, str]:
    """The module that holds all four projections, and their paths from there."""
    paths = [projection.path for projection in (block.q, block.k, block.v, block.o)]
    common = os.path.commonprefix([path.split(".")[:-1] for path in paths])
    q, k, v, o = (".".join(path.split(".")[len(common) :]) for path in paths)
    return ".".join(common) or "(model)", f"{' '.join(dict.fromkeys((q, k, v)))} → {o}"


def _row(block: AttentionBlock) -> tuple[object, ...]:
    module, places = _places(block)
    counts = (block.n_heads, block.n_original, block.n_kv_heads, block.head_dim)
    cut = "yes" if block.can_cut else f"no: {block.gate_only}"
    return (block.name, block.kind, *counts, block.layout, module, places, ", ".join(block.dependents()), "yes", cut)


def _entry(block: AttentionBlock) -> dict[str, Any]:
    names = ("path", "kind", "layer", "n_heads", "n_original", "n_kv_heads", "head_dim", "value_dim", "layout", "can_cut", "gate_only")
    return {
        "block": block.name,
        **{name: getattr(block, name) for name in names},
        "heads": [str(head) for head in block.heads],
        **{projection.role: projection.path for projection in (block.q, block.k, block.v, block.o)},
        "per_head": list(block.dependents()),
        "can_gate": True,
    }


def run(
    context: typer.Context, model: Model, auto: Auto = None, allow_pickle: AllowPickle = False,
    json: Json = False, quiet: Quiet = False, verbose: Verbose = False,
) -> None:  # fmt: skip
    """Show every attention block: its heads, where it keeps them, what can be gated and cut. A configuration alone is enough."""
    with session(context, json=json, quiet=quiet, verbose=verbose) as say:
        from headcount.cli._models import open_without_weights

        live, heads = open_without_weights(say, model, auto=auto, allow_pickle=allow_pickle)
        say.table(COLUMNS, [_row(block) for block in heads.blocks], right=NUMBERS)
        if heads.refused:
            say.line("Refused:")
            say.table(("module", "class", "reason"), [(r.path, r.class_name, r.reason) for r in heads.refused])
        refused = [{"path": r.path, "class": r.class_name, "reason": r.reason} for r in heads.refused]
        names = {"model": model, "class": type(live).__name__, "model_type": heads.model_type}
        say.result({**names, "n_heads": len(heads), "blocks": [_entry(block) for block in heads.blocks], "refused": refused})
        say.next("check", model)
