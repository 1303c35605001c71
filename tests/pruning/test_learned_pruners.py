"""L0, DSP and gates on models where only known heads matter: they find them, keep exactly K, and change nothing that is frozen."""

from __future__ import annotations

import itertools
from functools import cache
from typing import Any

import pytest
import torch
from toys import build, configured, shared, task

import headcount as hc
from headcount.core.budget import Budget
from headcount.core.errors import HeadcountError, PlanError
from headcount.pruning.prune import fold_gates, prune
from headcount.pruning.recipe import Recipe

METHODS = ("l0", "l0:lagrange", "dsp", "dsp:pipelined", "dsp:straight", "dsp:fast", "gates")
PLANTED = ("L0H1", "L0H4", "L1H0", "L1H5")
QUICK = Recipe(train_batch=8, epochs=6, rate=1e-4)
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")


@cache
def planted(kind: str = "encoder") -> Any:
    """A model whose output only the planted heads can reach, and data that it labels itself."""
    heads = hc.HeadMap.of(shared(kind))
    model: Any = fold_gates(build(kind), [4.0 * (str(head) in PLANTED) for head in heads], heads)
    rows = [dict(row) for row in task(kind, 96).calibration]
    with torch.no_grad():
        for row in rows:
            row["labels"] = int(model(input_ids=torch.tensor([row["input_ids"]])).logits.argmax())
    return model, task(kind, rows=rows)


@pytest.mark.parametrize("init", ["gradient", "none"])
@pytest.mark.parametrize("method", METHODS)
def test_planted_heads_are_found(method: str, init: str) -> None:
    model, data = planted()
    if init == "none" and method != "l0":
        pytest.skip("without a hint only the gentlest of them is sure to find heads in so few steps")
    options = {} if method == "gates" and init == "gradient" else {"init": init}
    recipe = QUICK if init == "gradient" else Recipe(train_batch=8, epochs=30, rate=1e-5)
    options |= {"rate": 0.3} if init == "none" else {"spread": 4.0} if method == "dsp:pipelined" else {}
    pruned = prune(model, data, configured(method, **options), len(PLANTED), recipe=recipe, repair=False)
    difference = {str(head) for head in hc.HeadMap.of(model)} - {str(head) for head in pruned.plan.removed}
    assert difference == set(PLANTED)
    assert len(hc.HeadMap.of(pruned.model)) == len(PLANTED)


