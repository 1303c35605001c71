"""The request of a pruned model: equal requests are equal, values are checked when it is made, and no torch is imported for it."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from headcount.core.budget import Budget
from headcount.core.errors import HeadcountError, OptionError, PlanError, UnknownName
from headcount.pruning.recipe import Recipe
from headcount.pruning.spec import PruneSpec


def test_requests_are_made_without_torch() -> None:
    modules = ("headcount.pruning.spec", "headcount.pruning.recipe", "headcount.workflows.analysis_spec", "headcount.core.budget")
    code = f"import sys; [__import__(name) for name in {modules!r}]; sys.exit(bool({{'torch', 'transformers'}} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_equal_requests_are_equal() -> None:
    texts = ("rank", "gradient", "rank(limit=512)", "rank(by=gradient;again=no)", "gradient()")
    assert len({PruneSpec.of(text, 0.25) for text in texts}) == 1
    assert PruneSpec.of("gradient(again=yes)", "25%") == PruneSpec.of("rank(again=true)", Budget(fraction=0.25))
    assert PruneSpec.of("dsp", 4, recover="300 steps") == PruneSpec.of("dsp", 4, recover="300steps")
    assert PruneSpec.of("dsp", 4, recover=1) == PruneSpec.of("dsp", 4, recover="1.0")
    assert PruneSpec.of("random", 4, protected="L0H1") == PruneSpec.of("random", 4, protected=["L0H1"])
    assert PruneSpec.of("l0(penalty=0.1)") == PruneSpec.of("l0(penalty=0.1)", Budget()) and PruneSpec.of("l0(penalty=0.1)").budget is None


def test_plain_data_hold_every_option_and_give_the_request_back() -> None:
    spec = PruneSpec.of("dsp:fast(tau=2)", 8, kinds=["cross"], protected=["cross.L0H1"], recover="auto", recipe=Recipe(steps=5), seed=3)
    values = spec.to_dict()
    assert values["method"]["cool"] == 0.5 and values["recipe"]["rate"] == 5e-5 and values["budget"]["floor"] == 0
    assert PruneSpec.from_dict(values) == spec
    assert spec.label == "dsp:fast(tau=2) of cross sparing cross.L0H1 + recover auto"
    assert spec.name == f"{spec.label}, 8 heads, seed 3" and spec.resized(6).limits.heads(12) == 6
    assert spec.arguments() == {
        "method": "dsp:fast(tau=2)",
        "keep": 8,
        "protected": ["cross.L0H1"],
        "kinds": ["cross"],
        "recover": "auto",
        "steps": 5,
        "seed": 3,
    }


WRONG: list[tuple[dict[str, Any], type[HeadcountError], str]] = [
    ({}, PlanError, "nothing says how many heads stay"),
    ({"keep": 4, "method": "gradeint"}, UnknownName, "Did you mean 'gradient'"),
    ({"keep": 4, "method": "dsp(taw=1)"}, UnknownName, "Did you mean 'tau'"),
    ({"keep": 4, "method": "dsp(tau=-1)"}, OptionError, "option tau of dsp must be a float above 0; got -1.0"),
    ({"keep": 4, "method": 3}, OptionError, "pruner must be a name"),
    ({"keep": 4, "repair": "yes"}, OptionError, "repair must be True, False or None; got 'yes'"),
    ({"keep": 4, "seed": -1}, OptionError, "seed must be a whole number of 0 or more; got -1"),
    ({"keep": 4, "recipe": {"steps": 3}}, OptionError, "recipe must be a Recipe"),
    ({"keep": 4, "recover": "long"}, OptionError, "recover must be a number of epochs above 0"),
    ({"keep": 4, "ablation": "median"}, PlanError, "ablation is zero or mean"),
    ({"keep": 4, "unit": "heads"}, UnknownName, "no unit of a budget 'heads'"),
    ({"keep": 4, "floor": -1}, PlanError, "floor must be 0 or more"),
    ({"keep": Budget(keep=4, floor=1), "floor": 2}, PlanError, "floor is given twice"),
    ({"keep": 4, "method": "l0(penalty=0.1)"}, PlanError, "decides itself how many heads stay"),
    ({"keep": Budget(floor=1), "method": "l0(penalty=0.1)"}, PlanError, "floor of 1 cannot be promised"),
    ({"keep": Budget(parameters=5), "method": "dsp"}, PlanError, "trains for a number of heads"),
    ({"keep": 4, "ablation": "mean", "repair": True}, PlanError, "leave ablation or repair out"),
    ({"keep": 4, "ablation": "mean", "method": "dsp"}, PlanError, "leave ablation=mean out"),
    ({"keep": 4, "scratch": 1, "recover": 1}, PlanError, "nothing to repair or to recover"),
    ({"keep": 4, "scratch": 1, "ablation": "mean"}, PlanError, "leave ablation out"),
]


@pytest.mark.parametrize(("values", "kind", "message"), WRONG, ids=[message for *_, message in WRONG])
def test_wrong_requests_are_refused_when_they_are_made(values: dict[str, Any], kind: type[HeadcountError], message: str) -> None:
    with pytest.raises(kind) as error:
        PruneSpec.of(**{"method": "random", **values})
    assert message in str(error.value)


@pytest.mark.parametrize(
    "values",
    [{"rate": -1.0}, {"rate": float("nan")}, {"train_batch": 0}, {"train_batch": True}, {"steps": 0}, {"epochs": 0.0}, {"distil": 2}],
)
def test_wrong_recipes_are_refused_when_they_are_made(values: dict[str, Any]) -> None:
    with pytest.raises(OptionError, match=f"option {next(iter(values))} of recipe must be"):
        Recipe(**values)
    assert Recipe.from_dict(Recipe(steps=3, training_arguments={"bf16": True}).to_dict()) == Recipe(
        steps=3, training_arguments={"bf16": True}
    )
