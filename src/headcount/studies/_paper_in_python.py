"""A paper in Python: `headcount.paper`. Imports torch."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import nn

from headcount.core.arguments import check_arguments
from headcount.core.progress import Progress
from headcount.data.task import Task
from headcount.studies._paper import Item, Paper, PaperResult, choose_items
from headcount.studies._run_paper import check_items, commit_page, list_items, run_paper, write_files
from headcount.studies._run_study import PythonSources, format_headcount_call_without_empty_values, name_of_model, open_context


@check_arguments
def paper(
    paper: str | Paper,
    model: nn.Module | str | Path,
    data: Task | str | None = None,
    *,
    out: str | Path,
    only: Sequence[str] = (),
    quick: bool = False,
    tokenizer: Any = None,
    text: Any = None,
    seed: int = 0,
    limit: int | None = None,
    batch_size: int | None = None,
    new_head: bool = False,
    progress: bool | Progress = True,
) -> PaperResult:
    """Runs the experiments of a paper on a model; one that fails does not stop the others.

    Args:
        paper: A paper or its text with its further inputs, such as `"michel2019(other_task=glue/mrpc)"`; `headcount ls papers` lists them.
        model: The model, or the folder, hub id or `demo/NAME` that it is loaded from.
        data: The task, or its name; by default the task that the head of the model is made for.
        out: The run folder that keeps finished experiments, and from which a stopped call goes on; tables, figures and the summary go to
            `papers/NAME` in it.
        only: The experiments to run, by id or place (`"M8"`, `"Fig. 3"`); all by default.
        quick: A small version: fewer sizes, seeds, steps and examples, to see what comes out.
        tokenizer: The tokenizer of the model; by default that of its folder.
        text: The text that roles are measured on, as for `headcount.roles`; by default that of the task.
        seed: The seed of everything that is drawn at random.
        limit: The most examples read of each split; None for all.
        batch_size: Examples per batch; None chooses the largest that fits.
        new_head: Gives a pre-trained model an untrained head for the classes of the task, drawn by the seed: experiments prune first and train then;
            those that train nothing do not run.
        progress: A bar on a terminal or in a notebook (True), nothing (False), or a function that is called with (done, total).

    Returns:
        The items, with the reason of each that did not run, and the results of the others by id: tables with intervals, figures as data, a verdict.

    Raises:
        UnknownName: no such paper, option or item.
        OptionError: a value is out of range, or none of the items can run.
        ArtifactError: the run folder is one of another model, or a model or checkpoint that the paper names cannot be used.
        DataError: a file that the paper names is missing or cannot be read.

    Example:
        >>> result = headcount.paper("michel2019", "demo/entailment", "demo/entailment", out="runs/michel", only=["M1"], quick=True)
        >>> print(result.results["M1"].sentence)
    """
    chosen = Paper.parse(paper)
    chosen = replace(chosen, quick=True) if quick else chosen
    sources = PythonSources(data, tokenizer, text, seed, limit, batch_size)
    arguments = {"text": text, "out": out, "seed": seed, "limit": limit, "batch_size": batch_size, "new_head": new_head}
    call = format_headcount_call_without_empty_values("paper", [str(chosen), name_of_model(model), sources.task_name], arguments)
    with open_context(sources, model, out=out, new_head=new_head, progress=progress, call=call) as context:
        all_items = list_items(chosen, context)
        items = choose_items(all_items, only)
        check_items(items, context, describe_lack)
        result = run_paper(chosen, items, context)
        commit_page(chosen, all_items, context, result.failures, describe_lack)
        if result.failures:
            reasons = "; ".join(f"{name}: {message}" for name, message in result.failures.items())
            warnings.warn(f"{len(result.failures)} of {len(items)} items failed: {reasons}", stacklevel=2)
        return write_files(result, context, describe_lack)


def describe_lack(item: Item) -> str:
    """Returns what an item that cannot run lacks, as the arguments of `headcount.paper` are called, or why it cannot."""
    return f"needs {' and '.join(item.lacks)}" if item.lacks else item.reason
