"""`headcount analyze`: the whole job on a model and a task, from the map to the report, in one command that can be taken up again."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headcount.app.console import inputs
from headcount.app.console.command import command
from headcount.app.console.options import split
from headcount.app.console.pruning import DEFAULT_TRAINING, TrainingOptions, group_options, parse_keep, split_methods
from headcount.app.console.run_folder import RunFolder
from headcount.app.console.session import Session
from headcount.app.console.steps import format_step
from headcount.app.console.text import Embedded, File, Parser, check_embedded, open_corpus
from headcount.core.budget import Budget
from headcount.core.files import absolute_path
from headcount.pruning.recipe import Recipe
from headcount.workflows.analysis_spec import AnalysisSpec

if TYPE_CHECKING:
    from headcount.behaviour.base import Corpus

Out = Annotated[Path, typer.Option("--out", metavar="RUN", help="The run folder: the same command goes on from it; report.html is there.")]


def parse_sizes(text: str) -> list[int | float]:
    """Returns numbers of heads, and shares of them as floats below 1."""
    numbers: list[int | float] = []
    for part in split(text):
        try:
            budget = Budget(keep=parse_keep(part))
        except ValueError:
            budget = Budget()
        size = budget.size
        if size is None or (size[1] == 1.0 and size[0] == "fraction"):
            raise typer.BadParameter(f"--keep takes numbers of heads, or shares above 0% and below 100%, such as 12.5%,25%,50%; got {part}")
        numbers.append(size[1])
    if not numbers:
        raise typer.BadParameter("--keep needs a number or a share of heads, such as 50%")
    return numbers


class AnalysisOptions(
    group_options("AnalysisOptions", {AnalysisSpec: ("by", "methods", "keep", "seeds", "scored", "reported", "longest")})
):
    """How much is done."""

    def spec(self, recipe: Recipe, *, limit: int | None, seed: int) -> AnalysisSpec:
        """Returns the request."""
        keep = None if self.keep is None else tuple(parse_sizes(self.keep))
        values = {**self._asdict(), "by": tuple(split(self.by)), "methods": tuple(split_methods(self.methods)), "keep": keep}
        return AnalysisSpec(**values, recipe=recipe, seed=seed).with_limit(limit)


DEFAULT_ANALYSIS = AnalysisOptions()


@command
def run(
    session: Session,
    given: inputs.TaskOptions,
    out: Out,
    text: File = None,
    embedded: Embedded = None,
    parser: Parser = None,
    amount: AnalysisOptions = DEFAULT_ANALYSIS,
    training: TrainingOptions = DEFAULT_TRAINING,
) -> None:
    """Map, score, label, profile and prune the heads of a model, keep and measure the best smaller one, and write the report."""
    check_embedded(text, embedded)
    spec = amount.spec(training.recipe(), limit=given.limit, seed=given.seed)
    with RunFolder(out).open(session) as kept:
        from headcount.workflows.analyze import AnalysisJob, check_names, run_analysis

        if kept is None:
            raise typer.BadParameter("analyze is led by one process; start it without torchrun")
        check_names(spec)
        live, _, folder = given.open_model(session)
        task = given.open_task(session, live, folder)
        corpus, why_no_corpus = _corpus(session, given, live, folder, text=text, embedded=embedded, parser=parser, task=task)
        job = AnalysisJob(
            given.model,
            live,
            task,
            spec,
            corpus,
            why_no_corpus=why_no_corpus,
            command=session.command,
            tokenizer=inputs.reader_of(live, folder, given.trust_remote_code),
            folder=folder,
            config={
                "opened": {
                    **given.opened,
                    **({"text": absolute_path(text)} if text else {}),
                    **({"embedded": embedded} if embedded else {}),
                }
            },
            watch=session.watch,
        )
        records = []
        for step in run_analysis(job, kept):
            sentence = format_step(step.name, step.numbers)
            records.append({"step": step.name, "text": sentence, **step.numbers})
            session.line(f"{step.name:<9} {sentence}")
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
