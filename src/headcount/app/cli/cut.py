"""`headcount cut`: removes heads for good and saves the smaller model."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, NamedTuple

import typer

from headcount.app.console.command import command
from headcount.app.console.inputs import DEFAULT_LOADING, ModelOptions
from headcount.app.console.options import HeadsText, Model, OutFolder, Overwrite
from headcount.app.console.session import Session


def _check_keep_format(keep_text: str | None) -> str | None:
    if keep_text is not None and not re.fullmatch(r"[0-9]{1,9}|0?\.[0-9]{1,6}|[0-9]{1,3}(\.[0-9]{1,6})?%", keep_text):
        raise typer.BadParameter(f"--keep takes a number of query heads such as 24, or a share such as 50% or 0.5; got {keep_text!r:.40}")
    return keep_text


PlanToCut = Annotated[Path | None, typer.Option("--plan", metavar="FILE", help="A plan file, instead of --heads.")]
ScoresFile = Annotated[
    Path | None,
    typer.Option("--scores", metavar="FILE|RUN", help="Keep the best of these scores: a csv, tsv, json or parquet table, or a run folder."),
]
ScoreMethod = Annotated[str | None, typer.Option("--method", metavar="NAME", help="The method, where --scores holds several.")]
KeptSize = Annotated[
    str | None,
    typer.Option("--keep", metavar="K|P%", callback=_check_keep_format, help="How many query heads stay, by --scores: 24, or 50%."),
]
LowerIsKeep = Annotated[bool, typer.Option("--lower-is-keep", help="In the table of --scores, heads with lower scores stay.")]


class CutRequest(NamedTuple):
    """The heads to remove: named, those of a plan file, or all but the best `keep` by some scores."""

    heads: HeadsText = None
    plan: PlanToCut = None
    scores: ScoresFile = None
    only_method: ScoreMethod = None
    keep: KeptSize = None
    lower_is_keep: LowerIsKeep = False

    def check(self) -> None:
        """Raises BadParameter unless exactly one source of heads is named, with only those options that apply to it."""
        if sum(source is not None for source in (self.heads, self.plan, self.scores)) != 1:
            raise typer.BadParameter("name the heads to remove by one of --heads, --plan and --scores")
        if (self.scores is None) != (self.keep is None):
            raise typer.BadParameter("--scores and --keep belong together: --scores FILE --keep 24")
        if self.scores is None and (self.only_method is not None or self.lower_is_keep):
            raise typer.BadParameter("--method and --lower-is-keep belong to --scores")


EMPTY_REQUEST = CutRequest()


@command
def run(
    session: Session,
    model: Model,
    out: OutFolder,
    request: CutRequest = EMPTY_REQUEST,
    overwrite: Overwrite = False,
    loading: ModelOptions = DEFAULT_LOADING,
) -> None:
    """Remove heads for good, prove that the smaller model equals the gated one, and save it."""
    request.check()
    from headcount.app.jobs.cut import cut_model

    cut_model(session, model, request, out, loading, overwrite=overwrite)
