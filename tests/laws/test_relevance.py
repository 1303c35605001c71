"""The laws of relevance propagation on every must-pass family, in float64 unless said otherwise."""

from __future__ import annotations

import copy
import functools
from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import nn

from headcount.core.errors import UnsupportedModel
from headcount.importance.relevance.relevance import Relevance, relevance
from headcount.importance.relevance.rules import RelevanceError
from headcount.models.dummy_inputs.request import N_PADDED
from headcount.models.dummy_inputs.text import probe_inputs
from headcount.models.head_map import HeadMap
from headcount.models.modules import is_transposed
from headcount.models.tiny.build import tiny_model
from headcount.models.tiny.families import VARIANTS, family_variant
from headcount.models.tiny.float64 import Float64

FAMILIES = [v.name for v in VARIANTS]
# Their logits compare every image with every text, so relevance crosses from one example to another and is conserved only in sum.
CONTRASTIVE = {"clip"}
# Batches whose examples cannot be cut out and stripped of their padding token by token.
NOT_TEXT = {"whisper", "vit", "deit", "dinov2", "swin", "clip", "wav2vec2", "gemma3"}
RULES = ("alpha-beta", "epsilon")


@pytest.fixture(autouse=True)
def float64(request: pytest.FixtureRequest) -> Iterator[None]:
    """Softmax and rotary tables in float64 too: the ε rule magnifies their rounding, which depends on the processor and on the padded length."""
    with nullcontext() if "dtype" in request.fixturenames else Float64():
        yield


@functools.lru_cache(maxsize=2)
def model_of(name: str) -> tuple[nn.Module, dict[str, Any]]:
    model = family_variant(name).build()
    return model, probe_inputs(model)


@functools.lru_cache(maxsize=4)
def relevance_of(name: str, rule: str) -> Relevance:
    model, batch = model_of(name)
    with Float64():
        return relevance(model, batch, rule=rule)  # pyright: ignore[reportArgumentType]


def scale(result: Relevance) -> float:
    """The size of the relevance in flight: shares of the ε rule have either sign and can be far larger than their sum."""
    return max(float(part.abs().sum()) for part in (result.started, result.heads, result.arrived))


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("name", FAMILIES)
def test_relevance_is_conserved(name: str, rule: str) -> None:
    result = relevance_of(name, rule)
    gap = result.arrived + result.leaked - result.started
    gap = gap.sum() if name in CONTRASTIVE else gap
    assert float(gap.abs().max()) <= 1e-9 * scale(result)
    assert all(part.dtype == torch.float64 and bool(part.isfinite().all()) for part in (result.heads, result.leaked, result.arrived))
    assert result.heads.shape == (2, len(HeadMap.of(model_of(name)[0])))


@pytest.mark.parametrize("name", FAMILIES)
def test_alpha_beta_is_never_negative(name: str) -> None:
    result = relevance_of(name, "alpha-beta")
    assert bool((result.heads >= 0).all())
    assert bool((result.leaked >= 0).all())
    assert bool((result.arrived >= 0).all())
    assert bool((result.heads.sum(0) > 0).all())


@pytest.mark.parametrize("name", FAMILIES)
def test_silent_head_has_no_relevance(name: str) -> None:
    model, batch = copy.deepcopy(model_of(name)[0]), model_of(name)[1]
    heads = HeadMap.of(model)
    silent = [(heads.positions(block).start + 1, block) for block in heads.blocks if block.n_heads > 1][::2]
    for _, block in silent:
        layer = model.get_submodule(block.o.path)
        columns = layer.weight.data if is_transposed(layer) else layer.weight.data.T  # pyright: ignore
        columns[block.value_dim : 2 * block.value_dim] = 0.0
    for rule in RULES:
        result = relevance(model, batch, rule=rule)
        assert bool((result.heads[:, [position for position, _ in silent]] == 0).all())
        assert bool((result.heads != 0).any())


