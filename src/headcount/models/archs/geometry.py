"""From an attention module to its head geometry: which layers are q, k, v and o, and where every head lies in them."""

from __future__ import annotations

from dataclasses import dataclass

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


def input_projections(module: nn.Module) -> tuple[str, ...] | None:
    """Returns the names of the projections that make queries, keys and values: three, two (query and a key-value pair) or one (fused)."""
    linears = _linear_children(module)
    for option in (*names.TRIPLES, *names.LATENT, *names.QUERY_AND_PAIR):
        if all(name in linears for name in option):
            return option
    if "q_proj" in linears and "k_proj" in linears and getattr(module, "v_proj", module) is None:
        return "q_proj", "k_proj", "k_proj"  # the values are the keys
    fused = [name for name in names.FUSED if name in linears]
    return (fused[0],) if fused else None


def find_output_projection(module: nn.Module, parent: nn.Module | None, taken: tuple[str, ...]) -> tuple[nn.Module, str, bool] | None:
    """Returns the output projection, its name, and whether it belongs to the parent module (as in BERT)."""
    for name in names.OUTPUTS:
        layer = descendant(module, name)
        if layer is None or name in taken:
            continue
        if linear_in_and_out_size(layer) is not None:
            return layer, name, False
        first = layer._modules.get("0") if isinstance(layer, nn.Sequential) else None
        if first is not None and linear_in_and_out_size(first) is not None:
            return first, f"{name}.0", False
    for name in names.SIBLING_OUTPUTS:
        layer = descendant(parent, name) if parent is not None else None
        if layer is not None and linear_in_and_out_size(layer) is not None:
            return layer, name, True
    return None


def read_head_counts(module: nn.Module, width: int) -> tuple[int, int]:
    """Returns (heads, dimension of a head's output) from the input size of the output projection; the module counts before its config."""
    config = getattr(module, "config", None)
    dim = first_positive_int_attribute(module, names.VALUE_DIMS) or first_positive_int_attribute(module, names.HEAD_DIMS)
    number = first_positive_int_attribute(module, names.HEAD_COUNTS)
    if number is None and dim is None:
        number = first_positive_int_attribute(config, names.HEAD_COUNTS)
    for heads, size in ((number, dim), (None, dim), (number, None)):
        if heads and size and heads * size == width:
            return heads, size
        if size and not heads and width % size == 0:
            return width // size, size
        if heads and not size and width % heads == 0:
            return heads, width // heads
    raise NotUnderstood(f"the output projection reads {width} numbers, which is not {number or '?'} heads of {dim or '?'}")


def _outputs_per_unit(total: int, units: int, layer_name: str) -> int:
    if units <= 0 or total % units:
        raise NotUnderstood(f"{layer_name} has {total} outputs, which is no multiple of {units} heads")
    return total // units


def _count_kv_heads(module: nn.Module, width: int, dim: int, n_heads: int) -> int:
    """Returns the KV heads of a key projection: by the size of a head, since configurations can be wrong; by attribute where sizes differ."""
    if width % dim == 0 and width // dim <= n_heads and n_heads % (width // dim) == 0:
        return width // dim
    number = first_positive_int_attribute(module, names.KV_COUNTS) or n_heads
    _outputs_per_unit(width, number, "the key projection")
    if n_heads % number:
        raise NotUnderstood(f"{n_heads} query heads are no multiple of {number} KV heads")
    return number


def _rows_of_separate_projections(
    module: nn.Module, projections: tuple[str, ...], n_heads: int, value_dim: int
) -> dict[str, tuple[str, Rows]]:
    q, k, v = projections
    q_out, k_out, v_out = (linear_in_and_out_size(module._modules[name])[1] for name in projections)  # pyright: ignore[reportOptionalSubscript]
    q_dim = _outputs_per_unit(q_out, n_heads, f"'{q}'")
    dim = first_positive_int_attribute(module, names.HEAD_DIMS) or q_dim
    n_kv = _count_kv_heads(module, k_out, dim, n_heads)
    k_dim, v_dim = _outputs_per_unit(k_out, n_kv, f"'{k}'"), _outputs_per_unit(v_out, n_kv, f"'{v}'")
    if v_dim != value_dim:
        raise NotUnderstood(f"'{v}' gives {v_dim} numbers per head, the output projection reads {value_dim}")
    return {"q": (q, Rows(n_heads, q_dim)), "k": (k, Rows(n_kv, k_dim)), "v": (v, Rows(n_kv, v_dim))}


