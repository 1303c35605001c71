"""Every study returns figures whose numbers stand in its tables, and a run folder keeps the result and its files."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import pytest
from command_line import result, run
from toys import files, shared, task

import headcount as hc
from headcount.core.errors import MissingExtra
from headcount.core.figure import Figure
from headcount.core.registry import STUDIES
from headcount.core.study_result import Column, Table
from headcount.runs.store import Run
from headcount.runs.study_files import RESULT
from headcount.studies._base import Study, StudyContext, StudyInfo
from headcount.studies.all_but_one import AllButOne

pytest.importorskip("matplotlib")
ENTAILMENT = "demo/entailment"


def test_the_same_study_gives_the_same_files(tmp_path: Path) -> None:
    out = tmp_path / "run"
    hc.study("all-but-one", ENTAILMENT, ENTAILMENT, limit=8, out=out)
    before = {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in (out / "studies").rglob("*.*")}
    hc.study("all-but-one", ENTAILMENT, ENTAILMENT, limit=8, out=out)
    assert before == {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in (out / "studies").rglob("*.*")}
    hc.study("by-type(by=magnitude)", ENTAILMENT, ENTAILMENT, limit=8, out=out)
    assert {path.name for path in (out / "studies").iterdir()} == {"all-but-one", "by-type"}
    assert set(Run.open(out).results("study")) == {"all-but-one", "by-type"}


def test_a_run_of_another_model_is_refused_before_any_work(tmp_path: Path) -> None:
    hc.study(AllButOne(), shared("encoder"), task("encoder", 20), out=tmp_path / "run")
    before = files(tmp_path / "run")
    with pytest.raises(hc.HeadcountError, match="is a run of another model"):
        hc.study("all-but-one", ENTAILMENT, ENTAILMENT, limit=8, out=tmp_path / "run")
    assert files(tmp_path / "run") == before


def test_a_study_of_ones_own_is_kept_without_doing_anything_for_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(STUDIES, "_registered", dict(STUDIES._registered))

    @STUDIES.register("count-heads")
    @dataclass(frozen=True)
    class CountHeads(Study):
        """How many heads are there? Author et al. 2024."""

        info = StudyInfo(paper="Author et al. 2024", needs=frozenset({"model"}))

        def measure(self, context: StudyContext) -> hc.StudyResult:
            heads = Table("heads", (Column("head"),), tuple((str(head),) for head in context.loaded.heads))
            return hc.StudyResult(str(self), (heads,), f"{len(heads.rows)} heads.")

    assert hc.study("count-heads", shared("encoder"), out=tmp_path / "run").sentence == "12 heads."
    run_folder = Run.open(tmp_path / "run")
    assert run_folder.record().config["study"] == "count-heads"
    assert len(run_folder.results("study")["count-heads"].content["rows"]) == 12
    assert {path.name for path in (tmp_path / "run" / "studies" / "count-heads").iterdir()} == {"heads.csv", "heads.tex", RESULT}


@pytest.mark.filterwarnings("default:the figures of study")
def test_without_matplotlib_the_result_is_kept_and_the_remedy_named(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def refuse(figure: Figure, format: str) -> bytes:
        raise MissingExtra("figures need matplotlib: pip install 'headcount[figures]'")

    monkeypatch.setattr("headcount.runs.study_files.draw_figure", refuse)
    words = ("study", "all-but-one", ENTAILMENT, "--task", ENTAILMENT, "--limit", 8, "--out", tmp_path / "run")
    code, out, err = run(capsys, *words)
    assert code == 0 and "when one head is left (q ≤ 0.05)" in out
    assert "the figures of study all-but-one are not drawn: figures need matplotlib: pip install 'headcount[figures]'" in err
    assert {path.name for path in (tmp_path / "run" / "studies" / "all-but-one").iterdir()} == {
        *(f"{table}.{suffix}" for table in ("layers", "kinds") for suffix in ("csv", "tex")),
        RESULT,
    }


def test_the_command_line_keeps_results_too(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    words = ("study", "all-but-one", ENTAILMENT, "--task", ENTAILMENT, "--limit", 8, "--out", tmp_path / "run")
    printed = result(capsys, *words)
    stored = json.loads((tmp_path / "run" / "studies" / "all-but-one" / RESULT).read_text())
    assert stored["measurements"]["layers"] == printed["layers"] and stored["sentence"] == printed["sentence"]
