"""Laws of every registered study: its fields are options with help, its text gives it back, its facts are complete, and it needs no command line."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import MISSING
from pathlib import Path
from typing import Any, get_args

import pytest
from command_line import run
from study_requests import FIGURES, REQUESTS, prepare, request_of

import headcount as hc
from headcount.core.options import options_of
from headcount.core.registry import STUDIES
from headcount.runs.store import Run
from headcount.runs.study_files import RESULT
from headcount.studies._base import Input, Study, StudyInfo
from headcount.testing.kinds import check_study

pytest.importorskip("matplotlib")

NAMES = STUDIES.names()
REQUIRED: dict[str, dict[str, Any]] = {
    "compensation": {"keep": 4},
    "finetune-roles": {"tuned": "demo/entailment"},
    "plan-transfer": {"other_task": "demo/entailment-tavi"},
    "role-pruning": {},
    "task-transfer": {"other_tasks": ("demo/entailment-tavi",)},
    "weight-change": {"tuned": "demo/entailment"},
    "transfer": {"runs": ("runs/a", "runs/b")},
}
"""Values of the options that have no default."""


def test_only_registered_studies_have_requests() -> None:
    assert set(REQUESTS) | set(FIGURES) <= set(NAMES)


@pytest.mark.filterwarnings("ignore::headcount.core.errors.UnknownTokens")
@pytest.mark.parametrize("name", NAMES)
def test_the_laws_of_studies_hold_and_a_run_keeps_the_result(name: str, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    prepare(name, tmp_path, capsys)
    text, model, data, options = request_of(name, tmp_path)
    measured = check_study(text, model, data, **options, out=tmp_path / "run")
    figures = [figure.name for figure in measured.figures]
    assert figures == FIGURES.get(name, figures)

    folder = tmp_path / "run" / "studies" / name
    stems = {figure.replace(" ", "-") for figure in figures}
    assert {path.stem for path in folder.glob("*.svg")} == {path.stem for path in folder.glob("*.pdf")} == stems
    assert len(list(folder.glob("*.csv"))) == len(list(folder.glob("*.tex"))) == len(measured.tables)
    stored = json.loads((folder / RESULT).read_text())
    assert stored == json.loads(json.dumps(measured.to_dict())) == json.loads(json.dumps(hc.StudyResult.from_dict(stored).to_dict()))
    (artifact,) = Run.open(tmp_path / "run").results("study").values()
    assert artifact.content["result"] == stored and (tmp_path / "run" / f"study-{name}.csv").is_file()
    assert run(capsys, "check", tmp_path / "run")[0] == 0


def study_of(name: str, **options: Any) -> Study:
    cls: Any = STUDIES.get(name)
    named = {"role": ("offset:-1", "any"), "groups": ("edges=delimiter,sink",)} if name == "role-pruning" else {}
    named |= {"tasks": ("demo/entailment", "demo/entailment-tavi")} if name == "languages" else {}
    return cls(**REQUIRED.get(name, {}), **named, **options)


@pytest.mark.parametrize("name", NAMES)
def test_fields_are_options_with_help(name: str) -> None:
    for option in options_of(STUDIES.get(name)):
        assert option.help and not option.help.endswith("."), f"{option.name}: the command line ends the sentence"
    required = {option.name for option in options_of(STUDIES.get(name)) if option.default is MISSING}
    assert required == set(REQUIRED.get(name, {}))


@pytest.mark.parametrize("name", NAMES)
def test_text_and_python_are_equal(name: str) -> None:
    study = study_of(name)
    assert Study.parse(str(study)) == study and Study.parse(study) is study
    cls: Any = type(study)
    assert cls.from_dict(json.loads(json.dumps(study.to_dict()))) == study


def test_an_option_may_be_a_text_with_options_of_its_own() -> None:
    study = study_of("role-map", definition="pande2021(tau=2.0;correct=bh)", sentences=50)
    assert study == Study.parse(str(study)) == Study.parse("role-map(definition=pande2021(tau=2.0;correct=bh);sentences=50)")


@pytest.mark.parametrize("name", NAMES)
def test_facts_are_complete(name: str) -> None:
    info = study_of(name).info
    assert isinstance(info, StudyInfo) and info.paper
    assert info.needs | info.optional <= set(get_args(Input)) and not info.needs & info.optional
    assert STUDIES.summary(name).endswith(("?", ".")), "the first line of the docstring"
    assert any(author in STUDIES.documentation(name) for author in ("Michel", "Voita", "Li et al.", "Budhraja", "Pande")), "the paper"


def test_a_study_imports_no_command_line_and_its_options_no_torch_or_numpy() -> None:
    """One process reads the options of every study in turn, and names the first study after which anything else is there."""
    script = (
        "import sys\nfrom headcount.core.registry import STUDIES\nfrom headcount.core.options import options_of\n"
        "heavy = ('torch', 'transformers', 'numpy', 'typer')\n"
        "for study in sys.argv[1:]:\n"
        "    options_of(STUDIES.get(study))\n"
        "    wrong = [name for name in sys.modules if name.split('.')[0] in heavy or name.startswith('headcount.app')]\n"
        "    assert not wrong, (study, wrong[:5])\n"
        "print(len(sys.argv[1:]))"
    )
    shown = subprocess.run([sys.executable, "-c", script, *NAMES], check=True, capture_output=True, text=True).stdout
    assert int(shown) == len(NAMES)


def test_the_list_of_studies_imports_none() -> None:
    script = (
        "import sys, typer\nfrom headcount.app.cli.study import build\n"
        "command = typer.main.get_command(build())\n"
        "command.main(['--help'], standalone_mode=False)\n"
        "wrong = [m for m in sys.modules if m == 'torch' or m.startswith('headcount.studies.')]\n"
        "assert not wrong, wrong"
    )
    stdout = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True).stdout
    assert all(name in stdout for name in NAMES)


def test_no_study_names_a_flag_of_the_command_line() -> None:
    folder = Path(sys.modules["headcount.studies._base"].__file__ or "").parent
    for path in folder.glob("*.py"):
        assert " --" not in path.read_text(encoding="utf-8"), path