def _rows_of_query_and_kv_pair(
    module: nn.Module, projections: tuple[str, ...], n_heads: int, value_dim: int
) -> dict[str, tuple[str, Rows]]:
    """Returns the rows of a query projection, and of keys and values in one: stacked, or per head where they come from a latent."""
    q, pair = projections
    q_out, pair_out = (linear_in_and_out_size(module._modules[name])[1] for name in projections)  # pyright: ignore[reportOptionalSubscript]
    q_dim = _outputs_per_unit(q_out, n_heads, f"'{q}'")
    if projections in names.LATENT:
        both = _outputs_per_unit(pair_out, n_heads, f"'{pair}'")
        k = Rows(n_heads, both - value_dim, 0, 1, both)
        v = Rows(n_heads, value_dim, both - value_dim, 1, both)
    else:
        n_kv = _count_kv_heads(module, pair_out // 2, q_dim, n_heads)
        size = _outputs_per_unit(pair_out // 2, n_kv, f"'{pair}'")
        k, v = Rows(n_kv, size), Rows(n_kv, size, pair_out // 2)
    return {"q": (q, Rows(n_heads, q_dim)), "k": (pair, k), "v": (pair, v)}


def _rows_of_fused_projection(module: nn.Module, name: str, n_heads: int, dim: int) -> dict[str, tuple[str, Rows]]:
    width = linear_in_and_out_size(module._modules[name])[1]  # pyright: ignore[reportOptionalSubscript]
    kv_width = width - n_heads * dim
    if kv_width <= 0 or kv_width % (2 * dim) or n_heads % (kv_width // (2 * dim)):
        raise NotUnderstood(f"'{name}' has {width} outputs, which is not {n_heads} queries of {dim} with their keys and values")
    n_kv = kv_width // (2 * dim)
    fusion = family_of(module).fusion
    kind: Fusion = (fusion(module) if callable(fusion) else fusion) or DEFAULT_FUSION.get(name, "stacked")
    q, k, v = fused_rows(kind, n_heads, n_kv, dim)
    return {"q": (name, q), "k": (name, k), "v": (name, v)}


def fused_rows(kind: Fusion, n_heads: int, n_kv: int, dim: int) -> tuple[Rows, Rows, Rows]:
    """Returns where q, k and v lie in a fused projection of some layout."""
    if kind == "stacked":
        return Rows(n_heads, dim), Rows(n_kv, dim, n_heads * dim), Rows(n_kv, dim, (n_heads + n_kv) * dim)
    if kind == "blocked":  # four shards, each with its queries, values, keys
        per, stride = n_heads // 4, 3 * (n_heads // 4) * dim
        return Rows(n_heads, dim, 0, per, stride), Rows(n_kv, dim, 2 * per * dim, per, stride), Rows(n_kv, dim, per * dim, per, stride)
    per = n_heads // n_kv
    if kind == "interleaved" and per != 1:
        raise NotUnderstood(f"an interleaved projection needs as many KV heads as heads, found {n_kv} and {n_heads}")
    stride = (per + 2) * dim
    return Rows(n_heads, dim, 0, per, stride), Rows(n_kv, dim, per * dim, 1, stride), Rows(n_kv, dim, (per + 1) * dim, 1, stride)


def _kv_rows_of_empty_block(module: nn.Module, name: str) -> Rows:
    """Returns the KV heads of a block that has no query heads left."""
    width = linear_in_and_out_size(module._modules[name])[1]  # pyright: ignore[reportOptionalSubscript]
    dim = first_positive_int_attribute(module, names.HEAD_DIMS)
    if dim is None:
        raise NotUnderstood(f"'{name}' has {width} outputs, and nothing says how many of them are a head")
    return Rows(_outputs_per_unit(width, dim, f"'{name}'"), dim)


def makes_queries_only(module: nn.Module) -> bool:
    """Returns whether an attention module makes queries only, for the keys and values of an earlier layer."""
    linears = _linear_children(module)
    return getattr(module, "is_kv_shared_layer", False) is True and "q_proj" in linears and "k_proj" not in linears


def read_query_only_geometry(module: nn.Module, path: str, source: Geometry) -> Geometry:
    """Returns the geometry of a module that reads the keys and values of another one."""
    output = find_output_projection(module, None, ("q_proj",))
    if output is None:
        raise NotUnderstood("no output projection was found")
    layer, name, _ = output
    query = module.get_submodule("q_proj")
    ghost = getattr(layer, "is_ghost", False)
    n_heads = 0 if ghost else _outputs_per_unit(linear_in_and_out_size(layer)[0], source.value_dim, "the output projection")  # pyright: ignore[reportOptionalSubscript]
    size = source.head_dim if ghost else _outputs_per_unit(linear_in_and_out_size(query)[1], n_heads, "'q_proj'")  # pyright: ignore[reportOptionalSubscript]
    if source.n_kv_heads and n_heads % source.n_kv_heads:
        raise NotUnderstood(f"{n_heads} query heads are no multiple of the {source.n_kv_heads} KV heads of the layer whose keys they read")
    q = Projection("q", weight_layer_path(query, join_path(path, "q_proj")), Rows(n_heads, size), "head")
    o = Projection("o", weight_layer_path(layer, join_path(path, name)), Rows(n_heads, source.value_dim), "head")
    return Geometry(n_heads, source.n_kv_heads, source.head_dim, source.value_dim, q, source.k, source.v, o, "separate")


def read_geometry(module: nn.Module, path: str, parent: nn.Module | None) -> Geometry | None:
    """Returns the geometry of a module that owns attention projections; None if it owns none."""
    projections = input_projections(module)
    if projections is None:
        return None
    output = find_output_projection(module, parent, projections)
    if output is None:
        raise NotUnderstood("no output projection was found")
    layer, name, on_parent = output
    o_path = weight_layer_path(layer, join_path(path.rpartition(".")[0] if on_parent else path, name))
    width = linear_in_and_out_size(layer)[0]  # pyright: ignore[reportOptionalSubscript]
    ghost_dim = int_attribute(layer, "value_dim") if getattr(layer, "is_ghost", False) else None
    n_heads, value_dim = (0, ghost_dim) if ghost_dim else read_head_counts(module, width)
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

    def projection(role: str) -> Projection:
        child_name, rows = rows_by_role[role]
        unit = "head" if role == "q" else "kv_head"
        return Projection(role, weight_layer_path(module._modules[child_name], join_path(path, child_name)), rows, unit)  # pyright: ignore[reportArgumentType]

    q, k, v = projection("q"), projection("k"), projection("v")
    o = Projection("o", o_path, Rows(n_heads, value_dim), "head")
    if len({q.path, k.path, v.path}) == 3:
        layout: Layout = "separate"
    else:
        layout = "interleaved" if k.rows.stride else "stacked"
    return Geometry(n_heads, k.rows.count, k.rows.size, value_dim, q, k, v, o, layout)
