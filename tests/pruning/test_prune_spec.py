"""The request of a pruned model: equal requests are equal, values are checked when it is made, and no torch is imported for it."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import pytest

from headcount.core.budget import Budget
from headcount.core.errors import HeadcountError, OptionError, PlanError, UnknownName
from headcount.pruning.recipe import Recipe
from headcount.pruning.spec import PruneSpec
from headcount.runs.artifacts import ArtifactKey
from headcount.workflows.analysis_spec import AnalysisSpec, BenchSizes


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


EQUAL: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"keep": Budget(latency=1)}, {"keep": Budget(latency=1.0)}),
    ({"keep": Budget(parameters=1000)}, {"keep": Budget(parameters=1000.0)}),  # pyright: ignore[reportArgumentType]
    ({"keep": Budget(kv_bytes=1000)}, {"keep": Budget(kv_bytes=1e3)}),  # pyright: ignore[reportArgumentType]
    ({"keep": Budget(fraction=1)}, {"keep": Budget(fraction=1.0)}),
    ({"keep": Budget(keep=4, floor=1)}, {"keep": Budget(keep=4, floor=np.int64(1))}),  # pyright: ignore[reportArgumentType]
    ({"keep": 4, "scratch": 1, "scratch_rate": 1}, {"keep": 4, "scratch": 1, "scratch_rate": 1.0}),
    ({"keep": 4, "kinds": "cross"}, {"keep": 4, "kinds": (kind for kind in ["cross"])}),
]


@pytest.mark.parametrize(("values", "others"), EQUAL, ids=map(str, range(len(EQUAL))))
def test_equal_requests_are_equal_artifacts(values: dict[str, Any], others: dict[str, Any]) -> None:
    spec, other = (PruneSpec.of("random", **arguments) for arguments in (values, others))
    digests = {ArtifactKey("pruned", each.name, each.to_dict()).digest for each in (spec, other)}
    assert spec == other and len(digests) == 1


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
    ({"keep": 4, "repair": "yes"}, OptionError, "option repair of a pruning must be true or false or none; got 'yes'"),
    ({"keep": 4, "seed": -1}, OptionError, "option seed of a pruning must be an int of at least 0; got -1"),
    ({"keep": 4, "recipe": {"steps": 3}}, OptionError, "option recipe of a pruning must be a Recipe"),
    ({"keep": 4, "scratch_rate": float("inf")}, OptionError, "option scratch_rate of a pruning must be a float of at least 0; got inf"),
    ({"keep": 4, "scratch_rate": True}, OptionError, "option scratch_rate of a pruning must be a float of at least 0; got True"),
    ({"keep": 4, "kinds": 3}, OptionError, "option kinds of a pruning must be a list of text; got 3"),
    ({"keep": 4, "kinds": [3]}, OptionError, "option kinds of a pruning must be a list of text; got (3,)"),
    ({"keep": 4, "recover": "long"}, OptionError, "recover must be a number of epochs above 0"),
    ({"keep": 4, "ablation": "median"}, PlanError, "ablation is zero or mean"),
    ({"keep": 4, "unit": "heads"}, UnknownName, "no unit of a budget 'heads'"),
    ({"keep": 4, "floor": -1}, OptionError, "option floor of a budget must be an int of at least 0; got -1"),
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


WRONG_ANALYSES: list[tuple[dict[str, Any], str]] = [
    ({"recipe": 3}, "option recipe of an analysis must be a Recipe; got 3"),
    ({"bench_sizes": 3}, "option bench_sizes of an analysis must be a BenchSizes; got 3"),
    ({"methods": (3,)}, "option methods of an analysis must be a list of text; got (3,)"),
    ({"by": 3}, "option by of an analysis must be a list of text; got 3"),
    ({"by": "gradient"}, "by must be a list of names, such as ('gradient', 'ablation'); got 'gradient'"),
    ({"keep": 0.5}, "option keep of an analysis must be a list of int, float or text or none; got 0.5"),
    ({"seeds": 0}, "option seeds of an analysis must be an int of at least 1; got 0"),
    ({"verdict_limit": 2.5}, "option verdict_limit of an analysis must be an int or none of at least 2; got 2.5"),
]


@pytest.mark.parametrize(("values", "message"), WRONG_ANALYSES, ids=[message for _, message in WRONG_ANALYSES])
def test_wrong_analyses_are_refused_when_they_are_made(values: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError) as error:
        AnalysisSpec(**values)
    assert str(error.value) == message


def test_wrong_sizes_of_latency_are_refused_when_they_are_made() -> None:
    for batches, message in ((3, "must be a list of int of at least 1; got 3"), ((), "batches must be whole numbers from 1 on; got none")):
        with pytest.raises(OptionError, match=message):
            BenchSizes(batches, (8,))  # pyright: ignore[reportArgumentType]
