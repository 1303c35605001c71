"""From module paths to addresses: the stack a block belongs to, its layer number, and its kind."""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass

from torch import nn

from headcount.core.heads import Kind
from headcount.models.archs import names

SHORT = {"encoder": "enc", "decoder": "dec"}
MEDIA = ("vision", "visual", "image", "audio", "video", "speech")
"""Parts of a path that mean a tower for something else than text."""

SUFFIXES = ("_model", "_tower", "_encoder", "_transformer", "_backbone")


@dataclass(frozen=True, slots=True)
class BlockAddress:
    """The address of one block."""

    stack: str
    layer: int
    kind: Kind


def _is_causal_model_type(model: nn.Module) -> bool:
    from transformers.models.auto import modeling_auto

    kind = getattr(getattr(model, "config", None), "model_type", "")
    if kind in modeling_auto.MODEL_FOR_CAUSAL_IMAGE_MODELING_MAPPING_NAMES:
        return True
    return kind in modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES and kind not in modeling_auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES


def attention_kind(model: nn.Module, module: nn.Module, path: str) -> Kind:
    """encoder-self, decoder-self or cross, from the module's own flags first, then its path, then the model type."""
    last = [part for part in path.lower().split(".") if not part.isdigit()][-3:]
    crosses = any(word in part for part in last for word in names.CROSS)
    if getattr(module, "is_cross_attention", False) or crosses or "CrossAttention" in type(module).__name__:
        return "cross"
    parts = path.lower().split(".")
    if any(part.startswith(MEDIA) for part in parts):
        return "encoder-self"
    if any(part.startswith("language_model") for part in parts):
        return "decoder-self"
    causal = getattr(module, "is_causal", None)
    if causal or getattr(module, "is_decoder", False):
        return "decoder-self"
    if getattr(getattr(model, "config", None), "is_encoder_decoder", False):
        return "decoder-self" if "decoder" in re.split(r"[._]", path) else "encoder-self"
    return "decoder-self" if causal is None and _is_causal_model_type(model) else "encoder-self"


def _layer_number_by_path(paths: list[str]) -> dict[str, int]:
    """Returns layer numbers of the blocks of one pattern: the index in the path where only one varies, else their order."""
    rows = [tuple(int(part) for part in path.split(".") if part.isdigit()) for path in paths]
    varying = [i for i in range(len(rows[0])) if len({row[i] for row in rows}) > 1]
    if len(varying) > 1:
        return {path: order for order, path in enumerate(paths)}
    axis = varying[0] if varying else 0
    return {path: (row[axis] if row else 0) for path, row in zip(paths, rows, strict=True)}


def _clean_stack_name(path_part: str) -> str:
    for suffix in SUFFIXES:
        path_part = path_part.removesuffix(suffix)
    return re.sub(r"[^a-z0-9_]", "_", path_part.lower()).strip("_") or "stack"


def _distinguishing_parts(path_patterns: list[str]) -> dict[str, list[str]]:
    """Returns the parts of each pattern that tell it from the others."""
    split = {pattern: [part for part in pattern.split(".") if part != "*"] for pattern in path_patterns}
    common = set.intersection(*(set(parts) for parts in split.values()))
    return {pattern: [part for part in parts if part not in common] for pattern, parts in split.items()}


def _stack_name_by_path_pattern(kind_of_pattern: dict[str, Kind]) -> dict[str, str]:
    """Returns a short unique name for each pattern: none, enc / dec / cross where that is enough, else from the path."""
    if len(kind_of_pattern) == 1:
        return dict.fromkeys(kind_of_pattern, "")
    words, leads = _distinguishing_parts(list(kind_of_pattern)), _first_parts_after_common_prefix(list(kind_of_pattern))
    simple = {
        pattern: _short_stack_name(kind_of_pattern[pattern], leads[pattern], words[pattern], kind_of_pattern) for pattern in kind_of_pattern
    }
    if len(set(simple.values())) == len(simple):
        return simple
    long = {pattern: "_".join(_clean_stack_name(SHORT.get(word, word)) for word in words[pattern]) or "main" for pattern in kind_of_pattern}
    taken: dict[str, int] = defaultdict(int)
    for pattern, words_of in long.items():
        name = words_of if words_of[0].isalpha() else f"s_{words_of}"
        taken[name] += 1
        long[pattern] = name if taken[name] == 1 else f"{name}_{taken[name]}"
    return long


def _first_parts_after_common_prefix(path_patterns: list[str]) -> dict[str, str]:
    """Returns the first part of each pattern behind what all of them begin with."""
    split = [pattern.split(".") for pattern in path_patterns]
    shared = 0
    while all(len(parts) > shared + 1 for parts in split) and len({parts[shared] for parts in split}) == 1:
        shared += 1
    return {pattern: parts[shared] for pattern, parts in zip(path_patterns, split, strict=True)}


def _short_stack_name(kind: Kind, first_part_after_prefix: str, distinguishing_parts: list[str], kind_of_pattern: dict[str, Kind]) -> str:
    if kind == "cross" and list(kind_of_pattern.values()).count("cross") == 1:
        return "cross"
    if first_part_after_prefix in SHORT:
        return SHORT[first_part_after_prefix]
    first = distinguishing_parts[0] if distinguishing_parts else ""
    only_self = sum(any_kind != "cross" for any_kind in kind_of_pattern.values()) == 1
    return "" if only_self and kind != "cross" else _clean_stack_name(first)


def block_addresses_in_flat_order(model: nn.Module, attention_modules: dict[str, nn.Module]) -> dict[str, BlockAddress]:
    """Returns the address of every block, keyed by path, in flat order: stack by stack, layer by layer."""
    groups: dict[str, list[str]] = defaultdict(list)
    for path in attention_modules:
        pattern = ".".join("*" if part.isdigit() else part for part in path.split("."))
        groups[pattern].append(path)
    kinds: dict[str, Kind] = {pattern: attention_kind(model, attention_modules[paths[0]], paths[0]) for pattern, paths in groups.items()}
    stacks = _stack_name_by_path_pattern(kinds)
    addresses: dict[str, BlockAddress] = {}
    for pattern, paths in groups.items():
        layers = _layer_number_by_path(paths)
        for path in sorted(paths, key=lambda p: layers[p]):
            addresses[path] = BlockAddress(stacks[pattern], layers[path], attention_kind(model, attention_modules[path], path))
    order = {name: i for i, name in enumerate(("", "enc", "dec", "cross"))}
    return dict(sorted(addresses.items(), key=lambda item: order.get(item[1].stack, len(order))))
