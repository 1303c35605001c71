"""What the rules of `sizes` cannot know, per model type or model class: data only."""

from __future__ import annotations

import re
from typing import Any

# Text models whose code has a default for multimodal rotary sections that only fits the full head.
MROPE = re.compile(
    r"(cohere_compass|cosmos3_edge|ernie4_5_vl|glm4v|glm46v|glm_image|glm_ocr|hunyuan_vl|neomme|paddleocr_vl|qwen2_5_omni|"
    r"qwen2_5_vl|qwen2_vl|qwen3_5|qwen3_omni|qwen3_vl|qwen4_exp)"
)

# A detector's ResNet in place of the default backbone, which only another package can build.
_RESNET = {"backbone_config": {"model_type": "resnet", "out_features": ["stage4"]}, "use_timm_backbone": False, "backbone": None}
_PYRAMID = {**_RESNET, "backbone_config": {"model_type": "resnet", "out_features": ["stage2", "stage3", "stage4"]}}
_MASKS = {**_RESNET, "backbone_config": {"model_type": "resnet", "out_features": ["stage1", "stage2", "stage3", "stage4"]}}
_SERIES = {"prediction_length": 4, "context_length": 8, "lags_sequence": [1, 2, 3]}
_IMAGE_TOKEN = {"image_token_index": 120}

# Arguments without which the default configuration, or a model of it, does not construct.
DEFAULTS: dict[str, dict[str, Any]] = {
    "autoformer": _SERIES,
    "blip-2": _IMAGE_TOKEN,
    "chameleon": {"vocabulary_map": {"<image>": 120} | {f"IMGIMG{letter}Z": 100 + code for code, letter in enumerate("ABCDEFGH")}},
    "conditional_detr": _MASKS,
    "dab-detr": _RESNET,
    "deformable_detr": _PYRAMID,
    "detr": _MASKS,
    "emu3": {"vocabulary_map": {"<image>": 120, "<|extra_200|>": 121} | {f"<|visual token {code:06d}|>": 100 + code for code in range(8)}},
    "informer": _SERIES,
    "gemma4_assistant": {"text_config": {"model_type": "gemma4_text", "hidden_size_per_layer_input": 0, "vocab_size_per_layer_input": 0}},
    "instructblip": _IMAGE_TOKEN,
    "instructblipvideo": {"video_token_index": 120},
    "lfm2_moe": {"layer_types": ["conv", "conv", "full_attention"] * 10 + ["conv", "conv"]},
    "table-transformer": _RESNET,
    "time_series_transformer": _SERIES,
    "voxtral": {"audio_token_id": 120},
}

# Where the most natural class is not the first one in the list of auto classes.
AUTO: dict[str, str] = {
    "blip-2": "AutoModelForImageTextToText",
    "musicgen": "AutoModelForTextToWaveform",
    "musicgen_melody": "AutoModelForTextToWaveform",
}

# The group norm of these necks has 32 groups whatever the width.
_GROUPS_OF_32 = {"d_model": 96, "encoder_ffn_dim": 96}

# The mask head of these detectors divides the width and the number of heads together by 8.
_SEGMENTING = {"d_model": 64, "encoder_attention_heads": 8, "decoder_attention_heads": 8}

# Blocks so small that a probe of 29 tokens is sparse.
_SPARSE = {"block_size": 4, "num_random_blocks": 1}

_T5 = {"decoder_start_token_id": 0}
_INDEXER = {
    "indexer_n_heads": 2,
    "indexer_kv_heads": 1,
    "indexer_head_dim": 8,
    "indexer_budget": 4,
    "indexer_compress_ratio": 2,
}
_COMPASS = {"full_attention": {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [2, 1, 1]}}

# What the talker's code reads besides what its configuration declares.
_TALKER = {"spatial_merge_size": 2, "text_config.shared_expert_intermediate_size": 64}

# The group norm of these decoders has 32 groups whatever the width.
_CODEC = {"hidden_size": 96, "num_attention_heads": 6, "head_dim": 16, "encoder_hidden_size": 4, "quantization_dim": 64}

# The three frequencies of space and the one of the atom's number fill half a head.
_ATOMS = {"num_spatial_rope_pairs_per_axis": 1, "num_uid_rope_pairs": 1}

