"""The rule of every operation, by its name."""

from __future__ import annotations

from headcount.importance.relevance.layers import pass_convolution, pass_linear, pass_matrix_product, pass_normalisation
from headcount.importance.relevance.operations import (
    pass_accumulation,
    pass_addition,
    pass_copy,
    pass_glu,
    pass_move,
    pass_product,
    pass_quotient,
    pass_restride,
    pass_sum,
    pass_view,
    pass_whole,
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
    **dict.fromkeys(PASSES, pass_whole),
    **dict.fromkeys(MOVES, pass_move),
    **dict.fromkeys(VIEWS, pass_view),
    **dict.fromkeys(SUMS, pass_sum),
    **dict.fromkeys(NORMS, pass_normalisation),
    **dict.fromkeys(("add", "sub", "rsub"), pass_addition),
    **dict.fromkeys(PRODUCTS, pass_matrix_product),
    "linear": pass_linear,
    "convolution": pass_convolution,
    **dict.fromkeys(("index_add", "scatter_add"), pass_accumulation),
    "as_strided": pass_restride,
    "copy": pass_copy,
    "glu": pass_glu,
    "mul": pass_product,
    "div": pass_quotient,
}


def rule_of(node: Node) -> Passing:
    """The rule of a node; refuses the model where there is none."""
    if node.function is None:
        return pass_whole
    if "scaled_dot_product" in node.name:
        raise node.refuse("is a fused kernel (load the model with attn_implementation='eager')")
    if node.name not in RULES:
        raise node.refuse()
    return RULES[node.name]
