"""Lists of heads in configurations follow cuts: Whisper's alignment heads, through cuts, folders and exports."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import headcount as hc
from headcount.core.errors import PlanError
from headcount.core.files import read_json
from headcount.models.dummy_inputs.text import probe_inputs
from headcount.models.tiny.build import tiny_model

LISTED = [[0, 1], [0, 4], [1, 0], [1, 5]]


def whisper(pairs: Any = LISTED) -> Any:
    model: Any = tiny_model("whisper", attn="eager")
    model.generation_config._from_model_config = False  # as of a generation_config.json
    model.generation_config.alignment_heads = pairs
    model.generation_config.suppress_tokens = [3]
    return model


def maps(model: Any, plan: hc.Plan | None = None) -> Tensor:
    """What token timestamps are made from: the cross-attention of the listed heads."""
    with torch.no_grad(), hc.mask(model, () if plan is None else plan.removed):
        crosses = model(**probe_inputs(model), output_attentions=True).cross_attentions
    return torch.stack([crosses[layer][:, head] for layer, head in model.generation_config.alignment_heads], 1)


def test_alignment_heads_follow_cuts(tmp_path: Path) -> None:
    model = whisper()
    plan = hc.Plan.removing(["cross.L0H0", "cross.L0H4", "cross.L1H1", "cross.L1H2", "enc.L0H0", "dec.L1H1"])
    small: Any = hc.cut(model, plan)
    assert small.generation_config.alignment_heads == [[0, 0], [1, 0], [1, 3]]
    assert model.generation_config.alignment_heads == LISTED
    assert torch.allclose(maps(small), maps(model, plan)[:, [0, 2, 3]], atol=1e-9)

    again: Any = hc.load(hc.save(small, tmp_path / "small"))
    assert again.generation_config.alignment_heads == [[0, 0], [1, 0], [1, 3]]
    assert again.generation_config.suppress_tokens == [3]
    assert read_json(tmp_path / "small" / "heads.json")["named_heads"] == {"generation_config.alignment_heads": LISTED}

    twice: Any = hc.cut(again, hc.Plan.removing(["cross.L1H0"]))
    assert twice.generation_config.alignment_heads == [[0, 0], [1, 2]]

    portable: Any = hc.load(hc.export(twice, tmp_path / "portable"))
    assert portable.generation_config.alignment_heads == LISTED
    assert portable.generation_config.suppress_tokens == [3]


def test_a_list_that_loses_all_its_heads_is_removed(tmp_path: Path) -> None:
    """Whisper then says itself that it has no token timestamps, instead of failing on an empty list."""
    model = whisper([[1, 2]])
    small: Any = hc.cut(model, hc.Plan.removing(["cross.L1H2"]))
    assert not hasattr(small.generation_config, "alignment_heads")
    again: Any = hc.load(hc.save(small, tmp_path / "small"))
    assert not hasattr(again.generation_config, "alignment_heads")
    features = probe_inputs(model)["input_features"]
    with pytest.raises(ValueError, match="alignment_heads"):
        small.generate(features, return_token_timestamps=True, max_new_tokens=3)
    portable: Any = hc.load(hc.export(again, tmp_path / "portable"))
    assert portable.generation_config.alignment_heads == [[1, 2]]


def test_a_list_edited_after_a_cut_counts_as_it_is(tmp_path: Path) -> None:
    small: Any = hc.cut(whisper(), hc.Plan.removing(["cross.L0H0"]))
    small.generation_config.alignment_heads = [[0, 0]]
    assert hc.cut(small, hc.Plan.removing(["cross.L0H2"])).generation_config.alignment_heads == [[0, 0]]
    portable: Any = hc.load(hc.export(small, tmp_path / "portable"))
    assert portable.generation_config.alignment_heads == [[0, 1]]


def test_a_list_of_heads_that_are_not_there_is_refused() -> None:
    model = whisper([[0, 1], [7, 0]])
    config = model.generation_config
    with pytest.raises(PlanError, match="head 0 of layer 7"):
        hc.cut(model, hc.Plan.removing(["cross.L0H0"]), in_place=True)
    assert model.generation_config is config and len(hc.HeadMap.of(model)) == 36
