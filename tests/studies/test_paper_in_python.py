"""`headcount.paper`: equal to the command line, with a new head for a pre-trained model, and wrong input refused before any work."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from command_line import refused, result, run
from slow_tokenizer import WithoutOffsets
from toys import files

import headcount as hc
from headcount.core.errors import HeadcountError, OptionError
from headcount.data.embedded.sentences import draw_sentences
from headcount.data.embedded.tokenizer import build_tokenizer

MODEL, ENCODER, TRANSLATOR = "demo/entailment", "demo/encoder", "demo/translator"
TASK = MODEL


def test_python_and_the_command_line_give_the_same(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    steps: list[tuple[int, int | None]] = []
    paper_result = hc.paper(
        "michel2019",
        MODEL,
        TASK,
        out=tmp_path / "run",
        only=["Fig. 1", "M3", "M6"],
        quick=True,
        limit=12,
        progress=lambda done, total: steps.append((done, total)),
    )
    assert isinstance(paper_result, hc.PaperResult) and paper_result.paper.quick and not paper_result.failures and steps
    assert [item.id for item in paper_result.items] == ["M1", "M3", "M6"] and list(paper_result.results) == ["M1"]
    assert paper_result.items[1].reason.startswith("the model has one kind of attention") and paper_result.items[2].lacks == ("other_task",)
    folder = tmp_path / "run" / "papers" / "michel2019"
    assert paper_result.summary == folder / "summary.md" and "needs other_task" in paper_result.summary.read_text()
    assert {path.name for path in folder.iterdir()} == {"m1", "references.bib", "summary.md"}
    words = ("paper", "michel2019", MODEL, "--task", TASK, "--limit", 12, "--quick", "--only", "M1", "--out", tmp_path / "run")
    printed = result(capsys, *words)["items"]
    assert {name: item["sentence"] for name, item in printed.items()} == {
        name: each.sentence for name, each in paper_result.results.items()
    }
    before = files(tmp_path / "run" / "artifacts")
    again = hc.paper("michel2019(quick=true)", MODEL, TASK, out=tmp_path / "run", only=["M1"], limit=12, progress=False)
    assert again.results["M1"] == paper_result.results["M1"] and files(tmp_path / "run" / "artifacts") == before, "finished items are read"


def test_a_failure_is_named_in_the_result_and_in_a_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from headcount.studies.single_heads import SingleHeads

    def fail(*_: object) -> None:
        raise HeadcountError("planted")

    monkeypatch.setattr(SingleHeads, "measure", fail)
    with pytest.warns(UserWarning, match="1 of 2 items failed: M1: planted"):
        paper_result = hc.paper("michel2019", MODEL, TASK, out=tmp_path / "run", only=["M1", "M14"], quick=True, limit=8, progress=False)
    assert paper_result.failures == {"M1": "planted"} and list(paper_result.results) == ["M14"]


@pytest.fixture(scope="module")
def new_head(tmp_path_factory: pytest.TempPathFactory) -> hc.PaperResult:
    """Two papers' items on an encoder without a head for classes."""
    out = tmp_path_factory.mktemp("new-head") / "run"
    paper = "budhraja2020(quick=true)"
    return hc.paper(paper, ENCODER, TASK, out=out, only=["B2", "B3", "B8", "B10"], limit=24, new_head=True, progress=False)


def test_a_new_head_is_pruned_first_and_trained_then(new_head: hc.PaperResult) -> None:
    assert not new_head.failures and list(new_head.results) == ["B2", "B3"]
    reasons = {item.id: item.reason for item in new_head.items if item.study is None}
    assert list(reasons) == ["B8", "B10"] and all(
        "the head of the model is new, and this item has models that are not trained" in reason for reason in reasons.values()
    )
    rows = new_head.results["B3"].table("strategies").records()
    assert rows and all(row["steps"] == 10 for row in rows), "every model is trained"
    assert new_head.summary is not None and "The head of the model is new" in new_head.summary.read_text()


