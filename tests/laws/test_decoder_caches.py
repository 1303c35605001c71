"""Decoders without their encoder model: after a cut, cross-attention does not use the cache of self-attention."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from transformers import DynamicCache, EncoderDecoderCache, PreTrainedModel

import headcount as hc
from headcount.core.errors import VerificationError
from headcount.models.tiny.build import build_model, tiny_config
from headcount.surgery.caches import cross_blocks_sharing_self_cache
from headcount.surgery.verify import gate_values_of_plan
from headcount.testing.laws import Subject, emptying_plan, generation_agrees

DECODERS = ("BartForCausalLM", "MBartForCausalLM", "PegasusForCausalLM", "TrOCRForCausalLM", "BertLMHeadModel", "GPT2LMHeadModel")


def decoder(class_name: str, **overrides: Any) -> PreTrainedModel:
    model_class = getattr(transformers, class_name)
    config = tiny_config(model_class.config_class)
    cross = {name: True for name in ("is_decoder", "add_cross_attention") if hasattr(config, name)}
    return build_model(model_class, tiny_config(model_class.config_class, {**cross, **overrides}))


def prompt(width: int) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(5, 100, (2, 5), generator=generator)
    states = 2 * torch.randn(2, 7, width, generator=generator, dtype=torch.float64)
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "encoder_hidden_states": states}


def generate(model: PreTrainedModel, **options: Any) -> torch.Tensor:
    width = getattr(model.config, "cross_attention_hidden_size", None) or model.config.hidden_size
    return model.generate(**prompt(width), max_new_tokens=6, min_new_tokens=6, do_sample=False, **options)


@pytest.mark.parametrize("class_name", DECODERS)
def test_generation_with_a_cache_equals_generation_without(class_name: str, tmp_path: Path) -> None:
    """Uneven counts in the two blocks of a layer, an empty block of either kind, and equal counts of different heads."""
    model = decoder(class_name)
    heads = hc.HeadMap.of(model)
    first_self = next(block for block in heads.blocks if block.kind == "decoder-self")
    first_cross = next(block for block in heads.blocks if block.kind == "cross")
    other_heads = hc.Plan.removing([*first_self.heads[:3], *first_cross.heads[3:]])
    for plan in (hc.Plan.removing(first_cross.heads[:2]), emptying_plan(first_self), emptying_plan(first_cross), other_heads):
        small = hc.cut(model, plan)
        with hc.HeadGates(model, gate_values_of_plan(heads, plan)):
            expected = generate(model, use_cache=False)
        assert torch.equal(generate(small, use_cache=True), expected)
        separate = EncoderDecoderCache(DynamicCache(config=small.config), DynamicCache(config=small.config))
        assert torch.equal(generate(small, past_key_values=separate), expected)
    again = hc.load(hc.save(small, tmp_path / "model"))
    assert torch.equal(generate(again, use_cache=True), expected)
    assert torch.equal(generate(copy.deepcopy(again), use_cache=True), expected)


def test_the_law_of_generation_covers_decoders_alone() -> None:
    assert "2 plans" in generation_agrees(Subject.of(decoder("BartForCausalLM")))


def test_a_second_cut_adds_no_second_hook() -> None:
    model = decoder("BartForCausalLM")
    heads = hc.HeadMap.of(model)
    small = hc.cut(hc.cut(model, hc.Plan.removing([heads.heads[0]])), hc.Plan.removing([heads.heads[1]]))
    shared = cross_blocks_sharing_self_cache(small, hc.HeadMap.of(small))
    assert [len(small.get_submodule(block.path)._forward_pre_hooks) for block in shared] == [1] * len(shared)
    assert not any(model.get_submodule(block.path)._forward_pre_hooks for block in heads.blocks)


def test_encoder_decoder_models_and_cross_layers_with_an_index_of_their_own_get_no_hook() -> None:
    for class_name in ("BartForConditionalGeneration", "MllamaForCausalLM"):
        model_class = getattr(transformers, class_name)
        model = build_model(model_class, tiny_config(model_class.config_class))
        heads = hc.HeadMap.of(model)
        assert any(block.kind == "cross" for block in heads.blocks)
        assert cross_blocks_sharing_self_cache(model, heads) == []


def test_bigbird_states_why_its_cross_attention_cannot_be_cut_and_what_to_do() -> None:
    """Its dense pass already takes the keys of self-attention from the cache for cross-attention."""
    model = decoder("BigBirdForCausalLM", attention_type="original_full")
    heads = hc.HeadMap.of(model)
    plan = emptying_plan(next(block for block in heads.blocks if block.kind == "cross"))
    with pytest.raises(VerificationError, match=r"cache of self-attention.*use_cache = False"):
        hc.cut(model, plan)
    model.config.use_cache = False
    small = hc.cut(model, plan)
    with hc.HeadGates(model, gate_values_of_plan(heads, plan)):
        expected = generate(model, use_cache=False)
    assert torch.equal(generate(small, use_cache=True), expected)
