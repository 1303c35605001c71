"""`headcount prune`: the best model with K heads, by any method."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from headcount.app.console.command import command
from headcount.app.console.inputs import RunOptions, TaskOptions, parse_pairs
from headcount.app.console.pruning import DEFAULT_PRUNING, DEFAULT_SIZE, MethodOptions, PruningOptions, SizeOptions, add_options
from headcount.app.console.run_folder import open_run
from headcount.app.console.session import Session

Method = Annotated[
    str,
    typer.Option(
        "--method", metavar="NAME", help="A pruner of `headcount ls pruners` (with its name: its definition), or an importance to rank by."
    ),
]
Out = Annotated[Path, typer.Option("--out", metavar="RUN", help="The run folder: plan, model, numbers; the same command goes on from it.")]
MethodSeed = Annotated[
    int | None, typer.Option("--method-seed", metavar="N", min=0, help="The seed of the method, where it is not that of the data (--seed).")
]
Bench = Annotated[bool, typer.Option("--bench/--no-bench", help="Measure how much faster the cut model is.")]


@command
def run(
    session: Session,
    data: TaskOptions,
    out: Out,
    size: SizeOptions = DEFAULT_SIZE,
    method: Method = "surgeon",
    option: MethodOptions = None,
    pruning: PruningOptions = DEFAULT_PRUNING,
    method_seed: MethodSeed = None,
    bench: Bench = True,
) -> None:
    """Prune to K heads, repair, cut, verify, evaluate against the dense model in pairs, and save the smaller model."""
    method_text = add_options(method, parse_pairs(option, "--option"))
    seed = data.seed if method_seed is None else method_seed
    with open_run(session, RunOptions(out)) as run_folder:
        from headcount.app.jobs.prune import prune_model

        prune_model(session, data, method_text, size, pruning, run_folder, seed=seed, measures_speed=bench)
