"""The names that attention modules of transformers use. Data only; detection reads them in this order."""

TRIPLES: tuple[tuple[str, str, str], ...] = (
    ("q_proj", "k_proj", "v_proj"),
    ("query", "key", "value"),
    ("query_proj", "key_proj", "value_proj"),
    ("q", "k", "v"),
    ("q_lin", "k_lin", "v_lin"),
    ("linear_q", "linear_k", "linear_v"),
    ("Wq", "Wk", "Wv"),
    ("wq", "wk", "wv"),
    ("to_q", "to_k", "to_v"),
    ("project_q", "project_k", "project_v"),
    ("projection_query", "projection_key", "projection_value"),
    ("q_head", "k_head", "v_head"),
)
"""Separate projections: query, key, value."""

QUERY_AND_PAIR: tuple[tuple[str, str], ...] = (("q_attn", "c_attn"), ("to_q", "to_kv"), ("q_proj", "kv_proj"), ("q", "kv"))
"""A query projection and one that stacks key and value."""

LATENT: tuple[tuple[str, str], ...] = (("q_b_proj", "kv_b_proj"), ("q_proj", "kv_b_proj"))
"""Multi-head latent attention: per-head queries, and per-head keys and values expanded from a shared latent."""

SHARED_PARTS: tuple[str, ...] = (
    "q_a_proj", "kv_a_proj", "kv_a_proj_with_mqa", "q_a_layernorm", "kv_a_layernorm", "sequence_reduction", "spatial_reduction", "sr",
    "indexer", "rel_logits_proj", "dense_bias",
)  # fmt: skip
"""What all heads share, whatever its size: latents, convolutions that shorten the keys, indexers that choose them, a late output bias."""

FUSED: tuple[str, ...] = ("qkv", "qkv_proj", "query_key_value", "c_attn", "Wqkv", "in_proj", "wqkv", "att_proj")
"""One projection for query, key and value."""

OUTPUTS: tuple[str, ...] = (
    "o_proj", "out_proj", "o", "out_lin", "c_proj", "Wo", "wo", "dense", "proj", "projection", "projection_layer",
    "linear_out", "attention_out", "to_out", "post_proj", "output_proj", "output", "linear",
)  # fmt: skip
"""The output projection, inside the attention module."""

SIBLING_OUTPUTS: tuple[str, ...] = (
    "output.dense", "output.out_proj", "output.o_proj", "output.output", "output", "dense", "out_proj", "o_proj", "post", "proj", "c_proj",
)  # fmt: skip
"""The output projection, seen from the parent of the attention module."""

HEAD_COUNTS: tuple[str, ...] = (
    "num_heads", "num_attention_heads", "n_heads", "n_head", "num_query_heads", "num_q_heads", "heads", "nhead", "attention_heads",
    "num_attn_heads", "nb_heads", "encoder_attention_heads", "decoder_attention_heads",
)  # fmt: skip
KV_COUNTS: tuple[str, ...] = ("num_key_value_heads", "num_kv_heads", "n_kv_heads", "kv_heads", "num_key_heads")
GROUP_SIZES: tuple[str, ...] = ("num_key_value_groups", "n_rep", "num_kv_groups", "q_per_kv")
VALUE_DIMS: tuple[str, ...] = ("v_head_dim", "value_head_dim", "d_v")
HEAD_DIMS: tuple[str, ...] = (
    "head_dim", "attention_head_size", "head_size", "key_value_proj_dim", "dim_head", "d_head", "dim_per_head", "head_channels",
    "attention_head_dim", "d_kv", "qk_head_dim", "hidden_size_per_attention_head", "depth",
)  # fmt: skip
WIDTHS: tuple[str, ...] = (
    "all_head_size",
    "inner_dim",
    "split_size",
    "attention_inner_dim",
    "q_size",
    "kv_size",
    "q_dim",
    "kv_dim",
    "key_value_dim",
)
"""Integer attributes that hold heads x dimension; they follow a cut."""

RUNTIME_WIDTHS: tuple[str, ...] = (
    "embed_dim", "hidden_size", "hidden_size_output", "d_model", "d_model_size", "dim", "internal_dim", "hidden_dim",
)  # fmt: skip
"""Attributes that hold the model width, but that some modules reshape by: they follow a cut only where the code reads them."""

HEAD_ARGUMENTS: tuple[str, ...] = ("position_bias", "alibi", "relative_position_bias", "rel_pos", "rel_2d_pos")
"""Forward arguments with a head axis, made outside the block."""

PER_HEAD_TABLES: tuple[str, ...] = (
    "relative_attention_bias", "relative_position_bias_table", "relative_bias_table", "sinks", "attention_biases", "logit_scale",
    "bias_u", "bias_v", "pos_bias_u", "pos_bias_v", "slopes", "r_w_bias", "r_r_bias", "r_s_bias", "seg_embed", "r_kernel",
)  # fmt: skip
"""Tensors known to have one entry per head, for the case that heads and head_dim are equal in number."""

PER_HEAD_LAYERS: tuple[str, ...] = ("r_proj",)
"""Linear layers whose outputs are divided evenly between the heads, in a size of their own."""

CROSS: tuple[str, ...] = (
    "cross",
    "encoder_attn",
    "encdec",
    "enc_attn",
    "encoder_attention",
    "crossattention",
    "src_attn",
    "multihead_attn",
    "encoder_decoder",
    "visual_attention",
)
"""Parts of a path that mean cross-attention."""

NOT_SOFTMAX: tuple[tuple[str, str], ...] = (
    ("DeltaNet", "linear attention (gated delta rule)"),
    ("DeltaAttention", "linear attention (delta rule)"),
    ("LinearAttention", "linear attention"),
    ("LightningAttention", "linear attention"),
    ("Mamba", "state-space mixer"),
    ("ShortConv", "convolution mixer"),
    ("MultiscaleDeformable", "deformable attention: sampled points, not key positions"),
    ("FourierTransform", "Fourier mixing"),
    ("AutoformerAttention", "auto-correlation instead of attention"),
    ("ProbSparse", "probability-sparse attention: keys are sampled"),
    ("Rwkv", "recurrent mixing"),
    ("Recurrent", "recurrent mixing"),
    ("LSHSelfAttention", "locality-sensitive hashing attention"),
)
"""Parts of a class name that mean that there are no softmax heads to gate."""

MIXERS: tuple[str, ...] = ("Attention", "Mixer", "DeltaNet", "ShortConv", "ShortConvolution", "MambaLayer", "Transform", "RecurrentBlock")
"""Ends of the class names of modules that mix tokens, as opposed to layers that hold one."""
