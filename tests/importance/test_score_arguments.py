"""Arguments of `score`: what is unknown, mistyped or out of range is refused before any work, naming argument, value and remedy."""

from __future__ import annotations

import inspect
from typing import Any, get_args

import pytest
from toys import shared, task
from untouched import Unread, Untouchable

import headcount as hc
from headcount.core.errors import DataError, OptionError, PlanError, UnknownName
from headcount.core.options import options_of
from headcount.data.task import Split
from headcount.importance.base import Importance
from headcount.importance.methods.gradient import Gradient
from headcount.importance.methods.magnitude import Magnitude
from headcount.importance.rankings import agreements, stabilities
from headcount.importance.score import score_all
from headcount.importance.settings import ScoreSettings
from headcount.models.tiny.build import tiny_model


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"by": "gradeint"}, UnknownName, "no importance 'gradeint'. Did you mean 'gradient'?"),
        ({"by": "gradient:tokn"}, UnknownName, "no variant of gradient 'tokn'. Did you mean 'token'?"),
        ({"by": "gradient(tau=1)"}, UnknownName, "no option of gradient 'tau'"),
        ({"by": "entropy:low"}, OptionError, "entropy has no variants"),
        ({"by": 3}, OptionError, "option by of score must be a text or Importance; got 3"),
        ({"by": ["gradient"]}, OptionError, "option by of score must be a text or Importance; got ['gradient']"),
        ({"normalise": "layers"}, UnknownName, "no normalise of score 'layers'. Did you mean 'layer'?"),
        ({"split": "test"}, UnknownName, "no split of score 'test'"),
        ({"limit": 0}, OptionError, "option limit of score must be an int or none of at least 1; got 0"),
        ({"limit": 2.5}, OptionError, "option limit of score must be an int or none of at least 1; got 2.5"),
        ({"limit": True}, OptionError, "option limit of score must be"),
        ({"batch_size": -1}, OptionError, "option batch_size of score must be an int or none of at least 1; got -1"),
        ({"seed": -1}, OptionError, "option seed of score must be an int of at least 0; got -1"),
        ({"seed": "0"}, OptionError, "option seed of score must be an int of at least 0; got '0'"),
        ({"checkpointing": 1}, OptionError, "option checkpointing of score must be true or false; got 1"),
        ({"generate": "yes"}, OptionError, "option generate of score must be true or false; got 'yes'"),
        ({"adaptive": 0}, OptionError, "option adaptive of score must be an int or none of at least 1; got 0"),
        ({"no_such": 1}, TypeError, "no_such"),
    ],
)
def test_wrong_arguments_are_refused_before_any_work(arguments: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error) as raised:
        hc.score(Untouchable(), Unread(), **arguments)
    assert message in str(raised.value)


def test_data_are_asked_for_before_any_work() -> None:
    with pytest.raises(DataError, match="gradient needs data: pass a task, a dataset or batches"):
        hc.score(tiny_model("bert"))


def test_a_race_generates_no_text() -> None:
    with pytest.raises(PlanError, match="adaptive decides by the loss alone and generates no text"):
        hc.score(tiny_model("bert"), Unread(), "ablation", adaptive=2, generate=True)


def test_the_lowest_of_all_statistics_are_units() -> None:
    """With six heads in two groups of each of two layers, a quarter of the units is one of four, not three of twelve heads."""
    scores = {name: hc.score(shared("decoder"), task("decoder", 24), name) for name in ("ablation", "gradient")}
    assert agreements(scores)["gradient"].lowest.k == len(scores["gradient"].all_units()) // 4 == 1
    assert {row.overlap.value * 1 for row in stabilities(scores["gradient"], k=4)} == {1.0}, "all four units are the lowest four"
    for k in (0, 5):
        with pytest.raises(PlanError, match="k must be from 1 to 4, the units that go or stay together"):
            agreements(scores, k=k)
        with pytest.raises(PlanError, match="k must be from 1 to 4, the units that go or stay together"):
            stabilities(scores["gradient"], k=k)


def test_several_methods_are_a_list() -> None:
    with pytest.raises(OptionError, match=r"by must be a list of importances; got the text 'gradient'; write \['gradient'\]"):
        score_all(Untouchable(), None, "gradient")


def test_text_and_object_are_one() -> None:
    assert Importance.parse("gradient:token") == Gradient("token") and str(Gradient("token")) == "gradient:token"
    assert str(Gradient()) == "gradient" and Importance.parse("gradient:example") == Gradient()
    model = tiny_model("bert")
    assert hc.score(model, by=Magnitude()) == hc.score(model, by="magnitude")


def test_the_signature_is_that_of_the_settings() -> None:
    """Each setting is an argument of `score` with the same default; splits are those of tasks."""
    arguments = inspect.signature(hc.score).parameters
    assert {option.name: option.default for option in options_of(ScoreSettings)} == {
        name: arguments[name].default for name in list(arguments)[3:-1]
    }
    assert next(option for option in options_of(ScoreSettings) if option.name == "split").choices == get_args(Split)
    for name in arguments:
        assert f"        {name}: " in (hc.score.__doc__ or ""), f"{name} is explained"
