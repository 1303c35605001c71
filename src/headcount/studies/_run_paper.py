"""Runs the experiments of a paper into a run folder; finished ones are read from there. Imports torch."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from headcount.core.errors import AlignmentError, HeadcountError, MissingExtra, OptionError
from headcount.core.files import hash_file_or_folder, path_exists
from headcount.core.options import Configurable
from headcount.core.study_result import StudyResult
from headcount.data.evaluate import evaluate, fingerprint_of_examples
from headcount.data.task import SPLITS, task_key
from headcount.models.provenance import model_key, rounding_provenance
from headcount.pruning.recipe import Recipe
from headcount.pruning.training.estimate import estimate_step_seconds
from headcount.runs.artifacts import ArtifactKey, safe_name
from headcount.runs.paper_files import PAPERS, SUMMARY, PaperEntry, PaperSummary, write_paper_summary_and_files
from headcount.runs.paper_pages import ITEM, commit_paper_page
from headcount.studies._base import STEP_BATCH, Effort, Study, StudyContext
from headcount.studies._paper import Item, Paper, PaperResult, PaperSubject
from headcount.studies._results import describe_study_run

REVISION = 5
"""Raised where a study gives another result than before for the same request, so that a run does not take an older one for it."""
TIMED = 16
"""Examples of the report split that are timed for the estimate."""


def list_items(paper: Paper, context: StudyContext) -> tuple[Item, ...]:
    """Returns every experiment of a paper for the model and task of a context, those that cannot run too.

    Those on roles cannot where the tokenizer does not say which words its tokens are, or the task has no texts that roles can be measured on.
    """
    subject = PaperSubject(context.loaded.heads, context.task, context.sources.has_text_or_task, has_new_head=context.new_head)
    items = tuple(paper.items(subject))
    problem = context.text_problem if any(_uses_text(item) for item in items) else None
    if problem is not None and (
        isinstance(problem, AlignmentError) or not context.sources.text_fingerprint
    ):  # else wrong input, for `check_items`
        items = tuple(replace(item, study=None, reason=str(problem)) if _uses_text(item) else item for item in items)
    if not context.new_head:
        return items
    reason = (
        "the head of the model is new, and this item has models that are not trained; fine-tune the model first, as docs/papers.md says"
    )
    return tuple(item if item.study is None or item.study.trains_new_head else replace(item, study=None, reason=reason) for item in items)


def _uses_text(item: Item) -> bool:
    return item.study is not None and item.study.info.uses("text")


def check_items(items: Sequence[Item], context: StudyContext, describe_lack: Callable[[Item], str]) -> None:
    """Raises an error where no item can run, the run is one of another model, or a text, file, model or task that an item names cannot be used.

    `describe_lack` says of an item that cannot run what it lacks, or why.
    """
    studies = [item.study for item in items if item.study is not None]
    if not studies:
        reasons = "; ".join(f"{item.id}: {describe_lack(item)}" for item in items)
        raise OptionError(f"none of these items can run with {context.model_name} and task {context.task.name}: {reasons}")
    describe_study_run(context, context.loaded, {})
    if context.text_problem is not None and any(study.info.uses("text") for study in studies):
        raise context.text_problem
    for study in dict.fromkeys(studies):
        study.check_inputs(context)


def estimate_seconds(items: Iterable[Item], context: StudyContext) -> float:
    """Returns how long the studies of these items take, from two timed batches, the faster counts, and one timed training step.

    What is finished costs nothing, and what several items share is counted once.
    """
    effort = sum_efforts(items, context)
    seconds = effort.seconds
    if effort.passes:
        times = []
        for _ in range(2):  # the first batch warms up
            start = time.perf_counter()
            evaluation = evaluate(context.loaded.model, context.task, limit=TIMED, batch_size=context.batch_size)
            times.append((time.perf_counter() - start) / evaluation.n_examples)
        seconds += effort.passes * min(times)
    if effort.steps:
        seconds += effort.steps * estimate_step_seconds(context.loaded.model, context.task, Recipe(train_batch=STEP_BATCH))
    return seconds


def sum_efforts(items: Iterable[Item], context: StudyContext) -> Effort:
    """Returns the work of all items that are not finished: equal studies, and what studies share, once."""
    studies = dict.fromkeys(item.study for item in items if item.study is not None)
    unfinished = [study for study in studies if context.required_run.find(_result_key(study, context)) is None]
    return sum((study.effort(context) for study in unfinished), Effort()).with_shared_work()


def run_paper(
    paper: Paper,
    items: Sequence[Item],
    context: StudyContext,
    *,
    finished: Callable[[Item, StudyResult | None, str], None] = lambda item, result, reason: None,
) -> PaperResult:
    """Measures every item that can run. One that fails with an error of headcount is recorded with its message, and the others go on.

    Args:
        paper: The paper.
        items: The items to measure, of `list_items`.
        context: Model, task, text and the run folder that keeps finished results.
        finished: Called with every item when it is finished, with its result or else the message of its failure.
    """
    describe_study_run(context, context.loaded, {"paper": str(paper), "limit": context.limit})
    results: dict[str, StudyResult] = {}
    failures: dict[str, str] = {}
    for item in items:
        if item.study is None:
            continue
        try:
            results[item.id] = _measure_or_read(item.study, context)
        except HeadcountError as error:
            failures[item.id] = str(error)
        finished(item, results.get(item.id), failures.get(item.id, ""))
    return PaperResult(paper, tuple(items), results, failures)


def _measure_or_read(study: Study, context: StudyContext) -> StudyResult:
    key = _result_key(study, context)
    artifact = context.required_run.find(key)
    if artifact is None:
        result = study.measure(context)
        artifact = context.required_run.commit(key, result.to_dict(), provenance=rounding_provenance())
    context.required_run.register_results(artifact)
    return StudyResult.from_dict(artifact.content)


def _result_key(study: Study, context: StudyContext) -> ArtifactKey:
    """Returns the key of a result: the study with all options, model, data, text, and the content of every file that an option names."""
    model, task = context.loaded.model, context.task
    inputs = {
        **model_key(model),
        **task_key(task),
        **{split: fingerprint_of_examples(task, split) for split in SPLITS},
        "study": study.to_dict(),
        "files": hash_named_files(study),
        "text": context.sources.text_fingerprint if study.info.uses("text") else "",
        "seed": context.seed,
        "limit": context.limit,
        "revision": REVISION,
    }
    return ArtifactKey(ITEM, str(study), inputs)


def hash_named_files(study: Configurable) -> dict[str, str]:
    """Returns the hash of every file and folder that a text option of a study names, by its path as it is written there."""
    texts = []
    for value in study.to_dict().values():
        texts += value if isinstance(value, list) else [value]
    paths = {text: Path(text.partition("=")[2] or text) for text in texts if isinstance(text, str) and text}
    return {text: hash_file_or_folder(path) for text, path in paths.items() if path_exists(path)}


def build_page(paper: Paper, context: StudyContext, entries: Sequence[PaperEntry]) -> PaperSummary:
    """Returns the page of a paper: its reference, the conditions of all experiments, and the experiments."""
    sizes = ", ".join(f"{len(context.task.split(split))} {split}" for split in SPLITS)
    conditions = [
        f"Model: {context.model_name}. Task: {context.task.name} ({sizes} examples). Seed: {context.seed}.",
        *(["The head of the model is new: it is trained after pruning, and so is the dense model."] if context.new_head else []),
        *(["A small version (quick): few sizes, seeds, steps and examples."] if paper.quick else []),
    ]
    return PaperSummary(paper.name, paper.info.title, paper.info.bibtex(paper.name), context.command, conditions, entries)


def commit_page(
    paper: Paper,
    items: Iterable[Item],
    context: StudyContext,
    failures: Mapping[str, str],
    describe_lack: Callable[[Item], str],
    command_of: Callable[[Item], str] = lambda item: "",
) -> None:
    """Lists a paper in its run for the report: all items, what is finished, and for each other one why it is not.

    `describe_lack` says of an item that cannot run what it lacks, or why; `command_of` gives the command that measures an item.
    """
    entries, digests = [], {}
    for item in items:
        artifact = None if item.study is None else context.required_run.find(_result_key(item.study, context))
        reason = ""
        if artifact is not None:
            digests[item.id] = artifact.key.digest
        elif item.id in failures:
            reason = f"failed: {failures[item.id]}"
        else:
            reason = "not measured yet" if item.study is not None else describe_lack(item)
        entries.append(PaperEntry(item.id, item.title, item.part, None, reason, item.published, command_of(item)))
    commit_paper_page(context.required_run, build_page(paper, context, entries), digests, provenance=rounding_provenance())


def write_files(result: PaperResult, context: StudyContext, describe_lack: Callable[[Item], str]) -> PaperResult:
    """Writes figures, tables, summary and bibliography to the run folder; returns the result with the path of the summary.

    `describe_lack` says of an item that did not run what it lacks, or why. Without matplotlib no figure is drawn, and a warning names the remedy.
    """
    entries = []
    for item in result.items:
        reason = result.failures.get(item.id, "" if item.id in result.results else describe_lack(item))
        entries.append(PaperEntry(item.id, item.title, item.part, result.results.get(item.id), reason, item.published))
    folder = context.required_run.folder / PAPERS / safe_name(result.paper.name)
    try:
        write_paper_summary_and_files(build_page(result.paper, context, entries), folder)
    except MissingExtra as error:
        warnings.warn(f"no figure is drawn: {error}", stacklevel=2)
    return replace(result, summary=folder / SUMMARY)
