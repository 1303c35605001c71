"""`headcount load-legacy`: a checkpoint that transformers 4 pruned becomes a folder that loads on transformers 5."""

from __future__ import annotations

from typing import Annotated

import typer

from headcount.app.console.command import command
from headcount.app.console.options import AllowPickle, Auto, OutFolder, Overwrite
from headcount.app.console.session import Session
from headcount.core.folders import check_target

Folder = Annotated[str, typer.Argument(metavar="DIR", help="A checkpoint with pruned_heads: a folder, or a hub id.", show_default=False)]


@command
def run(
    session: Session,
    folder: Folder,
    out: OutFolder,
    overwrite: Overwrite = False,
    auto: Auto = None,
    allow_pickle: AllowPickle = False,
) -> None:
    """Import a checkpoint whose heads transformers 4 pruned, and save it as a folder of headcount."""
    from headcount.surgery.manifest import NAME, removed_of

    check_target(out, overwrite, NAME)
    from headcount.app.console.models import note_model, set_library_verbosity
    from headcount.models.head_map import HeadMap
    from headcount.surgery.legacy import load_legacy
    from headcount.surgery.save import save
    from headcount.surgery.source import local_folder

    set_library_verbosity(session)
    session.doing(f"loading {folder}")
    source = local_folder(folder)
    model = load_legacy(source, auto=auto, allow_pickle=allow_pickle)
    heads = HeadMap.of(model)
    note_model(session, model, heads)
    save(model, out, command=session.command, tokenizer=source, overwrite=overwrite)
    session.note(f"wrote {out}")
    rows = [(b.name, b.n_heads, b.n_original, ", ".join(str(head.index) for head in b.heads) or "none") for b in heads.blocks]
    session.table(("block", "heads", "of", "kept"), rows, right=("heads", "of"))
    session.result({"model": folder, "out": str(out), "class": type(model).__name__, "n_heads": len(heads), "removed": removed_of(heads)})
    session.next("check", out)
