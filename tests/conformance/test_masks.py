"""Masked keys are known in every family: in float64 a key is visible if and only if it gets any attention."""

from __future__ import annotations

import pytest
import torch

from headcount.archs.inputs import probe_inputs
from headcount.attention import AttentionTap
from headcount.heads import AttentionBlock, HeadMap
from headcount.testing.families import VARIANTS, variant
from headcount.testing.shrink import tiny_model

OTHERS = ["openai-gpt", "codegen", "markuplm", "ctrl", "gptj", "mpt", "biogpt", "prophetnet", "longt5"]


@pytest.mark.parametrize("name", [*(v.name for v in VARIANTS), *OTHERS])
def test_visible_keys_are_those_with_attention(name: str) -> None:
    known = {v.name for v in VARIANTS}
    model = variant(name).build("eager") if name in known else tiny_model(name)
    seen: list[str] = []

    def compare(block: AttentionBlock, probabilities: torch.Tensor, visible: torch.Tensor) -> None:
        attended = probabilities > 1e-30
        if any(s.tensor.endswith(".sinks") for s in block.slices):
            attended, visible = attended[..., :-1], visible[..., :-1]
        rows = visible.any(-1)  # a padded query may see nothing at all; softmax then spreads over everything
        assert torch.equal(attended[rows], visible[rows]), block.path
        seen.append(block.path)

    heads = HeadMap.of(model)
    with torch.no_grad(), AttentionTap(model, heads.blocks, compare):
        model(**probe_inputs(model))
    assert set(seen) == {block.path for block in heads.blocks}
