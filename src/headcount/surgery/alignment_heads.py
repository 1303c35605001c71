"""The list of alignment heads of a model and of its folder: `generation_config.alignment_heads`, from which Whisper makes token timestamps."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from torch import nn

from headcount.core.errors import ArtifactError, UnsupportedModel
from headcount.core.files import json_bytes, read_json, write_atomic
from headcount.core.folders import new_folder
from headcount.core.heads import Head
from headcount.models.archs.cut_record import LayerHeadPairs
from headcount.models.head_map import HeadMap
from headcount.models.modules import unwrap
from headcount.surgery import manifest
from headcount.surgery.named_heads import assign_config_head_pairs, config_head_pairs_of_dense_model, heads_of_pairs, pairs_of_heads

FIELD = "generation_config.alignment_heads"
FILE = "generation_config.json"


def check_has_alignment_list(model_class: type) -> None:
    """Raises UnsupportedModel for a class of models whose generation reads no list of alignment heads."""
    if not hasattr(model_class, "_extract_token_timestamps"):
        raise UnsupportedModel(
            f"{model_class.__name__} has no list of alignment heads: only Whisper's generation reads {FIELD}. For other models with cross-attention, "
            "the roles alignment and diagonal say which heads align (headcount roles)"
        )


def read_alignment_heads(model: nn.Module) -> tuple[Head, ...]:
    """Returns the heads that a model lists now; none where it has no list."""
    inner: Any = unwrap(model)
    pairs = getattr(getattr(inner, "generation_config", None), "alignment_heads", None)
    return heads_of_pairs(HeadMap.of(inner), FIELD, [list(pair) for pair in pairs]) if pairs else ()


def set_alignment_heads(model: nn.Module, heads: Iterable[Head | str]) -> LayerHeadPairs:
    """Lists heads in a model's generation configuration, and returns the [layer, head] pairs, which count the heads that it has now.

    Raises:
        UnsupportedModel: the generation of the model reads no such list.
        PlanError: a head is not in the model, or not in its cross-attention.
    """
    inner: Any = unwrap(model)
    check_has_alignment_list(type(inner))
    pairs = pairs_of_heads(HeadMap.of(inner), FIELD, [Head.parse(head) for head in heads])
    assign_config_head_pairs(inner, {FIELD: pairs})
    inner.generation_config._from_model_config = False  # from a model's configuration, transformers would make it anew without the list
    return pairs


def write_alignment_heads(model: nn.Module, model_folder: str | Path) -> Path:
    """Writes the list of a live model into the folder that it was loaded from, and returns the file.

    Nothing else is changed. A folder that headcount saved gets a new heads.json too, and is replaced as a whole.

    Raises:
        ArtifactError: the folder cannot be written.
    """
    target, inner = Path(model_folder), unwrap(model)
    listing = manifest.read_manifest(target)
    if listing is None:
        write_atomic(target / FILE, _encode_generation_config_with_list(inner, target))
        return target / FILE
    manifest.check_files_match(target, listing)
    with new_folder(target, overwrite=True, marker_file=manifest.NAME) as fresh:
        shutil.copytree(target, fresh, ignore=shutil.ignore_patterns(FILE, manifest.NAME), dirs_exist_ok=True)
        write_atomic(fresh / FILE, _encode_generation_config_with_list(inner, target))
        listing.named_heads = config_head_pairs_of_dense_model(inner, HeadMap.of(inner))
        listing.files = manifest.hash_files(fresh)
        manifest.write_manifest(fresh, listing)
    return target / FILE


def _encode_generation_config_with_list(model: Any, model_folder: Path) -> bytes:
    """Returns the generation configuration of a folder, or else that of the model, with the model's list of heads."""
    path = model_folder / FILE
    content = read_json(path) if path.exists() else json.loads(model.generation_config.to_json_string())
    if not isinstance(content, dict):
        raise ArtifactError(f"{path} holds no generation configuration; restore it, or remove it")
    content.pop("_from_model_config", None)
    return json_bytes({**content, "alignment_heads": model.generation_config.alignment_heads})
