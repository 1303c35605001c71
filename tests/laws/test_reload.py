"""A reload repeats every bit: padding rows, buffers that transformers computes anew, and dtypes that it chooses."""

from __future__ import annotations

import shutil
import warnings
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn
from transformers.models.deepseek_ocr2.modeling_deepseek_ocr2 import DeepseekOcr2TextModel

import headcount as hc
from headcount.core.errors import ArtifactError, UnsupportedModel, VerificationError
from headcount.models.dummy_inputs.text import probe_inputs
from headcount.models.tiny.build import build_model, tiny_config, tiny_model
from headcount.models.tiny.families import family_variant
from headcount.surgery import state
from headcount.surgery.export import portable
from headcount.surgery.load import unregister
from headcount.surgery.verify import copy_in_float32, forward_outputs, largest_relative_difference
from headcount.testing.laws import (
    Subject,
    cast_with_padding_rows,
    casts_survive_saving,
    require_equal_reload,
    save_then_load_is_equal,
    uneven_plan,
)


@pytest.mark.parametrize("model_type", ["chinese_clip", "youtu", "llama", "axk1"])
def test_casts_and_padding_rows(model_type: str) -> None:
    """ChineseCLIP and Youtu lose their padding row on loading, RoPE its cast, AXK1 the dtype of a module kept in float32."""
    assert casts_survive_saving(Subject.of(tiny_model(model_type)))


@pytest.mark.parametrize("model_type", ["chinese_clip", "youtu"])
def test_cut_models_keep_their_padding_row(model_type: str) -> None:
    assert save_then_load_is_equal(Subject.of(tiny_model(model_type)))


def test_uniform_cut_of_a_class_that_computes_its_head_dimension(tmp_path: Path) -> None:
    """DeepSeek-OCR-2 reads head_dim from config.json and replaces it by hidden_size / num_attention_heads: fewer heads would be wider ones."""
    model = build_model(DeepseekOcr2TextModel, tiny_config("deepseek_ocr2_text"))
    heads = hc.HeadMap.of(model)
    small = hc.cut(model, hc.Plan.removing([head for head in heads if head.index >= 2]))
    again = hc.load(hc.save(small, tmp_path / "model"))
    assert {name: tensor.shape for name, tensor in again.state_dict().items()} == {n: t.shape for n, t in small.state_dict().items()}
    require_equal_reload(small, probe_inputs(small))
    assert "plain `from_pretrained`" not in (tmp_path / "model" / "README.md").read_text(encoding="utf-8")


def test_dtypes_of_single_tensors(tmp_path: Path) -> None:
    model = tiny_model("llama", dtype=torch.float32)
    model.model.layers[0].mlp.to(torch.bfloat16)
    again = hc.load(hc.save(model, tmp_path / "mixed"))
    assert {n: p.dtype for n, p in again.named_parameters()} == {n: p.dtype for n, p in model.named_parameters()}
    wide = hc.load(tmp_path / "mixed", dtype=torch.float64)  # a dtype that was asked for is the user's choice
    assert {p.dtype for p in wide.parameters()} == {torch.float64}


def test_padding_row_of_a_base_model(tmp_path: Path) -> None:
    model = tiny_model("bert")
    folder = hc.save(model, tmp_path / "model")
    base = hc.load(folder, auto="AutoModel", new_layers=True)
    table, again = model.bert.embeddings.word_embeddings, base.embeddings.word_embeddings
    assert isinstance(table, nn.Embedding)
    assert bool(table.weight[table.padding_idx].count_nonzero())
    assert torch.equal(again.weight, table.weight)


def test_a_state_that_does_not_belong_is_refused(tmp_path: Path) -> None:
    folder = hc.save(tiny_model("llama", dtype=torch.float32).to(torch.bfloat16), tmp_path / "model")
    original = shutil.copytree(folder, tmp_path / "original")
    (folder / state.NAME).write_bytes((folder / state.NAME).read_bytes()[:-3])
    with pytest.raises(ArtifactError, match=r"heads\.state"):
        hc.load(folder)  # the hash differs
    model = hc.load(original)
    with pytest.raises(ArtifactError, match="is damaged"):
        state.restore_unrestored_tensors(model, folder)
    tensors = {name: torch.zeros(3) for name in load_file(original / state.NAME)}
    save_file(tensors, folder / state.NAME, metadata={"same_as": "{}", "dtype": "bfloat16", "other_dtypes": "{}"})
    with pytest.raises(ArtifactError, match="has shape"):
        state.restore_unrestored_tensors(model, folder)


