"""Every study returns figures whose numbers stand in its tables, and a run folder keeps the result and its files."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from command_line import result, run
from toys import files, shared, task

import headcount as hc
from headcount.core.errors import MissingExtra
from headcount.core.figure import Figure
from headcount.core.registry import STUDIES
from headcount.core.study_result import Column, Table
from headcount.data.embedded.sentences import draw_sentences
from headcount.runs.store import Run
from headcount.runs.study_files import RESULT
from headcount.studies._base import Study, StudyContext, StudyInfo
from headcount.studies.all_but_one import AllButOne

pytest.importorskip("matplotlib")
ENTAILMENT = "demo/entailment"
SENTENCES = ["the small dog sees a cat .", "a man reads the old book ."] * 8
REQUESTS: dict[str, tuple[str, str | None, str | None, dict[str, Any]]] = {
    "all-but-one": ("all-but-one", ENTAILMENT, ENTAILMENT, {}),
    "attention-maps": ("attention-maps", "demo/encoder", "demo/text", {}),
    "by-type": ("by-type", "demo/translator", "demo/translation", {"limit": 4}),
    "compensation": ("compensation(keep=12;method=magnitude;steps=2;seeds=2;train_batch=4)", ENTAILMENT, ENTAILMENT, {}),
    "dynamics": ("dynamics:demo/entailment-english(keep=50%+25%;by=magnitude)", ENTAILMENT, ENTAILMENT, {"limit": 40}),
    "finetune-roles": ("finetune-roles:demo/entailment(only=offset)", "demo/encoder", None, {"text": SENTENCES}),
    "from-scratch": (
        "from-scratch:magnitude(keep=50%+25%;seeds=2;scratch=2steps;train_batch=4)",
        ENTAILMENT,
        ENTAILMENT,
        {},
    ),
    "importance-map": ("importance-map:gradient+magnitude(distances=true)", ENTAILMENT, ENTAILMENT, {}),
    "kept": ("kept(methods=magnitude;keep=50%+25%;seeds=2)", ENTAILMENT, ENTAILMENT, {}),
    "importance-or-random": (
        "importance-or-random(by=magnitude;keep=24;seeds=2;recover=2steps;train_batch=4)",
        ENTAILMENT,
        ENTAILMENT,
        {},
    ),
    "interventions": ("interventions(keep=16+24;seeds=2)", ENTAILMENT, ENTAILMENT, {}),
    "languages": (
        "languages(tasks=demo/entailment+demo/entailment-tavi;against=demo/entailment-english;keep=50%;method=magnitude)",
        ENTAILMENT,
        None,
        {"limit": 40},
    ),
    "layers": ("layers", ENTAILMENT, ENTAILMENT, {}),
    "penalty-sweep": (
        "penalty-sweep:0.001+0.1(exact=magnitude;seeds=2;steps=4;gate_rate=1;train_batch=4)",
        ENTAILMENT,
        ENTAILMENT,
        {},
    ),
    "pruning-curve": ("pruning-curve(methods=magnitude;keep=50%+25%;seeds=2)", ENTAILMENT, ENTAILMENT, {}),
    "rare-words": ("rare-words(frequent=20)", "demo/encoder-english", None, {"text": draw_sentences("english", 80, seed=0), "limit": 80}),
    "relation-accuracy": ("relation-accuracy", "demo/encoder-english", None, {"text": draw_sentences("english", 80, seed=0), "limit": 80}),
    "role-definitions": ("role-definitions", ENTAILMENT, ENTAILMENT, {"limit": 40}),
    "role-families": ("role-families(definition=pande2021(tau=1))", ENTAILMENT, ENTAILMENT, {"limit": 40}),
    "role-map": ("role-map(definition=pande2021(tau=1))", ENTAILMENT, ENTAILMENT, {"limit": 40}),
    "remaining-roles": ("remaining-roles(methods=magnitude;keep=50%+25%;seeds=2)", "demo/encoder", "demo/text", {}),
    "role-pruning": ("role-pruning(role=offset:-1;seeds=2;keep=50%+75%)", "demo/encoder", "demo/text", {}),
    "roles-importance": ("roles-importance(definition=voita2019)", "demo/encoder", "demo/text", {}),
    "single-heads": ("single-heads", ENTAILMENT, ENTAILMENT, {}),
    "speed": ("speed(method=magnitude;keep=50%+25%;batches=1;length=8;rounds=15)", ENTAILMENT, ENTAILMENT, {}),
    "plan-transfer": ("plan-transfer:demo/entailment-tavi(method=magnitude;keep=16;seeds=2)", ENTAILMENT, ENTAILMENT, {}),
    "strategies": ("strategies(strategies=layers:top;keep=16;seeds=2;recover=2steps;train_batch=4)", ENTAILMENT, ENTAILMENT, {}),
    "survivors": ("survivors", None, None, {"text": SENTENCES}),
    "task-transfer": ("task-transfer:demo/entailment-tavi", ENTAILMENT, ENTAILMENT, {"limit": 40}),
    "weight-change": ("weight-change:demo/entailment-english", ENTAILMENT, None, {}),
    "training-log": ("training-log(method=dsp;steps=4;train_batch=4)", ENTAILMENT, ENTAILMENT, {}),
    "transfer": ("transfer:{folder}/a+{folder}/b", None, None, {}),
}
FIGURES = {
    "all-but-one": ["layers", "metric"],
    "attention-maps": ["positional"],
    "by-type": ["types"],
    "compensation": ["weights", "importance"],
    "dynamics": ["curves"],
    "finetune-roles": ["roles"],
    "from-scratch": ["controls"],
    "importance-map": ["gradient", "magnitude", "distances of encoder-self", "parameters"],
    "kept": [f"layers by {method}" for method in ("magnitude", "random")],
    "languages": ["languages", "lost", "tasks"],
    "layers": ["groups", "pairs"],
    "penalty-sweep": ["heads", "metric", "exact"],
    "pruning-curve": ["curve", "difference"],
    "rare-words": ["ranks", "heads"],
    "relation-accuracy": ["relations"],
    "role-definitions": ["sweep", "rules", "blocks"],
    "role-families": ["shares", "overlap", "layers", "thirds"],
    "role-map": ["bias", "labels", "p-values", "map", "map-local", "map-block", "map-delimiter"],
    "remaining-roles": ["families by magnitude", "families by random"],
    "role-pruning": ["roles"],
    "roles-importance": ["heads", "ranks"],
    "single-heads": ["histogram", "map"],
    "speed": ["batches", "sizes"],
    "importance-or-random": ["choices-24", "choices-8"],
    "interventions": ["interventions"],
    "plan-transfer": ["transfer"],
    "strategies": ["strategies"],
    "survivors": ["families 1", "families 2", "share"],
    "task-transfer": ["metric 1", "loss 1"],
    "weight-change": ["layers"],
    "training-log": ["gates", "loss", "log10 tau", "expected open heads", "open heads"],
    "transfer": ["pair 1"],
}
PLACED = ("x", "counts", "edges", "ticks", "limits", "n", "references", "start")
"""Fields of figures whose numbers need not stand in the table: places on an axis, counts and lines for comparison."""


def prepare(study: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    if study == "transfer":
        for name, data in (("a", ENTAILMENT), ("b", "demo/entailment-tavi")):
            assert run(capsys, "score", ENTAILMENT, "--task", data, "--by", "fluctuation", "--limit", 8, "--out", folder / name)[0] == 0
    elif study == "survivors":
        words = ("--task", "demo/text", "--methods", "magnitude", "--keep", "25%,50%", "--seeds", 2, "--no-repair", "--limit", 8)
        assert run(capsys, "compare", "demo/encoder", *words, "--out", folder / "run")[0] == 0


def numbers_of(value: Any, *, name: str = "") -> Iterator[float]:
    """The numbers that a figure shows, apart from those of its axes."""
    if name in PLACED:
        return
    if isinstance(value, dict):
        for key, entry in value.items():
            yield from numbers_of(entry, name=key)
    elif isinstance(value, list):
        for entry in value:
            yield from numbers_of(entry)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield value


def test_every_study_is_tried() -> None:
    assert set(REQUESTS) == set(FIGURES) == set(STUDIES.names())


@pytest.mark.filterwarnings("ignore::headcount.core.errors.UnknownTokens")
@pytest.mark.parametrize("name", REQUESTS)
def test_figures_show_what_the_tables_hold(name: str, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    prepare(name, tmp_path, capsys)
    text, model, data, options = REQUESTS[name]
    limit = {} if name in ("transfer", "survivors") else {"limit": 8}
    study = text.format(folder=tmp_path)
    measured = hc.study(study, model, data, **{**limit, **options}, out=tmp_path / "run")
    assert [figure.name for figure in measured.figures] == FIGURES[name]
    for figure in measured.figures:
        cells = {cell for row in measured.table(figure.table).rows for cell in row}
        numbers = list(numbers_of(figure.to_dict()))
        assert (numbers or figure.kind == "histogram") and set(numbers) <= cells, (
            f"numbers of {figure.name} that do not stand in table {figure.table}"
        )
        assert Figure.from_dict(json.loads(json.dumps(figure.to_dict()))) == figure

    folder = tmp_path / "run" / "studies" / name
    stems = {figure.replace(" ", "-") for figure in FIGURES[name]}
    assert {path.stem for path in folder.glob("*.svg")} == {path.stem for path in folder.glob("*.pdf")} == stems
    assert len(list(folder.glob("*.csv"))) == len(list(folder.glob("*.tex"))) == len(measured.tables)
    stored = json.loads((folder / RESULT).read_text())
    assert stored == json.loads(json.dumps(measured.to_dict())) == json.loads(json.dumps(hc.StudyResult.from_dict(stored).to_dict()))
    (artifact,) = Run.open(tmp_path / "run").results("study").values()
    assert artifact.content["result"] == stored and (tmp_path / "run" / f"study-{name}.csv").is_file()
    assert run(capsys, "check", tmp_path / "run")[0] == 0


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
