"""`headcount certify`: how much worse a smaller model is than the dense one, at most, and whether that is within a margin."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from headcount.app.console.command import command
from headcount.app.console.inputs import ModelAndTaskOptions
from headcount.app.console.pruning import MarginText
from headcount.app.console.session import ExitCode, Session
from headcount.core.margin import Margin

DenseModel = Annotated[
    str | None,
    typer.Option("--against", metavar="DENSE", help="The dense model: a folder or a hub id; a run and a certificate name theirs."),
]
LossMargin = Annotated[
    str | None, typer.Option("--loss-margin", metavar="M", help="How much larger the loss may be, such as 2%; else it is only shown.")
]
OtherTasks = Annotated[
    list[str] | None, typer.Option("--other-task", metavar="TASK", help="A further task, which must hold too; repeatable.")
]
CertificateToCheck = Annotated[
    Path | None, typer.Option("--check", metavar="FILE", help="Make the certificate in FILE again, and say whether it still holds.")
]
CertificateFile = Annotated[
    Path | None, typer.Option("--out", metavar="FILE", help="Where to write it; by default certificate.json in the folder of the model.")
]


@command
def run(
    session: Session,
    data: ModelAndTaskOptions,
    against: DenseModel = None,
    margin: MarginText = None,
    loss_margin: LossMargin = None,
    other_task: OtherTasks = None,
    check: CertificateToCheck = None,
    out: CertificateFile = None,
) -> ExitCode:
    """Certify how much worse a smaller model is than the dense one, at most.

    MODEL is the smaller model, or a run that keeps one. Both models are evaluated on the same examples of the report split. The bound comes first;
    with --margin the verdict: certified, worse, or undecided with the number of examples that would decide. Exit code 1 where a certificate that
    is checked no longer holds.
    """
    margins = [None if text is None else Margin.parse(text) for text in (margin, loss_margin)]
    if check is not None and (margin is not None or loss_margin is not None or other_task):
        raise typer.BadParameter("--check makes a certificate again as it was; leave out --margin, --loss-margin and --other-task")
    if check is None and margin is None:
        raise typer.BadParameter(
            "certify needs --margin, such as 1% of the dense model's metric or 0.5pt (half a point); there is no default"
        )
    from headcount.app.jobs.certify import Margins, certify_model

    return certify_model(session, data, against, Margins(*margins), other_task or (), check, out)
