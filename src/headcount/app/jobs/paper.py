"""`headcount paper`: lists the experiments of a paper, says how long they take, runs those that can run, and writes their files."""

from __future__ import annotations

import shlex
import time
from collections.abc import Sequence

from headcount.app.cli.paper import PaperRequest
from headcount.app.cli.study import Request
from headcount.app.console.format import format_duration
from headcount.app.console.options import split_at_commas
from headcount.app.console.session import Session
from headcount.app.jobs.study import make_study_context
from headcount.core.errors import HeadcountError
from headcount.core.study_result import StudyResult
from headcount.runs.store import Run
from headcount.studies._base import StudyContext
from headcount.studies._paper import Item, Paper, PaperResult, choose_items
from headcount.studies._run_paper import check_items, commit_page, estimate_seconds, list_items, run_paper, write_files

INPUTS = {"text": "--text FILE", "language": "--language NAME=FILE", "groups": "--groups FILE"}
INPUTS |= {name: f"--{name} MODEL" for name in ("against", "tuned", "pretrained")}
"""How an input is named on the command line, where its name alone does not say it."""


def show_paper_items(session: Session, paper: Paper, request: PaperRequest) -> None:
    """Lists the experiments of a paper with what each needs, and runs none."""
    items = choose_items(list_items(paper, _make_paper_context(session, request, None)), split_at_commas(request.only or ""))
    _print_items(session, items)
    rows = [{"id": item.id, "part": item.part, "title": item.title, "state": describe_item_state(item)} for item in items]
    session.write_json({"paper": paper.name, "items": rows})


def _make_paper_context(session: Session, request: PaperRequest, run: Run | None) -> StudyContext:
    study_request = Request(
        common=request.common, text=request.text, embedded=request.embedded, parser=request.parser, new_head=request.new_head
    )
    return make_study_context(session, study_request, run)


def _print_items(session: Session, items: Sequence[Item]) -> None:
    session.write_table(
        ("item", "in the paper", "what comes out", "state"), [(i.id, i.part, i.title, describe_item_state(i)) for i in items]
    )


def run_paper_items(session: Session, paper: Paper, request: PaperRequest, run: Run) -> None:
    """Lists the experiments of a paper and runs those that can run; one that fails does not stop the others."""
    context = _make_paper_context(session, request, run)
    all_items = list_items(paper, context)
    items = choose_items(all_items, split_at_commas(request.only or ""))
    check_items(items, context, describe_item_state)
    _print_items(session, items)
    n_running = sum(item.study is not None for item in items)
    with session.progress("estimating the time"):
        seconds = estimate_seconds(items, context)
    session.write_note(f"{n_running} of {len(items)} items run: about {format_duration(seconds)} on this machine")
    result = write_files(_run_items(session, paper, items, context, all_items), context, describe_item_state)
    n_done, n_failed = len(result.results), len(result.failures)
    session.write_line(f"{n_done} of {len(items)} items of {paper.name} are in {result.summary}")
    described: dict[str, object] = {}
    for item in items:
        measured = result.results.get(item.id)
        if measured is None:
            described[item.id] = {"title": item.title, "reason": result.failures.get(item.id, describe_item_state(item))}
        else:
            tables = {table.name: table.records() for table in measured.tables}
            described[item.id] = {"title": item.title, "sentence": measured.sentence, "tables": tables}
    session.write_json(
        {
            "paper": paper.name,
            "out": str(request.out),
            "summary": str(result.summary),
            "items": described,
        }
    )
    if n_failed:
        raise HeadcountError(f"{n_failed} of {n_running} items failed: {', '.join(result.failures)}; the others are finished")


def describe_item_state(item: Item) -> str:
    """Returns whether an item can run, or what it lacks."""
    if item.study is not None:
        return "runs"
    needs = " and ".join(_list_lacking_options(item))
    return f"needs {needs}" if needs else item.reason


def _list_lacking_options(item: Item) -> list[str]:
    """Returns the options of the command line that an item lacks."""
    return [INPUTS.get(name, f"--{name.replace('_', '-')} {name.rpartition('_')[2].upper()}") for name in item.lacks]


def _run_items(
    session: Session, paper: Paper, items: Sequence[Item], context: StudyContext, all_items_of_paper: Sequence[Item]
) -> PaperResult:
    """Measures items and lists the whole paper in the run, also when the work is stopped after some of them."""
    start, failures, is_any_finished = time.monotonic(), dict[str, str](), False

    def show_finished_item(item: Item, result: StudyResult | None, failure: str) -> None:
        nonlocal is_any_finished
        is_any_finished = True
        if failure:
            failures[item.id] = failure
        duration = format_duration(time.monotonic() - start)
        session.write_line(f"{item.id:<4} {result.sentence if result is not None else f'failed: {failure}'} ({duration} so far)")

    try:
        return run_paper(paper, items, context, finished=show_finished_item)
    finally:
        if is_any_finished:  # else the run may be one of another model
            commit_page(
                paper, all_items_of_paper, context, failures, describe_item_state, lambda item: command_of_item(session.arguments, item)
            )


def command_of_item(arguments: Sequence[str], item: Item) -> str:
    """Returns the command line that measures one item: that of the paper, with the option that chooses the item and those that it lacks.

    It is empty for an item that cannot run on this model and task.
    """
    if item.study is None and not item.lacks:
        return ""
    words = [word for word in arguments if not word.startswith("--only=")]
    if "--only" in words:
        position = words.index("--only")
        words = [*words[:position], *words[position + 2 :]]
    return " ".join([shlex.join(["headcount", *words, "--only", item.id]), *(_list_lacking_options(item) if item.study is None else ())])
