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
DEFAULTS: dict[str, dict[str, Any]] = {}

# Dotted attribute of the tiny configuration -> value.
OVERRIDES: dict[str, dict[str, Any]] = {
    "bamba": {"mamba_n_heads": 12, "mamba_d_head": 8},
    "falcon_h1": {"mamba_n_heads": 12, "mamba_d_head": 8, "mamba_d_ssm": 96},
    "gpt_neo": {"attention_types": [[["global", "local"], 1]]},
    "granitemoehybrid": {"mamba_n_heads": 12, "mamba_d_head": 8},
    "mamba2": {"num_heads": 12, "head_dim": 8, "n_groups": 1},
}
