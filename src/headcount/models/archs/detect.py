"""Detection: the head map of a live model, every attention module either taken in or refused by name."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from functools import partial

from torch import Tensor, nn

from headcount.core.errors import UnsupportedModel
from headcount.core.heads import AttentionBlock, Head, Refusal
from headcount.models.archs import cut_record as record
from headcount.models.archs import names
from headcount.models.archs.addresses import Place, places_of
from headcount.models.archs.dependents import (
    arguments_of,
    extra_slices,
    gate_only_reason,
    projection_problem,
    projection_slices,
    twin_projections,
)
from headcount.models.archs.geometry import Geometry, NotUnderstood, family_of, read_geometry, read_queries, reads_other_block
from headcount.models.head_map import HeadMap
from headcount.models.modules import unwrap

FUNCTIONAL = "torch.nn.MultiheadAttention uses its projections functionally, so no hook on them fires (a pooling or decoder head)"


def _not_softmax(module: nn.Module) -> str:
    name = type(module).__name__
    if not name.endswith(names.MIXERS):
        return ""  # a layer or a model around it, which may hold softmax attention too
    return next((reason for part, reason in names.NOT_SOFTMAX if part in name), "")


def _examine(module: nn.Module, path: str, parent: nn.Module | None) -> Geometry | str | None:
    """A geometry, the reason for a refusal, or None for a module that is no attention."""
    if isinstance(module, nn.MultiheadAttention):
        return FUNCTIONAL
    refuse = family_of(module).refuse
    reason = _not_softmax(module) or (refuse(module) if callable(refuse) else refuse)
    if reason:
        return reason if next(module.parameters(), None) is not None else None
    try:
        return read_geometry(module, path, parent)
    except NotUnderstood as error:
        return str(error) if "ttention" in type(module).__name__ or "Attn" in type(module).__name__ else None


def _looks_like_attention(module: nn.Module) -> bool:
    name = type(module).__name__
    owns = any(p is not None for p in module._parameters.values()) or any(
        child is not None and hasattr(child, "weight") and not isinstance(child, nn.LayerNorm) for child in module._modules.values()
    )
    return owns and name.endswith(("Attention", "Attn", "SelfAttention", "AttentionBlock", "AttentionPoolingHead", "AttentionHead"))


def _source_of(path: str, modules: dict[str, nn.Module], geometries: dict[str, Geometry]) -> str:
    """The path of the block whose keys and values a block reads: the last of its stack and layer type that hands them on; else nothing."""

    def stack(of: str) -> list[str]:
        return [part for part in of.split(".") if not part.isdigit()]

    def is_source(candidate: str) -> bool:
        module, layer_type = modules[candidate], getattr(modules[path], "layer_type", None)
        hands_on = getattr(module, "store_full_length_kv", False) is True and getattr(module, "layer_type", None) == layer_type
        return hands_on and stack(candidate) == stack(path)

    return next((candidate for candidate in reversed(geometries) if is_source(candidate)), "")


def _examine_reader(module: nn.Module, path: str, source: Geometry | None) -> Geometry | str:
    """The geometry of a block that reads the keys and values of another one, or the reason for a refusal."""
    if source is None:
        return "it reads keys and values that no block of this model makes"
    try:
        return read_queries(module, path, source)
    except NotUnderstood as error:
        return str(error)


def _walk(model: nn.Module) -> tuple[dict[str, Geometry], dict[str, str], list[Refusal]]:
    """Geometries by path, for blocks that read keys and values of another block the path of that, and refusals."""
    modules = dict(model.named_modules())
    sources: dict[str, str] = {}
    found: dict[str, Geometry] = {}
    refused: dict[str, Refusal] = {}
    for path, module in modules.items():
        if refused.keys() & _above(path):
            continue
        if reads_other_block(module):
            sources[path] = _source_of(path, modules, found)
            result = _examine_reader(module, path, found.get(sources[path]))
        else:
            result = _examine(module, path, modules.get(path.rpartition(".")[0]) if path else None)
        if isinstance(result, Geometry):
            found[path] = result
        elif isinstance(result, str):
            refused[path] = Refusal(path, type(module).__name__, result)
    refused |= _leftovers(modules, {*found, *refused})
    return found, sources, list(refused.values())


def _above(path: str) -> set[str]:
    """A path and those of all modules that contain it."""
    parts = path.split(".")
    return {".".join(parts[:end]) for end in range(1, len(parts) + 1)}


def _leftovers(modules: dict[str, nn.Module], known: set[str]) -> dict[str, Refusal]:
    """Modules called attention, with weights, that nothing above accounts for."""
    containers = set().union(*map(_above, known)) if known else set()
    left: dict[str, Refusal] = {}
    for path, module in modules.items():
        if path in containers or not _looks_like_attention(module) or _above(path) & (known | left.keys()):
            continue
        left[path] = Refusal(path, type(module).__name__, "no query, key and value projections were recognised")
    return left


def _block(
    model: nn.Module, path: str, geometry: Geometry, place: Place, kept: record.KeptHeads | None, kv_source: str = ""
) -> AttentionBlock:
    indices = kept.heads if kept else tuple(range(geometry.n_heads))
    if len(indices) != geometry.n_heads:
        raise UnsupportedModel(
            f"the configuration says that block '{path}' keeps {len(indices)} heads, but its weights hold {geometry.n_heads}. "
            "Load the folder with headcount.load."
        )
    module = model.get_submodule(path)
    twins = twin_projections(model, module, path, geometry)
    reason = gate_only_reason(model, module, geometry)
    for twin in twins:
        reason = reason or projection_problem(model, twin)
    slices = []
    if not reason:
        own = (geometry.q, geometry.o) if kv_source else (geometry.q, geometry.k, geometry.v, geometry.o)
        for projection in (*own, *twins):
            slices += projection_slices(model, projection)
        slices += [s for s in extra_slices(module, path, geometry) if s.tensor not in {t.tensor for t in slices}]
    return AttentionBlock(
        path=path,
        kind=place.kind,
        stack=place.stack,
        layer=place.layer,
        heads=tuple(Head(place.stack, place.layer, index) for index in indices),
        n_original=kept.of if kept else geometry.n_heads,
        n_kv_heads=geometry.n_kv_heads,
        head_dim=geometry.head_dim,
        value_dim=geometry.value_dim,
        q=geometry.q,
        k=geometry.k,
        v=geometry.v,
        o=geometry.o,
        layout=geometry.layout,
        slices=tuple(dict.fromkeys(slices)),
        arguments=arguments_of(module),
        gate_only=reason,
        time_first=family_of(module).time_first,
        twins=twins,
        sink=isinstance(getattr(module, "sinks", None), Tensor),
        kv_source=kv_source,
    )


def _check_not_a_part(model: nn.Module, paths: Iterable[str], recorded: Collection[str]) -> None:
    """Refuses a part of a cut model, whose record names its blocks by their paths in the whole."""
    for path in map(partial(record.relative, model), paths):
        longer = next((name for name in recorded if name.endswith(f".{path}")), None) if path not in recorded else None
        if longer is not None:
            raise UnsupportedModel(
                f"this {type(model).__name__} is a part of a cut model, in which '{path}' may be '{longer}': its heads have lost their original "
                "numbers. Pass the whole model"
            )


def detect(model: nn.Module) -> HeadMap:
    """The head map of a model; raises UnsupportedModel where no head can be found."""
    inner = unwrap(model)
    if not hasattr(inner, "config"):
        raise UnsupportedModel(f"{type(model).__name__} has no config: headcount works on transformers models (PreTrainedModel)")
    found, sources, refused = _walk(inner)
    model_type = str(getattr(inner.config, "model_type", ""))
    if not found:
        reasons = "; ".join(f"{r.class_name} at '{r.path}': {r.reason}" for r in refused[:3]) or "it has no attention modules"
        raise UnsupportedModel(f"no attention heads were found in {type(inner).__name__} ({model_type}): {reasons}")
    places = places_of(inner, {path: inner.get_submodule(path) for path in found})
    kept = record.read(inner)
    _check_not_a_part(inner, places, kept.keys())
    blocks = [
        _block(inner, path, found[path], place, kept.get(record.relative(inner, path)), sources.get(path, ""))
        for path, place in places.items()
    ]
    return HeadMap(tuple(blocks), model_type, tuple(refused))
