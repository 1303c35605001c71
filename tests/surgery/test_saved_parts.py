"""Parts of models as models of their own: standalone decoders load again, parts of a cut model are refused."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest
import torch

import headcount as hc
from headcount.core.errors import UnsupportedModel
from headcount.models.dummy_inputs.text import probe_inputs
from headcount.models.tiny.build import tiny_config, tiny_model
from headcount.models.tiny.draw import draw_weights
from headcount.testing.laws import uneven_plan

# Classes of decoders (and one encoder) that can be saved by themselves; the last four are not exported by transformers.
PARTS = [
    ("bart", "BartForCausalLM"),
    ("pegasus", "PegasusForCausalLM"),
    ("marian", "MarianForCausalLM"),
    ("whisper", "WhisperForCausalLM"),
    ("trocr", "TrOCRForCausalLM"),
    ("bigbird_pegasus", "BigBirdPegasusForCausalLM"),
    ("bart", "BartDecoder"),
    ("whisper", "WhisperDecoder"),
    ("pegasus", "PegasusDecoder"),
    ("led", "LEDDecoder"),
]


@pytest.mark.parametrize(("model_type", "name"), PARTS)
def test_a_standalone_decoder_loads_again(model_type: str, name: str, tmp_path: Path) -> None:
    cls = getattr(importlib.import_module(f"transformers.models.{model_type}.modeling_{model_type}"), name)
    model = cls(tiny_config(model_type)).double().eval()
    draw_weights(model, torch.Generator().manual_seed(0))
    blocks = [block for block in hc.HeadMap.of(model).blocks if block.kind != "cross"]
    ids = torch.arange(6, 20).view(2, 7)
    small = hc.cut(model, uneven_plan(blocks), inputs={"input_ids": ids})
    again = hc.load(hc.save(small, tmp_path / "part"))
    assert type(again) is cls
    assert list(hc.HeadMap.of(again)) == list(hc.HeadMap.of(small))
    with torch.no_grad():
        assert torch.equal(small(input_ids=ids)[0], again(input_ids=ids)[0])


def test_a_part_of_a_cut_model_is_refused(tmp_path: Path) -> None:
    model = tiny_model("bart")
    small = hc.cut(model, uneven_plan(hc.HeadMap.of(model).blocks))
    with pytest.raises(UnsupportedModel, match="part of a cut model"):
        hc.HeadMap.of(small.model.decoder)
    hc.save(small.model, tmp_path / "base")  # the base model is a whole
    pair = tiny_model("encoder-decoder")
    cut_pair = hc.cut(pair, uneven_plan(hc.HeadMap.of(pair).blocks), inputs=probe_inputs(pair))
    with pytest.raises(UnsupportedModel, match="part of a cut model"):
        hc.save(cut_pair.decoder, tmp_path / "decoder")
    assert not (tmp_path / "decoder").exists()
    hc.load(hc.save(cut_pair, tmp_path / "pair"))
