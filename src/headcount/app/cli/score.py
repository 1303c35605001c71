"""`headcount score`: how much every head matters, by one method or several, with intervals and verdicts."""

from __future__ import annotations

from typing import Annotated

import typer

from headcount.app.console.command import command
from headcount.app.console.inputs import ModelAndTaskOptions, RunOptions, SplitText
from headcount.app.console.options import build_typer_option, split_at_commas
from headcount.app.console.run_folder import open_run
from headcount.app.console.session import Session
from headcount.core.tolerance import TOLERANCE, Tolerance
from headcount.importance.settings import ScoreSettings


def _check_names_a_method(method_names: str) -> str:
    if not split_at_commas(method_names):
        raise typer.BadParameter("--by needs the name of a method, such as gradient")
    return method_names


ImportanceNames = Annotated[
    str,
    typer.Option(
        "--by", metavar="NAME,…", callback=_check_names_a_method, help="Methods of `headcount ls importance`, as name or name:variant."
    ),
]
NormaliseText = Annotated[str, build_typer_option(ScoreSettings, "normalise", "HOW")]
NumberOfLowestUnits = Annotated[
    int | None, typer.Option("--lowest", min=1, metavar="K", help="How many units count as the lowest; a quarter by default.")
]
ToleranceText = Annotated[
    str,
    typer.Option(
        "--tolerance",
        metavar="X",
        help="What a head that is called safe costs at most when it is removed alone: nats of loss (0.02), or points of right answers (0.5pt).",
    ),
]
ConfidenceLevel = Annotated[
    float, typer.Option("--level", metavar="X", min=0.5, max=0.999, help="The confidence of intervals and verdicts.")
]
ShowStability = Annotated[bool, typer.Option("--stability", help="Also show how stable the ranking is by the number of examples.")]
AllHeads = Annotated[bool, typer.Option("--all", help="Show every head, however many there are.")]
Checkpointing = Annotated[bool, build_typer_option(ScoreSettings, "checkpointing")]
Generate = Annotated[bool, build_typer_option(ScoreSettings, "generate")]
NumberOfUnitsToRace = Annotated[int | None, build_typer_option(ScoreSettings, "adaptive", "K")]
DEFAULT_FOLDER = RunOptions()


@command
def run(
    session: Session,
    data: ModelAndTaskOptions,
    by: ImportanceNames = "gradient",
    run_options: RunOptions = DEFAULT_FOLDER,
    split_name: SplitText = ScoreSettings.split,
    normalise: NormaliseText = ScoreSettings.normalise,
    lowest: NumberOfLowestUnits = None,
    tolerance: ToleranceText = TOLERANCE,
    level: ConfidenceLevel = 0.95,
    stability: ShowStability = False,
    adaptive: NumberOfUnitsToRace = ScoreSettings.adaptive,
    all_heads: AllHeads = False,
    checkpointing: Checkpointing = ScoreSettings.checkpointing,
    generate: Generate = ScoreSettings.generate,
) -> None:
    """Score every head on a task: heat map, ranking with intervals; with ablation also what removing each head alone costs at most."""
    parsed_tolerance = Tolerance.parse(tolerance)
    settings = ScoreSettings(
        normalise=normalise,  # pyright: ignore[reportArgumentType]
        split=split_name,  # pyright: ignore[reportArgumentType]
        limit=data.limit,
        batch_size=data.examples_per_batch,
        seed=data.seed,
        adaptive=adaptive,
        checkpointing=checkpointing,
        generate=generate,
    )
    with open_run(session, run_options) as run_folder:
        from headcount.app.jobs.score import VerdictOptions, score_model

        verdict_options = VerdictOptions(lowest, parsed_tolerance, level)
        score_model(
            session, data, split_at_commas(by), settings, run_folder, verdict_options, shows_stability=stability, shows_all=all_heads
        )
