"""`hc.prune(..., plan=...)`: the heads of a plan made elsewhere go, all stages follow, and nothing beside it may choose heads."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from toys import build, task

import headcount as hc
from headcount.core.errors import ArtifactError, PlanError
from headcount.pruning.recipe import Recipe

PLAN = hc.Plan.removing(["L0H1", "L1H2"])


@pytest.mark.parametrize("repair", [False, True])
def test_a_plan_and_its_file_give_the_model_of_the_pruner(repair: bool, tmp_path: Path) -> None:
    model, data = build("encoder"), task("encoder", 48)
    PLAN.write(tmp_path / "plan.json", hc.HeadMap.of(model))
    by_method = hc.prune(model, data, "plan(removed=L0H1+L1H2)", repair=repair, progress=False)
    for plan in (PLAN, tmp_path / "plan.json", str(tmp_path / "plan.json")):
        pruned = hc.prune(model, data, plan=plan, repair=repair, progress=False)
        assert pruned.plan == PLAN and bool(pruned.repaired) == repair
        weights = by_method.model.state_dict()
        assert all(torch.equal(tensor, weights[name]) for name, tensor in pruned.model.state_dict().items())


def test_a_plan_is_recovered_with_checkpoints_and_certified(tmp_path: Path) -> None:
    model, data = build("encoder"), task("encoder", 48)
    recipe = Recipe(train_batch=8)
    pruned = hc.prune(model, data, plan=PLAN, recover="3steps", recipe=recipe, margin="90%", folder=tmp_path, progress=False)
    assert pruned.steps == {"recover": 3} and pruned.plan == PLAN and any(tmp_path.iterdir())
    assert pruned.certificate is not None and pruned.sizes == ()


@pytest.mark.parametrize(
    ("argument", "value", "text"),
    [
        ("method", "surgeon", "method=surgeon"),
        ("method", "gradient", "method=gradient"),
        ("keep", 3, "keep=3"),
        ("keep", "25%", "keep=25%"),
        ("keep", hc.Budget(parameters=900), "parameters=900"),
        ("keep", hc.Budget(floor=1), "floor=1"),
        ("kinds", "encoder-self", "kinds=encoder-self"),
        ("protected", ["L1H0"], "protected=L1H0"),
        ("floor", 1, "floor=1"),
        ("unit", "even", "unit=even"),
    ],
)
def test_what_would_choose_heads_beside_a_plan_is_refused(argument: str, value: Any, text: str) -> None:
    model = build("encoder")
    with pytest.raises(PlanError, match=f"plan says which heads go, so that {text} has nothing to decide; leave one of them out"):
        hc.prune(model, None, plan=PLAN, progress=False, **{argument: value})


def test_plans_that_do_not_fit_are_refused_before_any_work(tmp_path: Path) -> None:
    model = build("encoder")
    other = tmp_path / "other.json"
    PLAN.write(other, hc.HeadMap.of(build("decoder")))
    (tmp_path / "broken.json").write_text("[]")
    for plan, message in (
        (hc.Plan.removing(["L9H0"]), "this model has no head L9H0"),
        (hc.Plan.removing([]), "the plan removes no head; name one that does"),
        (other, "the plan is for a model of type"),
    ):
        with pytest.raises(PlanError, match=message):
            hc.prune(model, None, plan=plan, progress=False)
    with pytest.raises(ArtifactError, match="holds no plan"):
        hc.prune(model, None, plan=tmp_path / "broken.json", progress=False)


def test_evaluate_takes_the_file_of_a_plan(tmp_path: Path) -> None:
    model, data = build("encoder"), task("encoder", 16)
    PLAN.write(tmp_path / "plan.json")
    from_file, from_plan = (hc.evaluate(model, data, plan=plan, progress=False) for plan in (str(tmp_path / "plan.json"), PLAN))
    assert (from_file.losses == from_plan.losses).all() and from_plan.loss != hc.evaluate(model, data, progress=False).loss