def stripped(batch: dict[str, Any]) -> dict[str, Any]:
    """The second example alone, without its padding."""
    padded = batch["input_ids"].shape
    return {name: value[1:2, :-N_PADDED] if value.shape == padded else value[1:2] for name, value in batch.items()}


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("name", [name for name in FAMILIES if name not in NOT_TEXT])
def test_padding_and_company_change_nothing(name: str, rule: str) -> None:
    model, batch = model_of(name)
    alone, together = relevance(model, stripped(batch), rule=rule), relevance_of(name, rule)  # pyright: ignore[reportArgumentType]
    slack = 1e-9 * scale(alone)
    torch.testing.assert_close(alone.heads[0], together.heads[1], rtol=1e-6, atol=slack)
    torch.testing.assert_close(alone.leaked[0], together.leaked[1], rtol=1e-6, atol=slack)


# Experts that gather tokens, queries written in place through views, gates of their own kind, windows of other shapes.
@pytest.mark.parametrize("model_type", ["deepseek_v3", "mixtral", "olmoe", "gemma3n_text", "xlm", "gptj", "codegen", "blenderbot"])
def test_other_families_conserve(model_type: str) -> None:
    model = tiny_model(model_type)
    result = relevance(model, probe_inputs(model))
    torch.testing.assert_close(result.arrived + result.leaked, result.started)
    assert bool((result.heads >= 0).all())


def test_what_has_no_rule_is_refused() -> None:
    model = tiny_model("longformer")
    with pytest.raises(UnsupportedModel, match=r"aten\.as_strided in module 'longformer"):
        relevance(model, probe_inputs(model))
    with pytest.raises(UnsupportedModel, match="pass logits="):
        relevance(base := tiny_model("bert", auto="AutoModel"), probe_inputs(base))


@pytest.mark.parametrize("name", ["bert", "gpt2", "t5"])
def test_model_is_left_as_it_was(name: str) -> None:
    model, batch = model_of(name)
    model.train()
    relevance(model, batch)
    assert model.training
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())
    model.eval()


def test_implementation_of_attention_does_not_matter() -> None:
    results = [relevance(m, probe_inputs(m)).heads for m in (tiny_model("llama", attn=attn) for attn in ("eager", "sdpa"))]
    torch.testing.assert_close(*results)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", ["bert", "llama", "t5"])
def test_lower_precision_conserves_too(name: str, dtype: torch.dtype) -> None:
    model = tiny_model(name, dtype=dtype)
    result = relevance(model, probe_inputs(model))
    torch.testing.assert_close(result.arrived + result.leaked, result.started, rtol=1e-5, atol=1e-5)
    if dtype is torch.float32:
        double = relevance_of(name, "alpha-beta")
        torch.testing.assert_close(result.heads, double.heads, rtol=1e-2, atol=1e-4)


def test_positions_choose_the_predictions() -> None:
    model, batch = model_of("gpt2")
    last = torch.zeros(2, 9, dtype=torch.bool)
    last[:, 3] = True
    parts = [relevance(model, batch, positions=where) for where in (last, batch["attention_mask"].bool() & ~last)]
    torch.testing.assert_close(parts[0].heads + parts[1].heads, relevance_of("gpt2", "alpha-beta").heads)
    assert parts[0].started.tolist() == [1.0, 1.0]
    with pytest.raises(RelevanceError, match="positions must have the shape"):
        relevance(model, batch, positions=last[:, 1:])


def test_labels_choose_the_predictions() -> None:
    labels = torch.full((2, 9), -100)
    labels[0, 2:4] = labels[1, 5] = 7
    for name in ("bert", "gpt2"):
        model, batch = model_of(name)
        assert relevance(model, {**batch, "labels": labels}).started.tolist() == [2.0, 1.0]


def test_classifier_starts_at_one() -> None:
    model = tiny_model("bert", auto="AutoModelForSequenceClassification")
    result = relevance(model, probe_inputs(model))
    assert result.started.tolist() == [1.0, 1.0]
    torch.testing.assert_close(result.arrived + result.leaked, result.started)


def test_other_logits_can_be_named() -> None:
    model = tiny_model("bert", auto="AutoModel")
    result = relevance(model, probe_inputs(model), logits=lambda output: output.last_hidden_state[:, 0])
    torch.testing.assert_close(result.arrived + result.leaked, result.started)


def test_epsilon_rule_holds_in_single_precision() -> None:
    model = tiny_model("bert", dtype=torch.float32)
    result = relevance(model, probe_inputs(model), rule="epsilon")
    assert float((result.arrived + result.leaked - result.started).abs().max()) <= 1e-4 * scale(result)
