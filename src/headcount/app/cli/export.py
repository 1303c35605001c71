"""`headcount export`: a model for tools that know nothing of headcount."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from headcount.app.console.command import command
from headcount.app.console.inputs import ModelOptions, TaskName
from headcount.app.console.options import AllowPickle, AutoClass, Dtype, Model, Overwrite, TrustRemoteCode
from headcount.app.console.session import Session
from headcount.core.errors import unknown_name_error
from headcount.core.registry import EXPORTS


def _check_target_name(target_text: str) -> str:
    """Raises UnknownName for a name that no target has; the options in parentheses are parsed by the target itself."""
    name = target_text.partition("(")[0].partition(":")[0].strip()
    if name not in EXPORTS.names():
        raise unknown_name_error(EXPORTS.singular, name, EXPORTS.names())
    return target_text


TargetText = Annotated[
    str,
    typer.Option("--to", metavar="TARGET", callback=_check_target_name, help="A target of `headcount ls exports`: onnx, or portable."),
]
OutPath = Annotated[Path, typer.Option("--out", metavar="PATH", help="The file (onnx) or folder (portable) to write.")]


@command
def run(
    session: Session,
    model: Model,
    to: TargetText,
    out: OutPath,
    task: TaskName = None,
    overwrite: Overwrite = False,
    dtype: Dtype = "auto",
    auto: AutoClass = None,
    allow_pickle: AllowPickle = False,
    trust_remote_code: TrustRemoteCode = False,
) -> None:
    """Write a model as an ONNX file, or as a portable folder that keeps its shapes and zeroes the removed heads."""
    from headcount.app.jobs.export import export_model

    loading = ModelOptions("cpu", dtype, auto, allow_pickle, trust_remote_code)
    export_model(session, model, to, out, loading, task_name=task, overwrite=overwrite)
