"""Repair and survey on data: padding counts nowhere, sums are direct sums, too few tokens are refused, nothing is left behind."""

from __future__ import annotations

import re
import sys
import threading
from typing import Any

import pytest
import torch
from torch import nn
from toys import KINDS, build, examples, shared, task

import headcount as hc
from headcount.core.errors import DataError, OptionError, UnknownName
from headcount.pruning.repair.projection import has_bias, read_weight_and_bias, rows_of_real_tokens
from headcount.pruning.repair.removal_order import Surgeon, measure_grams, order_units_by_removal_cost
from headcount.pruning.repair.repair import RepairSettings, refit

N = 64


def plan_of(model: nn.Module) -> hc.Plan:
    """The first unit of every block goes."""
    return hc.Plan.removing([head for block in hc.HeadMap.of(model).blocks for head in block.groups()[0]])


@pytest.mark.parametrize("kind", KINDS)
def test_padding_and_batches_do_not_matter(kind: str) -> None:
    model = shared(kind)
    repaired = refit(model, plan_of(model), task(kind, N), RepairSettings(batch_size=1))
    for other in (
        refit(model, plan_of(model), task(kind, N, longer=5)),
        refit(model, plan_of(model), task(kind, N), RepairSettings(batch_size=7)),
    ):
        for name, fitted in repaired.blocks.items():
            assert other.blocks[name].n_tokens == fitted.n_tokens and other.blocks[name].ridge == fitted.ridge
            torch.testing.assert_close(other.blocks[name].weights, fitted.weights, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("kind", KINDS)
def test_a_survey_holds_direct_sums(kind: str) -> None:
    """G, M and their numbers against one example at a time, without padding; and the cost of the last unit of a block by hand."""
    model, data = build(kind), task(kind, 10)
    trainable = [p.requires_grad for p in model.parameters()]
    grams = measure_grams(model, hc.HeadMap.of(model), data, batch_size=4)
    assert trainable == [p.requires_grad for p in model.parameters()] and not any(m._forward_hooks for m in model.modules())
    for block in hc.HeadMap.of(model).blocks:
        rows: list[torch.Tensor] = []
        slopes: list[torch.Tensor] = []
        module: Any = model.get_submodule(block.o.path)

        def ran(_module: nn.Module, args: Any, output: torch.Tensor, rows: Any = rows, slopes: Any = slopes) -> None:
            rows.append(args[0].detach().flatten(0, 1))
            output.register_hook(lambda gradient: slopes.append(gradient.flatten(0, 1)))

        hook = module.register_forward_hook(ran)
        for example in data.calibration:
            model(**data.collate([example])).loss.backward()
        hook.remove()
        x, g = torch.cat(rows), torch.cat(slopes)
        x = torch.cat([x, torch.ones(len(x), 1)], 1).double() if has_bias(module) else x.double()
        gram = grams[block.path]
        assert (gram.n_tokens, gram.n_examples) == (len(x), 10)
        torch.testing.assert_close(gram.input_gram, x.T @ x, rtol=1e-8, atol=1e-8)
        torch.testing.assert_close(gram.gradient_gram, g.T @ g, rtol=1e-4, atol=1e-8)
        everything = [list(range(block.n_heads * block.value_dim))]
        weights = read_weight_and_bias(module)
        delta = x @ weights
        if has_bias(module):
            delta = delta - delta.mean(0)
        direct = torch.einsum("to,op,tp->", delta, gram.gradient_gram / gram.n_tokens, delta) / gram.n_examples
        assert gram.make_surgeon(weights, everything).cost_of_removing_each_unit()[0] == pytest.approx(float(direct), rel=1e-3)


def test_independent_gradients_make_the_cost_the_mean_square_of_the_first_order_change() -> None:
    """½ · cost is ½ E Σ (g·δ)², the second-order rise of the loss, once g says nothing about δ."""
    generator = torch.Generator().manual_seed(0)
    x, g = torch.randn(200_000, 4, generator=generator).double(), torch.randn(200_000, 3, generator=generator).double()
    weights = torch.randn(4, 3, generator=generator).double()
    surgeon = Surgeon.before_any_removal(x.T @ x, weights, g.T @ g / len(g), [[0, 1], [2, 3]], 100_000)  # two tokens an example
    felt = ((x[:, :2] @ weights[:2]) * g).sum(1)
    assert surgeon.cost_of_removing_each_unit()[0] == pytest.approx(float((felt**2).sum()) / 100_000, rel=0.02)


@pytest.mark.parametrize("kind", KINDS)
def test_every_unit_is_in_the_order_once(kind: str) -> None:
    model = shared(kind)
    order = order_units_by_removal_cost(model, hc.HeadMap.of(model), task(kind, N))
    assert sorted(unit for unit, _ in order) == sorted(hc.HeadMap.of(model).units())
    assert all(cost >= 0 for _, cost in order)


def test_losses_that_cannot_be_told_apart_are_taken_one_by_one() -> None:
    class Odd(type(shared("encoder"))):
        def forward(self, **batch: Any) -> Any:
            output = super().forward(**batch)
            output.loss = output.loss + output.logits.pow(2).mean()
            return output

    model = build("encoder")
    model.__class__ = Odd
    data = task("encoder", 6)
    together, alone = (
        measure_grams(model, hc.HeadMap.of(model), data, batch_size=6),
        measure_grams(model, hc.HeadMap.of(model), data, batch_size=1),
    )
    for path, grams in alone.items():
        assert together[path].n_tokens == grams.n_tokens and together[path].n_examples == 6
        torch.testing.assert_close(together[path].input_gram, grams.input_gram, rtol=1e-8, atol=1e-8)
        torch.testing.assert_close(together[path].gradient_gram, grams.gradient_gram, rtol=1e-6, atol=1e-10)


def test_too_few_tokens_are_refused() -> None:
    before = threading.active_count()
    with pytest.raises(DataError, match=r"block L0 has 41 inputs to refit and the calibration data \d+ tokens; give more than 41"):
        refit(shared("encoder"), hc.Plan.removing(["L0H0"]), task("encoder", 4))
    assert threading.active_count() == before


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"limit": 0}, OptionError, "option limit of repair must be an int of at least 1; got 0"),
        ({"limit": True}, OptionError, "option limit of repair must be an int of at least 1; got True"),
        ({"batch_size": 0}, OptionError, "option batch_size of repair must be an int or none of at least 1; got 0"),
        ({"ridge": 0}, OptionError, "option ridge of repair must be a float or none above 0; got 0"),
        ({"ridge": float("nan")}, OptionError, "option ridge of repair must be a float or none above 0; got nan"),
        ({"split": "calibraton"}, UnknownName, "no split of repair 'calibraton'. Did you mean 'calibration'?"),
        ({"by": "gate"}, UnknownName, "no by of repair 'gate'. Did you mean 'gates'?"),
        ({"plan": ["L0H0"]}, OptionError, "option plan of repair must be a Plan; got ['L0H0']; make it by headcount.Plan.removing"),
        ({"data": None}, DataError, "data must be a Task, a dataset or batches; got None"),
    ],
    ids=str,
)
def test_wrong_arguments_are_refused_before_any_work(
    arguments: dict[str, Any], error: type[Exception], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.modules["headcount.pruning.repair.repair"], "copy_model", lambda *_, **__: pytest.fail("work began"))
    given = {"plan": hc.Plan.removing(["L0H0"]), "data": task("encoder", 4)} | arguments
    with pytest.raises(error, match=re.escape(message)):
        hc.repair(shared("encoder"), **given)


