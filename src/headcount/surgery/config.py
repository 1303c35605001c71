"""Configurations that tell the truth after a cut: per block through a view, for the whole model where the cut is uniform."""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import nn

from headcount.core.heads import AttentionBlock
from headcount.models.archs import cut_record as record
from headcount.models.archs import names
from headcount.models.archs.cut_record import KEY
from headcount.models.head_map import HeadMap
from headcount.models.modules import int_attribute
from headcount.surgery.sizes import BUILD_LOCK


class HeadCounts(NamedTuple):
    """The numbers of heads and of KV heads of a block."""

    heads: int
    kv_heads: int


class HeadCountFields(NamedTuple):
    """The names under which a configuration holds the number of heads, and of KV heads."""

    heads: list[str]
    kv_heads: list[str]


class ConfigChange(NamedTuple):
    """A configuration, and new values of its attributes."""

    config: Any
    values: dict[str, int]


class ConfigReaders(NamedTuple):
    """A configuration, and the blocks that read it."""

    config: Any
    blocks: list[AttentionBlock]


class ConfigView:
    """A model's configuration as one block sees it: its own head counts, everything else read live from the model's."""

    def __init__(self, base: Any, overrides: dict[str, int]) -> None:
        self.__dict__.update(overrides)
        self.__dict__["headcount_base"] = base

    def __getattr__(self, name: str) -> Any:
        base = self.__dict__.get("headcount_base")
        if base is None or name.startswith("__"):
            raise AttributeError(name)
        return getattr(base, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self.headcount_base, name, value)


def config_behind_view(config_or_view: Any) -> Any:
    """Returns the model's configuration behind a view, or the configuration itself."""
    return getattr(config_or_view, "headcount_base", config_or_view)


def head_count_fields(config: Any, n_heads: int, n_kv_heads: int) -> HeadCountFields:
    """Returns the names under which a configuration holds these numbers."""
    counts = ((names.HEAD_COUNTS, n_heads), (names.KV_COUNTS, n_kv_heads))
    heads, kv_heads = ([name for name in candidates if int_attribute(config, name) == number] for candidates, number in counts)
    return HeadCountFields(heads, kv_heads)


def give_block_config_view(module: nn.Module, old_counts: HeadCounts, new_counts: HeadCounts) -> None:
    """Gives a block a view of its configuration with its new numbers of heads and KV heads instead of the old ones."""
    config = getattr(module, "config", None)
    if config is None:
        return
    heads, kv_heads = head_count_fields(config, *old_counts)
    base = config_behind_view(config)
    own = {name: value for name, value in getattr(config, "__dict__", {}).items() if name != "headcount_base"} if base is not config else {}
    overrides = {**own, **dict.fromkeys(heads, new_counts.heads), **dict.fromkeys(kv_heads, new_counts.kv_heads)}
    if overrides:
        setattr(module, "config", ConfigView(base, overrides))  # noqa: B010 - nn.Module types its attributes as modules


def give_parent_config_view(parent: nn.Module, block: AttentionBlock, n_heads: int) -> None:
    """Gives the owner of a block a view with its head count, if it rebuilds the block from its configuration, as BigBird's does on a short input."""
    if not hasattr(parent, "set_attention_type"):
        return
    sizes = {"num_attention_heads": n_heads, "hidden_size": n_heads * block.head_dim}  # the head dimension is their ratio
    setattr(parent, "config", ConfigView(config_behind_view(parent.config), sizes))  # noqa: B010


def _scalar_attributes(module: nn.Module) -> dict[str, Any]:
    simple = (int, float, str, type(None))
    return {name: value for name, value in vars(module).items() if isinstance(value, simple) and name != "training" and name[0] != "_"}


def _parameter_and_buffer_shapes(model: nn.Module) -> dict[str, tuple[int, ...]]:
    return {name: tuple(tensor.shape) for name, tensor in (*model.named_parameters(), *model.named_buffers())}


def head_map_built_by_config(model: nn.Module) -> HeadMap | None:
    """Returns the heads of the model that the configuration builds, without the record of a cut; None where it builds none."""
    config = copy.deepcopy(model.config)
    vars(config).pop(KEY, None)  # pyright: ignore[reportArgumentType]
    try:
        with BUILD_LOCK, torch.device("meta"):
            return HeadMap.of(type(model)(config))
    except Exception:  # a class that takes more than a configuration, or that its configuration does not fit
        return None


def config_builds_same_model(model: nn.Module, config: Any, heads_of_model: HeadMap) -> bool:
    """Returns whether building the model from the saved `config` gives every tensor shape and every scalar of its attention that the model has."""
    try:
        config = type(config).from_dict(json.loads(config.to_json_string()))  # a class may compute attributes anew on reading, as head_dim
        if hasattr(config, "validate"):
            config.validate()
        with BUILD_LOCK, torch.device("meta"):
            built = type(model)(config)
    except Exception:  # a configuration that its class rejects, in whatever way, does not describe the cut
        return False
    if _parameter_and_buffer_shapes(model) != _parameter_and_buffer_shapes(built):
        return False
    return all(
        _scalar_attributes(model.get_submodule(block.path)) == _scalar_attributes(built.get_submodule(block.path))
        for block in heads_of_model.blocks
    )


