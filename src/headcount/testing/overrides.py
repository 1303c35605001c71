"""What the rules of `sizes` cannot know, per model type: data only."""

from __future__ import annotations

import re
from typing import Any

# Text models whose code has a default for multimodal rotary sections that only fits the full head.
MROPE = re.compile(
    r"(cohere_compass|cosmos3_edge|ernie4_5_vl|glm4v|glm46v|glm_image|glm_ocr|hunyuan_vl|neomme|paddleocr_vl|qwen2_5_omni|"
    r"qwen2_5_vl|qwen2_vl|qwen3_5|qwen3_omni|qwen3_vl|qwen4_exp)"
)

# Arguments without which the default configuration itself does not construct.
_RESNET = {"backbone_config": {"model_type": "resnet", "out_features": ["stage4"]}, "use_timm_backbone": False, "backbone": None}
_RESNET_PYRAMID = {**_RESNET, "backbone_config": {"model_type": "resnet", "out_features": ["stage2", "stage3", "stage4"]}}
_SERIES = {"prediction_length": 4, "context_length": 8, "lags_sequence": [1, 2, 3]}
DEFAULTS: dict[str, dict[str, Any]] = {
    "autoformer": _SERIES,
    "conditional_detr": _RESNET,
    "dab-detr": _RESNET,
    "deformable_detr": _RESNET_PYRAMID,
    "detr": _RESNET,
    "informer": _SERIES,
    "table-transformer": _RESNET,
    "time_series_transformer": _SERIES,
}

# Where the most natural class is not the first one in the list of auto classes.
AUTO: dict[str, str] = {
    "blip-2": "AutoModelForImageTextToText",
    "musicgen": "AutoModelForTextToWaveform",
    "musicgen_melody": "AutoModelForTextToWaveform",
}

# Dotted attribute of the tiny configuration -> value.
OVERRIDES: dict[str, dict[str, Any]] = {
    "bamba": {"attn_layer_indices": [1], "mamba_n_heads": 12, "mamba_d_head": 8},
    "bit": {"num_groups": 4},
    "bridgetower": {
        "hidden_size": 128, "text_config.hidden_size": 128, "text_config.num_attention_heads": 2,
        "vision_config.hidden_size": 128, "num_attention_heads": 2,
    },
    "codegen": {"n_embd": 32, "n_head": 4, "rotary_dim": 4},
    "dbrx": {"attn_config.rope_theta": 10000.0},
    "dots1": {"n_routed_experts": 4, "n_shared_experts": 1, "num_experts_per_tok": 2, "n_group": 1, "topk_group": 1},
    "deepseek_v2": {"num_experts_per_tok": 2},
    "falcon_h1": {"mamba_n_heads": 12, "mamba_d_head": 8, "mamba_d_ssm": 96},
    "gpt_neo": {"attention_types": [[["global", "local"], 1]]},
    "granitemoehybrid": {"mamba_n_heads": 12, "mamba_d_head": 8},
    "grounding-dino": {"d_model": 96},
    "mm-grounding-dino": {"d_model": 96},
    "mask2former": {"feature_size": 48, "mask_feature_size": 48},
    "mobilebert": {"embedding_size": 48, "true_hidden_size": 48, "intra_bottleneck_size": 48},
    "mamba2": {"num_heads": 12, "head_dim": 8, "n_groups": 1},
    "reformer": {"axial_pos_embds_dim": [16, 32], "axial_pos_shape": [8, 16], "lsh_attn_chunk_length": 4, "local_attn_chunk_length": 4},
    "xmod": {"default_language": "en_XX"},
}
