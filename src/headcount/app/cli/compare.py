"""`headcount compare`: every method at every number of heads, in pairs with the dense model; a stopped comparison resumes."""

from __future__ import annotations

from typing import Annotated

import typer

from headcount.app.console.command import command
from headcount.app.console.comparison import DEFAULT_MEASURE, MeasureOptions
from headcount.app.console.inputs import ModelAndTaskOptions, NewHead, RunOptions
from headcount.app.console.pruning import DEFAULT_PRUNING, MarginText, PlanMadeElsewhere, PruningOptions
from headcount.app.console.run_folder import open_run
from headcount.app.console.session import Session
from headcount.core.margin import Margin

PrunerNames = Annotated[
    str,
    typer.Option(
        "--methods",
        metavar="NAME,…",
        help="Pruners or importances, with options in brackets: dsp(tau=2), or a grid of them: dsp(tau=1|10). Random is always there. "
        "By default surgeon, gradient and random.",
        show_default=False,
    ),
]
KeptSizes = Annotated[str, typer.Option("--keep", metavar="K,…", help="How many heads stay: numbers, or shares such as 10%,25%,50%,75%.")]
NumberOfSeeds = Annotated[int, typer.Option("--seeds", metavar="N", min=1, help="Seeds of methods with chance in them.")]


DEFAULT_FOLDER = RunOptions()


@command
def run(
    session: Session,
    data: ModelAndTaskOptions,
    methods: PrunerNames = "surgeon,gradient,random",
    keep: KeptSizes = "12.5%,25%,50%,75%",
    seeds: NumberOfSeeds = 3,
    margin: MarginText = None,
    run_options: RunOptions = DEFAULT_FOLDER,
    pruning: PruningOptions = DEFAULT_PRUNING,
    measure: MeasureOptions = DEFAULT_MEASURE,
    new_head: NewHead = False,
    plan: PlanMadeElsewhere = None,
) -> None:
    """Prune by every method to every number of heads, and compare the models with the dense one, with random heads and with each other."""
    if run_options.out is None:
        raise typer.BadParameter("compare keeps its grid in a run folder; name it with --out")
    measure.check()
    parsed = None if margin is None else Margin.parse(margin)
    with open_run(session, run_options) as run_folder:
        from headcount.app.jobs.compare import compare_pruners

        compare_pruners(session, data, methods, keep, seeds, pruning, measure, run_folder, margin=parsed, new_head=new_head, plan_file=plan)
