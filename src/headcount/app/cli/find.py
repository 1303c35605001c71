"""`headcount find`: the heads that do a job, listed where other tools read them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, NamedTuple

import typer

from headcount.app.console.command import command
from headcount.app.console.inputs import DEFAULT_LOADING, BatchSize, ModelOptions
from headcount.app.console.options import Model, Overwrite, Seed, make_choice_callback
from headcount.app.console.session import Session
from headcount.core.files import is_folder
from headcount.core.head_list import ALIGNMENT, JOBS

JobName = Annotated[
    str,
    typer.Argument(
        metavar="JOB", callback=make_choice_callback("job", JOBS), help="alignment, retrieval or induction.", show_default=False
    ),
]
Recordings = Annotated[
    Path | None,
    typer.Option(
        "--data",
        metavar="FILE",
        help="For alignment: JSON lines that name WAV files and the times of their words.",
    ),
]
SearchOutput = Annotated[
    Path | None,
    typer.Option(
        "--out", metavar="PATH", help="A file that ends in .json for the list; or, for alignment, a folder for a copy of the model."
    ),
]
InPlace = Annotated[bool, typer.Option("--in-place", help="Write alignment heads into the folder MODEL itself.")]
SpokenLanguage = Annotated[
    str | None, typer.Option("--language", metavar="NAME", help="The language that is spoken, for multilingual models.")
]
SearchLimit = Annotated[
    int | None, typer.Option("--limit", metavar="N", min=8, help="Read at most that many examples; 200 recordings by default.")
]


class FindOptions(NamedTuple):
    """What heads are found on, and where the list goes."""

    data: Recordings = None
    out: SearchOutput = None
    in_place: InPlace = False
    overwrite: Overwrite = False
    language: SpokenLanguage = None
    limit: SearchLimit = None
    batch_size: BatchSize = "auto"
    seed: Seed = 0

    def check(self, job: str, model: str) -> None:
        """Raises BadParameter for options that exclude each other or do not go with the job."""
        if self.in_place and (self.out is not None or job != ALIGNMENT):
            raise typer.BadParameter("--in-place is for alignment heads, without --out; the others go to --out FILE.json")
        if self.in_place and not is_folder(Path(model)):
            raise typer.BadParameter(f"--in-place needs a model folder of your own; {model} is none. Name a folder for a copy: --out DIR")


DEFAULT_OPTIONS = FindOptions()


@command
def run(
    session: Session,
    job: JobName,
    model: Model,
    options: FindOptions = DEFAULT_OPTIONS,
    loading: ModelOptions = DEFAULT_LOADING,
) -> None:
    """Find the heads that do a job: ranked on one half of the data, as few as nearly suffice, tested on the other half.

    alignment: the heads of Whisper's cross-attention that follow the sound, as token timestamps need them (generation_config.alignment_heads).
    retrieval, induction: heads of decoders, on sequences of their own.
    """
    options.check(job, model)
    from headcount.app.jobs.find import find_heads

    find_heads(session, job, model, options, loading)
