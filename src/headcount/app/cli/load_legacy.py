"""`headcount load-legacy`: a checkpoint that transformers 4 pruned becomes a folder that loads on transformers 5."""

from __future__ import annotations

from typing import Annotated

import typer

from headcount.app.console.command import command
from headcount.app.console.options import AllowPickle, AutoClass, OutFolder, Overwrite
from headcount.app.console.session import Session

Folder = Annotated[str, typer.Argument(metavar="DIR", help="A checkpoint with pruned_heads: a folder, or a hub id.", show_default=False)]


@command
def run(
    session: Session,
    folder: Folder,
    out: OutFolder,
    overwrite: Overwrite = False,
    auto: AutoClass = None,
    allow_pickle: AllowPickle = False,
) -> None:
    """Import a checkpoint whose heads transformers 4 pruned, and save it as a folder of headcount."""
    from headcount.app.jobs.load_legacy import import_legacy_checkpoint

    import_legacy_checkpoint(session, folder, out, auto=auto, allow_pickle=allow_pickle, overwrite=overwrite)
