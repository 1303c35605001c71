"""Laws of roles on every family that reads text: uniform attention scores 1, real attention gives numbers; others are refused with a reason."""

from __future__ import annotations

import functools
import inspect
import math

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import headcount as hc
from headcount.behaviour.base import About, Corpus, bare
from headcount.behaviour.roles import measure
from headcount.core.errors import UnsupportedModel
from headcount.core.heads import AttentionBlock
from headcount.core.registry import ROLES
from headcount.models.attention import AttentionTap
from headcount.models.tiny.families import VARIANTS, variant

DEAF = {"whisper": "input_features", "wav2vec2": "input_values", "clip": "images"} | dict.fromkeys(
    ("vit", "deit", "dinov2", "swin"), "pixel_values"
)
"""Families that do not read text alone, and what the refusal must name."""
TEXT = [v.name for v in VARIANTS if v.name not in DEAF]
PLAIN = ["local", "offset", "sink", "same"]
"""Roles that need nothing but tokens."""


def uniform(_block: AttentionBlock, _probabilities: Tensor, visible: Tensor) -> Tensor:
    return visible / visible.sum(-1, keepdim=True).clamp(min=1)


@functools.lru_cache(maxsize=2)
def model_of(name: str) -> nn.Module:
    """In float32: in float64, the eager path of transformers makes NaN of padding that sees no token through its sliding window."""
    return variant(name).build(dtype=torch.float32).eval()


def corpus_of(model: nn.Module) -> Corpus:
    """Sequences of uneven lengths, each with a token that comes twice."""
    rng = np.random.default_rng(0)
    drawn = [rng.choice(np.arange(5, 60), size=int(rng.integers(5, 10)), replace=False).tolist() for _ in range(6)]
    sentences = tuple(bare([*ids, ids[0]]) for ids in drawn)
    return Corpus(sentences, sentences[::-1] if model.config.is_encoder_decoder else ())


def reached(model: nn.Module) -> list[AttentionBlock]:
    """The blocks that these roles are about: no cross-attention, no tower for images."""
    return [block for block in hc.HeadMap.of(model).blocks if block.kind != "cross" and "vision" not in block.path]


def heads_of(model: nn.Module) -> set[hc.Head]:
    return {head for block in reached(model) for head in block.heads}


@pytest.mark.parametrize("name", TEXT)
def test_uniform_attention_scores_one(name: str) -> None:
    model = model_of(name)
    with AttentionTap(model, hc.HeadMap.of(model).blocks, uniform):
        table = measure(model, corpus_of(model), only=PLAIN)
    assert {row.head for row in table} == heads_of(model)
    assert all(row.bias == pytest.approx(1, abs=1e-6) for row in table)
    assert not any(table.labels().values()) and not any(row.by_argmax for row in table)
    assert {label.partition(":")[0] for label in (*table.roles(), *table.untested)} == set(PLAIN)
    causal = {block.kind for block in reached(model)} == {"decoder-self"}
    assert ("offset:+1" in table.untested) == causal


@pytest.mark.parametrize("name", TEXT)
def test_numbers_are_finite_and_do_not_depend_on_batches(name: str) -> None:
    model = model_of(name)
    whole, single = (measure(model, corpus_of(model), only=PLAIN, batch_size=size) for size in (6, 1))
    values, other = (table.to_pandas().drop(columns=["head", "role", "note"]).astype(float) for table in (whole, single))
    assert np.isfinite(values.to_numpy()).all()
    assert ((values.bias >= 0) & (values.bias <= values.maximum * (1 + 1e-6))).all()
    assert values[["accuracy", "baseline", "chance", "p", "p_t", "q", "p_permutation"]].stack().between(0, 1).all()
    columns = ["bias", "maximum", "n_tokens", "n_sentences"]
    np.testing.assert_allclose(values[columns], other[columns], rtol=1e-4, atol=1e-5)
    assert len({(row.head, row.role) for row in whole}) == len(whole) and {row.head for row in whole} == heads_of(model)


@pytest.mark.parametrize("name", DEAF)
def test_families_that_read_no_text_are_refused(name: str) -> None:
    with pytest.raises(UnsupportedModel, match=DEAF[name]):
        measure(model_of(name), corpus_of(model_of(name)), only=PLAIN)


@pytest.mark.parametrize("name", ["llama", "gpt2", "gemma3_text", "falcon-alibi"])
def test_decoders_run_their_probes(name: str) -> None:
    model = model_of(name)
    with AttentionTap(model, hc.HeadMap.of(model).blocks, uniform):
        table = measure(model, corpus_of(model), only=["induction", "retrieval"])
    assert "induction" in table.roles() and {*table.roles(), *table.untested} == {"induction", "retrieval"}
    assert all(row.bias == pytest.approx(1, abs=1e-5) and math.isfinite(row.p) for row in table)


@pytest.mark.parametrize("name", ROLES.names())
def test_every_role_declares_itself(name: str) -> None:
    module = ROLES.module(name)
    assert inspect.getdoc(module) and isinstance(module.ABOUT, About)
    assert module.ABOUT.source and module.ABOUT.where <= {"self", "cross", "image"}
    assert next(iter(inspect.signature(module.sieve).parameters)) == "view"