def test_weights_that_transformers_cannot_convert_are_refused(tmp_path: Path) -> None:
    model = tiny_model("mistral_large4")
    small = hc.cut(model, uneven_plan(hc.HeadMap.of(model).blocks))
    with pytest.raises(UnsupportedModel, match="first release"):
        hc.save(small, tmp_path / "model")
    assert not (tmp_path / "model").exists()


@pytest.mark.parametrize("name", ["gemma3n-shared", "gemma4-shared", "blip"])
def test_portable_export(name: str, tmp_path: Path) -> None:
    """Removed heads come back as zeros also where layers share keys and values, and where a block reads its width from its input."""
    model = family_variant(name).build()
    heads = hc.HeadMap.of(model)
    for number, plan in enumerate((uneven_plan(heads.blocks), hc.Plan.removing(heads.blocks[0].heads))):
        hc.export(hc.cut(model, plan), tmp_path / str(number))  # proven equal before it is written


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("model_type", ["kosmos-2", "youtu", "llama", "chinese_clip"])
def test_a_portable_folder_says_what_plain_loading_changes(model_type: str, dtype: torch.dtype, tmp_path: Path) -> None:
    """Kosmos-2 lost its padding row (.116); buffers that a cast had rounded were computed anew (.0099 for LLaMA, also by load)."""
    model = cast_with_padding_rows(tiny_model(model_type), dtype)
    small = hc.cut(model, uneven_plan(Subject.of(model).cuttable))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        folder = hc.export(small, tmp_path / "portable")
    card = (folder / "README.md").read_text(encoding="utf-8")
    plain = type(model).from_pretrained(folder)
    hc.register()
    try:
        registered = type(model).from_pretrained(folder)
    finally:
        unregister()
    exact, batch = copy_in_float32(small, probe_inputs(small))
    expected = forward_outputs(exact, batch)

    def difference(reloaded: nn.Module) -> float:
        return largest_relative_difference(forward_outputs(copy_in_float32(reloaded, {})[0], batch), expected)

    assert difference(hc.load(folder)) < 2e-5
    assert difference(registered) < 2e-5
    is_warned = any("Plain from_pretrained of transformers changes" in str(warning.message) for warning in caught)
    assert is_warned == ("Plain from_pretrained of transformers changes" in card)
    if not is_warned:
        assert difference(plain) < 2e-5
    padding_is_lost = model_type in ("kosmos-2", "chinese_clip")
    assert is_warned == (padding_is_lost or dtype == torch.bfloat16)


def test_the_proof_of_a_portable_export_sees_below_half_precision(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A tolerance of 5e-2 hid buffers that were not copied."""
    small = hc.cut(tiny_model("llama", dtype=torch.float32).to(torch.bfloat16), hc.Plan.removing(["L0H0", "L0H1"]))
    wide = portable.restore_dense_shapes(small)
    with torch.no_grad():
        wide.model.norm.weight.mul_(1.01)
    monkeypatch.setattr(portable, "restore_dense_shapes", lambda _: wide)
    with pytest.raises(VerificationError, match="in float32 differs"):
        hc.export(small, tmp_path / "portable")
    assert not (tmp_path / "portable").exists()


def test_the_card_of_a_uniform_cut_names_what_plain_loading_may_lose(tmp_path: Path) -> None:
    model = cast_with_padding_rows(tiny_model("llama"), torch.bfloat16)
    heads = hc.HeadMap.of(model)
    small = hc.cut(model, hc.Plan.removing([head for block in heads.blocks for group in block.groups()[:3] for head in group]))
    card = (hc.save(small, tmp_path / "model") / "README.md").read_text(encoding="utf-8")
    assert "does not read `heads.state` (`buffer:" in card
