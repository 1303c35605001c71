"""Detection: the head map of a live model, every attention module either taken in or refused by name."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from functools import partial
from typing import NamedTuple

from torch import Tensor, nn

from headcount.core.errors import UnsupportedModel
from headcount.core.heads import AttentionBlock, Head, RefusedModule
from headcount.models.archs import cut_record as record
from headcount.models.archs import names
from headcount.models.archs.addresses import BlockAddress, block_addresses_in_flat_order
from headcount.models.archs.dependents import (
    further_projections_of_heads,
    gate_only_reason,
    head_arguments_of,
    projection_problem,
    projection_slices,
    slices_of_further_tensors,
)
from headcount.models.archs.geometry import Geometry, NotUnderstood, family_of, makes_queries_only, read_geometry, read_query_only_geometry
from headcount.models.head_map import HeadMap
from headcount.models.modules import unwrap

FUNCTIONAL = "torch.nn.MultiheadAttention uses its projections functionally, so no hook on them fires (a pooling or decoder head)"

RefusalReason = str
"""Why a module that is named like attention is not understood."""


def _examine_module(module: nn.Module, path: str, parent: nn.Module | None) -> Geometry | RefusalReason | None:
    """Returns a geometry, the reason for a refusal, or None for a module that is no attention."""
    if isinstance(module, nn.MultiheadAttention):
        return FUNCTIONAL
    name, refuse = type(module).__name__, family_of(module).refuse
    is_mixer = name.endswith(names.MIXERS)  # not a layer or a model around it, which may hold softmax attention too
    not_softmax = next((reason for part, reason in names.NOT_SOFTMAX if is_mixer and part in name), "")
    reason = not_softmax or (refuse(module) if callable(refuse) else refuse)
    if reason:
        return reason if next(module.parameters(), None) is not None else None
    try:
        return read_geometry(module, path, parent)
    except NotUnderstood as error:
        return str(error) if "ttention" in name or "Attn" in name else None


def _looks_like_attention(module: nn.Module) -> bool:
    name = type(module).__name__
    owns = any(p is not None for p in module._parameters.values()) or any(
        child is not None and hasattr(child, "weight") and not isinstance(child, nn.LayerNorm) for child in module._modules.values()
    )
    return owns and name.endswith(("Attention", "Attn", "SelfAttention", "AttentionBlock", "AttentionPoolingHead", "AttentionHead"))


def _kv_source_path(path: str, modules: dict[str, nn.Module], geometries: dict[str, Geometry]) -> str:
    """Returns the path of the block whose keys and values a block reads: the last of its stack and layer type that hands them on; or ""."""

    def names_without_numbers(module_path: str) -> list[str]:
        return [part for part in module_path.split(".") if not part.isdigit()]

    def is_kv_source(candidate_path: str) -> bool:
        module, layer_type = modules[candidate_path], getattr(modules[path], "layer_type", None)
        hands_on = getattr(module, "store_full_length_kv", False) is True and getattr(module, "layer_type", None) == layer_type
        return hands_on and names_without_numbers(candidate_path) == names_without_numbers(path)

    return next((candidate for candidate in reversed(geometries) if is_kv_source(candidate)), "")


def _examine_query_only_module(module: nn.Module, path: str, kv_source: Geometry | None) -> Geometry | RefusalReason:
    """Returns the geometry of a block that reads the keys and values of another one, or the reason for a refusal."""
    if kv_source is None:
        return "it reads keys and values that no block of this model makes"
    try:
        return read_query_only_geometry(module, path, kv_source)
    except NotUnderstood as error:
        return str(error)


class _ExaminedModules(NamedTuple):
    """Geometries by path; for blocks that read keys and values of another block, the path of that; and refusals."""

    geometries: dict[str, Geometry]
    kv_source_paths: dict[str, str]
    refused: list[RefusedModule]


def _examine_modules(model: nn.Module) -> _ExaminedModules:
    """Returns what every module of a model is, as attention."""
    modules = dict(model.named_modules())
    sources: dict[str, str] = {}
    geometries: dict[str, Geometry] = {}
    refused: dict[str, RefusedModule] = {}
    for path, module in modules.items():
        if refused.keys() & _path_and_ancestors(path):
            continue
        if makes_queries_only(module):
            sources[path] = _kv_source_path(path, modules, geometries)
            result = _examine_query_only_module(module, path, geometries.get(sources[path]))
        else:
            result = _examine_module(module, path, modules.get(path.rpartition(".")[0]) if path else None)
        if isinstance(result, Geometry):
            geometries[path] = result
        elif isinstance(result, str):
            refused[path] = RefusedModule(path, type(module).__name__, result)
    refused |= _refuse_unrecognised_attention(modules, {*geometries, *refused})
    return _ExaminedModules(geometries, sources, list(refused.values()))


def _path_and_ancestors(path: str) -> set[str]:
    """Returns a path and those of all modules that contain it."""
    parts = path.split(".")
    return {".".join(parts[:end]) for end in range(1, len(parts) + 1)}


def _refuse_unrecognised_attention(modules: dict[str, nn.Module], known_paths: set[str]) -> dict[str, RefusedModule]:
    """Returns refusals of modules that are named like attention, have weights, and are neither known nor part of a known module."""
    containers = set().union(*map(_path_and_ancestors, known_paths)) if known_paths else set()
    unexplained: dict[str, RefusedModule] = {}
    for path, module in modules.items():
        if path in containers or not _looks_like_attention(module) or _path_and_ancestors(path) & (known_paths | unexplained.keys()):
            continue
        unexplained[path] = RefusedModule(path, type(module).__name__, "no query, key and value projections were recognised")
    return unexplained


def _build_block(
    model: nn.Module, path: str, geometry: Geometry, address: BlockAddress, recorded: record.CutBlockRecord | None, kv_source_path: str = ""
) -> AttentionBlock:
    indices = recorded.heads if recorded else tuple(range(geometry.n_heads))
    if len(indices) != geometry.n_heads:
        raise UnsupportedModel(
            f"the configuration says that block '{path}' keeps {len(indices)} heads, but its weights hold {geometry.n_heads}. "
            "Load the folder with headcount.load."
        )
    module = model.get_submodule(path)
    twins = further_projections_of_heads(model, module, path, geometry)
    reason = gate_only_reason(model, module, geometry)
    for twin in twins:
        reason = reason or projection_problem(model, twin)
    slices = []
    if not reason:
        own = (geometry.q, geometry.o) if kv_source_path else (geometry.q, geometry.k, geometry.v, geometry.o)
        for projection in (*own, *twins):
            slices += projection_slices(model, projection)
        slices += [s for s in slices_of_further_tensors(module, path, geometry) if s.tensor not in {t.tensor for t in slices}]
    return AttentionBlock(
        path=path,
        kind=address.kind,
        stack=address.stack,
        layer=address.layer,
        heads=tuple(Head(address.stack, address.layer, index) for index in indices),
        n_original=recorded.of if recorded else geometry.n_heads,
        n_kv_heads=geometry.n_kv_heads,
        head_dim=geometry.head_dim,
        value_dim=geometry.value_dim,
        q=geometry.q,
        k=geometry.k,
        v=geometry.v,
        o=geometry.o,
        layout=geometry.layout,
        slices=tuple(dict.fromkeys(slices)),
        arguments=head_arguments_of(module),
        gate_only=reason,
        time_first=family_of(module).time_first,
        twins=twins,
        sink=isinstance(getattr(module, "sinks", None), Tensor),
        kv_source=kv_source_path,
    )


def _check_model_is_whole(model: nn.Module, block_paths: Iterable[str], recorded_paths: Collection[str]) -> None:
    """Raises UnsupportedModel for a part of a cut model: the record names its blocks by their paths in the whole model."""
    for path in map(partial(record.path_without_base_prefix, model), block_paths):
        longer = next((name for name in recorded_paths if name.endswith(f".{path}")), None) if path not in recorded_paths else None
        if longer is not None:
            raise UnsupportedModel(
                f"this {type(model).__name__} is a part of a cut model, in which '{path}' may be '{longer}': its heads have lost their original "
                "numbers. Pass the whole model"
            )


def detect_heads(model: nn.Module) -> HeadMap:
    """Returns the head map of a model; raises UnsupportedModel if no head is found."""
    inner = unwrap(model)
    if not hasattr(inner, "config"):
        raise UnsupportedModel(f"{type(model).__name__} has no config: headcount works on transformers models (PreTrainedModel)")
    examined = _examine_modules(inner)
    geometries, sources, refused = examined.geometries, examined.kv_source_paths, examined.refused
    model_type = str(getattr(inner.config, "model_type", ""))
    if not geometries:
        reasons = "; ".join(f"{r.class_name} at '{r.path}': {r.reason}" for r in refused[:3]) or "it has no attention modules"
        raise UnsupportedModel(f"no attention heads were found in {type(inner).__name__} ({model_type}): {reasons}")
    addresses = block_addresses_in_flat_order(inner, {path: inner.get_submodule(path) for path in geometries})
    recorded = record.read_cut_record(inner)
    _check_model_is_whole(inner, addresses, recorded.keys())
    blocks = [
        _build_block(
            inner, path, geometries[path], address, recorded.get(record.path_without_base_prefix(inner, path)), sources.get(path, "")
        )
        for path, address in addresses.items()
    ]
    return HeadMap(tuple(blocks), model_type, tuple(refused))
