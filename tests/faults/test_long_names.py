"""Names that are longer than a file system takes, where people name files: a typed error, or a text."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from typer import BadParameter

from headcount.app.cli.find import FindOptions
from headcount.app.console.inputs import check_exists
from headcount.app.main import main
from headcount.core.certificate_file import read_certificate
from headcount.core.errors import HeadcountError
from headcount.data.text.sentences import read_annotated
from headcount.runs.report.write import write_report
from headcount.runs.store import Run
from headcount.studies._base import Study
from headcount.studies._measure.dynamics import resolve_checkpoints
from headcount.studies._measure.language_groups import read_language_groups
from headcount.studies._run_paper import hash_named_files
from headcount.studies._run_study import PythonSources
from headcount.workflows.find import FindRequest

LONG = "x" * 300
"""More than a file system takes as a name."""


@pytest.mark.parametrize(
    ("read", "message"),
    [
        (lambda: list(read_annotated(LONG)), "File name too long"),
        (lambda: read_language_groups(Path(LONG), ["a"]), "is no file"),
        (lambda: resolve_checkpoints([LONG]), "is no folder"),
        (lambda: read_certificate(Path(LONG)), "there is no certificate"),
        (lambda: FindRequest("induction", out=Path(f"{LONG}.json")), "File name too long"),
        (lambda: write_report(Run(Path()), out=Path(f"{LONG}.html")), "File name too long"),
        (lambda: check_exists(Path(LONG)), "no file"),
        (lambda: FindOptions(in_place=True).check("alignment", LONG), "needs a model folder"),
    ],
)
def test_a_name_that_no_file_can_have_is_told(read: Callable[[], object], message: str) -> None:
    with pytest.raises((HeadcountError, BadParameter), match=message):
        read()


@pytest.mark.parametrize(
    "words",
    [["bench", LONG], ["certify", LONG, "--margin", "1%"], ["cut", "demo/encoder", "--scores", LONG, "--keep", "24", "--out", "cut"]],
)
def test_a_command_names_what_is_wrong_with_a_name_that_no_file_can_have(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words) in (1, 2)
    assert LONG[:150] in (text := capsys.readouterr().err) and "Errno" not in text


def test_a_text_that_is_too_long_for_a_path_is_a_text() -> None:
    assert hash_named_files(Study.parse(f"dynamics(checkpoints={LONG}+b)")) == {}
    sources = [PythonSources(None, None, text, 0, None, None) for text in (LONG, f"{LONG}x")]
    assert len({source.text_fingerprint for source in sources}) == 2
