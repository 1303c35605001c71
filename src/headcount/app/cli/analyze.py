"""`headcount analyze`: the whole job on a model and a task, from the map to the report, in one command that can be taken up again."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from headcount.app.console.command import command
from headcount.app.console.inputs import ModelAndTaskOptions
from headcount.app.console.options import split_at_commas
from headcount.app.console.pruning import TRAINING, build_options_class, build_recipe, parse_keep, split_methods
from headcount.app.console.run_folder import lead_run
from headcount.app.console.session import Session
from headcount.app.console.text import EmbeddedTextName, ParserName, TextFile, check_at_most_one_text
from headcount.core.budget import Budget
from headcount.pruning.recipe import Recipe
from headcount.workflows.analysis_spec import AnalysisSpec

AnalysisFolder = Annotated[
    Path, typer.Option("--out", metavar="RUN", help="The run folder: the same command goes on from it; report.html is there.")
]


def parse_head_counts_or_shares(keep_text: str) -> list[int | float]:
    """Returns numbers of heads, and shares of them as floats below 1."""
    numbers: list[int | float] = []
    for part in split_at_commas(keep_text):
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


AMOUNT = ("by", "methods", "keep", "margin", "seeds", "score_limit", "verdict_limit", "comparison_limit", "max_map_length")


class AnalysisOptions(build_options_class("AnalysisOptions", {AnalysisSpec: AMOUNT, Recipe: TRAINING})):
    """How much is done, and how methods that train do so."""

    def build_spec(self, *, limit: int | None, seed: int) -> AnalysisSpec:
        """Returns the request."""
        return AnalysisSpec(
            by=tuple(split_at_commas(self.by)),
            methods=tuple(split_methods(self.methods)),
            keep=None if self.keep is None else tuple(parse_head_counts_or_shares(self.keep)),
            margin=self.margin,
            seeds=self.seeds,
            score_limit=self.score_limit,
            verdict_limit=self.verdict_limit,
            comparison_limit=self.comparison_limit,
            max_map_length=self.max_map_length,
            recipe=build_recipe(self, TRAINING),
            seed=seed,
        ).cap_examples(limit)


DEFAULT_ANALYSIS = AnalysisOptions()


@command
def run(
    session: Session,
    data: ModelAndTaskOptions,
    out: AnalysisFolder,
    text: TextFile = None,
    embedded: EmbeddedTextName = None,
    parser: ParserName = None,
    options: AnalysisOptions = DEFAULT_ANALYSIS,
) -> None:
    """Map, score, label, profile and prune the heads of a model, keep and measure one smaller model, and write the report."""
    check_at_most_one_text(text, embedded)
    spec = options.build_spec(limit=data.limit, seed=data.seed)
    with lead_run(session, out, "analyze is led by one process; start it without torchrun") as run_folder:
        from headcount.app.jobs.analyze import analyze_model

        analyze_model(session, data, spec, run_folder, text_file=text, embedded_name=embedded, parser_name=parser)
