"""`headcount certify`: from a saved model, again from its file, and refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import headcount as hc
from headcount.app.cli._app import run
from headcount.core.certificate_file import read_certificate
from headcount.core.errors import ArtifactError
from headcount.surgery.certificate_file import attach_certificate
from headcount.surgery.manifest import manifest_and_file_problems

TASK = "demo/entailment(size=300)"


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    model = hc.load("demo/entailment")
    folder = tmp_path_factory.mktemp("certify") / "small"
    return hc.save(hc.cut(model, hc.Plan.removing(["L0H1"])), folder, tokenizer=hc.load_tokenizer("demo/entailment"))


@pytest.fixture(scope="module")
def certified(saved: Path) -> Path:
    assert run(["certify", str(saved), "--against", "demo/entailment", "--task", TASK, "--margin", "10pt", "--quiet"]) == 0
    return saved / "certificate.json"


def test_the_certificate_stands_beside_the_model_and_in_its_card(saved: Path, certified: Path) -> None:
    certificate = read_certificate(certified)
    assert certificate.verdict == "certified"
    card = (saved / "README.md").read_text(encoding="utf-8")
    assert "## How much worse, at most" in card and "| certified |" in card and "## How to load it" in card
    assert not list(manifest_and_file_problems(saved))
    assert len(hc.HeadMap.of(hc.load(saved))) == 31


def test_a_second_certificate_replaces_the_first(saved: Path, certified: Path) -> None:
    attach_certificate(saved, read_certificate(certified))
    assert (saved / "README.md").read_text(encoding="utf-8").count("## How much worse, at most") == 1


def test_a_certificate_is_checked_from_its_file_alone(saved: Path, certified: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = certified.read_bytes()
    assert run(["certify", str(saved), "--check", str(certified), "--quiet"]) == 0
    assert "still holds" in capsys.readouterr().out
    assert certified.read_bytes() == before


def test_another_model_does_not_confirm_it(certified: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["certify", "demo/entailment", "--check", str(certified), "--json", "--quiet"]) == 1
    answer = json.loads(capsys.readouterr().out)
    assert not answer["holds"] and "other weights" in answer["problems"][0]


def test_an_edited_certificate_is_refused(certified: Path, tmp_path: Path) -> None:
    content = json.loads(certified.read_text(encoding="utf-8"))
    content["tasks"][0]["quality"]["bound"] = 0.0
    edited = tmp_path / "edited.json"
    edited.write_text(json.dumps(content), encoding="utf-8")
    with pytest.raises(ArtifactError, match="damaged or was edited"):
        read_certificate(edited)
    with pytest.raises(ArtifactError, match="no certificate"):
        read_certificate(tmp_path / "none.json")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "certify needs --margin"),
        (["--margin", "1"], "has no unit"),
        (["--margin", "0.02"], "write '2%' if it is a fraction of the dense model's metric, '0.02%' if it is per cent"),
        (["--margin", "1%"], "certify needs --against"),
        (["--margin", "1%", "--check", "x.json"], "leave out --margin"),
        (["--check", "none.json"], "no certificate"),
    ],
)
def test_wrong_usage_is_refused(saved: Path, words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["certify", str(saved), *words]) != 0
    assert message in capsys.readouterr().err.replace("\n", " ")


def test_a_mistyped_run_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["certify", str(tmp_path / "absent"), "--margin", "1%"]) == 2
    assert f"{tmp_path / 'absent'} is no folder here" in capsys.readouterr().err


def test_json_lists_every_example_that_changed(saved: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "c.json"
    words = [
        "certify",
        str(saved),
        "--against",
        "demo/entailment",
        "--task",
        TASK,
        "--margin",
        "1%",
        "--out",
        str(out),
        "--json",
        "--quiet",
    ]
    assert run(words) == 0
    answer: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert answer["file"] == str(out) and out.is_file()
    assert isinstance(answer["tasks"][0]["right_to_wrong"], list)
