"""Fields of configurations that name heads by layer and place, such as Whisper's alignment heads: they follow a cut, and a portable export."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

from torch import nn

from headcount.core.errors import PlanError
from headcount.core.heads import Head, Kind
from headcount.models.archs import cut_record as record
from headcount.models.head_map import HeadMap

FIELDS: dict[str, Kind] = {"alignment_heads": "cross"}
"""Fields that hold [layer, head] pairs, with the kind of attention whose heads they name. No other field of transformers names heads."""

OWNERS = ("generation_config", "config")


def read_config_head_pairs(model: Any) -> dict[str, record.LayerHeadPairs]:
    """The lists of heads that a model's configurations hold now, by dotted name."""
    owners = {owner: getattr(model, owner, None) for owner in OWNERS}
    fields = {f"{owner}.{field}": getattr(config, field, None) for owner, config in owners.items() for field in FIELDS}
    return {name: [list(pair) for pair in pairs] for name, pairs in fields.items() if pairs is not None}


def _heads_by_layer(heads: HeadMap, field_name: str) -> dict[int, tuple[Head, ...]]:
    """The heads that the pairs of a field count, by layer."""
    kind = FIELDS[field_name.rpartition(".")[2]]
    return {block.layer: block.heads for block in heads.blocks if block.kind == kind}


def heads_of_pairs(heads: HeadMap, field_name: str, pairs: record.LayerHeadPairs) -> tuple[Head, ...]:
    """The heads that the pairs of a field name; raises PlanError for a pair that names none."""
    by_layer = _heads_by_layer(heads, field_name)
    for layer, position in pairs:
        if not 0 <= position < len(by_layer.get(layer, ())):
            raise PlanError(
                f"{field_name} names head {position} of layer {layer}, which the model does not have, so the list cannot follow a cut. "
                "Correct or remove it."
            )
    return tuple(by_layer[layer][position] for layer, position in pairs)


def pairs_of_heads(heads: HeadMap, field_name: str, listed: Sequence[Head]) -> record.LayerHeadPairs:
    """The pairs of a field that name some heads, in the order of the model; raises PlanError for a head that the field cannot name."""
    known = {head: [layer, position] for layer, block in _heads_by_layer(heads, field_name).items() for position, head in enumerate(block)}
    unknown = next((head for head in listed if head not in known), None)
    if unknown is not None or not listed:
        raise PlanError(
            f"{field_name} cannot name {unknown or 'no head'}: it lists heads of cross-attention that the model has, one or more"
        )
    return sorted(known[head] for head in set(listed))


def _renumber_pairs(heads: HeadMap, field_name: str, original_pairs: record.LayerHeadPairs) -> record.LayerHeadPairs:
    """Pairs of original indices, as pairs that count the heads a model has now; heads that are gone leave the list."""
    by_layer = {layer: [head.index for head in block] for layer, block in _heads_by_layer(heads, field_name).items()}
    return [[layer, by_layer[layer].index(index)] for layer, index in original_pairs if index in by_layer.get(layer, ())]


def config_head_pairs_of_dense_model(model: nn.Module, heads: HeadMap) -> dict[str, record.LayerHeadPairs]:
    """The lists as the dense model has them, heads that were removed since included; a list that was edited after a cut counts as it is."""
    recorded, fields = record.read_config_head_pairs_before_cuts(model), read_config_head_pairs(model)
    originals = {name: pairs for name, pairs in recorded.items() if fields.get(name, []) == _renumber_pairs(heads, name, pairs)}
    listed = {name: heads_of_pairs(heads, name, pairs) for name, pairs in fields.items() if name not in originals}
    return originals | {name: [[head.layer, head.index] for head in named] for name, named in listed.items()}


def assign_config_head_pairs(model: Any, pairs_by_field: dict[str, record.LayerHeadPairs]) -> None:
    """Gives a model's configurations these lists; an empty one is removed, so that the model's own code says that it has none.

    Configurations are replaced, not written to: a cut that fails puts the old ones back.
    """
    for name, pairs in pairs_by_field.items():
        owner, _, field = name.partition(".")
        config = copy.deepcopy(getattr(model, owner)) if owner == "generation_config" else getattr(model, owner)
        if pairs:
            setattr(config, field, pairs)
        else:
            vars(config).pop(field, None)
        if owner == "generation_config":
            model.generation_config = config


def renumber_config_head_pairs(model: nn.Module, original_lists: dict[str, record.LayerHeadPairs], heads: HeadMap) -> None:
    """Renumbers the lists for the heads that a cut left, and records the original ones."""
    if original_lists:
        assign_config_head_pairs(model, {name: _renumber_pairs(heads, name, pairs) for name, pairs in original_lists.items()})
        record.write_config_head_pairs_before_cuts(model, original_lists)
