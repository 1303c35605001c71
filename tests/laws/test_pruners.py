"""Laws of every registered pruner: its fields are options with help, its text gives it back, and it says where it comes from."""

from __future__ import annotations

from typing import Any

import pytest

import headcount as hc
from headcount.core.options import options_of
from headcount.core.registry import PRUNERS
from headcount.models.tiny.build import tiny_model
from headcount.pruning.base import Pruner, PrunerInfo


@pytest.mark.parametrize("name", PRUNERS.names())
def test_a_pruner_is_declared_in_full(name: str) -> None:
    cls: Any = PRUNERS.get(name)
    assert issubclass(cls, Pruner) and isinstance(cls.info, PrunerInfo) and cls.info.source
    assert cls.choose is not Pruner.choose and PRUNERS.summary(name)
    declared = {option.name: option for option in options_of(cls)}
    assert all(option.help for option in declared.values())
    assert not cls.info.size_option or not declared[cls.info.size_option].default, "by default the budget decides how many heads stay"


@pytest.mark.parametrize("name", PRUNERS.names())
def test_text_and_python_are_equal(name: str) -> None:
    cls: Any = PRUNERS.get(name)
    pruners = [cls(), *(cls(choice) for option in options_of(cls) if option.is_positional for choice in option.choices)]
    for pruner in pruners:
        assert Pruner.parse(str(pruner)) == pruner == cls.from_dict(pruner.to_dict())
        assert not pruner.sizing_option_text


def test_arguments_are_explicit_and_checked_before_any_work() -> None:
    model: Any = tiny_model("bert", auto="AutoModelForSequenceClassification")
    model.register_forward_pre_hook(lambda *_: pytest.fail("work began"))
    for wrong in ({"repiar": False}, {"no_such": 1}, {"options": {"by": "gradient"}}, {"fraction": 0.5}):
        with pytest.raises(TypeError, match=f"unexpected keyword argument '{next(iter(wrong))}'"):
            hc.prune(model, None, "random", keep=4, **wrong)  # type: ignore[arg-type]


def test_protected_heads_stay() -> None:
    model: Any = tiny_model("bert", auto="AutoModelForSequenceClassification")
    for seed in range(4):
        plan = hc.prune(model, None, "random", keep=1, protected=["L0H1"], repair=False, seed=seed).plan
        assert hc.Head.parse("L0H1") not in plan.removed and len(plan.removed) == len(hc.HeadMap.of(model)) - 1
