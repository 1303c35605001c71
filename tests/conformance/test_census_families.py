"""Families whose defects the census found, each by a computation of its own."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import headcount as hc
from headcount.archs.inputs import probe_inputs
from headcount.surgery.verify import difference, run
from headcount.testing.laws import DoesNotApply, Subject, gate_zero_is_no_attention, generation_agrees
from headcount.testing.shrink import build_model, tiny_config, tiny_model


def test_a_gate_silences_the_convolution_of_a_nystromformer_head() -> None:
    """A head adds a convolution of its values: without values it is silent, without attention it is not."""
    model = tiny_model("nystromformer")
    subject = Subject.of(model)
    with pytest.raises(DoesNotApply, match="convolution of its values"):
        gate_zero_is_no_attention(subject)
    block = subject.heads.blocks[0]
    with hc.mask(model, [block.heads[1]]):
        gated = run(model, subject.batch)
    values = model.get_submodule(block.v.path)
    with torch.no_grad():
        rows = slice(block.head_dim, 2 * block.head_dim)
        values.weight[rows], values.bias[rows] = 0.0, 0.0
    assert difference(gated, run(model, subject.batch)) < 1e-9


def test_generation_leaves_block_sparse_attention_on() -> None:
    """BigBird switches itself to full attention for good as soon as it generates with a cache."""
    model = tiny_model("big_bird", auto="AutoModelForCausalLM")
    assert generation_agrees(Subject.of(model))
    assert model.bert.attention_type == "block_sparse"


def test_persistent_buffers_of_a_float64_model(tmp_path: Path) -> None:
    """CLVP makes its rotary frequencies in float32 and keeps them in the checkpoint; those of a float64 model come back in float64."""
    from transformers import ClvpEncoder

    model = build_model(ClvpEncoder, tiny_config("clvp_encoder"))
    model.rotary_pos_emb.inv_freq.div_(3)  # not a float32 number
    again = hc.load(hc.save(model, tmp_path / "model"))
    assert again.rotary_pos_emb.inv_freq.dtype == torch.float64
    assert torch.equal(again.rotary_pos_emb.inv_freq, model.rotary_pos_emb.inv_freq)
    batch = probe_inputs(model)
    assert all(map(torch.equal, run(again, batch), run(model, batch)))
