"""From an attention module to its head geometry: which layers are q, k, v and o, and where every head lies in them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from torch import nn

from headcount.core.heads import Layout, Projection, Rows
from headcount.models.archs import names
from headcount.models.archs.families import DEFAULT_FUSION, FAMILIES, Family, Fusion
from headcount.models.modules import (
    descendant,
    first_positive_int_attribute,
    int_attribute,
    join_path,
    linear_in_and_out_size,
    weight_layer_path,
)


class NotUnderstood(Exception):
    """A module that owns attention projections, but whose heads cannot be determined; its text is the reason."""


@dataclass(frozen=True, slots=True)
class Geometry:
    """The heads of one attention module, before they have addresses."""

    n_heads: int
    n_kv_heads: int
    head_dim: int
    value_dim: int
    q: Projection
    k: Projection
    v: Projection
    o: Projection
    layout: Layout


def family_of(module: nn.Module) -> Family:
    """Returns the data row of an attention class, or an empty one."""
    for cls in type(module).__mro__:
        for name in (cls.__name__, f"{cls.__module__.rpartition('.')[2]}.{cls.__name__}"):
            if name in FAMILIES:
                return FAMILIES[name]
    return Family()


def _linear_children(module: nn.Module) -> dict[str, nn.Module]:
    return {name: layer for name, layer in module._modules.items() if layer is not None and linear_in_and_out_size(layer) is not None}


def input_projection_names(module: nn.Module) -> tuple[str, ...] | None:
    """Returns the names of the projections that make queries, keys and values: three, two (query and a key-value pair) or one (fused)."""
    linears = _linear_children(module)
    for option in (*names.TRIPLES, *names.LATENT, *names.QUERY_AND_PAIR):
        if all(name in linears for name in option):
            return option
    if "q_proj" in linears and "k_proj" in linears and getattr(module, "v_proj", module) is None:
        return "q_proj", "k_proj", "k_proj"  # the values are the keys
    fused = [name for name in names.FUSED if name in linears]
    return (fused[0],) if fused else None


class OutputProjection(NamedTuple):
    """An output projection, its name, and whether it belongs to the parent of the attention module (as in BERT)."""

    layer: nn.Module
    name: str
    is_on_parent: bool


def find_output_projection(module: nn.Module, parent: nn.Module | None, input_names: tuple[str, ...]) -> OutputProjection | None:
    """Returns the output projection of an attention module, None if it has none; `input_names` are those of its input projections."""
    for name in names.OUTPUTS:
        layer = descendant(module, name)
        if layer is None or name in input_names:
            continue
        if linear_in_and_out_size(layer) is not None:
            return OutputProjection(layer, name, False)
        first = layer._modules.get("0") if isinstance(layer, nn.Sequential) else None
        if first is not None and linear_in_and_out_size(first) is not None:
            return OutputProjection(first, f"{name}.0", False)
    for name in names.SIBLING_OUTPUTS:
        layer = descendant(parent, name) if parent is not None else None
        if layer is not None and linear_in_and_out_size(layer) is not None:
            return OutputProjection(layer, name, True)
    return None


def read_head_count_and_dim(module: nn.Module, output_projection_width: int) -> tuple[int, int]:
    """Returns (heads, dimension of a head's output) from the input size of the output projection; the module counts before its config."""
    config = getattr(module, "config", None)
    dim = first_positive_int_attribute(module, names.VALUE_DIMS) or first_positive_int_attribute(module, names.HEAD_DIMS)
    number = first_positive_int_attribute(module, names.HEAD_COUNTS)
    if number is None and dim is None:
        number = first_positive_int_attribute(config, names.HEAD_COUNTS)
    for heads, size in ((number, dim), (None, dim), (number, None)):
        if heads and size and heads * size == output_projection_width:
            return heads, size
        if size and not heads and output_projection_width % size == 0:
            return output_projection_width // size, size
        if heads and not size and output_projection_width % heads == 0:
            return heads, output_projection_width // heads
    raise NotUnderstood(
        f"the output projection reads {output_projection_width} numbers, which is not {number or '?'} heads of {dim or '?'}"
    )


def _divide_outputs_evenly(n_outputs: int, n_parts: int, layer_name: str) -> int:
    if n_parts <= 0 or n_outputs % n_parts:
        raise NotUnderstood(f"{layer_name} has {n_outputs} outputs, which is no multiple of {n_parts} heads")
    return n_outputs // n_parts


def _count_heads_of_size(width: int, head_size: int, name: str) -> int:
    if head_size <= 0 or width % head_size:
        raise NotUnderstood(f"{name} has a width of {width}, which is no whole number of heads of {head_size}")
    return width // head_size


def _count_kv_heads(module: nn.Module, key_width: int, head_dim: int, n_heads: int) -> int:
    """Returns the KV heads of a key projection: by the size of a head, since configurations can be wrong; by attribute where sizes differ."""
    if key_width % head_dim == 0 and key_width // head_dim <= n_heads and n_heads % (key_width // head_dim) == 0:
        return key_width // head_dim
    number = first_positive_int_attribute(module, names.KV_COUNTS) or n_heads
    _divide_outputs_evenly(key_width, number, "the key projection")
    if n_heads % number:
        raise NotUnderstood(f"{n_heads} query heads are no multiple of {number} KV heads")
    return number


def _rows_of_separate_projections(
    module: nn.Module, projection_names: tuple[str, ...], n_heads: int, value_dim: int
) -> dict[str, tuple[str, Rows]]:
    q, k, v = projection_names
    q_out, k_out, v_out = (linear_in_and_out_size(module._modules[name])[1] for name in projection_names)  # pyright: ignore[reportOptionalSubscript]
    q_dim = _divide_outputs_evenly(q_out, n_heads, f"'{q}'")
    dim = first_positive_int_attribute(module, names.HEAD_DIMS) or q_dim
    n_kv = _count_kv_heads(module, k_out, dim, n_heads)
    k_dim, v_dim = _divide_outputs_evenly(k_out, n_kv, f"'{k}'"), _divide_outputs_evenly(v_out, n_kv, f"'{v}'")
    if v_dim != value_dim:
        raise NotUnderstood(f"'{v}' gives {v_dim} numbers per head, the output projection reads {value_dim}")
    return {"q": (q, Rows(n_heads, q_dim)), "k": (k, Rows(n_kv, k_dim)), "v": (v, Rows(n_kv, v_dim))}


def _rows_of_query_and_kv_pair(
    module: nn.Module, projection_names: tuple[str, ...], n_heads: int, value_dim: int
) -> dict[str, tuple[str, Rows]]:
    """Returns the rows of a query projection, and of keys and values in one: stacked, or per head where they come from a latent."""
    q, pair = projection_names
    q_out, pair_out = (linear_in_and_out_size(module._modules[name])[1] for name in projection_names)  # pyright: ignore[reportOptionalSubscript]
    q_dim = _divide_outputs_evenly(q_out, n_heads, f"'{q}'")
    if projection_names in names.LATENT:
        both = _divide_outputs_evenly(pair_out, n_heads, f"'{pair}'")
        k = Rows(n_heads, both - value_dim, 0, 1, both)
        v = Rows(n_heads, value_dim, both - value_dim, 1, both)
    else:
        n_kv = _count_kv_heads(module, pair_out // 2, q_dim, n_heads)
        size = _divide_outputs_evenly(pair_out // 2, n_kv, f"'{pair}'")
        k, v = Rows(n_kv, size), Rows(n_kv, size, pair_out // 2)
    return {"q": (q, Rows(n_heads, q_dim)), "k": (pair, k), "v": (pair, v)}


def _rows_of_fused_projection(module: nn.Module, projection_name: str, n_heads: int, head_dim: int) -> dict[str, tuple[str, Rows]]:
    width = linear_in_and_out_size(module._modules[projection_name])[1]  # pyright: ignore[reportOptionalSubscript]
    kv_width = width - n_heads * head_dim
    if kv_width <= 0 or kv_width % (2 * head_dim) or n_heads % (kv_width // (2 * head_dim)):
        raise NotUnderstood(
            f"'{projection_name}' has {width} outputs, which is not {n_heads} queries of {head_dim} with their keys and values"
        )
    n_kv = kv_width // (2 * head_dim)
    fusion = family_of(module).fusion
    kind: Fusion = (fusion(module) if callable(fusion) else fusion) or DEFAULT_FUSION.get(projection_name, "stacked")
    q, k, v = fused_query_key_value_rows(kind, n_heads, n_kv, head_dim)
    return {"q": (projection_name, q), "k": (projection_name, k), "v": (projection_name, v)}


def fused_query_key_value_rows(fusion: Fusion, n_heads: int, n_kv_heads: int, head_dim: int) -> tuple[Rows, Rows, Rows]:
    """Returns where q, k and v lie in a fused projection of some layout."""
    if fusion == "stacked":
        return (
            Rows(n_heads, head_dim),
            Rows(n_kv_heads, head_dim, n_heads * head_dim),
            Rows(n_kv_heads, head_dim, (n_heads + n_kv_heads) * head_dim),
        )
    if fusion == "blocked":  # four shards, each with its queries, values, keys
        per, stride = n_heads // 4, 3 * (n_heads // 4) * head_dim
        return (
            Rows(n_heads, head_dim, 0, per, stride),
            Rows(n_kv_heads, head_dim, 2 * per * head_dim, per, stride),
            Rows(n_kv_heads, head_dim, per * head_dim, per, stride),
        )
    per = n_heads // n_kv_heads
    if fusion == "interleaved" and per != 1:
        raise NotUnderstood(f"an interleaved projection needs as many KV heads as heads, found {n_kv_heads} and {n_heads}")
    stride = (per + 2) * head_dim
    return (
        Rows(n_heads, head_dim, 0, per, stride),
        Rows(n_kv_heads, head_dim, per * head_dim, 1, stride),
        Rows(n_kv_heads, head_dim, (per + 1) * head_dim, 1, stride),
    )


def _kv_rows_of_empty_block(module: nn.Module, projection_name: str) -> Rows:
    """Returns the KV heads of a block that has no query heads left."""
    width = linear_in_and_out_size(module._modules[projection_name])[1]  # pyright: ignore[reportOptionalSubscript]
    dim = first_positive_int_attribute(module, names.HEAD_DIMS)
    if dim is None:
        raise NotUnderstood(f"'{projection_name}' has {width} outputs, and nothing says how many of them are a head")
    return Rows(_count_heads_of_size(width, dim, f"'{projection_name}'"), dim)


def makes_queries_only(module: nn.Module) -> bool:
    """Returns whether an attention module makes queries only, for the keys and values of an earlier layer."""
    linears = _linear_children(module)
    return getattr(module, "is_kv_shared_layer", False) is True and "q_proj" in linears and "k_proj" not in linears


def read_query_only_geometry(module: nn.Module, path: str, kv_source: Geometry) -> Geometry:
    """Returns the geometry of a module that reads the keys and values of another one."""
    output = find_output_projection(module, None, ("q_proj",))
    if output is None:
        raise NotUnderstood("no output projection was found")
    layer, name, _ = output
    query = module.get_submodule("q_proj")
    ghost = getattr(layer, "is_ghost", False)
    width = linear_in_and_out_size(layer)[0]  # pyright: ignore[reportOptionalSubscript]
    n_heads = 0 if ghost else _count_heads_of_size(width, kv_source.value_dim, "the input of the output projection")
    size = kv_source.head_dim if ghost else _divide_outputs_evenly(linear_in_and_out_size(query)[1], n_heads, "'q_proj'")  # pyright: ignore[reportOptionalSubscript]
    if kv_source.n_kv_heads and n_heads % kv_source.n_kv_heads:
        raise NotUnderstood(
            f"{n_heads} query heads are no multiple of the {kv_source.n_kv_heads} KV heads of the layer whose keys they read"
        )
    q = Projection("q", weight_layer_path(query, join_path(path, "q_proj")), Rows(n_heads, size), "head")
    o = Projection("o", weight_layer_path(layer, join_path(path, name)), Rows(n_heads, kv_source.value_dim), "head")
    return Geometry(n_heads, kv_source.n_kv_heads, kv_source.head_dim, kv_source.value_dim, q, kv_source.k, kv_source.v, o, "separate")


def read_geometry(module: nn.Module, path: str, parent: nn.Module | None) -> Geometry | None:
    """Returns the geometry of a module that owns attention projections; None if it owns none."""
    projections = input_projection_names(module)
    if projections is None:
        return None
    output = find_output_projection(module, parent, projections)
    if output is None:
        raise NotUnderstood("no output projection was found")
    layer, name = output.layer, output.name
    o_path = weight_layer_path(layer, join_path(path.rpartition(".")[0] if output.is_on_parent else path, name))
    width = linear_in_and_out_size(layer)[0]  # pyright: ignore[reportOptionalSubscript]
    ghost_dim = int_attribute(layer, "value_dim") if getattr(layer, "is_ghost", False) else None
    n_heads, value_dim = (0, ghost_dim) if ghost_dim else read_head_count_and_dim(module, width)
    if getattr(module._modules[projections[0]], "is_ghost", False):
        rows_by_role = {role: (projections[min(i, len(projections) - 1)], Rows(0, value_dim)) for i, role in enumerate("qkv")}
        if len(projections) == 3 and not getattr(
            module._modules[projections[1]], "is_ghost", False
        ):  # other blocks read these keys and values
            rows_by_role |= {role: (name, _kv_rows_of_empty_block(module, name)) for role, name in zip("kv", projections[1:], strict=True)}
    elif len(projections) == 1:
        rows_by_role = _rows_of_fused_projection(module, projections[0], n_heads, value_dim)
    else:
        rows_by_role = (_rows_of_separate_projections if len(projections) == 3 else _rows_of_query_and_kv_pair)(
            module, projections, n_heads, value_dim
        )

    def projection_of_role(role: str) -> Projection:
        child_name, rows = rows_by_role[role]
        unit = "head" if role == "q" else "kv_head"
        return Projection(role, weight_layer_path(module._modules[child_name], join_path(path, child_name)), rows, unit)  # pyright: ignore[reportArgumentType]

    q, k, v = projection_of_role("q"), projection_of_role("k"), projection_of_role("v")
    o = Projection("o", o_path, Rows(n_heads, value_dim), "head")
    if len({q.path, k.path, v.path}) == 3:
        layout: Layout = "separate"
    else:
        layout = "interleaved" if k.rows.stride else "stacked"
    return Geometry(n_heads, k.rows.count, k.rows.size, value_dim, q, k, v, o, layout)
