"""The record of a cut that travels in a model's configuration, so that heads keep their original addresses."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import nn

from headcount.core.errors import ArtifactError

KEY = "headcount"
SCHEMA = 1
LayerHeadPairs = list[list[int]]
"""Heads as [layer, place of the head in it]."""


@dataclass(frozen=True, slots=True)
class CutBlockRecord:
    """What is left of one attention block: the original indices of its heads, how many there were, and, where a bias table that layers share
    was cut as well, the heads that are its columns."""

    heads: tuple[int, ...]
    of: int
    columns: tuple[int, ...] | None = None


def path_without_base_prefix(model: nn.Module, path: str) -> str:
    """Returns a block's path without the prefix of the base model, the same with and without a task head."""
    prefix = getattr(model, "base_model_prefix", "")
    return path.removeprefix(f"{prefix}.") if prefix and hasattr(model, prefix) else path


def _parse_head_indices(block_path: str, head_indices: Any, n_original_heads: int) -> tuple[int, ...]:
    if not isinstance(head_indices, list) or not all(type(value) is int for value in head_indices):
        raise ArtifactError(f"config.{KEY}: block '{block_path}' must list its heads as whole numbers, got {head_indices!r:.80}")
    if sorted(set(head_indices)) != head_indices or (head_indices and not 0 <= head_indices[0] <= head_indices[-1] < n_original_heads):
        raise ArtifactError(
            f"config.{KEY}: block '{block_path}' lists heads {head_indices!r:.80}; they must be ascending, unique and below {n_original_heads}"
        )
    return tuple(head_indices)


def _parse_block(block_path: str, entry: Any) -> CutBlockRecord:
    total = entry.get("of") if isinstance(entry, dict) else None
    if type(total) is not int or not 0 < total < 10**6:
        raise ArtifactError(f"config.{KEY}: block '{block_path}' must say which heads are kept of how many, got {entry!r:.80}")
    columns = entry.get("columns")
    return CutBlockRecord(
        _parse_head_indices(block_path, entry.get("heads"), total),
        total,
        None if columns is None else _parse_head_indices(block_path, columns, total),
    )


def parse_cut_record(record: Any) -> dict[str, CutBlockRecord]:
    """Returns the blocks of a record in a configuration; raises ArtifactError unless it is valid."""
    if record is None:
        return {}
    if not isinstance(record, dict) or not isinstance(record.get("blocks"), dict):
        raise ArtifactError(f"config.{KEY} must be an object with 'schema' and 'blocks', got {record!r:.80}")
    if record.get("schema") != SCHEMA:
        raise ArtifactError(f"config.{KEY} has schema {record.get('schema')!r:.20}; this version reads {SCHEMA}. Update headcount.")
    return {path: _parse_block(path, entry) for path, entry in record["blocks"].items()}


def _unparsed_cut_record(model: nn.Module) -> Any:
    return getattr(getattr(model, "config", None), KEY, None)


def read_cut_record(model: nn.Module) -> dict[str, CutBlockRecord]:
    """Returns what is left of each cut block of a live model, by path relative to the base model."""
    return parse_cut_record(_unparsed_cut_record(model))


def config_values_before_uniform_cut(model: nn.Module) -> dict[str, int | None]:
    """Returns the values that the configuration had before a uniform cut was written into it, by dotted name; None for those it did not have."""
    return dict((_unparsed_cut_record(model) or {}).get("replaced", {}))


def write_cut_record(
    model: nn.Module, record_of_block: dict[str, CutBlockRecord], replaced_config_values: Mapping[str, int | None] | None = None
) -> None:
    """Puts the record into the model's configuration; `replaced_config_values` are those that a uniform cut replaced there."""
    entries: dict[str, dict[str, object]] = {}
    for path, block in record_of_block.items():
        entries[path] = {"heads": list(block.heads), "of": block.of}
        if block.columns is not None:
            entries[path]["columns"] = list(block.columns)
    content: dict[str, object] = {"schema": SCHEMA, "blocks": entries}
    replaced_config_values = config_values_before_uniform_cut(model) if replaced_config_values is None else replaced_config_values
    lists = read_config_head_pairs_before_cuts(model)
    setattr(
        model.config,
        KEY,
        content | ({"replaced": dict(replaced_config_values)} if replaced_config_values else {}) | ({"named": lists} if lists else {}),
    )


def read_config_head_pairs_before_cuts(model: nn.Module) -> dict[str, LayerHeadPairs]:
    """Returns the lists of heads in configurations (Whisper's alignment heads) as they were before any cut, by dotted name."""
    return dict((_unparsed_cut_record(model) or {}).get("named", {}))


def write_config_head_pairs_before_cuts(model: nn.Module, pairs_by_config_name: dict[str, LayerHeadPairs]) -> None:
    """Adds the lists of heads in configurations, as they were before any cut, to the record."""
    setattr(model.config, KEY, {**_unparsed_cut_record(model), "named": pairs_by_config_name})