# Kernels, strides and paddings that keep the size of a map, and scales that bring the four stages to one size.
_TEXT_DETECTOR = {
    "scale_factor_list": [1, 2, 4, 8],
    "kernel_list": [3, 2, 2],
    "intraclass_block_config": {
        "reduce_channel": [1, 1, 0],
        "return_channel": [1, 1, 0],
        **{
            f"{shape}_{length}ratio": [kernel, 1, padding]
            for length, side in {"long": 7, "mid": 5, "short": 3}.items()
            for shape, kernel, padding in (
                ("vertical_long_to_small_conv", [side, 1], [side // 2, 0]),
                ("horizontal_small_to_long_conv", [1, side], [0, side // 2]),
                ("symmetric_conv_long", [side, side], [side // 2, side // 2]),
            )
        },
    },
}

# Dotted attribute of the tiny configuration -> value.
OVERRIDES: dict[str, dict[str, Any]] = {
    "align": {
        "projection_dim": 640,
        "text_config.hidden_size": 48,
        "vision_config.in_channels": [32, 16, 24, 40, 80, 112, 192],
        "vision_config.out_channels": [16, 24, 40, 80, 112, 192, 320],
    },
    "blt": {"use_cache": False},
    "cohere_compass": {"text_config.rope_parameters": _COMPASS},
    "cohere_compass_text": {"rope_parameters": _COMPASS},
    "dpt": {"num_hidden_layers": 4, "backbone_out_indices": [0, 1, 2, 3]},
    "beit": {"num_hidden_layers": 4, "out_indices": [1, 2, 3, 4]},
    "chameleon": {"vq_config.num_embeddings": 8},
    "conditional_detr": _SEGMENTING,
    "detr": _SEGMENTING,
    "emu3": {"vq_config.codebook_size": 8, "vq_config.hidden_size": 128},
    "d_fine": {"decoder_layers": 2},
    "deimv2": {"decoder_layers": 2},
    "deepseek_ocr2": {"text_config.mlp_layer_types": ["dense", "sparse"], "text_config.num_experts_per_tok": 2},
    "deepseek_ocr2_text": {"mlp_layer_types": ["dense", "sparse"], "num_experts_per_tok": 2},
    "diffusion_gemma": {"text_config.num_experts": 4, "text_config.top_k_experts": 2, "text_config.moe_intermediate_size": 64},
    "diffusion_gemma_text": {"num_experts": 4, "top_k_experts": 2, "moe_intermediate_size": 64},
    # Its Q-Former has a head for every 64 units of the width.
    "granite4_vision": {
        "deepstack_layer_map": [[-1, 0]],
        "downsample_rate": "1/2",
        "spatial_target_layers": [0, 1],
        "vision_config.hidden_size": 128,
        "vision_config.num_attention_heads": 4,
    },
    **{name: {"vision_feature_layer": -1} for name in ("llava", "llava_next", "llava_next_video", "llava_onevision")},
    "mt5": _T5,
    "t5": _T5,
    "umt5": _T5,
    # Their filters double at each of seven stages.
    "vibevoice": {"audio_config.num_filters": 2, "semantic_model_config.num_filters": 2},
    "vibevoice_asr": {"acoustic_tokenizer_encoder_config.num_filters": 2, "semantic_tokenizer_encoder_config.num_filters": 2},
    **{f"vibevoice_acoustic_tokenizer{part}": {"num_filters": 2} for part in ("", "_encoder", "_decoder")},
    "perceiver": {"num_cross_attention_heads": 1},
    "pix2struct_text_model": {"initializer_range": 0.02},
    "qwen3_omni_moe": {f"talker_config.{name}": value for name, value in _TALKER.items()},
    "qwen3_omni_moe_talker_text": {"shared_expert_intermediate_size": 64},
    "qwen4_exp": {f"text_config.{name}": value for name, value in _INDEXER.items()},
    "qwen4_exp_text": _INDEXER,
    "step3p5": {"sliding_window": 4},
    "step3p7": {"text_config.sliding_window": 4},
    "mimo_v2_flash": {"num_attention_heads": 8},  # windows have twice as many KV heads
    "neucodec": _CODEC,
    "xcodec2": _CODEC,
    "pp_formulanet": {f"vision_config.{name}": 48 for name in ("post_conv_in_channels", "decoder_hidden_size")},
    "pp_formulanet_vision": {"post_conv_in_channels": 48},
    "pp_ocrv5_server_det": _TEXT_DETECTOR,
    "pp_ocrv6_medium_det": _TEXT_DETECTOR,
    "sapiens2": {
        "num_key_value_heads_per_layer": [6, 2, 6],
        "head_config.upsample_out_channels": [16],
        "head_config.conv_out_channels": [16],
        "head_config.scale_conv_out_channels": [8],
        "head_config.scale_final_hidden_sizes": [16, 8],
    },
    "t5gemma2_encoder": {"text_config.dropout_rate": 0.0},
    "fun_asr_nano": {"adaptor_config.intermediate_size": 12},
    "hiera": {"decoder_hidden_size": 48, "decoder_depth": 2, "decoder_num_heads": 6},
    "kosmos-2.5": {"latent_query_num": 8},
    "molmo2": {"adapter_config.vision_feature_layer": [1, 0]},
    "neomme": {"head_dim": 16},
    "eomt": {"num_blocks": 1},
    "eomt_dinov3": {"num_blocks": 1},
    "hrm_text": {"num_layers_per_stack": 2, "num_hidden_layers": 16},
    "llama4": {
        "vision_config.intermediate_size": 192,
        "vision_config.vision_output_dim": 48,
        "vision_config.projector_input_dim": 48,
        "vision_config.projector_output_dim": 48,
    },
    "llama4_vision_model": {"intermediate_size": 192, "vision_output_dim": 48, "projector_input_dim": 48, "projector_output_dim": 48},
    "audio-spectrogram-transformer": {"max_length": 64},
    "bamba": {"attn_layer_indices": [1], "mamba_n_heads": 12, "mamba_d_head": 8},
    "big_bird": _SPARSE,
    "bigbird_pegasus": _SPARSE,
    "bit": {"num_groups": 4},
    "bridgetower": {
        "hidden_size": 128,
        "contrastive_hidden_size": 128,
        "logit_scale_init_value": 2.6592,
        "num_attention_heads": 2,
        "text_config.hidden_size": 128,
        "text_config.num_attention_heads": 2,
        "vision_config.hidden_size": 128,
    },
    "bros": {"hidden_size": 64, "num_attention_heads": 8},
    "clvp": {f"{tower}_config.{name}": 192 for tower in ("text", "speech") for name in ("hidden_size", "projection_dim")}
    | {"projection_dim": 192, "decoder_config.decoder_fixing_codes": [83, 45, 45, 24]},
    "clvp_encoder": {"hidden_size": 192, "projection_dim": 192},
    "clap": {"audio_config.spec_size": 128, "audio_config.hidden_size": 256},
    "clap_audio_model": {"spec_size": 128, "hidden_size": 256},
    "clipseg": {"extract_layers": [0, 1]},
    "codegen": {"n_embd": 32, "n_head": 4, "rotary_dim": 4},
    "cvt": {"drop_path_rate": [0.0, 0.0, 0.0], "depth": [1, 2, 3]},
    "dbrx": {"attn_config.rope_theta": 10000.0, "attn_config.clip_qkv": 8.0},
    "deepseek_v2": {"num_experts_per_tok": 2},
    "deformable_detr": _GROUPS_OF_32,
    "dots1": {"n_routed_experts": 4, "n_shared_experts": 1, "num_experts_per_tok": 2, "n_group": 1, "topk_group": 1},
    "ernie4_5_vl_moe": {"text_config.rope_parameters": {"rope_type": "default", "rope_theta": 500000.0, "mrope_section": [1, 1, 2]}},
    # The rotary positions of one axis fill half the width, which is four times a head.
    "efficientloftr": {"stage_num_blocks": [1, 1, 1, 1], "out_features": [16, 16, 32, 64], "hidden_size": 64, "num_attention_heads": 8},
    "esm": {"pad_token_id": 1, "mask_token_id": 32, "vocab_size": 33},
    "esmfold2": {
        "single_inputs_size": 48 + 67,
        **{f"atom_encoder.{name}": value for name, value in _ATOMS.items()},
        **{f"structure_head.diffusion_module.atom_encoder.{name}": value for name, value in _ATOMS.items()},
        "structure_head.num_diffusion_samples": 2,
        "structure_head.inference_num_steps": 4,
        "num_loops": 2,
    },
    "falcon_h1": {"mamba_n_heads": 12, "mamba_d_head": 8, "mamba_d_ssm": 96},
    "glm5_next": {"text_config.index_topk": 4, "text_config.index_kpool": 2},
    "glm5_next_text": {"index_topk": 4, "index_kpool": 2},
    "gpt_neo": {"attention_types": [[["global", "local"], 1]]},
    "granitemoehybrid": {"layer_types": ["mamba", "attention"], "mamba_n_heads": 12, "mamba_d_head": 8},
    "grounding-dino": _GROUPS_OF_32,
    # The constructor knows the depth by another name than the configuration.
    "inkling_mm_model": {"vision_config.num_hidden_layers": 2},
    "inkling_vision": {"num_hidden_layers": 2},
    "layoutlmv3": {"coordinate_size": 8, "shape_size": 8, "input_size": 64, "patch_size": 8},
    "led": {"attention_window": [4, 4]},
    "longcat_flash": {"qk_head_dim": 16},
    "longformer": {"attention_window": [4, 4]},
    "lw_detr": {"backbone_config.image_size": 64, "backbone_config.num_windows": 4},
    "lw_detr_vit": {"image_size": 64, "patch_size": 16, "num_windows": 4},
    "mamba2": {"num_heads": 12, "head_dim": 8, "n_groups": 1},
    "mask2former": {"feature_size": 96, "mask_feature_size": 96, "hidden_dim": 96},
    "mllama": {"vision_config.vision_output_dim": 96},
    "mm-grounding-dino": _GROUPS_OF_32,
    "mobilebert": {"embedding_size": 48, "true_hidden_size": 48, "intra_bottleneck_size": 48},
    "mobilevit": {"image_size": 128},
    "mobilevitv2": {"image_size": 128},
    "moonshine_streaming": {"num_key_value_heads": 6},
    "oneformer": {"conv_dim": 96, "mask_dim": 96, "hidden_dim": 96},
    "reformer": {"axial_pos_embds_dim": [16, 32], "axial_pos_shape": [8, 16], "lsh_attn_chunk_length": 4, "local_attn_chunk_length": 4},
    "rt_detr_v2": {"decoder_layers": 3},
    "seggpt": {"merge_index": 0, "intermediate_hidden_state_indices": [0, 1]},
    "tvp": {"max_img_size": 64, "visual_prompt_size": 8},
    "vilt": {"num_images": 2},
    "vipllava": {"vision_feature_layers": [-1, -2]},
    "vjepa2": {"frames_per_clip": 4, "crop_size": 32, "pred_hidden_size": 48, "pred_num_mask_tokens": 2},
    "xmod": {"default_language": "en_XX"},
    "zamba": {
        "num_hidden_layers": 6,
        "layers_block_type": ["mamba", "hybrid", "mamba", "hybrid", "mamba", "mamba"],
        "attention_hidden_size": 96,
        "attention_head_dim": 16,
    },
}

# Attributes that a model's code reads although its configuration class does not declare them.
UNDECLARED: dict[str, tuple[str, ...]] = {"deberta-v2": ("share_att_key",)}

_FOLDING_TRUNK = {
    "num_blocks": 2,
    "sequence_state_dim": 48,
    "pairwise_state_dim": 16,
    "sequence_head_width": 8,
    "pairwise_head_width": 8,
    "position_bins": 8,
    "max_recycles": 1,
    "structure_module": {"sequence_dim": 48, "pairwise_dim": 16, "ipa_dim": 8, "resnet_dim": 16, "num_heads_ipa": 6, "num_blocks": 2},
}

# Model class -> dotted attributes in which its configuration differs from that of the other classes of its type.
CLASS_OVERRIDES: dict[str, dict[str, Any]] = {
    "BayesianDetectorModel": {"watermarking_depth": 4},
    "EsmForProteinFolding": {
        "is_folding_model": True,
        "esmfold_config": {"fp16_esm": False, "lddt_head_hid_dim": 8, "trunk": _FOLDING_TRUNK},
    },
    "Qwen3OmniMoeTalkerForConditionalGeneration": _TALKER,
    "ReformerModelWithLMHead": {"is_decoder": True},
    "T5GemmaEncoderModel": {"is_encoder_decoder": False},
}

# Model class -> the part of its type's configuration that it takes, where the annotation of its constructor does not say so.
PARTS: dict[str, str] = {
    "PPDocLayoutV2ReadingOrder": "reading_order_config",
    "PPFormulaNetTextModel": "text_config",
    "UVDocBridge": "backbone_config",
}

# Model class -> what its constructor takes besides the configuration.
ARGUMENTS: dict[str, dict[str, Any]] = {"Qwen3OmniMoeCode2WavDecoderBlock": {"layer_idx": 0}}
