"""Families whose defects the census found, each by a computation of its own."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import headcount as hc
from headcount.core.errors import ProbeError, UnsupportedModel
from headcount.models.dummy_inputs.text import probe_inputs
from headcount.models.head_map import HeadMap
from headcount.models.tiny.build import build_model, tiny_config, tiny_model
from headcount.surgery.verify import forward_outputs, largest_relative_difference
from headcount.testing.laws import DoesNotApply, Subject, gate_zero_is_no_attention, generation_agrees


def test_a_gate_silences_the_convolution_of_a_nystromformer_head() -> None:
    """A head adds a convolution of its values: without values it is silent, without attention it is not."""
    model = tiny_model("nystromformer")
    subject = Subject.of(model)
    with pytest.raises(DoesNotApply, match="convolution of its values"):
        gate_zero_is_no_attention(subject)
    block = subject.heads.blocks[0]
    with hc.mask(model, [block.heads[1]]):
        gated = forward_outputs(model, subject.batch)
    with torch.no_grad():
        rows = slice(block.head_dim, 2 * block.head_dim)
        for name in ("weight", "bias"):
            model.get_parameter(f"{block.v.path}.{name}")[rows] = 0.0
    assert largest_relative_difference(gated, forward_outputs(model, subject.batch)) < 1e-9


def test_generation_leaves_block_sparse_attention_on() -> None:
    """BigBird switches itself to full attention for good as soon as it generates with a cache."""
    model = tiny_model("big_bird", auto="AutoModelForCausalLM")
    assert generation_agrees(Subject.of(model))
    assert model.base_model.attention_type == "block_sparse"


def test_persistent_buffers_of_a_float64_model(tmp_path: Path) -> None:
    """CLVP makes its rotary frequencies in float32 and keeps them in the checkpoint; those of a float64 model come back in float64."""
    from transformers import ClvpEncoder

    model = build_model(ClvpEncoder, tiny_config("clvp_encoder"))
    model.get_buffer("rotary_pos_emb.inv_freq").div_(3)  # not a float32 number
    again = hc.load(hc.save(model, tmp_path / "model"))
    assert again.get_buffer("rotary_pos_emb.inv_freq").dtype == torch.float64
    assert torch.equal(again.get_buffer("rotary_pos_emb.inv_freq"), model.get_buffer("rotary_pos_emb.inv_freq"))
    batch = probe_inputs(model)
    assert all(map(torch.equal, forward_outputs(again, batch), forward_outputs(model, batch)))


def test_names_that_differ_by_the_prefix_of_the_base_model(tmp_path: Path) -> None:
    """Pixio's backbone has a layernorm of its own besides pixio.layernorm, and transformers reads one for the other."""
    from transformers import PixioBackbone

    model = build_model(PixioBackbone, tiny_config("pixio"))
    again = hc.load(hc.save(model, tmp_path / "model"))
    assert not torch.equal(model.get_parameter("layernorm.weight"), model.get_parameter("pixio.layernorm.weight"))
    assert torch.equal(again.get_parameter("layernorm.weight"), model.get_parameter("layernorm.weight"))
    assert torch.equal(again.get_parameter("pixio.layernorm.weight"), model.get_parameter("pixio.layernorm.weight"))


def test_a_table_of_positions_that_grew(tmp_path: Path) -> None:
    """A pass over a long input adds rows to sinusoidal positions; the model can be saved and loaded afterwards."""
    model = tiny_model("m2m_100", max_position_embeddings=8)
    short = probe_inputs(model)
    long = {**short, "input_ids": torch.arange(80).view(2, -1) + 2, "attention_mask": torch.ones(2, 40, dtype=torch.long)}
    n_rows = len(model.get_buffer("model.encoder.embed_positions.weights"))
    model(**long)
    assert len(model.get_buffer("model.encoder.embed_positions.weights")) > n_rows
    again = hc.load(hc.save(model, tmp_path / "model"))
    for batch in (short, long):
        assert all(map(torch.equal, forward_outputs(again, batch), forward_outputs(model, batch)))


def test_parameters_that_the_class_makes_in_float32(tmp_path: Path) -> None:
    """The code vectors of UniSpeech's pre-training are a FloatTensor, whatever the dtype; those of a float64 model come back in full."""
    from transformers import UniSpeechForPreTraining

    model = build_model(UniSpeechForPreTraining, tiny_config("unispeech"))
    again = hc.load(hc.save(model, tmp_path / "model"))
    assert torch.equal(again.get_parameter("quantizer.codevectors"), model.get_parameter("quantizer.codevectors"))
    assert again.get_parameter("quantizer.codevectors").dtype == torch.float64


def test_query_heads_that_key_value_heads_do_not_divide() -> None:
    from transformers import Sapiens2Model

    model = build_model(Sapiens2Model, tiny_config("sapiens2", {"num_key_value_heads_per_layer": [16, 8, 16]}))
    with pytest.raises(UnsupportedModel, match="6 query heads are no multiple of 16 KV heads"):
        HeadMap.of(model)


def test_a_model_without_a_forward_pass_is_refused_by_name() -> None:
    from transformers import BarkModel

    model = build_model(BarkModel, tiny_config("bark"))
    with pytest.raises(ProbeError, match=r"BarkModel has no forward pass of its own.*model\.semantic"):
        hc.cut(model, hc.Plan.removing([next(iter(HeadMap.of(model)))]))


def test_a_base_model_keeps_the_labels_of_its_configuration(tmp_path: Path) -> None:
    """PVT's configuration has the 1,000 labels of ImageNet, its base model no tensor of that size."""
    model = tiny_model("pvt", auto="AutoModel")
    assert model.config.num_labels == 1000
    assert max(size for tensor in model.parameters() for size in tensor.shape) < 1000
    again = hc.load(hc.save(model, tmp_path / "model"))
    assert again.config.num_labels == 1000  # pyright: ignore[reportAttributeAccessIssue]
