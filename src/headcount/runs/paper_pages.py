"""The page of a paper in a run: every experiment in the paper's order, with its result or why there is none, as an artifact that the report reads."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

from headcount.core.files import canonical_json
from headcount.core.study_result import StudyResult, Table
from headcount.runs.artifacts import ArtifactKey
from headcount.runs.paper_files import PaperEntry, PaperSummary
from headcount.runs.store import Run

ITEM, PAGE = "paper", "paper-page"
"""Kinds of artifacts: the result of one experiment, and the list of a paper's experiments."""
MISSING = "its result is no longer in the run folder"


def commit_paper_page(run: Run, page: PaperSummary, result_digests: Mapping[str, str], *, provenance: Mapping[str, object]) -> None:
    """Lists a paper in its run; `result_digests` are those of the artifacts that hold the results, by the id of the experiment."""
    entries = []
    for entry in page.entries:
        texts = {name: getattr(entry, name) for name in ("id", "title", "part", "reason", "command")}
        published = None if entry.published is None else entry.published.to_dict()
        entries.append({**texts, "published": published, "digest": result_digests.get(entry.id, "")})
    texts = {name: getattr(page, name) for name in ("name", "title", "bibtex", "command")}
    content = {**texts, "conditions": list(page.conditions), "entries": entries}
    key = ArtifactKey(PAGE, page.name, {"content": hashlib.sha256(canonical_json(content)).hexdigest()})
    run.register_results(run.commit(key, content, provenance=provenance))


def read_paper_pages(run: Run) -> list[PaperSummary]:
    """Returns the papers of a run, by name, each with its experiments in order."""
    results = {artifact.key.digest: artifact for artifact in run.iter_artifacts(ITEM)}
    pages = []
    for artifact in run.results(PAGE).values():
        entries = []
        for stored in artifact.content["entries"]:
            item = results.get(stored["digest"])
            entries.append(
                PaperEntry(
                    id=stored["id"],
                    title=stored["title"],
                    part=stored["part"],
                    result=None if item is None else StudyResult.from_dict(item.content),
                    reason=MISSING if stored["digest"] and item is None else stored["reason"],
                    published=None if stored["published"] is None else Table.from_dict(stored["published"]),
                    command=stored["command"],
                )
            )
        texts = {name: artifact.content[name] for name in ("name", "title", "bibtex", "command", "conditions")}
        pages.append(PaperSummary(**texts, entries=entries))
    return pages
