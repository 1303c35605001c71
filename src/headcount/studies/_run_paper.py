"""Runs the experiments of a paper into a run folder; finished ones are read from there. Imports torch."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from headcount.core.errors import HeadcountError
from headcount.core.files import hash_path
from headcount.core.options import Configurable
from headcount.core.study_result import StudyResult
from headcount.data.evaluate import evaluate, fingerprint_of
from headcount.data.task import SPLITS, task_key
from headcount.models.provenance import model_key, provenance
from headcount.pruning.recipe import Recipe
from headcount.pruning.training.estimate import estimate_step_seconds
from headcount.runs.artifacts import Artifact, ArtifactKey
from headcount.runs.paper_pages import ITEM
from headcount.studies._base import Study, StudyContext
from headcount.studies._paper import Item, Paper, PaperResult, Subject
from headcount.studies._results import describe_study_run

REVISION = 1
"""Raised where a study gives another result than before for the same request, so that a run does not take an older one for it."""
TIMED = 16
"""Examples of the report split that are timed for the estimate."""


def list_items(paper: Paper, context: StudyContext) -> tuple[Item, ...]:
    """Returns every experiment of a paper for the model and task of a context, those that cannot run too."""
    return tuple(paper.items(Subject(context.loaded.heads, context.task, context.sources.has_text)))


def estimate_seconds(items: Iterable[Item], context: StudyContext) -> float:
    """Returns how long the studies of these items take, from one timed batch and one timed training step; what is finished costs nothing."""
    studies = [item.study for item in items if item.study is not None and context.required_run.find(_key(item, context)) is None]
    efforts = [study.effort(context) for study in studies]
    passes, steps = sum(effort.passes for effort in efforts), sum(effort.steps for effort in efforts)
    seconds = 0.0
    if passes:
        start = time.perf_counter()
        evaluation = evaluate(context.loaded.model, context.task, limit=TIMED, batch_size=context.batch_size)
        seconds += passes * (time.perf_counter() - start) / evaluation.n_examples
    if steps:
        seconds += steps * estimate_step_seconds(context.loaded.model, context.task, Recipe())
    return seconds


def find_results(items: Iterable[Item], context: StudyContext) -> dict[str, Artifact]:
    """Returns the finished results of items in the run folder, by id."""
    artifacts = {item.id: context.required_run.find(_key(item, context)) for item in items if item.study is not None}
    return {name: artifact for name, artifact in artifacts.items() if artifact is not None}


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
            results[item.id] = _measure(item, item.study, context)
        except HeadcountError as error:
            failures[item.id] = str(error)
        finished(item, results.get(item.id), failures.get(item.id, ""))
    return PaperResult(paper, tuple(items), results, failures)


def _measure(item: Item, study: Study, context: StudyContext) -> StudyResult:
    key = _key(item, context)
    artifact = context.required_run.find(key)
    if artifact is None:
        result = study.measure(context)
        artifact = context.required_run.commit(key, result.to_dict(), provenance=provenance())
    context.required_run.present(artifact)
    return StudyResult.from_dict(artifact.content)


def _key(item: Item, context: StudyContext) -> ArtifactKey:
    """Returns the key of an item's result: the study with all options, model, data, text, and the content of every file that an option names."""
    study, model, task = item.study, context.loaded.model, context.task
    assert study is not None
    inputs = {
        **model_key(model),
        **task_key(task),
        **{split: fingerprint_of(model, task, split) for split in SPLITS},
        "study": study.to_dict(),
        "files": hash_named_files(study),
        "text": context.sources.text_key if study.info.uses("text") else "",
        "seed": context.seed,
        "limit": context.limit,
        "revision": REVISION,
    }
    return ArtifactKey(ITEM, f"{item.id} {study.name}", inputs)


def hash_named_files(study: Configurable) -> dict[str, str]:
    """Returns the hash of every file and folder that a text option of a study names, by its path as it is written there."""
    texts = []
    for value in study.to_dict().values():
        texts += value if isinstance(value, list) else [value]
    paths = {text: Path(text.partition("=")[2] or text) for text in texts if isinstance(text, str) and text}
    return {text: hash_path(path) for text, path in paths.items() if path.exists()}
