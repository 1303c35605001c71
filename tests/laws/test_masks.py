"""Masked keys are known in every family: in float64 a key is visible if and only if it gets any attention."""

from __future__ import annotations

import pytest
import torch

from headcount.core.heads import AttentionBlock
from headcount.models.attention import AttentionTap
from headcount.models.dummy_inputs.text import probe_inputs
from headcount.models.head_map import HeadMap
from headcount.models.tiny.build import tiny_model
from headcount.models.tiny.families import VARIANTS, family_variant

OTHERS = ["openai-gpt", "codegen", "markuplm", "ctrl", "gptj", "mpt", "biogpt", "prophetnet", "longt5"]


@pytest.mark.parametrize("name", [*(v.name for v in VARIANTS), *OTHERS])
def test_visible_keys_are_those_with_attention(name: str) -> None:
    known = {v.name for v in VARIANTS}
    model = family_variant(name).build("eager") if name in known else tiny_model(name)
    observed_values: list[str] = []

    def compare(block: AttentionBlock, probabilities: torch.Tensor, visible: torch.Tensor) -> None:
        attended = probabilities > 1e-30
        if any(s.tensor.endswith(".sinks") for s in block.slices):
            attended, visible = attended[..., :-1], visible[..., :-1]
        rows = visible.any(-1)  # a padded query may see nothing at all; softmax then spreads over everything
        assert torch.equal(attended[rows], visible[rows]), block.path
        observed_values.append(block.path)

    heads = HeadMap.of(model)
    with torch.no_grad(), AttentionTap(model, heads.blocks, compare):
        model(**probe_inputs(model))
    assert set(observed_values) == {block.path for block in heads.blocks}
