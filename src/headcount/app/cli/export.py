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
from headcount.core.files import check_target
from headcount.data.open_task import open_task

FORMATS = ("onnx", "portable")


def _format(name: str) -> str:
    if name not in FORMATS:
        raise unknown("export format", name, FORMATS)
    return name


To = Annotated[
    str, typer.Option("--to", metavar="onnx|portable", callback=_format, help="An ONNX file, or a folder of full size with zeroed heads.")
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
    from headcount.surgery.manifest import NAME

    if to == "portable":
        check_target(out, overwrite, NAME)
    from headcount.app.console.models import open_model
    from headcount.surgery.export.targets import check_onnx_target, export_onnx, export_portable

    if to == "onnx":
        check_onnx_target(out, overwrite)

    live, _, folder = open_model(
        session, model, device="cpu", dtype=dtype, auto=auto, allow_pickle=allow_pickle, trust_remote_code=trust_remote_code
    )
    session.doing(f"exporting to {to}")
    if to == "onnx":
        tokenizer = reader_of(live, folder, trust_remote_code)
        data = None if task is None else open_task(task, live, tokenizer)
        made = export_onnx(live, out, tokenizer=tokenizer, data=data, overwrite=overwrite)
        if made["unproven"]:
            session.note(
                f"nothing is known of other values of {', '.join(made['unproven'])}: the comparison had one only; name a --task that has others"
            )
    else:
        made = {"path": str(export_portable(live, out, command=session.command, companions=folder, overwrite=overwrite))}
    for name, value in made.items():
        if value not in ("", []):
            session.line(f"{name}: {', '.join(value) if isinstance(value, list) else value}")
    session.result({"model": model, "to": to, **made})
