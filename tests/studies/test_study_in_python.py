"""`headcount.study`: equal to the command line, checked before any work, kept in a run folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from command_line import result, run
from toys import files, shared, task

import headcount as hc
from headcount.core.errors import OptionError, UnknownName
from headcount.data.readers.processor import tokenizer_or_image_processor
from headcount.studies._base import Study
from headcount.studies.all_but_one import AllButOne
from headcount.studies.dynamics import Dynamics
from headcount.studies.layers import Layers
from headcount.surgery.source import local_folder


def test_python_and_the_command_line_measure_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("study", "layers", "demo/entailment", "--task", "demo/entailment", "--limit", 12, "--how", "mean")
    printed = result(capsys, *words)
    study_result = hc.study("layers(how=mean)", "demo/entailment", "demo/entailment", limit=12)
    model = hc.load("demo/entailment")
    tokenizer = tokenizer_or_image_processor(model, local_folder("demo/entailment"))
    live = hc.study(Layers(how="mean"), model, "demo/entailment", limit=12, tokenizer=tokenizer)
    assert live.tables == study_result.tables and live.sentence == study_result.sentence
    assert study_result.study == "layers(how=mean)" and study_result.sentence == printed["sentence"]
    assert {name: printed[name] for name in ("rows", "pairs", "dense")} == {
        name: study_result.measurements[name] for name in ("rows", "pairs", "dense")
    }
    code, out, _ = run(capsys, *words)
    assert code == 0 and out.rstrip().endswith(study_result.sentence) and study_result.table("groups").rows[0][1] in out


def test_a_live_model_and_task() -> None:
    study_result = hc.study(AllButOne(), shared("encoder"), task("encoder", 20))
    assert [row[0] for row in study_result.table("layers").rows] == ["L0", "L1", "everywhere"] and "2 layers" in study_result.sentence
    assert hc.StudyResult.from_dict(study_result.to_dict()).sentence == study_result.sentence


def test_a_run_keeps_what_is_finished(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first = hc.study("layers", "demo/entailment", "demo/entailment", limit=12, out=tmp_path / "run")
    before = files(tmp_path / "run")
    assert hc.study("layers", "demo/entailment", "demo/entailment", limit=12, out=tmp_path / "run") == first
    assert before and files(tmp_path / "run") == before and (tmp_path / "run" / "study-layers.csv").is_file()
    words = ("study", "layers", "demo/entailment", "--task", "demo/entailment", "--limit", 12, "--out", tmp_path / "run")
    assert result(capsys, *words)["rows"] == first.measurements["rows"] and files(tmp_path / "run") == before


@pytest.mark.parametrize(
    ("study", "arguments", "error", "message"),
    [
        ("layer", {}, UnknownName, "Did you mean 'layers'"),
        ("layers(how=zeros)", {}, UnknownName, "Did you mean 'zero'"),
        ("layers(hwo=zero)", {}, UnknownName, "no option of layers 'hwo'"),
        ("layers", {}, OptionError, "study layers needs a model"),
        ("layers", {"model": "demo/entailment", "text": ["a"]}, OptionError, "study layers uses no text; leave text out"),
        (
            "layers",
            {"model": "demo/entailment", "limit": 0},
            OptionError,
            "option limit of study must be an int or none of at least 1; got 0",
        ),
        ("role-pruning(role=any)", {"model": "demo/encoder"}, OptionError, "needs a run folder; name it with out"),
        ("transfer:runs/a+runs/b", {"model": "demo/encoder"}, OptionError, "uses no model"),
        ("survivors", {}, OptionError, "needs a run folder"),
        ("finetune-roles:demo/entailment", {"model": "demo/encoder"}, OptionError, "needs a text"),
        ("languages", {}, OptionError, "either tasks, or languages as NAME=FILE"),
        ("compensation(keep=4;steps=3;epochs=1)", {}, OptionError, "by steps or by epochs"),
        ("dynamics(hold=2)", {}, OptionError, "option hold of dynamics must be a float"),
    ],
)
def test_wrong_requests_are_refused_before_any_work(
    study: str, arguments: dict[str, Any], error: type[Exception], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(error, match=message.replace("(", r"\(")):
        hc.study(study, **arguments)
    assert not list(tmp_path.iterdir())


def test_numbers_of_heads_are_numbers_in_text_and_python() -> None:
    assert str(Dynamics(keep=("50%", 8, 0.25))) == "dynamics(keep=50%+8+0.25)"
    assert Study.parse("dynamics(keep=50%+8+0.25)") == Dynamics(keep=("50%", 8, 0.25))