def _group_by_config(model: nn.Module, heads: HeadMap) -> list[ConfigReaders]:
    blocks_by_config: dict[int, ConfigReaders] = {}
    for block in heads.blocks:
        config = config_behind_view(getattr(model.get_submodule(block.path), "config", model.config))
        blocks_by_config.setdefault(id(config), ConfigReaders(config, [])).blocks.append(block)
    return list(blocks_by_config.values())


def _config_values_of_uniform_cut(config: Any, counts_before: HeadCounts, block: AttentionBlock) -> dict[str, int]:
    """Returns the attributes that describe a uniform cut; empty if the configuration has no name for the number of heads."""
    heads = {*head_count_fields(config, *counts_before).heads, *head_count_fields(config, block.n_original, 0).heads}
    kv_heads = [name for name in names.KV_COUNTS if int_attribute(config, name) is not None]
    if not heads:
        return {}
    change = {**dict.fromkeys(heads, block.n_heads), **dict.fromkeys(kv_heads, block.n_kv_heads)}
    per_layer = int_attribute(config, "head_dim") is None and config.to_dict().get("head_dim") is not None
    settable = not hasattr(config, "d_kv") and not isinstance(getattr(type(config), "head_dim", None), property) and not per_layer
    one_size = block.head_dim == block.value_dim == block.q.rows.size  # latent attention has several, none of them is head_dim
    return change | {"head_dim": block.head_dim} if settable and one_size else change


def _name_of_sub_config(sub_config: Any, model_config: Any) -> str:
    """Returns the attribute of `model_config` that is `sub_config`; empty for itself, and for models (T5) whose stacks have copies of it."""
    return next((name for name, value in vars(model_config).items() if value is sub_config), "")


def _sub_config_named(model_config: Any, attribute_name: str) -> Any:
    return getattr(model_config, attribute_name) if attribute_name else model_config


def _list_config_changes_of_uniform_cut(
    model: nn.Module, heads: HeadMap, counts_before: Mapping[str, HeadCounts]
) -> list[ConfigChange] | None:
    """Returns, for every configuration that cut blocks read, the values that describe the cut; None if it is not uniform or has no name."""
    changes = []
    for config, blocks in _group_by_config(model, heads):
        if all(counts_before[block.path] == (block.n_heads, block.n_kv_heads) and block.n_heads == block.n_original for block in blocks):
            continue  # another tower, which the cut does not touch
        same = len({(block.n_heads, block.n_kv_heads) for block in blocks}) == 1 and blocks[0].n_heads
        change = _config_values_of_uniform_cut(config, counts_before[blocks[0].path], blocks[0]) if same else {}
        if not change:
            return None
        changes.append(ConfigChange(config, change))
    return changes


def write_cut_into_config_if_uniform(model: nn.Module, heads: HeadMap, counts_before: Mapping[str, HeadCounts]) -> bool:
    """Writes a uniform cut into the ordinary configuration, if that builds exactly this model; returns whether it did.

    `counts_before` holds the head and KV head counts of each block before the cut, by path. The values replaced go into the record.
    """
    changes = _list_config_changes_of_uniform_cut(model, heads, counts_before)
    if not changes:
        return False
    trial = copy.deepcopy(model.config)
    vars(trial).pop(KEY, None)
    for config, change in changes:
        assign_config_values(_sub_config_named(trial, _name_of_sub_config(config, model.config)), change)
    if not config_builds_same_model(model, trial, heads):
        return False
    named = [(_name_of_sub_config(config, model.config), config, change) for config, change in changes]
    values = {
        f"{name}.{key}" if name else key: int_attribute(_sub_config_named(model.config, name), key)
        for name, _, change in named
        for key in change
    }
    for name, config, change in named:
        assign_config_values(config, change)
        assign_config_values(_sub_config_named(model.config, name), change)
    record.write_cut_record(model, record.read_cut_record(model), values)
    for block in heads.blocks:
        module = model.get_submodule(block.path)
        if hasattr(module, "config"):
            module.config = config_behind_view(module.config)
    return True


def restore_config_before_uniform_cut(model: nn.Module, heads: HeadMap) -> None:
    """Undoes `write_cut_into_config_if_uniform` before another cut: the configuration gets its old values, blocks keep their own counts."""
    values = record.config_values_before_uniform_cut(model)
    if not values:
        return
    for config, blocks in _group_by_config(model, heads):
        part = _name_of_sub_config(config, model.config)
        own = {name.removeprefix(f"{part}."): value for name, value in values.items() if name.rpartition(".")[0] == part}
        now = (blocks[0].n_heads, blocks[0].n_kv_heads)
        assign_config_values(config, own)
        for block in blocks if own else ():
            module = model.get_submodule(block.path)
            if hasattr(module, "config"):
                counts = {name: now[name in names.KV_COUNTS] for name in own if name in (*names.HEAD_COUNTS, *names.KV_COUNTS)}
                setattr(module, "config", ConfigView(config_behind_view(module.config), counts))  # noqa: B010
    assign_config_values(model.config, values)
    record.write_cut_record(model, record.read_cut_record(model), {})


def assign_config_values(config: Any, values_by_dotted_name: Mapping[str, int | None]) -> None:
    """Sets attributes of a configuration, by dotted name; None removes one."""
    for dotted, value in values_by_dotted_name.items():
        part, _, name = dotted.rpartition(".")
        owner = _sub_config_named(config, part)
        if value is None:
            owner.__dict__.pop(name, None)
        else:
            setattr(owner, name, value)