def test_random_heads_and_the_dense_model_train_as_long_as_methods_that_train(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ("paper", "li2021", ENCODER, "--task", TASK, "--new-head", "--limit", 24, "--quick", "--steps", 4, "--out", tmp_path / "run")
    items = result(capsys, *words, "--only", "L4,L5")["items"]
    assert "this item has models that are not trained" in items["L5"]["reason"]
    rows = items["L4"]["tables"]["curve"]
    assert {row["steps"] for row in rows} == {4} and any(
        row["method"].startswith("random") and "recover 4steps" in row["method"] for row in rows
    )
    code, _, err = run(capsys, *words[:2], MODEL, *words[3:], "--list")
    assert code == 2 and "has a head for classes already" in err


@pytest.mark.parametrize("text", [draw_sentences("english", 12), None])
def test_items_on_roles_are_listed_as_impossible_with_a_tokenizer_that_cannot_be_aligned(tmp_path: Path, text: Any) -> None:
    task = hc.open_task(TASK, hc.load(MODEL), limit=12)
    arguments: Any = {"tokenizer": SimpleNamespace(is_fast=False), "text": text, "quick": True, "limit": 12, "progress": False}
    with pytest.raises(OptionError, match=r"none of these items can run .* V6: SimpleNamespace is a tokenizer without offsets"):
        hc.paper("voita2019", MODEL, task, out=tmp_path / "none", only=["V6"], **arguments)
    assert not (tmp_path / "none" / "artifacts").exists(), "nothing was measured"
    paper_result = hc.paper("voita2019", MODEL, task, out=tmp_path / "run", only=["V1", "V4", "V10", "V16"], **arguments)
    assert not paper_result.failures and list(paper_result.results) == ["V1"]
    reasons = {item.id: item.reason for item in paper_result.items if item.study is None}
    assert set(reasons) == {"V4", "V10", "V16"} and all("is a tokenizer without offsets" in reason for reason in reasons.values())


def test_items_on_roles_run_with_a_tokenizer_that_reports_no_offsets(tmp_path: Path) -> None:
    task = hc.open_task(TASK, hc.load(MODEL), limit=12)
    slow = WithoutOffsets(build_tokenizer(segments=True), spells_unknown=True)
    arguments: Any = {"text": draw_sentences("english", 12), "quick": True, "limit": 12, "progress": False}
    paper_result = hc.paper("voita2019", MODEL, task, out=tmp_path / "slow", only=["V4"], tokenizer=slow, **arguments)
    same = hc.paper("voita2019", MODEL, task, out=tmp_path / "fast", only=["V4"], tokenizer=build_tokenizer(segments=True), **arguments)
    assert paper_result.results["V4"].tables == same.results["V4"].tables


Words = tuple[object, ...]
Case = tuple[str, Callable[[Path], Words], int, str]


def named(*words: object) -> Callable[[Path], Words]:
    return lambda folder: words


def missing(*words: object) -> Callable[[Path], Words]:
    return lambda folder: (*words[:-1], str(words[-1]).replace("FOLDER", str(folder)))


CASES: dict[str, tuple[Callable[[Path], Words], int, str]] = {
    "paper": (named("mitchel2019", MODEL), 2, "no paper 'mitchel2019'. Did you mean 'michel2019'"),
    "option": (named("michel2019", MODEL, "--train-steps", 0), 2, "option train_steps of michel2019 must be"),
    "item": (named("michel2019", MODEL, "--only", "M99"), 2, "no item of this paper 'M99'. Did you mean"),
    "figure": (named("michel2019", MODEL, "--only", "Fig. 77"), 2, "no item of this paper 'Fig. 77'. Known: M1 (Fig. 1), M2 (Table 1)"),
    "model": (named("michel2019", "demo/nothing"), 2, "no embedded model"),
    "no item": (named("michel2019", MODEL, "--only", "M3,M6"), 2, "none of these items can run with demo/entailment"),
    "task": (named("michel2019", MODEL, "--task", "demo/translation"), 1, "demo/translation"),
    "unknown task": (
        named("michel2019", MODEL, "--task", "demo/entialment"),
        2,
        "no variant of demo 'entialment'. Did you mean 'entailment'",
    ),
    "other task": (named("michel2019", MODEL, "--other-task", "demo/translation", "--only", "M6"), 1, "demo/translation"),
    "no checkpoints": (missing("michel2019", MODEL, "--only", "M13", "--checkpoints", "FOLDER/empty"), 1, "holds no checkpoints"),
    "text": (missing("pande2021", MODEL, "--only", "P1", "--text", "FOLDER/no.conllu"), 1, "no.conllu"),
    "empty text": (missing("pande2021", MODEL, "--only", "P1", "--text", "FOLDER/empty.txt"), 1, "empty.txt"),
    "tuned": (named("pande2021", MODEL, "--only", "P9", "--embedded", "english", "--tuned", TRANSLATOR), 1, "have different heads (32 and"),
    "tuned of another kind": (
        named("pande2021", MODEL, "--only", "P9", "--embedded", "english", "--tuned", "demo/decoder"),
        1,
        "is decoder-self attention with",
    ),
    "malformed": (named("budhraja2021", MODEL, "--language", "en", "--only", "X2"), 2, "a language must be NAME=VALUE; got 'en'"),
    "no file": (
        missing("budhraja2021", MODEL, "--only", "X2", "--language", "a=a.tsv", "--language", "b=FOLDER/b.tsv"),
        1,
        "a.tsv, the file of",
    ),
    "against": (
        named("budhraja2021", MODEL, "--only", "X1", "--against", "demo/decoder"),
        1,
        "decoder-self, so that their layers cannot be",
    ),
    "groups": (
        named("budhraja2021", MODEL, "--only", "X4", "--tasks", f"{TASK},demo/entailment-tavi", "--groups", "none.csv"),
        1,
        "none.csv is no file",
    ),
    "weights": (named("budhraja2021", MODEL, "--only", "X6", "--tuned", TRANSLATOR), 1, "have different heads (32 and"),
    "weights of another kind": (
        named("budhraja2021", MODEL, "--only", "X6", "--tuned", "demo/decoder"),
        1,
        "is decoder-self attention with",
    ),
    "size": (named("voita2019", MODEL, "--only", "V14", "--keep", "77"), 2, "got 77"),
    "two texts": (named("pande2021", MODEL, "--embedded", "english", "--text", "a.txt"), 2, "name one text"),
}


@pytest.mark.parametrize("name", CASES)
def test_wrong_input_is_refused_before_any_work(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words, code, message = CASES[name]
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty.txt").touch()
    given = ("paper", *words(tmp_path))
    given += () if "--task" in given else ("--task", TASK)
    assert message in refused(capsys, code, *given, "--limit", 8, "--out", tmp_path / "run")
    assert {path.name for path in tmp_path.iterdir()} == {"empty", "empty.txt"}, "nothing is written"


def test_a_run_of_another_model_is_refused_and_left_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    hc.paper("michel2019", MODEL, TASK, out=tmp_path / "run", only=["M14"], quick=True, limit=8, progress=False)
    before = files(tmp_path / "run")
    words = ("paper", "michel2019", "demo/entailment-english", "--task", TASK, "--limit", 8, "--only", "M14", "--out", tmp_path / "run")
    assert "is a run of another model (demo/entailment" in refused(capsys, 1, *words) and files(tmp_path / "run") == before


@pytest.mark.parametrize(
    ("paper", "arguments", "message"),
    [
        ("mitchel2019", {}, "Did you mean 'michel2019'"),
        ("michel2019(checkpoint=a)", {}, "no option of michel2019 'checkpoint'"),
        ("michel2019", {"only": ["M99"]}, "no item of this paper 'M99'"),
        ("michel2019", {"only": ["M3", "M6"]}, "M6: needs other_task"),
        ("michel2019", {"limit": 0}, "option limit of paper must be an int or none of at least 1; got 0"),
        ("pande2021", {"only": ["P1"], "text": "no.conllu"}, "no.conllu"),
        ("budhraja2021(language=en)", {"only": ["X2"]}, "must be NAME=VALUE; got 'en'"),
    ],
)
def test_wrong_arguments_in_python(
    paper: str, arguments: dict[str, Any], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(HeadcountError, match=message):
        hc.paper(paper, MODEL, TASK, out="run", progress=False, **{"limit": 8, **arguments})
    assert not list(tmp_path.iterdir())
