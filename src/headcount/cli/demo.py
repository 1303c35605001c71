"""`headcount demo`: the whole way on two of the models that come with the package."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from headcount.cli._options import Device, Dtype, Json, Quiet, Seed, Verbose
from headcount.cli._session import session

Limit = Annotated[int | None, typer.Option("--limit", min=2, help="Read at most that many examples for scores and evaluation.")]
Out = Annotated[Path, typer.Option("--out", metavar="DIR", help="The folder for scores and for the models that are saved.")]
TASKS = {"entailment": "demo/entailment", "decoder": "demo/stories"}
"""The embedded models that are shown, with the task of each."""


def run(
    context: typer.Context,
    out: Out = Path("runs/demo"),
    limit: Limit = None,
    device: Device = "auto",
    dtype: Dtype = "auto",
    seed: Seed = 0,
    json: Json = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """Find, score, cut, verify, save and load the heads of two small trained models, offline, and show what was measured."""
    with session(context, json=json, quiet=quiet, verbose=verbose) as say:
        from headcount.analyze import Job, walk
        from headcount.cli._data import reader_of
        from headcount.cli._models import open_model
        from headcount.cli._run import Place
        from headcount.tasks import open_task

        steps = []
        for name, task in TASKS.items():
            model, _, folder = open_model(say, f"demo/{name}", device=device, dtype=dtype)
            data = open_task(task, model, reader_of(model, folder), seed=seed)
            sizes = {} if limit is None else {"scored": limit, "reported": limit}
            with Place(out / name).taken(say) as run:
                assert run is not None
                for step in walk(Job(f"demo/{name}", model, data, seed, say.command, **sizes), run):
                    steps.append({"model": step.model, "step": step.name, "text": step.text, **step.numbers})
                    say.line(f"{name:<10} {step.name:<9} {step.text}")
                    say.doing(f"{name}, after step {step.name}")
        say.result({"out": str(out), "steps": steps})
        say.next("score", "demo/entailment", "--task", TASKS["entailment"], "--by", "gradient,ablation,lrp")
