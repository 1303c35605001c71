"""`headcount check`: verifies every file of a run or of a saved model, and proves the laws on a model."""

from __future__ import annotations

from typing import Annotated

import typer

from headcount.app.console.command import command
from headcount.app.console.inputs import DEFAULT_LOADING, ModelOptions
from headcount.app.console.options import HeadsToProve
from headcount.app.console.session import ExitCode, Session

RunOrModel = Annotated[
    str, typer.Argument(metavar="RUN|MODEL", help="A run folder, a model folder, a hub id, or demo/NAME.", show_default=False)
]


@command
def run(
    session: Session,
    target: RunOrModel,
    heads: HeadsToProve = None,
    loading: ModelOptions = DEFAULT_LOADING,
) -> ExitCode:
    """Verify every file of a run or a saved model, and prove the laws on a model.

    Damaged, missing and foreign files are named, with exit code 1. If all files of a model are intact, the laws are proved: gates change the
    output and leave no trace, a cut equals the gates, and a reloaded model equals the saved one.
    """
    from headcount.app.jobs.check import check_run_or_model

    return check_run_or_model(session, target, heads, loading)
