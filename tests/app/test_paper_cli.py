"""`headcount paper`: lists what can run and what each item needs, runs the rest, keeps results, and writes the summary."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import KW_ONLY, dataclass
from pathlib import Path

import pytest
from command_line import refused, result, run

from headcount.app.console.session import Session
from headcount.core.errors import PlanError
from headcount.core.options import option
from headcount.core.registry import PAPERS
from headcount.core.study_result import Column, StudyResult, Table
from headcount.runs.paper_pages import read_paper_pages
from headcount.runs.store import Run
from headcount.studies._base import Study, StudyContext, StudyInfo
from headcount.studies._paper import Item, Paper, PaperInfo, PaperSubject
from headcount.studies.all_but_one import AllButOne

MEASURED: list[str] = []


@dataclass(frozen=True)
class CountHeads(Study):
    """Counts heads."""

    name = "count-heads"
    _: KW_ONLY
    fails: bool = option(False, "Whether it fails")
    info = StudyInfo(paper="", needs=frozenset({"model", "task"}))

    def measure(self, context: StudyContext) -> StudyResult:
        MEASURED.append(str(self))
        if self.fails:
            raise PlanError("heads cannot be counted here; count them elsewhere")
        number = len(context.loaded.heads)
        return StudyResult(str(self), (Table("heads", (Column("heads"),), ((number,),)),), f"The model has {number} heads.")


@dataclass(frozen=True)
class CountingPaper(Paper):
    """A paper for this test."""

    _: KW_ONLY
    other_task: str | None = option(None, "Another task")
    info = PaperInfo(title="Counting {H}eads", authors=("Counter, Ada",), year=2020, venue="Proceedings of Tests")

    def items(self, subject: PaperSubject) -> Sequence[Item]:
        published = Table("published", (Column("heads"),), ((144,),))
        return [
            Item("T1", "The number of heads", "Fig. 1", CountHeads(), published=published),
            Item("T2", "On another task", "Table 2", None if self.other_task is None else CountHeads(), lacks=("other_task",)),
            Item("T3", "Cross-attention", "Fig. 2", reason="the model has no cross-attention"),
            Item("T4", "A failure", "Fig. 3", CountHeads(fails=True)),
            Item("T5", "One head", "Table 1", AllButOne()),
        ]


@pytest.fixture(autouse=True)
def _registered() -> Iterator[None]:
    PAPERS.register("test-paper")(CountingPaper)
    MEASURED.clear()
    yield
    del PAPERS._registered["test-paper"]


def test_items_are_listed_with_what_they_need(capsys: pytest.CaptureFixture[str], model: Path, data: Path, tmp_path: Path) -> None:
    words = ("paper", "test-paper", model, "--train", data, "--out", tmp_path / "run")
    code, out, _ = run(capsys, *words, "--list")
    assert code == 0 and MEASURED == []
    rows = {line.split()[0]: line for line in out.splitlines() if line.startswith("T")}
    assert rows["T1"].rstrip().endswith("runs") and "needs --other-task TASK" in rows["T2"] and "no cross-attention" in rows["T3"]


def test_a_list_needs_no_run_folder(capsys: pytest.CaptureFixture[str], model: Path, data: Path) -> None:
    words = ("paper", "test-paper", model, "--train", data)
    assert [item["id"] for item in result(capsys, *words, "--list")["items"]] == ["T1", "T2", "T3", "T4", "T5"]
    code, _, errors = run(capsys, *words)
    assert code == 2 and "name a run folder: --out RUN" in errors


def test_what_runs_is_kept_and_summarised(capsys: pytest.CaptureFixture[str], model: Path, data: Path, tmp_path: Path) -> None:
    words = ("paper", "test-paper", model, "--train", data, "--out", tmp_path / "run", "--only", "T1,Fig. 2,Table1")
    items = result(capsys, *words)["items"]
    n_heads = items["T1"]["tables"]["heads"][0]["heads"]
    assert list(items) == ["T1", "T3", "T5"] and items["T3"]["reason"] == "the model has no cross-attention"
    folder = tmp_path / "run" / "papers" / "test-paper"
    assert (folder / "t1" / "heads.csv").read_text() == f"heads\n{n_heads}\n"
    assert "@inproceedings{test-paper," in (folder / "references.bib").read_text()
    summary = (folder / "summary.md").read_text()
    assert (
        f"The model has {n_heads} heads." in summary
        and "| 144 |" in summary
        and "Not measured: the model has no cross-attention." in summary
    )
    assert all((folder / line.rpartition("](")[2].removesuffix(")")).is_file() for line in summary.splitlines() if line.startswith("!["))
    assert MEASURED == ["count-heads"]
    assert result(capsys, *words)["items"] == items and MEASURED == ["count-heads"], "a finished item is read from the run"


def test_the_run_lists_the_whole_paper(capsys: pytest.CaptureFixture[str], model: Path, data: Path, tmp_path: Path) -> None:
    words = ("paper", "test-paper", model, "--train", data, "--out", tmp_path / "run", "--only")
    result(capsys, *words, "T1")
    run(capsys, *words, "T4")
    (page,) = read_paper_pages(Run.open(tmp_path / "run"))
    entries = {entry.id: entry for entry in page.entries}
    assert list(entries) == ["T1", "T2", "T3", "T4", "T5"]
    assert entries["T1"].result is not None and "The model has" in entries["T1"].result.sentence, "measured by an earlier command"
    reasons = {name: entry.reason for name, entry in entries.items()}
    assert reasons["T2"] == "needs --other-task TASK" and reasons["T3"] == "the model has no cross-attention"
    assert reasons["T4"] == "failed: heads cannot be counted here; count them elsewhere"
    assert entries["T2"].command.endswith("--only T2 --other-task TASK") and entries["T2"].command.count("--only") == 1
    assert entries["T3"].command == "" and entries["T4"].command.endswith(f"--out {tmp_path / 'run'} --only T4")


def test_an_item_that_fails_does_not_stop_the_others(capsys: pytest.CaptureFixture[str], model: Path, data: Path, tmp_path: Path) -> None:
    words = ("paper", "test-paper", model, "--train", data, "--out", tmp_path / "run", "--only", "T4,T1")
    code, out, err = run(capsys, *words)
    assert code == 1 and "1 of 2 items failed: T4" in err and "heads cannot be counted here" in out
    assert (tmp_path / "run" / "papers" / "test-paper" / "t1" / "heads.csv").is_file()


def test_wrong_input_ends_before_any_work(capsys: pytest.CaptureFixture[str], model: Path, data: Path, tmp_path: Path) -> None:
    words = ("paper", "test-paper", model, "--train", data, "--out", tmp_path / "run")
    assert "no paper 'mitchel2019'" in refused(capsys, 2, "paper", "mitchel2019", model)
    assert "no item of this paper 'M99'" in refused(capsys, 2, *words, "--only", "M99")
    assert MEASURED == []


def test_what_is_open_is_noted_once(capsys: pytest.CaptureFixture[str]) -> None:
    session = Session(sys.stdout, (), json=False, quiet=False, verbose=False, pulse=None)  # pyright: ignore[reportArgumentType]
    for note in ("the model", "the task", "the model", "the task"):
        session.write_note_once(note)
    session.write_note("the model")
    assert capsys.readouterr().err.splitlines() == ["the model", "the task", "the model"]
