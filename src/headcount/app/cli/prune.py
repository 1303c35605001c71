"""`headcount prune`: the best model with K heads, by any method."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from headcount.app.console.command import command
from headcount.app.console.inputs import ModelAndTaskOptions, NewHead, RunOptions, parse_named_values
from headcount.app.console.pruning import (
    DEFAULT_PRUNING,
    DEFAULT_SIZE,
    MarginText,
    MethodOptions,
    PlanMadeElsewhere,
    PruningOptions,
    SizeOptions,
    add_method_options,
)
from headcount.app.console.run_folder import open_run
from headcount.app.console.session import ExitCode, Session
from headcount.core.margin import Margin
from headcount.pruning.spec import DEFAULT_METHOD

PrunerText = Annotated[
    str | None,
    typer.Option(
        "--method",
        metavar="NAME",
        help="A pruner of `headcount ls pruners` (with its name: its definition), or an importance to rank by; by default surgeon.",
    ),
]
PruningFolder = Annotated[
    Path, typer.Option("--out", metavar="RUN", help="The run folder: plan, model, numbers; the same command goes on from it.")
]
MethodSeed = Annotated[
    int | None, typer.Option("--method-seed", metavar="N", min=0, help="The seed of the method, where it is not that of the data (--seed).")
]
MeasureSpeedup = Annotated[bool, typer.Option("--bench/--no-bench", help="Measure how much faster the cut model is.")]


@command
def run(
    session: Session,
    data: ModelAndTaskOptions,
    out: PruningFolder,
    size: SizeOptions = DEFAULT_SIZE,
    margin: MarginText = None,
    method: PrunerText = None,
    option: MethodOptions = None,
    pruning: PruningOptions = DEFAULT_PRUNING,
    method_seed: MethodSeed = None,
    bench: MeasureSpeedup = True,
    plan: PlanMadeElsewhere = None,
    new_head: NewHead = False,
) -> ExitCode:
    """Prune to K heads, repair, cut, verify, evaluate against the dense model in pairs, and save the smaller model.

    With --margin and without --keep: the smallest certified model. 90 %, 80 %, … 10 % of the heads are tested in this order, up to the first that
    fails; exit code 1 where that is the first.
    """
    parsed = None if margin is None else Margin.parse(margin)
    if plan is not None and (method is not None or option or size.has_size):
        raise typer.BadParameter("--plan says which heads go; leave --method, --option and the size out")
    method_options = parse_named_values(option, "--option")
    method_text = add_method_options(method or DEFAULT_METHOD, method_options) if plan is None else None
    seed = data.seed if method_seed is None else method_seed
    with open_run(session, RunOptions(out)) as run_folder:
        from headcount.app.jobs.prune import prune_model

        options = {"seed": seed, "margin": parsed, "measures_speed": bench, "new_head": new_head, "plan_file": plan}
        return prune_model(session, data, method_text, size, pruning, run_folder, **options)
