"""`headcount demo`: the whole way on small models that come with the package."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from headcount.cli._options import Device, Dtype, Json, Quiet, Seed, Verbose
from headcount.cli._session import session

Out = Annotated[Path, typer.Option("--out", metavar="DIR", help="The folder for the models that are saved.")]


def run(
    context: typer.Context,
    out: Out = Path("runs/demo"),
    device: Device = "auto",
    dtype: Dtype = "float32",
    seed: Seed = 0,
    json: Json = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """Find, gate, cut, verify, save and load the heads of two small models, offline, and show what was measured."""
    with session(context, json=json, quiet=quiet, verbose=verbose) as say:
        from headcount.cli._models import choose_device, hush
        from headcount.demo.foundation import walk_all

        hush(say)
        place = choose_device(device)
        dtype = "float32" if dtype == "auto" else dtype
        say.note(f"{place}, {dtype}, seed {seed}, models built in this process")
        steps = []
        for step in walk_all(out, seed=seed, device=place, dtype=dtype, command=say.command):
            steps.append({"model": step.model, "step": step.name, "text": step.text, **step.numbers})
            say.line(f"{step.model:<6} {step.name:<9} {step.text}")
        say.result({"out": str(out), "steps": steps})
        say.next("map", out / steps[-1]["model"])
