"""`headcount evaluate`: loss and metric of a model on a task, with and without the heads of a plan."""

from __future__ import annotations

from headcount.app.console.command import command
from headcount.app.console.inputs import ModelAndTaskOptions, RunOptions, SplitText
from headcount.app.console.options import HeadsText
from headcount.app.console.pruning import PlanMadeElsewhere
from headcount.app.console.run_folder import open_run
from headcount.app.console.session import Session

DEFAULT_FOLDER = RunOptions()


@command
def run(
    session: Session,
    data: ModelAndTaskOptions,
    plan: PlanMadeElsewhere = None,
    heads: HeadsText = None,
    split_name: SplitText = "report",
    run_options: RunOptions = DEFAULT_FOLDER,
) -> None:
    """Evaluate a model on a task; with --plan or --heads also without these heads, and the difference on the same examples."""
    with open_run(session, run_options) as run_folder:
        from headcount.app.jobs.evaluate import evaluate_model

        evaluate_model(session, data, plan, heads, split_name, run_folder)
