"""`headcount demo`: the whole job on two of the models that come with the package."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from headcount.app.console.command import command
from headcount.app.console.inputs import ModelOptions
from headcount.app.console.options import Device, Dtype, Seed
from headcount.app.console.session import Session

DemoLimit = Annotated[
    int | None, typer.Option("--limit", metavar="N", min=2, help="Read at most that many examples of each split, whatever for.")
]
DemoFolder = Annotated[Path, typer.Option("--out", metavar="DIR", help="The folder for scores and for the models that are saved.")]


@command
def run(
    session: Session,
    out: DemoFolder = Path("runs/demo"),
    limit: DemoLimit = None,
    device: Device = "auto",
    dtype: Dtype = "auto",
    seed: Seed = 0,
) -> None:
    """Find, score, label and prune the heads of two small trained models by several methods, offline, and write a report of each."""
    from headcount.app.jobs.demo import run_demo

    run_demo(session, out, limit, ModelOptions(device, dtype), seed)
