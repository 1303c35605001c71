"""`headcount load-legacy`: imports a checkpoint that transformers 4 pruned, and saves it."""

from __future__ import annotations

from pathlib import Path

from headcount.app.console.models import note_model, set_library_verbosity
from headcount.app.console.session import Session
from headcount.core.folders import check_output_folder
from headcount.models.head_map import HeadMap
from headcount.surgery.legacy import load_legacy
from headcount.surgery.manifest import NAME, removed_addresses
from headcount.surgery.save import save
from headcount.surgery.source import local_folder


def import_legacy_checkpoint(
    session: Session, checkpoint_name: str, out: Path, *, auto: str | None, allow_pickle: bool, overwrite: bool
) -> None:
    """Imports the checkpoint of a folder or hub id, saves it and prints the heads of each block."""
    check_output_folder(out, overwrite, NAME)
    set_library_verbosity(session)
    session.begin_work(f"loading {checkpoint_name}")
    folder = local_folder(checkpoint_name)
    model = load_legacy(folder, auto=auto, allow_pickle=allow_pickle)
    heads = HeadMap.of(model)
    note_model(session, model, heads)
    save(model, out, command=session.command, tokenizer=folder, overwrite=overwrite)
    session.write_note(f"wrote {out}")
    rows = [(b.name, b.n_heads, b.n_original, ", ".join(str(head.index) for head in b.heads) or "none") for b in heads.blocks]
    session.write_table(("block", "heads", "of", "kept"), rows, right_aligned=("heads", "of"))
    session.write_json(
        {
            "model": checkpoint_name,
            "out": str(out),
            "class": type(model).__name__,
            "n_heads": len(heads),
            "removed": removed_addresses(heads),
        }
    )
    session.suggest_next("check", out)
