"""The figures that a run cannot give: why, and the command that would give each."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from headcount.app.console.words import argument_words, task_words
from headcount.core.files import model_path_or_name
from headcount.runs.report import contract
from headcount.runs.store import Run

NO_FIGURE = "its result has tables alone"


@dataclass(frozen=True, slots=True)
class MissingFigure:
    """A figure, or a kind of figures, that is not drawn; `command` is empty where no command would give it."""

    name: str
    reason: str
    command: str = ""


def find_missing_figures(run: Run, data: contract.RunData) -> list[MissingFigure]:
    """Returns what a run has no figures of; `data` are those of its report."""
    return [*_missing_figure_kinds(run, data), *_missing_study_figures(data)]


def _missing_figure_kinds(run: Run, data: contract.RunData) -> Iterator[MissingFigure]:
    record = run.record()
    opening = task_words({"task": record.task or None, **record.config.get("opened", {})})

    def command_line(verb: str, options: Mapping[str, str] | None = None) -> str:
        model = model_path_or_name(record.model.name, record.config)
        return shlex.join(["headcount", *verb.split(), model, *opening, *argument_words({**(options or {}), "out": str(run.folder)})])

    if not data["scores"]:
        yield MissingFigure("head maps", "no importance was measured", command_line("score"))
    if data["curves"] is None or not data["curves"]["points"]:
        yield MissingFigure("curves", "no pruned model was measured", command_line("compare"))
    if not data["bench"]:
        yield MissingFigure("cost", "no latency was measured", command_line("prune", {"keep": "50%"}))
    if data["roles"] is None:
        yield MissingFigure("roles", "the roles of heads were not tested", command_line("roles", None if opening else {"text": "FILE"}))
    elif not any(data["roles"]["labels"]):
        yield MissingFigure("roles", "no head has a role")
    if not data["studies"]:
        yield MissingFigure("studies", "no study is in the run (headcount ls studies)", command_line("study NAME"))
    if not data["papers"]:
        yield MissingFigure("papers", "no experiment of a paper is in the run (headcount ls papers)", command_line("paper NAME"))


def _missing_study_figures(data: contract.RunData) -> Iterator[MissingFigure]:
    for study in data["studies"]:
        if not study["result"]["figures"]:
            yield MissingFigure(f"study {study['name']}", NO_FIGURE)
    for paper in data["papers"]:
        for item in paper["items"]:
            name = f"{paper['name']} {item['id']}"
            if item["result"] is None:
                yield MissingFigure(name, item["reason"], item["command"])
            elif not item["result"]["figures"]:
                yield MissingFigure(name, NO_FIGURE)
