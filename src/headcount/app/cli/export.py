"""`headcount export`: a model for tools that know nothing of headcount."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from headcount.app.console.command import command
from headcount.app.console.inputs import TaskName, reader_of
from headcount.app.console.options import AllowPickle, Auto, Dtype, Model, Overwrite, TrustRemoteCode
from headcount.app.console.session import Session
from headcount.core.errors import unknown
from headcount.core.registry import EXPORTS
from headcount.data.open_task import open_task


def _check_target(text: str) -> str:
    """Refuses the name of no target without importing torch; its options are read by the target itself."""
    name = text.partition("(")[0].partition(":")[0].strip()
    if name not in EXPORTS.names():
        raise unknown(EXPORTS.singular, name, EXPORTS.names())
    return text


To = Annotated[
    str,
    typer.Option("--to", metavar="TARGET", callback=_check_target, help="A target of `headcount ls exports`: onnx, or portable."),
]
Out = Annotated[Path, typer.Option("--out", metavar="PATH", help="The file (onnx) or folder (portable) to write.")]


@command
def run(
    session: Session,
    model: Model,
    to: To,
    out: Out,
    task: TaskName = None,
    overwrite: Overwrite = False,
    dtype: Dtype = "auto",
    auto: Auto = None,
    allow_pickle: AllowPickle = False,
    trust_remote_code: TrustRemoteCode = False,
) -> None:
    """Write a model as an ONNX file, or as a portable folder that keeps its shapes and zeroes the removed heads."""
    from headcount.surgery.export_base import ExportTarget

    target = ExportTarget.parse(to)
    if task is not None and not target.info.compares_text:
        raise typer.BadParameter(f"--task has no meaning for {target.name}, which is compared on one batch; leave it out")
    target.check_path(out, overwrite=overwrite)
    from headcount.app.console.models import open_model

    live, _, folder = open_model(
        session, model, device="cpu", dtype=dtype, auto=auto, allow_pickle=allow_pickle, trust_remote_code=trust_remote_code
    )
    session.doing(f"exporting to {to}")
    tokenizer = reader_of(live, folder, trust_remote_code) if target.info.compares_text else folder
    data = None if task is None else open_task(task, live, tokenizer)
    facts = target.write(live, out, tokenizer=tokenizer, data=data, command=session.command, overwrite=overwrite).to_dict()
    if facts.get("unproven"):
        unproven = ", ".join(facts["unproven"])
        session.note(f"nothing is known of other values of {unproven}: the comparison had one only; name a --task that has others")
    for name, value in facts.items():
        if value not in ("", [], ()):
            session.line(f"{name}: {', '.join(value) if isinstance(value, list | tuple) else value}")
    session.result({"model": model, "to": to, **facts})