@pytest.mark.parametrize("method", ["l0", "dsp", "dsp:fast", "gates"])
def test_the_number_of_heads_is_hit_exactly(method: str) -> None:
    model, data = shared("encoder"), task("encoder", 16)
    total = len(hc.HeadMap.of(model))
    for keep in (1, 2, 3, total // 2, total - 1, total):
        pruned = prune(model, data, configured(method, init="none"), keep, recipe=Recipe(train_batch=8, epochs=2), repair=False)
        assert len(hc.HeadMap.of(pruned.model)) == keep == total - len(pruned.plan.removed)


@pytest.mark.parametrize("method", ["l0", "dsp", "gates"])
def test_heads_that_share_keys_stay_together(method: str) -> None:
    model, data = shared("decoder"), task("decoder", 32)
    heads = hc.HeadMap.of(model)
    size = len(heads.units()[0])
    assert size > 1
    pruned = prune(model, data, method, 2 * size, recipe=Recipe(train_batch=8, epochs=2), repair=False)
    removed_heads = set(pruned.plan.removed)
    assert all(removed_heads.issuperset(unit) or removed_heads.isdisjoint(unit) for unit in heads.units())
    with pytest.raises(PlanError, match="whole number of units"):
        prune(model, data, method, 2 * size + 1, recipe=Recipe(train_batch=8))
    with pytest.raises(PlanError, match="use the unit kv_group"):
        prune(model, data, method, Budget(keep=len(heads) // 2, unit="even"), recipe=Recipe(train_batch=8))


def test_gates_learn_with_the_heads_that_stay() -> None:
    """Protected heads and those of the floor are open in every step, so that the model that is cut is the one that was trained."""
    from headcount.pruning.methods import gates

    observed_values: list[torch.Tensor] = []

    class Watched(gates.ProjectedGates):
        def sample(self, step: int, steps: int) -> torch.Tensor:
            pruned = super().sample(step, steps)
            observed_values.append(pruned.detach().clone())
            return pruned

    model, data = shared("encoder"), task("encoder", 32)
    heads = hc.HeadMap.of(model).heads
    budget = Budget(keep=4, floor=1, protected=frozenset(heads[-2:]))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gates, "ProjectedGates", Watched)
        pruned = prune(model, data, "gates", budget, recipe=Recipe(train_batch=8, epochs=4), repair=False)
    values = torch.tensor([head not in pruned.plan.removed for head in heads])
    assert all(bool((observed_value[-2:] != 0).all()) for observed_value in observed_values) and torch.equal(
        observed_values[-1] != 0, values
    )


def test_a_frozen_decoder_keeps_its_bits_and_its_heads() -> None:
    """The encoder-only experiment of Voita et al.: encoder heads are gated, the decoder neither learns nor loses anything."""
    model, data = shared("marian"), task("marian", 32)
    heads = hc.HeadMap.of(model)
    encoder = [head for head in heads if heads.block_of(head).kind == "encoder-self"]
    pruned = prune(
        model, data, configured("l0", frozen="decoder"), 2, kinds=["encoder-self"], recipe=Recipe(train_batch=8, rate=1e-3, epochs=1.0)
    )
    assert set(pruned.plan.removed) < set(encoder) and len(pruned.plan.removed) == len(encoder) - 2
    before, after = model.state_dict(), pruned.model.state_dict()
    assert all(torch.equal(before[name], value) for name, value in after.items() if ".decoder." in name or name.startswith("lm_head"))
    assert any(not torch.equal(before[name], value) for name, value in after.items() if ".encoder." in name and "fc1" in name)
    assert all(parameter.requires_grad for name, parameter in pruned.model.named_parameters() if "embed_positions" not in name)


@pytest.mark.parametrize(
    "method", ["surgeon", "rank", "fisher", "random", "layers", "gates", "l0", "l0:lagrange", "dsp", "dsp:straight", "dsp:fast"]
)
def test_some_kinds_of_attention_lose_heads_and_no_others(method: str) -> None:
    """`keep` counts heads of the kinds named, by any method."""
    model, data = shared("marian"), task("marian", 32)
    heads = hc.HeadMap.of(model)
    mine = {head for head in heads if heads.block_of(head).kind in ("encoder-self", "cross")}
    pruned = prune(model, data, method, 3, kinds=["encoder-self", "cross"], repair=False, recipe=Recipe(train_batch=8, epochs=1.0))
    assert set(pruned.plan.removed) < mine and len(pruned.plan.removed) == len(mine) - 3
    with pytest.raises(HeadcountError, match=r"no kind of attention of this model 'encoder'\. Did you mean 'encoder-self'"):
        prune(model, data, method, 2, kinds=["encoder"], recipe=Recipe(train_batch=8))


def test_the_penalty_decides_how_many_are_open() -> None:
    """λ as published: the more of it, the fewer gates stay open, and those stay that are."""
    model, data = planted()
    observed_values = []
    for penalty in (1e-4, 1.0):
        options = {"penalty": penalty, "init": "none", "rate": 0.3}
        pruned = prune(model, data, configured("l0", **options), recipe=Recipe(train_batch=8, epochs=5))
        observed_values.append([entry["open expected"] for entry in pruned.history][-1])
        assert len(hc.HeadMap.of(pruned.model)) == pruned.history[-1]["open"]
    assert observed_values[0] > 8 and observed_values[1] < 4


def test_the_target_is_held_at_every_step() -> None:
    model, data = planted()
    pruned = prune(model, data, "l0", 4, recipe=QUICK)
    open_shares = [entry["open expected"] for entry in pruned.history]
    assert (
        open_shares[0] > 10
        and open_shares[-1] == pytest.approx(4, abs=1e-6)
        and all(a >= b - 1e-9 for a, b in itertools.pairwise(open_shares))
    )


def test_floors_and_protected_heads_are_trained_with() -> None:
    """The heads of the plan are those that the weights settled with: the last evaluation gates are the plan."""
    model, data = planted()
    for method in ("l0", "dsp"):
        pruned = prune(model, data, method, Budget(keep=3, floor=1, protected=frozenset({hc.Head.parse("L1H3")})), recipe=QUICK)
        texts = {str(head) for head in hc.HeadMap.of(pruned.model)}
        assert "L1H3" in texts and any(name.startswith("L0") for name in texts) and len(texts) == 3


BAD = {
    "settle": ({"settle": 1.0}, "option settle of dsp must be a float of at least 0 and below 1; got 1.0"),
    "share": ({"settle": -0.5}, "option settle of dsp must be a float of at least 0 and below 1; got -0.5"),
    "tau": ({"tau": 1e-9}, "tau_end of dsp must be at most tau"),
    "unknown": ({"taw": 1}, "Did you mean 'tau'"),
    "type": ({"rate": "fast"}, "must be a float"),
}


@pytest.mark.parametrize("name", BAD)
def test_wrong_options_are_refused(name: str) -> None:
    options, messages = BAD[name]
    with pytest.raises(HeadcountError, match=messages):
        prune(shared("encoder"), task("encoder", 32), configured("dsp", **options), 4, recipe=Recipe(train_batch=8))
    with pytest.raises(HeadcountError, match="frozen=decoder needs a model with an encoder and a decoder"):
        prune(shared("encoder"), task("encoder", 32), configured("l0", frozen="decoder"), 4, recipe=Recipe(train_batch=8))
