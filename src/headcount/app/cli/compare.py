"""`headcount compare`: every method at every number of heads, in pairs with the dense model; a stopped comparison resumes."""

from __future__ import annotations

import typer

from headcount.app.console.command import command
from headcount.app.console.comparison import DEFAULT_MEASURE, MeasureOptions
from headcount.app.console.inputs import ModelAndTaskOptions, NewHead, RunOptions
from headcount.app.console.pruning import DEFAULT_PRUNING, MarginText, PlanMadeElsewhere, PruningOptions, build_options_class
from headcount.app.console.run_folder import open_run
from headcount.app.console.session import Session
from headcount.core.margin import Margin
from headcount.workflows.analysis_spec import ComparisonSpec


class AmountOptions(build_options_class("AmountOptions", {ComparisonSpec: ("methods", "keep", "seeds")})):
    """Which methods are compared, at which sizes, how often."""


DEFAULT_AMOUNT = AmountOptions()
DEFAULT_FOLDER = RunOptions()


@command
def run(
    session: Session,
    data: ModelAndTaskOptions,
    amount: AmountOptions = DEFAULT_AMOUNT,
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

        sizes = (amount.methods, amount.keep, amount.seeds)
        compare_pruners(session, data, *sizes, pruning, measure, run_folder, margin=parsed, new_head=new_head, plan_file=plan)
