"""Every law on every must-pass family, eager and, where the family has it, sdpa, in float64."""

from __future__ import annotations

import functools

import pytest
import torch
import transformers
from packaging.version import Version

from headcount.models.tiny.families import CUT_VARIANTS, VARIANTS, family_supports_sdpa, family_variant
from headcount.testing.laws import LAWS, DoesNotApply, Subject

CASES = [(v.name, attn) for v in (*VARIANTS, *CUT_VARIANTS) for attn in ("eager", *(["sdpa"] if family_supports_sdpa(v.name) else []))]

# Before this release SigLIP, gemma3's vision tower, reshapes by the model width, so its heads can be gated but not cut.
SIGLIP_CUTS = Version("5.8")
# Windows and global tokens each have a softmax of their own.
SEVERAL_SOFTMAXES = {"longformer", "led"}
CUT_LAWS = {
    "cut equals gate",
    "attention maps follow the cut",
    "parameters fall as predicted",
    "cutting twice is cutting once",
    "save then load is equal",
    "generation agrees",
}
# Their outputs hold no attention map for each block: several towers, or some layers without maps.
WITHOUT_MAPS = {"swin", "clip", "gemma3", "blip"}


@functools.lru_cache(maxsize=2)
def subject(name: str, attn: str) -> Subject:
    return Subject.of(family_variant(name).build(attn))


@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize(("name", "attn"), CASES, ids=lambda value: value)
def test_law(name: str, attn: str, law: str) -> None:
    if name == "gemma3" and law in CUT_LAWS and Version(transformers.__version__) < SIGLIP_CUTS:
        pytest.skip("SigLIP of this release reshapes by the model width")
    assert subject(name, attn).model.dtype == torch.float64
    try:
        assert LAWS[law](subject(name, attn))
    except DoesNotApply:
        if law == "gate 0 is no attention":
            assert name in SEVERAL_SOFTMAXES
        elif law == "attention maps follow the cut":
            assert name in WITHOUT_MAPS
        else:
            assert law == "generation agrees"
            assert not subject(name, attn).model.can_generate()
