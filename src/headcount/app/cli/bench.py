"""`headcount bench`: the time of a forward pass, of one model, of several, or of the models that a run keeps."""

from __future__ import annotations

from typing import Annotated

import typer

from headcount.app.console.command import command
from headcount.app.console.inputs import DEFAULT_LOADING, ModelOptions
from headcount.app.console.options import parse_numbers
from headcount.app.console.session import Session
from headcount.runs.latency import BATCHES, LENGTHS, MIN_ROUNDS

ModelsOrRun = Annotated[
    list[str],
    typer.Argument(
        metavar="RUN|MODEL…", help="Models, each compared with the first; or a run, whose models are measured.", show_default=False
    ),
]
BatchSizes = Annotated[str, typer.Option("--batches", metavar="N,…", help="Batch sizes.")]
LengthsInTokens = Annotated[str, typer.Option("--lengths", metavar="N,…", help="Lengths in tokens.")]
NumberOfRounds = Annotated[
    int, typer.Option("--rounds", metavar="N", min=1, help="How often each is measured; an interval of the speed-up needs 15.")
]
DEFAULT_BATCHES, DEFAULT_LENGTHS = (",".join(map(str, numbers)) for numbers in (BATCHES, LENGTHS))


@command
def run(
    session: Session,
    targets: ModelsOrRun,
    batches: BatchSizes = DEFAULT_BATCHES,
    lengths: LengthsInTokens = DEFAULT_LENGTHS,
    rounds: NumberOfRounds = MIN_ROUNDS,
    loading: ModelOptions = DEFAULT_LOADING,
) -> None:
    """Measure forward passes by batch size and length, interleaved: medians with quartiles, and speed-ups by the log-ratios of the rounds."""
    batch_sizes, n_tokens = parse_numbers(batches, "--batches"), parse_numbers(lengths, "--lengths")
    from headcount.app.jobs.bench import bench_models

    bench_models(session, targets, batch_sizes, n_tokens, rounds, loading)
