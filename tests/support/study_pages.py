"""A run with two studies and a paper, written without a model: what the report and the figures of studies are tested on."""

from __future__ import annotations

from pathlib import Path

from figure_kinds import FIGURES
from kit import make_run

from headcount.core.study_result import Column, StudyResult, Table, interval_columns
from headcount.runs.artifacts import ArtifactKey
from headcount.runs.paper_files import PaperEntry, PaperSummary
from headcount.runs.paper_pages import ITEM, commit_paper_page
from headcount.runs.store import Run
from headcount.runs.tables import STUDY

ROWS = Table(
    "rows",
    (Column("head"), Column("heads"), *interval_columns("change", "+.2f", "loss"), Column("share", format=".0%")),
    (("L0H1", 3, -0.5, -0.75, -0.25, 0.5), ("all", 4, 1 / 3, None, None, None), ("none", 0, None, None, None, 1e-12)),
    "By layer: 100 % of them",
)
LONG = Table("long", (Column("head"), Column("value")), tuple((f"head {i}", i / 7) for i in range(60)), "Every head", is_printed=False)
PUBLISHED = Table("published", (Column("removed"), Column("accuracy", format=".3f")), ((0, 0.837), (57, 0.83)), "Accuracy on MNLI")
DRAWN = StudyResult("layers(how=mean)", (ROWS, LONG), "Layers matter: 3 of 4.", ("A note.", "Another."), {}, FIGURES)
PLAIN = StudyResult("kept", (ROWS,), "Nothing is kept.")
MEASURED = StudyResult("pruning-curve", (ROWS,), "The curve falls.", (), {}, FIGURES[:1])
ENTRIES = [
    PaperEntry("M2", "Change without each head", "Table 1", None, "needs --other-task TASK", None, "headcount paper michel2019 --only M2"),
    PaperEntry("M8", "Pruning curve", "Fig. 3", MEASURED, "", PUBLISHED, "headcount paper michel2019 --only M8"),
    PaperEntry("M10", "Ranked again", "section 4.1", PLAIN, "", None, "headcount paper michel2019 --only M10"),
]
PAPER = PaperSummary(
    "michel2019", "Are Sixteen Heads Really Better than One?", "@inproceedings{a}", "headcount paper", ["Seed: 0."], ENTRIES
)


def make_studied_run(folder: Path) -> Run:
    """Writes a run of scores with the studies `layers` and `kept`, and the paper `michel2019`, of whose items two have results."""
    make_run(folder, n=20, kinds=("scores",))
    with Run.lead(folder) as run:
        for name, result in (("layers", DRAWN), ("kept", PLAIN)):
            inputs = {"model": "tiny", "task": "toy", "seed": 3, "limit": 40}
            content = {"result": result.to_dict(), "rows": result.rows(), "command": f"headcount study {name}"}
            run.register_results(run.commit(ArtifactKey(STUDY, name, inputs), content, provenance={}))
        digests = {}
        for entry in ENTRIES:
            if entry.result is not None:
                artifact = run.commit(ArtifactKey(ITEM, f"{entry.id} study", {}), entry.result.to_dict(), provenance={})
                run.register_results(artifact)
                digests[entry.id] = artifact.key.digest
        commit_paper_page(run, PAPER, digests, provenance={})
    return Run.open(folder)
