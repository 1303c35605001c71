"""Legacy import: checkpoints that transformers 4.x pruned (config.pruned_heads), which transformers 5 builds at full size and cannot load."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from headcount.core.arguments import check_arguments
from headcount.core.errors import ArtifactError
from headcount.core.heads import AttentionBlock
from headcount.models.archs import cut_record as record
from headcount.models.head_map import HeadMap
from headcount.surgery.load import build_from_pretrained_arguments, load_with_record
from headcount.surgery.sizes import MAX_RATIO, check_config_counts, limit_built_size
from headcount.surgery.source import build_from_config, check_and_measure_weights, local_folder, model_class_of, read_config

FIELD = "pruned_heads"


def _read_pruned_heads(folder: Path, config: Mapping[str, object]) -> dict[int, list[int]]:
    """Returns the heads that transformers 4 pruned, by layer; raises ArtifactError unless the configuration lists them."""
    raw = config.get(FIELD)
    if not isinstance(raw, dict) or not raw:
        raise ArtifactError(
            f"{folder / 'config.json'} has no {FIELD}, so it is no pruned checkpoint of transformers 4; load it as any other model"
        )
    pruned: dict[int, list[int]] = {}
    for layer, heads in raw.items():
        are_numbers = isinstance(heads, list) and all(type(head) is int for head in heads)
        number = int(layer) if re.fullmatch("[0-9]{1,6}", str(layer)) else None
        if number is None or number in pruned or not are_numbers or len(set(heads)) != len(heads):
            raise ArtifactError(
                f"{folder / 'config.json'}: {FIELD} must map each layer once to a list of distinct heads, got {layer!r:.20}: {heads!r:.60}"
            )
        pruned[number] = heads
    return pruned


def _self_attention_block_of_layer(heads: HeadMap, layer: int) -> AttentionBlock:
    """Returns the block that transformers 4 meant by a layer number: that of the first stack, since it pruned heads of one stack alone."""
    first = heads.blocks[0].stack
    for block in heads.blocks:
        if block.stack == first and block.layer == layer and block.kind != "cross":
            return block
    raise ArtifactError(f"{FIELD} names layer {layer}; the model has {heads.describe()}. Use the config.json that came with the weights")


def _build_cut_record(dense_model: nn.Module, pruned_heads_by_layer: Mapping[int, list[int]]) -> dict[str, record.CutBlockRecord]:
    """Returns the record of a cut that removed the pruned heads from the dense model."""
    heads = HeadMap.of(dense_model)
    stacks = list(dict.fromkeys(block.stack for block in heads.blocks if block.kind != "cross"))
    if len(stacks) > 1 and getattr(dense_model.config, "is_encoder_decoder", False):
        raise ArtifactError(
            f"{FIELD} names layers, but not which of the stacks {', '.join(stacks)} they are in: transformers 4 prunes no "
            f"{type(dense_model).__name__} and notes the heads before it fails. If the weights have full size, remove {FIELD} from config.json "
            "and load them as any other model"
        )
    blocks = {}
    for layer, indices in pruned_heads_by_layer.items():
        block = _self_attention_block_of_layer(heads, layer)
        wrong = [index for index in indices if index >= block.n_heads or index < 0]
        if wrong:
            raise ArtifactError(
                f"{FIELD} names head {wrong[0]} of layer {layer}, which has {block.n_heads}; use the config.json that came with the weights"
            )
        remaining = tuple(index for index in range(block.n_heads) if index not in indices)
        columns = tuple(range(block.n_heads)) if any(argument.returned for argument in block.arguments) else None
        blocks[record.path_without_base_prefix(dense_model, block.path)] = record.CutBlockRecord(remaining, block.n_heads, columns)
    return blocks


@check_arguments
def load_legacy(
    folder: str | Path,
    *,
    auto: Any = None,
    dtype: str | torch.dtype = "auto",
    allow_pickle: bool = False,
) -> nn.Module:
    """Loads a checkpoint that transformers 4.x pruned, as a cut model of headcount: save it and it loads like any other.

    Args:
        folder: A folder or hub id whose config.json has `pruned_heads`.
        auto: An Auto class of transformers or its name; None for the class that saved the model.
        dtype: The dtype of the weights, by name or as a torch.dtype; "auto" for the stored one.
        allow_pickle: Whether to read weights in pickle format, which can run code; only if you trust their author.

    Returns:
        The model; its heads keep the addresses that they had before pruning.

    Raises:
        ArtifactError: the folder has no `pruned_heads`, or they do not fit the model.

    Example:
        >>> hc.save(hc.load_legacy("old"), "new")
    """
    path = local_folder(folder)
    config = read_config(path)
    pruned = _read_pruned_heads(path, config)
    options = build_from_pretrained_arguments(dtype)
    sizes = check_and_measure_weights(path, allow_pickle, config, options)
    check_config_counts(path / "config.json", config, sizes)
    cls = model_class_of(path, config, auto)
    options |= {} if allow_pickle else {"use_safetensors": True}
    most_pruned = {"": record.CutBlockRecord((0,), MAX_RATIO)}  # what is left of each layer is known only when the dense model is built
    with limit_built_size(path / "config.json", config, sizes, most_pruned), torch.device("meta"):
        dense = build_from_config(path, cls.__name__, lambda: cls(cls.config_class.from_pretrained(path)))  # pyright: ignore[reportAttributeAccessIssue]
    model = load_with_record(path, cls, _build_cut_record(dense, pruned), options)
    vars(model.config).pop(FIELD, None)
    return model
