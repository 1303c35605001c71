"""`headcount analyze`: the whole job on a model and a task, from the map to the report, in one command that can be taken up again."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headcount.app.console import inputs
from headcount.app.console.command import command
from headcount.app.console.options import split
from headcount.app.console.pruning import Epochs, Rate, Steps, TrainBatch, method_names, number_of, recipe
from headcount.app.console.run_folder import RunFolder
from headcount.app.console.session import Session
from headcount.app.console.text import Embedded, File, Parser, check_embedded, open_corpus
from headcount.core.files import absolute_path

if TYPE_CHECKING:
    from headcount.behaviour.base import Corpus

By = Annotated[str, typer.Option("--by", metavar="NAME,…", help="Importances of `headcount ls importance`.")]
Methods = Annotated[str, typer.Option("--methods", metavar="NAME,…", help="Pruners or importances to prune by. Random is always there.")]
Keep = Annotated[
    str | None,
    typer.Option("--keep", metavar="K,…", help="How many heads stay: numbers, or shares; by default whole KV groups near 12.5%,25%,50%."),
]
Seeds = Annotated[int, typer.Option("--seeds", min=1, help="Seeds of methods with chance in them.")]
Scored = Annotated[int, typer.Option("--scored", min=2, help="Calibration examples that scores are taken on.")]
Reported = Annotated[int, typer.Option("--reported", min=2, help="Examples that models are compared on.")]
Longest = Annotated[int, typer.Option("--longest", min=2, help="Tokens of the sentences whose attention is shown; 512 can be looked at.")]
Out = Annotated[Path, typer.Option("--out", metavar="RUN", help="The run folder: the same command goes on from it; report.html is there.")]


def sizes(text: str) -> list[int | float]:
    """Numbers of heads, and shares of them as floats below 1."""
    numbers: list[int | float] = []
    for part in split(text):
        try:
            value = float(part.removesuffix("%")) / 100 if part.endswith("%") else number_of(part)
        except ValueError:
            value = 0.0
        if value <= 0 or (isinstance(value, float) and value >= 1):
            raise typer.BadParameter(f"--keep takes numbers of heads, or shares above 0% and below 100%, such as 12.5%,25%,50%; got {part}")
        numbers.append(value)
    if not numbers:
        raise typer.BadParameter("--keep needs a number or a share of heads, such as 50%")
    return numbers


@command
def run(
    session: Session,
    given: inputs.TaskOptions,
    out: Out,
    text: File = None,
    embedded: Embedded = None,
    parser: Parser = None,
    by: By = "gradient,ablation,output-norm,confidence,random",
    methods: Methods = "surgeon,gradient,l0,dsp,random",
    keep: Keep = None,
    seeds: Seeds = 2,
    scored: Scored = 256,
    reported: Reported = 500,
    longest: Longest = 32,
    steps: Steps = None,
    epochs: Epochs = None,
    rate: Rate = 5e-5,
    train_batch: TrainBatch = 32,
) -> None:
    """Map, score, label, profile and prune the heads of a model, keep and measure the best smaller one, and write the report."""
    check_embedded(text, embedded)
    keeps = None if keep is None else sizes(keep)
    with RunFolder(out).open(session) as kept:
        from headcount.importance.base import Importance
        from headcount.workflows.prune import check_methods
        from headcount.workflows.walk import Analysis, walk

        if kept is None:
            raise typer.BadParameter("analyze is led by one process; start it without torchrun")
        check_methods(method_names(methods))
        scores = [str(Importance.parse(name)) for name in split(by)]
        live, _, folder = given.open_model(session)
        task = given.open_task(session, live, folder)
        corpus, why = _corpus(session, given, live, folder, text=text, embedded=embedded, parser=parser, task=task)
        job = Analysis(
            given.model,
            live,
            task,
            corpus,
            given.seed,
            session.command,
            scored=scored if given.limit is None else min(scored, given.limit),
            reported=reported if given.limit is None else min(reported, given.limit),
            by=scores,
            methods=method_names(methods),
            keeps=keeps,
            seeds=seeds,
            recipe=recipe(given, rate, train_batch, 0.0, epochs, steps),
            watch=session.watch,
            tokenizer=inputs.reader_of(live, folder, given.trust_remote_code),
            longest=longest,
            folder=folder,
            config={
                "opened": {
                    **given.opened,
                    **({"text": absolute_path(text)} if text else {}),
                    **({"embedded": embedded} if embedded else {}),
                }
            },
            no_roles=why,
        )
        records = []
        for step in walk(job, kept):
            records.append({"step": step.name, "text": step.text, **step.numbers})
            session.line(f"{step.name:<9} {step.text}")
            session.doing(f"after step {step.name}")
        session.result({"out": str(out), "steps": records})
        session.next("serve", out)


def _corpus(session: Session, given: inputs.TaskOptions, live: Any, folder: Path, **named: Any) -> tuple[Corpus | None, str]:
    """The text that roles and head profiles are taken on; without one that was asked for, why the task has none."""
    from headcount.behaviour.corpus import SENTENCES
    from headcount.workflows.analyze import corpus_for

    given = given._replace(limit=given.limit or SENTENCES)
    text = open_corpus(session, given, live, folder, **named) if named["text"] or named["embedded"] else None
    reader = inputs.reader_of(live, folder, given.trust_remote_code)
    found, why = corpus_for(live, named["task"], reader, text=text, limit=given.limit, parser=named["parser"])
    if why:
        session.note(f"roles are left out: {why}")
    return found, why
