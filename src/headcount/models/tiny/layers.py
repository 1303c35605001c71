"""Which layers of a default configuration a tiny one keeps, and the per-layer attributes cut to match."""

from __future__ import annotations

import re
from typing import Any

from headcount.models.tiny.sizes import Attributes

MIN_LAYERS = 2
# A list with more distinct values than this numbers the layers instead of naming their kinds.
MAX_KINDS = 5

DEPTH = re.compile(
    r"(^|_)(num_hidden_layers|n_layers?|num_layers|(en|de)coder_layers|num_(en|de)coder_layers|layers|depth|"
    r"num_self_attends_per_block|mem_blocks|num_layers_per_stack|num_\w+_layers|resampler_depth)$"
)
NOT_DEPTH = re.compile(r"(conv|feat_extract|adapter|window|dense|nextn|shared|postnet|prenet|predictor|residual|wavenet|lstm|linear)")
_INDICES = re.compile(r"(layers|indexes|indices|layer_ids|idxs|blocks|hook_ids)$")
_MAIN = ("num_hidden_layers", "n_layer", "n_layers", "num_layers", "depth", "encoder_layers", "decoder_layers")


def depth_of_flat_stack(attributes: Attributes) -> int | None:
    """The number of layers of a configuration with one flat stack, None without one."""
    for name in _MAIN:
        if isinstance(attributes.get(name), int):
            return attributes[name]
    return None


def has_entry_per_layer(name: str, value: Any, depth: int) -> bool:
    """Whether the value is a list with an entry for each layer."""
    return isinstance(value, (list, tuple)) and len(value) == depth and not is_layer_index_list(name, value, depth)


def is_layer_index_list(name: str, value: Any, depth: int) -> bool:
    """Whether the value is an ascending list of layer numbers."""
    if not (isinstance(value, (list, tuple)) and value and _INDICES.search(name)):
        return False
    if not all(isinstance(v, int) and not isinstance(v, bool) for v in value):
        return False
    return list(value) == sorted(set(value)) and max(value) <= depth


def choose_representative_layers(attributes: Attributes) -> list[int] | None:
    """The fewest layers, at least two, that show every kind of layer and every listed role."""
    depth = depth_of_flat_stack(attributes)
    if depth is None:
        return None
    chosen = {0}
    for name, value in attributes.items():
        if is_layer_index_list(name, value, depth):
            chosen |= _layers_inside_and_outside_list(name, value, depth)
        elif has_entry_per_layer(name, value, depth):
            chosen |= _first_layer_of_each_kind(value)
    for layer in range(depth):
        if len(chosen) < MIN_LAYERS:
            chosen.add(layer)
    return sorted(chosen)


def _first_layer_of_each_kind(values: list[Any]) -> set[int]:
    first: dict[str, int] = {}
    for layer, value in enumerate(values):
        first.setdefault(repr(value), layer)
    return set(first.values()) if len(first) <= MAX_KINDS else set()


def _layers_inside_and_outside_list(name: str, values: list[int], depth: int) -> set[int]:
    # Stage 0 of a backbone is its stem, so stage i is the output of layer i - 1.
    if name.endswith("out_indices"):
        return {v - 1 for v in values if v > 0}
    outside = [layer for layer in range(depth) if layer not in values]
    listed = [v for v in values if v < depth]
    return {*(listed if len(listed) < MAX_KINDS else listed[:1]), *outside[:1]}


def cut_layer_lists(attributes: Attributes, kept_layers: list[int]) -> Attributes:
    """Attributes whose per-layer lists and lists of layer numbers hold the kept layers alone, renumbered; the depth stays as it is."""
    depth = depth_of_flat_stack(attributes) or 0
    new_index = {layer: new for new, layer in enumerate(kept_layers)}
    small = dict(attributes)
    for name, value in attributes.items():
        if is_layer_index_list(name, value, depth):
            shift = 1 if name.endswith("out_indices") else 0
            small[name] = type(value)(new_index[v - shift] + shift for v in value if v - shift in new_index)
        elif has_entry_per_layer(name, value, depth):
            small[name] = type(value)(value[layer] for layer in kept_layers)
    return small


def cap_layer_counts(attributes: Attributes, max_layers: int) -> Attributes:
    """Attributes with every count of layers at most ``max_layers``."""
    depths = [name for name, value in attributes.items() if type(value) is int and DEPTH.search(name) and not NOT_DEPTH.search(name)]
    return attributes | {name: min(attributes[name], max_layers) for name in depths}
