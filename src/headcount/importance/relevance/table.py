"""The rule of every operation, by its name."""

from __future__ import annotations

from headcount.importance.relevance.layers import convolved, linear_layer, matrix_product, normalised
from headcount.importance.relevance.operations import (
    accumulated,
    added,
    copied,
    divided,
    gated,
    moved,
    multiplied,
    reshaped,
    restrided,
    summed,
    unchanged,
)
from headcount.importance.relevance.passing import Passing
from headcount.importance.relevance.tape import Node

PASSES = (
    "gelu", "silu", "relu", "relu6", "tanh", "sigmoid", "elu", "celu", "selu", "leaky_relu", "mish", "softplus", "hardtanh", "hardswish",
    "hardsigmoid", "hardshrink", "erf", "exp", "log", "log1p", "pow", "square", "abs", "neg", "clamp", "clamp_min", "clamp_max", "sin",
    "cos", "_softmax", "_log_softmax", "_to_copy", "clone", "alias", "detach", "lift_fresh", "contiguous", "nan_to_num",
)  # fmt: skip
"""Activations, softmax and copies."""

MOVES = (
    "permute", "transpose", "t", "unsqueeze", "squeeze", "slice", "select", "expand", "cat", "stack", "split", "split_with_sizes", "unbind",
    "index", "gather", "index_select", "flip", "roll", "repeat", "constant_pad_nd", "masked_fill", "where", "tril", "triu", "unfold",
    "diagonal", "index_put", "overwrite", "masked_scatter", "slice_scatter", "select_scatter", "masked_select", "max", "min", "topk", "amax",
    "pixel_unshuffle", "pixel_shuffle",
)  # fmt: skip
"""Operations that move, copy or pick entries."""

VIEWS = (
    "view", "_unsafe_view", "reshape", "_reshape_alias",
)  # fmt: skip
"""Operations that keep the entries in their order."""

SUMS = (
    "sum", "mean", "cumsum", "index_add", "scatter_add", "avg_pool2d", "avg_pool1d", "adaptive_avg_pool2d", "_adaptive_avg_pool2d",
)  # fmt: skip
"""Linear operations whose weights are not negative."""

NORMS = (
    "native_layer_norm", "native_group_norm", "native_batch_norm", "_native_batch_norm_legit_no_training", "cudnn_batch_norm",
)  # fmt: skip
"""Normalisations, whose statistics are constants."""

PRODUCTS = ("mm", "bmm", "addmm", "baddbmm")

RULES: dict[str, Passing] = {
    **dict.fromkeys(PASSES, unchanged),
    **dict.fromkeys(MOVES, moved),
    **dict.fromkeys(VIEWS, reshaped),
    **dict.fromkeys(SUMS, summed),
    **dict.fromkeys(NORMS, normalised),
    **dict.fromkeys(("add", "sub", "rsub"), added),
    **dict.fromkeys(PRODUCTS, matrix_product),
    "linear": linear_layer,
    "convolution": convolved,
    **dict.fromkeys(("index_add", "scatter_add"), accumulated),
    "as_strided": restrided,
    "copy": copied,
    "glu": gated,
    "mul": multiplied,
    "div": divided,
}


def passing(node: Node) -> Passing:
    """The rule of a node; refuses the model where there is none."""
    if node.function is None:
        return unchanged
    if "scaled_dot_product" in node.name:
        raise node.refuse("is a fused kernel (load the model with attn_implementation='eager')")
    if node.name not in RULES:
        raise node.refuse()
    return RULES[node.name]
