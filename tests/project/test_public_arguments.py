"""Every public function refuses arguments that do not fit its signature before any work, naming argument and value."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any, get_type_hints

import pytest
from torch import nn
from untouched import Unread, Untouchable

import headcount as hc
from headcount.app.main import main
from headcount.core.errors import DataError, HeadNameError, OptionError, PlanError, UnknownName

FUNCTIONS = [name for name in hc.__all__ if inspect.isfunction(getattr(hc, name)) and inspect.signature(getattr(hc, name)).parameters]


class Useless:
    def __repr__(self) -> str:
        return "<useless>"


def arguments_of(name: str, folder: Path) -> dict[str, Any]:
    """Arguments that a public function needs, none of which may be looked at before all are checked."""
    task = hc.Task("untouched", [{}], [{}], [{}], lambda examples: {})
    values = {
        "model": folder if name == "load_tokenizer" else Untouchable(),
        "small": Untouchable(),
        "dense": Untouchable(),
        "data": task if name in ("analyze", "compare", "paper", "study") else Unread(),
        "tasks": task,
        "text": ["a text"],
        "task": "demo/entailment",
        "plan": hc.Plan.removing(["L0H0"]),
        "heads": ["L0H0"],
        "folder": folder,
        "path": folder,
        "out": folder,
        "margin": "1pt",
        "paper": "michel2019",
        "study": "single-heads",
        "job": "induction",
        "tokenizer": object(),
    }
    parameters = inspect.signature(getattr(hc, name)).parameters.values()
    return {parameter.name: values[parameter.name] for parameter in parameters if parameter.default is inspect.Parameter.empty}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_an_object_of_no_use_is_refused_as_any_argument(name: str, tmp_path: Path) -> None:
    function = getattr(hc, name)
    hints, n_refused = get_type_hints(function), 0
    for argument in inspect.signature(function).parameters:
        if hints[argument] is Any:
            continue
        with pytest.raises((OptionError, UnknownName), match=f"option {argument} of {name} must be .*; got <useless>"):
            function(**arguments_of(name, tmp_path) | {argument: Useless()})
        n_refused += 1
    assert n_refused


@pytest.mark.parametrize("name", FUNCTIONS)
def test_an_unknown_argument_is_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(TypeError, match=rf"{name}\(\) got an unexpected keyword argument 'repiar'"):
        getattr(hc, name)(**arguments_of(name, tmp_path), repiar=True)


@pytest.mark.parametrize(("argument", "value"), [("limit", 0), ("batch_size", 0), ("seed", -1), ("limit", True), ("progress", "yes")])
def test_numbers_out_of_range_are_refused(argument: str, value: Any, tmp_path: Path) -> None:
    functions = [name for name in FUNCTIONS if argument in inspect.signature(getattr(hc, name)).parameters]
    assert len(functions) > 5
    for name in functions:
        with pytest.raises(OptionError, match=f"option {argument} of {name} must be .*; got {value!r}"):
            getattr(hc, name)(**arguments_of(name, tmp_path) | {argument: value})


@pytest.mark.parametrize(
    ("name", "arguments", "error", "message"),
    [
        (
            "score",
            {"model": "demo/encoder"},
            OptionError,
            "option model of score must be a Module; got 'demo/encoder'; load it by headcount.load",
        ),
        ("score", {"data": "glue/sst2"}, OptionError, "got 'glue/sst2'; open it by headcount.open_task"),
        ("evaluate", {"data": [3]}, OptionError, "option data of evaluate must be"),
        ("evaluate", {"split": "test"}, UnknownName, "no split of evaluate 'test'. Known: calibration, report, selection"),
        (
            "cut",
            {"plan": "plan.json"},
            OptionError,
            "got 'plan.json'; make it by headcount.Plan.removing, or read it by headcount.Plan.read",
        ),
        ("mask", {"heads": {"a": 1}}, OptionError, "option heads of mask must be"),
        ("save", {"notes": "one"}, OptionError, "option notes of save must be a list of text; got 'one'; write ['one']"),
        ("compare", {"methods": "gradient"}, OptionError, "got 'gradient'; write ['gradient']"),
        ("compare", {"keep": ["12.5 per cent"]}, PlanError, "12.5 per cent"),
        ("compare", {"data": "glue/sts2"}, UnknownName, "no variant of glue 'sts2'"),
        ("study", {"model": Untouchable(), "data": "glue/sts2"}, UnknownName, "no variant of glue 'sts2'"),
        ("certify", {"tasks": ["demo/entailment", "glue/sts2"]}, UnknownName, "no variant of glue 'sts2'"),
    ],
)
def test_a_refusal_names_the_remedy(name: str, arguments: dict[str, Any], error: type[Exception], message: str, tmp_path: Path) -> None:
    with pytest.raises(error) as raised:
        getattr(hc, name)(**arguments_of(name, tmp_path) | arguments)
    assert message in str(raised.value)


def test_objects_of_the_interface_check_their_fields() -> None:
    wrong: Any = "L0H1"
    for refused, error in (
        (lambda: hc.Plan(wrong), PlanError),
        (lambda: hc.Plan((), protected=wrong), PlanError),
        (lambda: hc.Head("enc", wrong, 0), HeadNameError),
        (lambda: hc.Head("enc", 0, -1), HeadNameError),
        (lambda: hc.Budget(keep=1, protected=3), PlanError),  # pyright: ignore[reportArgumentType]
        (lambda: hc.HeadGates(Untouchable(), how="half"), UnknownName),  # pyright: ignore[reportArgumentType]
    ):
        with pytest.raises(error):
            refused()


def test_values_that_fit_are_passed_on() -> None:
    """Numbers of numpy, one batch in place of many, and generators are what they were."""
    model = Untouchable()
    with pytest.raises(DataError, match="gradient needs data"):
        hc.score(nn.Linear(1, 1), None)
    for data in ({"input_ids": 1}, (batch for batch in ()), Unread(), []):
        with pytest.raises(AssertionError, match="of the model was read"):
            hc.evaluate(model, data)  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize("call", [hc.analyze, hc.compare, hc.paper, hc.study, hc.find], ids=lambda call: call.__name__)
def test_an_empty_text_is_no_place_to_write_to(call: Any) -> None:
    names = [name for name, argument in inspect.signature(call).parameters.items() if argument.default is argument.empty and name != "out"]
    with pytest.raises(OptionError, match=f"out of {call.__name__} is an empty text.* name one"):
        call(**dict.fromkeys(names, "induction"), out="")


@pytest.mark.parametrize("words", [["--out", ""], ["--out="]])
def test_an_empty_out_is_refused_on_the_command_line(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["score", "demo/encoder", *words]) == 2
    assert "--out: an empty text names no folder or file; name one" in capsys.readouterr().err
