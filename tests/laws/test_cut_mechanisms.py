"""Cuts of blocks whose mechanism a plain probe does not exercise: windows and global tokens, keys and values shared between layers."""

from __future__ import annotations

import copy

import pytest
import torch

import headcount as hc
from headcount.core.errors import PlanError
from headcount.models.dummy_inputs.text import probe_inputs
from headcount.models.tiny.build import tiny_model
from headcount.models.tiny.families import family_variant
from headcount.surgery.cut import count_removed_parameters
from headcount.surgery.verify import forward_outputs, gate_values_of_plan, largest_relative_difference, run_gated
from headcount.testing.laws import uneven_plan

WINDOW = 4
SHARED = ("gemma3n-shared", "gemma4-shared")


def tokens(length: int, n_global: int, batch: int = 2) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(length)
    ids = torch.randint(5, 100, (batch, length), generator=generator)
    mask = torch.ones_like(ids)
    mask[1, length - 1 :] = 0  # one padded position
    inputs = {"input_ids": ids, "attention_mask": mask}
    if n_global:
        inputs["global_attention_mask"] = torch.zeros_like(ids)
        inputs["global_attention_mask"][:, :n_global] = 1
    return inputs


@pytest.mark.parametrize("n_global", [0, 2])
@pytest.mark.parametrize("length", [3, WINDOW, 21])
@pytest.mark.parametrize("name", ["longformer", "led"])
def test_windows_and_global_tokens(name: str, length: int, n_global: int) -> None:
    model = family_variant(name).build()
    heads = hc.HeadMap.of(model)
    inputs = tokens(length, n_global) | ({"decoder_input_ids": torch.tensor([[2, 7, 8], [2, 9, 4]])} if name == "led" else {})
    for plan in (uneven_plan(heads.blocks), hc.Plan.removing(heads.blocks[0].heads)):
        small = hc.cut(model, plan)  # proven on a probe of its own, not on these inputs
        assert largest_relative_difference(forward_outputs(small, inputs), run_gated(model, plan, inputs)) < 1e-9


def test_generation_with_global_tokens() -> None:
    model = family_variant("led").build()
    plan = uneven_plan(hc.HeadMap.of(model).blocks)
    inputs = tokens(21, 2) | {"max_new_tokens": 5, "min_new_tokens": 5, "do_sample": False}
    with hc.HeadGates(model, gate_values_of_plan(hc.HeadMap.of(model), plan)):
        expected = model.generate(**inputs)
    assert torch.equal(hc.cut(model, plan).generate(**inputs), expected)


@pytest.mark.parametrize("name", SHARED)
def test_units_are_the_heads_that_read_one_kv_head(name: str) -> None:
    heads = hc.HeadMap.of(family_variant(name).build())
    sliding, full = heads.sharing()
    assert [block.layer for block in sliding] == [0, 2]
    assert [block.layer for block in full] == [1, 3]
    assert heads.units()[0] == (*heads.blocks[0].groups()[0], *heads.blocks[2].groups()[0])
    assert sorted(head for unit in heads.units() for head in unit) == sorted(heads)


@pytest.mark.parametrize("name", SHARED)
def test_a_kv_head_goes_with_all_its_readers(name: str, tmp_path) -> None:
    model = family_variant(name).build()
    heads, batch = hc.HeadMap.of(model), probe_inputs(model)
    provider, reader = heads.sharing()[0]
    with pytest.raises(PlanError, match="reads the same keys and values"):
        hc.cut(model, hc.Plan.removing(provider.groups()[0]))
    plans = {
        "one KV head": list(heads.units()[0]),
        "the provider's queries": [*provider.heads],
        "a provider without queries, fewer KV heads": [*provider.heads, *reader.groups()[0]],
        "the reader's queries": [*reader.heads],
        "all that share": [*provider.heads, *reader.heads],
    }
    for removed in plans.values():
        plan = hc.Plan.removing(removed)
        small = hc.cut(model, plan)
        assert largest_relative_difference(forward_outputs(small, batch), run_gated(model, plan, batch)) < 1e-9
        again = hc.load(hc.save(small, tmp_path / "model", overwrite=True), model_kwargs={"experts_implementation": "eager"})
        assert largest_relative_difference(forward_outputs(again, batch), forward_outputs(small, batch)) == 0


@pytest.mark.parametrize("name", SHARED)
def test_cutting_a_provider_step_by_step(name: str) -> None:
    model = family_variant(name).build()
    provider, reader = hc.HeadMap.of(model).sharing()[0]
    steps = [provider.heads, reader.groups()[0], reader.groups()[1]]
    small = model
    for step in steps:
        small = hc.cut(small, hc.Plan.removing(step))
    once = hc.cut(model, hc.Plan.removing([head for step in steps for head in step]))
    batch = probe_inputs(model)
    assert largest_relative_difference(forward_outputs(small, batch), forward_outputs(once, batch)) < 1e-9
    assert sum(p.numel() for p in small.parameters()) == sum(p.numel() for p in once.parameters())


@pytest.mark.parametrize("name", SHARED)
@pytest.mark.parametrize("unit", ["kv_group", "even"])
def test_ranked_plans_can_be_cut(name: str, unit: str) -> None:
    model = family_variant(name).build()
    heads = hc.HeadMap.of(model)
    generator = torch.Generator().manual_seed(3)
    scores = hc.Scores(heads.heads, tuple(torch.rand(len(heads), generator=generator).tolist()), units=heads.units())
    plan = hc.Plan.keep_top(scores, hc.Budget(keep=12, unit=unit, floor=1 if unit == "kv_group" else 0))
    assert len(heads) - len(plan.removed) == 12
    if unit == "kv_group":
        assert all(plan.kept_positions(block) for block in heads.blocks)
    hc.cut(model, plan)


def test_values_that_are_the_keys() -> None:
    model = tiny_model("gemma4_text", attention_k_eq_v=True)
    heads = hc.HeadMap.of(model)
    assert not heads.refused
    assert heads.blocks[1].k.path == heads.blocks[1].v.path
    batch = probe_inputs(model)
    for plan in (uneven_plan(heads.blocks), hc.Plan.removing(heads.blocks[1].heads)):
        dense = sum(p.numel() for p in model.parameters())
        small = hc.cut(model, plan)
        assert largest_relative_difference(forward_outputs(small, batch), run_gated(model, plan, batch)) < 1e-9
        assert dense - sum(p.numel() for p in small.parameters()) == count_removed_parameters(heads, plan)


def test_a_fitted_block_copies_compiles_and_exports() -> None:
    model = family_variant("blip").build()
    heads = hc.HeadMap.of(model)
    small = hc.cut(model, uneven_plan([block for block in heads.blocks if "vision" in block.path]))
    tower = copy.deepcopy(small).vision_model
    pixels = probe_inputs(model)["pixel_values"]
    expected = small.vision_model(pixels).last_hidden_state
    assert torch.equal(tower(pixels).last_hidden_state, expected)
    assert torch.equal(torch.compile(tower, backend="eager")(pixels).last_hidden_state, expected)
    exported = torch.export.export(tower, (pixels,), strict=False).module()(pixels)
    assert torch.allclose(exported.last_hidden_state, expected, atol=1e-12)
