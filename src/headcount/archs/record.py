"""The record of a cut that travels in a model's configuration, so that heads keep their original addresses."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import nn

from headcount.errors import ArtefactError

KEY = "headcount"
SCHEMA = 1


@dataclass(frozen=True, slots=True)
class Kept:
    """What is left of one block: the original indices of its heads, and how many there were."""

    heads: tuple[int, ...]
    of: int


def relative(model: nn.Module, path: str) -> str:
    """A block's path without the prefix of the base model, the same with and without a task head."""
    prefix = getattr(model, "base_model_prefix", "")
    return path.removeprefix(f"{prefix}.") if prefix and hasattr(model, prefix) else path


def _kept(path: str, entry: Any) -> Kept:
    heads, total = (entry.get("heads"), entry.get("of")) if isinstance(entry, dict) else (None, None)
    is_list = isinstance(heads, list) and all(type(head) is int for head in heads)
    if type(total) is not int or not is_list or not 0 < total < 10**6:
        raise ArtefactError(f"config.{KEY}: block '{path}' must say which heads are kept of how many, got {entry!r:.80}")
    if sorted(set(heads)) != heads or (heads and not 0 <= heads[0] <= heads[-1] < total):
        raise ArtefactError(f"config.{KEY}: block '{path}' lists heads {heads!r:.80}; they must be ascending, unique and below {total}")
    return Kept(tuple(heads), total)


def parse(record: Any) -> dict[str, Kept]:
    """The blocks of a record as found in a configuration, validated."""
    if record is None:
        return {}
    if not isinstance(record, dict) or not isinstance(record.get("blocks"), dict):
        raise ArtefactError(f"config.{KEY} must be an object with 'schema' and 'blocks', got {record!r:.80}")
    if record.get("schema") != SCHEMA:
        raise ArtefactError(f"config.{KEY} has schema {record.get('schema')!r:.20}; this version reads {SCHEMA}. Update headcount.")
    return {path: _kept(path, entry) for path, entry in record["blocks"].items()}


def read(model: nn.Module) -> dict[str, Kept]:
    """What is left of each cut block of a live model, by path relative to the base model."""
    return parse(getattr(getattr(model, "config", None), KEY, None))


def write(model: nn.Module, blocks: dict[str, Kept]) -> None:
    """Puts the record into the model's configuration."""
    entries = {path: {"heads": list(kept.heads), "of": kept.of} for path, kept in blocks.items()}
    setattr(model.config, KEY, {"schema": SCHEMA, "blocks": entries})
