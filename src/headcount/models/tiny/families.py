"""The families that must obey every law, each with the configurations in which their heads live differently."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from headcount.models.tiny.build import model_class, tiny_model


@dataclass(frozen=True, slots=True)
class FamilyVariant:
    """One tiny model: a registered type and what differs from its default configuration."""

    name: str
    model_type: str
    overrides: dict[str, Any] = field(default_factory=dict)

    def build(self, attn: str | None = None, *, dtype: torch.dtype = torch.float64) -> nn.Module:
        """Returns the tiny model; `attn` is the attention implementation."""
        return tiny_model(self.model_type, attn=attn, dtype=dtype, **self.overrides)


PLAIN = (
    "bert", "roberta", "xlm-roberta", "distilbert", "albert", "electra", "mpnet", "modernbert", "gpt2", "gpt_neo", "gpt_neox", "opt", "bloom",
    "falcon", "llama", "mistral", "qwen2", "qwen3", "gemma2", "gemma3_text", "phi3", "t5", "bart", "mbart", "marian", "pegasus", "whisper", "vit",
    "deit", "dinov2", "swin", "clip", "wav2vec2",
)  # fmt: skip

KINDS = ["sliding_attention", "full_attention"]
SHARED_KV = {"num_hidden_layers": 4, "layer_types": KINDS * 2, "num_kv_shared_layers": 2, "hidden_size_per_layer_input": 8}
SPARSITY = {"intermediate_size": [32] * 4, "activation_sparsity_pattern": [0.0] * 4, "laurel_rank": 4}
DISENTANGLED = {"relative_attention": True, "pos_att_type": ["c2p", "p2c"]}

VARIANTS: tuple[FamilyVariant, ...] = (
    *(FamilyVariant(name, name) for name in PLAIN),
    FamilyVariant("deberta-v2", "deberta-v2", DISENTANGLED),
    FamilyVariant("deberta-v2-shared", "deberta-v2", {**DISENTANGLED, "share_att_key": True}),
    FamilyVariant("falcon-grouped", "falcon", {"new_decoder_architecture": True, "num_kv_heads": 2}),
    FamilyVariant("falcon-alibi", "falcon", {"alibi": True, "multi_query": False}),
    FamilyVariant("llama-grouped", "llama", {"num_key_value_heads": 2}),
    FamilyVariant("qwen2-grouped", "qwen2", {"num_key_value_heads": 2}),
    FamilyVariant("qwen3-grouped", "qwen3", {"num_key_value_heads": 2}),
    FamilyVariant("phi3-grouped", "phi3", {"num_key_value_heads": 2}),
    FamilyVariant("gpt2-cross", "gpt2", {"add_cross_attention": True}),
    FamilyVariant("bert-cross", "bert", {"is_decoder": True, "add_cross_attention": True}),
    FamilyVariant("gemma3", "gemma3"),
    FamilyVariant("gpt_oss", "gpt_oss"),
    FamilyVariant("gpt_bigcode", "gpt_bigcode"),
    FamilyVariant("gpt_bigcode-heads", "gpt_bigcode", {"multi_query": False}),
)

CUT_VARIANTS: tuple[FamilyVariant, ...] = (
    FamilyVariant("gemma3n-shared", "gemma3n_text", {**SHARED_KV, **SPARSITY}),
    FamilyVariant("gemma4-shared", "gemma4_text", SHARED_KV),
    FamilyVariant("longformer", "longformer"),
    FamilyVariant("led", "led"),
    FamilyVariant("blip", "blip"),
    FamilyVariant("beit-bias", "beit", {"use_relative_position_bias": True}),
    FamilyVariant("beit-shared-bias", "beit", {"use_shared_relative_position_bias": True}),
    FamilyVariant("segformer", "segformer", {"depths": [1, 1, 1, 1]}),
)
"""Variants that obey the laws of gates and cuts, beyond those that every importance, role and repair is tried on: some hide their attention
probabilities in windows, some read images only, some share keys and values between layers."""


def family_variant(variant_name: str) -> FamilyVariant:
    """Returns the family variant of this name."""
    return next(v for v in (*VARIANTS, *CUT_VARIANTS) if v.name == variant_name)


def family_supports_sdpa(variant_name: str) -> bool:
    """Whether a family's classes support scaled_dot_product_attention."""
    return bool(getattr(model_class(family_variant(variant_name).model_type), "_supports_sdpa", False))
