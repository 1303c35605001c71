"""Legacy import: checkpoints that transformers 4.x pruned (config.pruned_heads), which transformers 5 builds at full size and cannot load."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import torch
from torch import nn

from headcount.core.errors import ArtifactError
from headcount.core.heads import AttentionBlock
from headcount.models.archs import cut_record as record
from headcount.models.head_map import HeadMap
from headcount.surgery.load import load_blocks
from headcount.surgery.sizes import MAX_RATIO, bounded_build, check_counts
from headcount.surgery.source import built, check_weights, class_of, local_folder, read_config

FIELD = "pruned_heads"


def _pruned(path: Path, config: dict[str, Any]) -> dict[int, list[int]]:
    raw = config.get(FIELD)
    if not isinstance(raw, dict) or not raw:
        raise ArtifactError(
            f"{path / 'config.json'} has no {FIELD}, so it is no pruned checkpoint of transformers 4; load it as any other model"
        )
    found: dict[int, list[int]] = {}
    for layer, heads in raw.items():
        whole = isinstance(heads, list) and all(type(head) is int for head in heads)
        number = int(layer) if re.fullmatch("[0-9]{1,6}", str(layer)) else None
        if number is None or number in found or not whole or len(set(heads)) != len(heads):
            raise ArtifactError(
                f"{path / 'config.json'}: {FIELD} must map each layer once to a list of distinct heads, got {layer!r:.20}: {heads!r:.60}"
            )
        found[number] = heads
    return found


def _block(heads: HeadMap, layer: int) -> AttentionBlock:
    """The block that transformers 4 meant by a layer number: the encoder's, or that of the only stack."""
    first = heads.blocks[0].stack
    for block in heads.blocks:
        if block.stack == first and block.layer == layer and block.kind != "cross":
            return block
    raise ArtifactError(f"{FIELD} names layer {layer}; the model has {heads.describe()}. Use the config.json that came with the weights")


def _record(heads: HeadMap, model: nn.Module, pruned: dict[int, list[int]]) -> dict[str, record.Kept]:
    found = {}
    for layer, gone in pruned.items():
        block = _block(heads, layer)
        wrong = [head for head in gone if head >= block.n_heads or head < 0]
        if wrong:
            raise ArtifactError(
                f"{FIELD} names head {wrong[0]} of layer {layer}, which has {block.n_heads}; use the config.json that came with the weights"
            )
        kept = tuple(index for index in range(block.n_heads) if index not in gone)
        columns = tuple(range(block.n_heads)) if any(argument.returned for argument in block.arguments) else None
        found[record.relative(model, block.path)] = record.Kept(kept, block.n_heads, columns)
    return found


def load_legacy(folder: str | Path, *, auto: Any = None, allow_pickle: bool = False, **kwargs: Any) -> nn.Module:
    """The model of a checkpoint that transformers 4.x pruned, as a cut model of headcount: save it and it loads like any other."""
    path = local_folder(folder)
    config = read_config(path)
    pruned = _pruned(path, config)
    sizes = check_weights(path, allow_pickle, config, kwargs)
    check_counts(path / "config.json", config, sizes)
    cls = class_of(path, config, auto)
    kwargs = kwargs if allow_pickle else {**kwargs, "use_safetensors": True}
    everything = {"": record.Kept((0,), MAX_RATIO)}  # what is left of each layer is known only when the whole model is built
    with bounded_build(path / "config.json", config, sizes, everything), torch.device("meta"):
        dense = built(path, cls.__name__, lambda: cls(cls.config_class.from_pretrained(path)))  # pyright: ignore[reportAttributeAccessIssue]
    model = load_blocks(path, cls, _record(HeadMap.of(dense), dense, pruned), **kwargs)
    vars(model.config).pop(FIELD, None)
    return model
