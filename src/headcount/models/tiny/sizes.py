"""Small values for configuration attributes, chosen by the attribute's name."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

N_HEADS = 6
HEAD_DIM = 8
HIDDEN = N_HEADS * HEAD_DIM
FFN = 64
VOCAB = 128
# Ids at the end of the small vocabulary that stand in for special tokens of the full one.
SPECIAL = 28
POSITIONS = 128
CHANNEL_DIVISOR = 8

Attributes = dict[str, Any]
SizeRule = Callable[[Any, Attributes], Any]


def cap_rule(limit: float) -> SizeRule:
    """A rule that caps the value."""
    return lambda value, _: min(value, limit)


def small_head_count(value: int, _: Attributes) -> int:
    """Heads: 6, or the 1 of the default."""
    return N_HEADS if value > 1 else value


def small_kv_head_count(value: int, attributes: Attributes) -> int:
    """KV heads: 2 where the default groups its heads, 1 for multi-query, otherwise as many as heads."""
    counts = [v for k, v in attributes.items() if IS_HEADS.search(k) and isinstance(v, int)]
    if value <= 1 or not counts:
        return value
    return 2 if value < max(counts) else N_HEADS


def small_width(value: int, attributes: Attributes) -> int:
    """Model width: 48, or 8 per head of the first stage where the stages have their own head counts."""
    staged = stage_head_counts(attributes)
    return min(value, HEAD_DIM * staged[0] if staged else HIDDEN)


def stage_head_counts(attributes: Attributes) -> list[int] | None:
    """The head counts of the stages of a pyramid, None for a flat stack."""
    for name, value in attributes.items():
        if IS_HEADS.search(name) and isinstance(value, (list, tuple)) and len(value) > 1:
            return list(value)
    return None


def small_stage_widths(values: list[Any], attributes: Attributes) -> list[Any]:
    """Stage widths: 8 per head where the heads of the stages are known, otherwise an eighth."""
    staged = stage_head_counts(attributes)
    if staged and len(staged) == len(values) and all(isinstance(v, int) for v in values):
        return [min(v, HEAD_DIM * h) for v, h in zip(values, staged, strict=True)]
    return [small_channels(v) for v in values]


def small_channels(value: Any) -> Any:
    """An eighth of every channel count, in the nesting of the value."""
    if isinstance(value, (list, tuple)):
        return [small_channels(v) for v in value]
    is_large = isinstance(value, int) and value > CHANNEL_DIVISOR
    return max(CHANNEL_DIVISOR, value // CHANNEL_DIVISOR) if is_large else value


def small_patch_side(value: int, _: Attributes) -> int:
    """Patch side: at most 8 pixels."""
    return min(value, 8)


def small_window(value: int, _: Attributes) -> int:
    """Attention window: 4 patches; Qwen-VL counts it in pixels, two merged patches then."""
    return min(value, 4 if value < 64 else 32)


def small_image_side(value: int, attributes: Attributes) -> int:
    """Image side: 4 patches; more for a pyramid, whose last stage must still fill a window."""
    size = attributes.get("patch_size")
    size = size[0] if isinstance(size, (list, tuple)) else size
    if isinstance(size, int) and size >= 8:
        return min(value, 32)
    return min(value, 128 if "window_size" in attributes else 64)


def small_rotary_sections(rotary_share_of_head: float = 1.0) -> list[int]:
    """The rotary frequencies of the small head, dealt out to time, height and width."""
    half = int(HEAD_DIM * rotary_share_of_head) // 2
    return [half // 3 + (axis < half % 3) for axis in range(3)]


def with_small_mrope_sections(rotary_settings: dict[str, Any], attributes_of_full_config: Attributes) -> dict[str, Any]:
    """Rotary settings with the sections of multimodal positions scaled to the small head."""
    if any(isinstance(value, dict) for value in rotary_settings.values()):
        return {
            name: with_small_mrope_sections(value, attributes_of_full_config) if isinstance(value, dict) else value
            for name, value in rotary_settings.items()
        }
    if not rotary_settings or ("mrope_section" not in rotary_settings and not attributes_of_full_config.get("has_mrope")):
        return rotary_settings
    return {**rotary_settings, "mrope_section": small_rotary_sections(rotary_settings.get("partial_rotary_factor", 1.0))}


IS_HEADS = re.compile(r"(^|_)(num_(\w+_)?attention_heads|n_heads?|num_heads|attention_heads|resampler_heads|attn_heads)$")
_KV = r"(num_key_value_heads|num_kv_heads|kv_n_heads|num_key_value_attention_heads)$"
_FFN = (
    r"(intermediate_size|intermediate_size_mlp|ffn_dim|ffn_hidden_size|d_ff|n_inner|mlp_dim|dim_feedforward|feedforward_dim|"
    r"feed_forward_size|feed_forward_hidden_size|d_inner|dff|dim_ff|intermediate_dim|inner_dim|mlp_hidden_size|linear_units|expert_dim)$"
)
_WIDTH = (
    r"(hidden_size|hidden_dim|d_model|n_embd|embed_dim|embedding_size|embedding_dim|emb_dim|projection_dim|project_dim|proj_dim|"
    r"output_dim|hidden_channels|hidden_size_global|classifier_proj_size|output_proj_dims|projection_size|pooler_output_size|"
    r"latent_dim|d_latents|codevector_dim|input_dim|(^|_)dim|_in_dim|_out_dim|proj_size|vit_dim|lru_width|true_hidden_size)$"
)
_DROP = (
    r"(drop(out|path|_path|_connect)?(_rate|_prob|_p|_value)?|pdrop|layerdrop|_dropout(_\w+)?|dropout_positions|jitter_noise|"
    r"mask_time_prob|mask_feature_prob|drop_\w*rate|drop_rate)$"
)

# First match wins; a rule sees the value and all attributes of the same configuration.
SCALARS: tuple[tuple[str, SizeRule], ...] = (
    (_DROP, lambda value, _: type(value)(0)),
    (r"^index_n_heads$", cap_rule(2)),
    (r"^linear_num_key_heads$", cap_rule(2)),
    (r"^linear_num_value_heads$", cap_rule(4)),
    (r"^(linear_num_heads|linear_key_head_dim|linear_value_head_dim|linear_head_dim)$", cap_rule(HEAD_DIM)),
    (r"^mamba_n_groups$|^mamba_ngroups$|^n_groups$", cap_rule(1)),
    (_KV, small_kv_head_count),
    (IS_HEADS.pattern, small_head_count),
    (r"(^|_)(mamba_n_heads|mamba_num_heads|n_mamba_heads)$", cap_rule(12)),
    (r"(head_dim|head_size|d_kv|kv_channels|dim_head|d_head|mamba_headdim|key_dim|rotary_dim)$", cap_rule(HEAD_DIM)),
    (r"^query_pre_attn_scalar$", cap_rule(HEAD_DIM)),
    (r"^(kv_lora_rank|q_lora_rank|o_lora_rank)$", cap_rule(16)),
    (r"(n_routed_experts|num_experts|num_local_experts|moe_num_experts)$", cap_rule(4)),
    (r"(num_experts_per_tok|num_experts_per_token|moe_topk|moe_k|moe_top_k|n_group|index_topk)$", cap_rule(2)),
    (r"^(topk_group|n_shared_experts|first_k_dense_replace|num_nextn_predict_layers)$", cap_rule(1)),
    (r"(vocab_size(_per_layer_input)?|group_vocab|codebook_size|num_embeddings|num_codevectors_per_group|num_classes)$", cap_rule(VOCAB)),
    (r"(max_position_embeddings|n_positions|max_target_positions|max_seq_len|n_ctx|block_size|max_text_positions)$", cap_rule(POSITIONS)),
    (r"^max_source_positions$", cap_rule(32)),
    (r"(sliding_window|local_attention|attention_window_size)$", cap_rule(4)),
    (r"^window_size$", small_window),
    (r"(attn_layer_period|expert_layer_period)$", cap_rule(2)),
    (r"(attn_layer_offset|expert_layer_offset)$", cap_rule(1)),
    (r"^num_kv_shared_layers$", cap_rule(0)),
    (r"^mm_tokens_per_image$", cap_rule(4)),
    (r"(image_size|img_size|resolution)$", small_image_side),
    (r"patch_size$", small_patch_side),
    (_FFN, cap_rule(FFN)),
    (r"(feature_projection_input_dim|^input_dim)$", cap_rule(40)),
    (r"^output_channels$|^num_pos_feats$", lambda value, _: HIDDEN if value > 200 else HIDDEN // 2),
    (r"^image_embedding_size$", cap_rule(4)),
    (_WIDTH, small_width),
    (r"(conv_dim|num_filters|base_channels|latent_channels|upsample_initial_channel|subsampling_conv_channels)$", cap_rule(32)),
    (r"num_queries$|num_query_tokens$|num_latents$", cap_rule(8)),
    (r"upsample_groups$", cap_rule(HIDDEN)),
    (r"num_conv_pos_embeddings$", cap_rule(16)),
    (r"num_conv_pos_embedding_groups$", cap_rule(4)),
)

LISTS: tuple[tuple[str, SizeRule], ...] = (
    (_DROP, lambda value, _: [type(v)(0) for v in value]),
    (r"^(depths|depth|num_blocks|blocks_per_stage|num_block_repeats|layer_depths)$", lambda value, _: [min(v, 2) for v in value]),
    (IS_HEADS.pattern, lambda value, _: list(value)),
    (r"(image_size|img_size)$", lambda value, attributes: [small_image_side(v, attributes) for v in value]),
    (r"^patch_size$", lambda value, attributes: [small_patch_side(v, attributes) for v in value]),
    (r"^decoder_in_channels$", lambda value, _: [HIDDEN] * len(value)),
    (r"(hidden_sizes|embed_dims?|dims|conv_dim|channels|d_model|hidden_size|embed_dim_per_stage)$", small_stage_widths),
    (r"^image_grid_pinpoints$", lambda value, _: [[32, 64], [64, 32]]),
    (r"^tdnn_dim$", lambda value, _: [32] * len(value)),
)

# Sizes that the default leaves to the constructor, or to the checkpoint.
WHEN_NONE = {"head_dim": HEAD_DIM, "num_key_value_heads": N_HEADS, "vocab_size": VOCAB}

DICTS: tuple[tuple[str, SizeRule], ...] = ((r"rope_(parameters|scaling)$", with_small_mrope_sections),)


def small_attribute_value(name: str, value: Any, attributes: Attributes) -> Any:
    """The small value of one attribute; values that no rule names come back unchanged."""
    if value is None:
        return WHEN_NONE.get(name)
    if isinstance(value, (bool, str)):
        return value
    rules = SCALARS if isinstance(value, (int, float)) else LISTS if isinstance(value, (list, tuple)) else DICTS
    for pattern, rule in rules:
        if re.search(pattern, name):
            smaller = rule(value, attributes)
            return type(value)(smaller) if isinstance(value, (list, tuple)) else smaller
    return value