def test_an_unknown_argument_is_a_type_error() -> None:
    with pytest.raises(TypeError, match="share"):
        hc.repair(shared("encoder"), hc.Plan.removing(["L0H0"]), task("encoder", 4), share=1e-3)  # pyright: ignore[reportCallIssue]


def test_repair_is_the_refit_of_its_arguments() -> None:
    model, data = shared("encoder"), task("encoder", N)
    repaired = hc.repair(model, plan_of(model), data, limit=48, ridge=1e-2, batch_size=5, split="selection", by="gates")
    settings = RepairSettings(limit=48, ridge=1e-2, batch_size=5, split="selection", by="gates")
    expected = refit(model, plan_of(model), data, settings).model.state_dict()
    assert all(torch.equal(value, expected[name]) for name, value in repaired.state_dict().items())


def test_a_failing_pass_leaves_no_thread_and_no_hook() -> None:
    model, before = build("encoder"), threading.active_count()
    calls: list[int] = []

    def fail(*_: Any) -> None:
        calls.append(1)
        if len(calls) == 4:
            raise ZeroDivisionError("a defect")

    hook = model.get_submodule("bert.encoder.layer.1").register_forward_hook(fail)
    with pytest.raises(ZeroDivisionError, match="a defect"):
        refit(model, plan_of(model), task("encoder", N), RepairSettings(batch_size=16))
    hook.remove()
    assert threading.active_count() == before
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())


def test_a_plan_that_removes_nothing_needs_no_data() -> None:
    repaired = refit(shared("encoder"), hc.Plan.removing([]), None)
    assert not repaired.blocks and repaired.model is not shared("encoder")


def test_gates_only_scale_the_heads_that_stay() -> None:
    model = shared("encoder")
    plan = hc.Plan.removing(["L0H0", "L1H3"])
    repaired = refit(model, plan, task("encoder", N), RepairSettings(by="gates"))
    for block in hc.HeadMap.of(model).blocks:
        old, new = (read_weight_and_bias(one.get_submodule(block.o.path)) for one in (model, repaired.model))
        for kept_position in plan.kept_positions(block):
            rows = slice(kept_position * block.value_dim, (kept_position + 1) * block.value_dim)
            ratio = (new[rows] / old[rows]).flatten()
            assert float(ratio.std()) < 1e-6
        assert torch.equal(old[-1], new[-1])


def test_rows_of_padding_are_left_out() -> None:
    model = shared("encoder")
    batch = task("encoder", longer=3).collate(examples("encoder", 5))
    block = hc.HeadMap.of(model).blocks[0]
    shape = batch["input_ids"].shape
    assert len(rows_of_real_tokens(model, block, batch, torch.zeros(*shape, 48))) == int(batch["attention_mask"].sum())


def test_a_refitted_model_has_projections_of_its_own_and_shares_the_rest() -> None:
    model, plan = shared("encoder"), hc.Plan.removing(["L1H0"])
    repaired = refit(model, plan, task("encoder", 16)).model
    own = {name for name, parameter in repaired.named_parameters() if parameter is not model.get_parameter(name)}
    path = next(block.o.path for block in hc.HeadMap.of(model).blocks if "L1H0" in map(str, block.heads))
    assert own == {f"{path}.weight", f"{path}.bias"}
    pointers = {parameter.data_ptr() for parameter in model.parameters()}
    for independent in (hc.cut(repaired, plan), hc.repair(model, plan, task("encoder", 16))):
        assert not any(parameter.data_ptr() in pointers for parameter in independent.parameters())
