"""After `register`, plain from_pretrained loads the cut models of every family; without it, it refuses them."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import transformers
from packaging.version import Version

import headcount as hc
from headcount.models.dummy_inputs.text import probe_inputs
from headcount.models.tiny.build import tiny_model
from headcount.models.tiny.families import VARIANTS, variant
from headcount.surgery.cut import cut
from headcount.surgery.load import unregister
from headcount.surgery.verify import forward_outputs, largest_relative_difference
from headcount.testing.laws import Subject, cast_with_padding_rows, emptying_plan, require_same_model, uneven_plan

SIGLIP_CUTS = Version("5.8")


@pytest.mark.parametrize("name", [v.name for v in VARIANTS])
@pytest.mark.parametrize("shape", ["uneven", "first block empty"])
def test_plain_loading_needs_register(name: str, shape: str, tmp_path: Path) -> None:
    if name == "gemma3" and Version(transformers.__version__) < SIGLIP_CUTS:
        pytest.skip("SigLIP of this release reshapes by the model width")
    model = variant(name).build()
    blocks = Subject.of(model).cuttable
    small = cut(model, uneven_plan(blocks) if shape == "uneven" else emptying_plan(blocks[0]))
    folder = hc.save(small, tmp_path / "out")
    kernels = {"experts_implementation": "eager"} if name == "gpt_oss" else {}
    if any(block.n_heads < block.n_original for block in hc.HeadMap.of(small).blocks) and "replaced" not in small.config.headcount:
        with pytest.raises(RuntimeError):
            type(model).from_pretrained(folder, **kernels)
    hc.register()
    try:
        again = type(model).from_pretrained(folder, **kernels)
    finally:
        unregister()
    batch = probe_inputs(model)
    assert type(again) is type(model)
    assert hc.HeadMap.of(again).heads == hc.HeadMap.of(small).heads
    assert largest_relative_difference(forward_outputs(again, batch), forward_outputs(small, batch)) < 1e-9


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("model_type", ["kosmos-2", "youtu", "llama", "chinese_clip"])
@pytest.mark.parametrize("is_cut", [True, False])
def test_casts_and_padding_rows_come_back(model_type: str, dtype: torch.dtype, is_cut: bool, tmp_path: Path) -> None:
    """Plain loading ignored heads.state: outputs differed by .117 (Kosmos-2), .011 (Youtu), .0099 (LLaMA) and .007 (ChineseCLIP)."""
    model = cast_with_padding_rows(tiny_model(model_type), dtype)
    if is_cut:
        model = cut(model, uneven_plan(Subject.of(model).cuttable))
    folder = hc.save(model, tmp_path / "model")
    batch = probe_inputs(model)
    hc.register()
    try:
        for options in ({}, {"dtype": "auto"}, {"dtype": dtype}):
            require_same_model(model, type(model).from_pretrained(folder, **options), batch)
        again, _ = type(model).from_pretrained(folder, output_loading_info=True)
    finally:
        unregister()
    require_same_model(model, again, batch)
    require_same_model(model, hc.load(folder, dtype=dtype), batch)
