"""Removing heads from a live model's modules: tensors, layer sizes, attributes, configuration views, hooks. Chooses and checks nothing."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn

from headcount.core.heads import AttentionBlock, Slice
from headcount.models.archs import cut_record as record
from headcount.models.archs import names
from headcount.models.archs.dependents import is_shared_by_heads
from headcount.models.archs.geometry import family_of
from headcount.models.head_map import HeadMap
from headcount.models.modules import is_transposed, names_read_by_methods
from headcount.surgery.config import HeadCounts, give_block_config_view, give_parent_config_view
from headcount.surgery.empty_block import BiasOnlyProjection, ZeroProjection
from headcount.surgery.head_arguments import ArgumentSlicer, remove_argument_slicers
from headcount.surgery.width import install_fitted_forward

TableHeads = dict[str, tuple[int, ...]]
"""The original heads that a shared bias table has columns for, by block path."""


@dataclass(frozen=True, slots=True)
class Cut:
    """What one block keeps: positions of its heads among those it has, and of the KV heads that a kept head of any block still reads."""

    block: AttentionBlock
    heads: tuple[int, ...]
    kv_heads: tuple[int, ...]

    @property
    def removes_all_heads(self) -> bool:
        """Whether no head is left."""
        return not self.heads

    @property
    def removes_nothing(self) -> bool:
        """Whether everything stays."""
        return len(self.heads) == self.block.n_heads and len(self.kv_heads) == self.block.n_kv_heads

    @property
    def counts_in_forward(self) -> HeadCounts:
        """Heads and KV heads that the block's code runs with; an empty block has one idle head for every KV head that others read."""
        idle = max(1, len(self.kv_heads))
        return HeadCounts(idle, idle) if self.removes_all_heads else HeadCounts(len(self.heads), len(self.kv_heads))

    @property
    def partly_kept_slices(self) -> list[Slice]:
        """The tensors that keep some of their units; those of an empty block's own heads go as a whole."""
        return [s for s in self.block.slices if s.extra or not self.removes_all_heads or (s.unit == "kv_head" and self.kv_heads)]

    def kept_unit_indices(self, slice_: Slice) -> tuple[int, ...]:
        """The units of a tensor that stay; per-head tensors of an empty block keep the first one, for the idle head."""
        units = self.heads if slice_.unit == "head" else self.kv_heads
        return (0,) if self.removes_all_heads and slice_.extra else units


def n_kept_elements(cut: Cut) -> int:
    """Returns how many elements the tensors of a block hold after the cut, by arithmetic on shapes."""
    return sum(len(cut.kept_unit_indices(s)) * s.unit_numel for s in cut.block.slices)


def n_head_elements(block: AttentionBlock) -> int:
    """Returns how many elements of a block's tensors belong to heads."""
    return sum(s.rows.count * s.unit_numel for s in block.slices)


def n_removed_table_elements(cuts: Iterable[Cut]) -> int:
    """Returns how many elements leave bias tables that layers share: all blocks of a stack must keep the same heads for that."""
    removed = 0
    for cuts_of_stack in _group_by_stack_with_arguments(list(cuts)):
        indices = _table_heads_kept_by_all(cuts_of_stack)
        for cut in cuts_of_stack if indices else ():
            removed += sum(a.table[0] * (a.table[1] - len(indices)) for a in cut.block.arguments if a.table and len(indices) < a.table[1])
    return removed


def _table_heads_kept_by_all(cuts_of_stack: list[Cut]) -> tuple[int, ...]:
    """Returns the original heads that every block of a stack keeps, if they are the same in each and come from a table that the blocks share."""
    shared = all(argument.returned for cut in cuts_of_stack for argument in cut.block.arguments)
    return _kept_original_indices(cuts_of_stack[0]) if shared and len({_kept_original_indices(cut) for cut in cuts_of_stack}) == 1 else ()


def _replace_parameter(model: nn.Module, parameter_name: str, tensor: Tensor) -> None:
    path, _, leaf = parameter_name.rpartition(".")
    owner = model.get_submodule(path)
    old = owner._parameters[leaf]
    assert old is not None
    owner._parameters[leaf] = nn.Parameter(tensor, requires_grad=old.requires_grad)


def _slice_tensors(model: nn.Module, cut: Cut, slices: Iterable[Slice]) -> None:
    by_tensor: dict[str, list[Slice]] = defaultdict(list)
    for s in slices:
        by_tensor[s.tensor].append(s)
    for name, parts in by_tensor.items():
        entries = sorted(entry for s in parts for entry in s.rows.keep(cut.kept_unit_indices(s)))
        old = model.get_parameter(name).data
        _replace_parameter(model, name, old.index_select(parts[0].axis, torch.tensor(entries, dtype=torch.long, device=old.device)))
        _set_layer_sizes_from_weight(model.get_submodule(name.rpartition(".")[0]))


def _set_layer_sizes_from_weight(layer: nn.Module) -> None:
    """Makes a layer's size attributes follow its weight."""
    weight = layer._parameters.get("weight")
    if weight is not None and isinstance(layer, nn.modules.conv._ConvNd) and layer.groups == layer.out_channels:  # one filter per head
        layer.groups = layer.in_channels = layer.out_channels = weight.shape[0]
    if weight is None or weight.ndim != 2:
        return
    names_of = ("num_embeddings", "embedding_dim") if isinstance(layer, nn.Embedding) else ("out_features", "in_features")
    for name, size in zip(("nx", "nf") if is_transposed(layer) else names_of, weight.shape, strict=True):
        if hasattr(layer, name):
            setattr(layer, name, size)


def _install_empty_projections(model: nn.Module, cut: Cut) -> None:
    """Replaces the projections of a block that lost all its heads; keys and values that another block makes or reads stay."""
    block, widths = cut.block, defaultdict[str, int](int)
    own = (block.q,) if cut.kv_heads or block.kv_source else (block.q, block.k, block.v)
    inputs = (*own, *(twin for twin in block.twins if twin.role != "o"))
    for path, rows in dict.fromkeys((projection.path, projection.rows) for projection in inputs):
        widths[path] += rows.size * cut.counts_in_forward[0]
    for path, width in widths.items():
        layer = model.get_submodule(path)
        if isinstance(layer, ZeroProjection):
            layer.width = width
        else:
            model.set_submodule(path, ZeroProjection(layer, width))
    for output in block.outputs:
        layer = model.get_submodule(output.path)
        if not isinstance(layer, BiasOnlyProjection):
            model.set_submodule(output.path, BiasOnlyProjection(layer, output.rows.size))


def _new_values_by_attribute(block: AttentionBlock, n_heads: int, n_kv_heads: int) -> dict[str, dict[int, int]]:
    """Returns, for every attribute name, the new value of each old one."""
    table: dict[str, dict[int, int]] = {name: {block.n_heads: n_heads} for name in names.HEAD_COUNTS}
    table |= {name: {block.n_kv_heads: n_kv_heads} for name in names.KV_COUNTS}
    table |= {name: {block.group_size: n_heads // n_kv_heads} for name in names.GROUP_SIZES}
    widths = {block.n_kv_heads * dim: n_kv_heads * dim for dim in (block.head_dim, block.value_dim)}
    widths |= {block.n_heads * dim: n_heads * dim for dim in (block.head_dim, block.value_dim)}
    return table | dict.fromkeys((*names.WIDTHS, *names.RUNTIME_WIDTHS), widths)


def _fit_block_attributes(module: nn.Module, block: AttentionBlock, n_heads: int, n_kv_heads: int) -> None:
    table = _new_values_by_attribute(block, n_heads, n_kv_heads)
    if family_of(module).input_width:
        table = {name: change for name, change in table.items() if name not in names.RUNTIME_WIDTHS}
        install_fitted_forward(module, block, n_heads)
    for path, part in module.named_modules():
        if is_shared_by_heads(path):
            continue
        reads = names_read_by_methods(type(part))
        for name, change in table.items():
            value = vars(part).get(name)
            if type(value) is not int or value not in change or (name in names.RUNTIME_WIDTHS and name not in reads):
                continue
            setattr(part, name, change[value])


def apply_cuts(model: nn.Module, cuts: Iterable[Cut], table_heads: TableHeads | None = None) -> None:
    """Removes heads from the blocks of a model and writes the record; works on the meta device too.

    `table_heads` fixes the heads that shared bias tables keep, by block path; without it they follow from the cuts.
    """
    cuts = list(cuts)
    for cut in cuts:
        block, module = cut.block, model.get_submodule(cut.block.path)
        if cut.removes_nothing:
            continue
        counts = cut.counts_in_forward
        _slice_tensors(model, cut, cut.partly_kept_slices)
        if cut.removes_all_heads:
            _install_empty_projections(model, cut)
        _fit_block_attributes(module, block, *counts)
        give_block_config_view(module, HeadCounts(block.n_heads, block.n_kv_heads), counts)
        give_parent_config_view(model.get_submodule(block.path.rpartition(".")[0]), block, counts.heads)
    argument_heads: dict[str, tuple[int, ...]] = {}
    for cuts_of_stack in _group_by_stack_with_arguments(cuts):
        heads = _choose_argument_heads(model, cuts_of_stack, table_heads or {})
        _slice_arguments(model, cuts_of_stack, heads)
        argument_heads |= {cut.block.path: heads.after for cut in cuts_of_stack}
    _write_cut_record(model, cuts, argument_heads)


def _group_by_stack_with_arguments(cuts: list[Cut]) -> list[list[Cut]]:
    """Returns the cuts of blocks that have head arguments, grouped by stack: arguments come from one module per stack."""
    stacks: dict[str, list[Cut]] = defaultdict(list)
    for cut in cuts:
        if cut.block.arguments:
            stacks[cut.block.stack].append(cut)
    return list(stacks.values())


def _kept_original_indices(cut: Cut) -> tuple[int, ...]:
    return tuple(cut.block.heads[position].index for position in cut.heads)


class ArgumentHeads(NamedTuple):
    """The original heads that the arguments of a stack carry, before and after a cut."""

    before: tuple[int, ...]
    after: tuple[int, ...]


def _choose_argument_heads(model: nn.Module, cuts_of_stack: list[Cut], table_heads: TableHeads) -> ArgumentHeads:
    """Returns the heads that arguments carry: fixed ones, or those that all blocks keep of a table that they share, or the same as before."""
    blocks = record.read_cut_record(model)
    recorded = (blocks.get(record.path_without_base_prefix(model, cut.block.path)) for cut in cuts_of_stack)
    now = next((entry.columns for entry in recorded if entry and entry.columns), tuple(range(cuts_of_stack[0].block.n_original)))
    fixed = next((table_heads[cut.block.path] for cut in cuts_of_stack if cut.block.path in table_heads), ())
    return ArgumentHeads(now, fixed or _table_heads_kept_by_all(cuts_of_stack) or now)


def _slice_arguments(model: nn.Module, cuts_of_stack: list[Cut], heads: ArgumentHeads) -> None:
    """Makes every block of a stack take its heads of the arguments.

    Where all blocks keep the same heads of a table that they share, the table itself is cut and nothing needs slicing.
    """
    now, target = heads
    if target != now:
        _slice_tables(model, cuts_of_stack, [now.index(head) for head in target])
    for cut in cuts_of_stack:
        module = model.get_submodule(cut.block.path)
        remove_argument_slicers(module)
        positions = [target.index(head) for head in _kept_original_indices(cut)] or [0]
        if len(positions) < len(target):
            ArgumentSlicer(cut.block.arguments, positions, len(target)).install(module)


def _slice_tables(model: nn.Module, cuts_of_stack: list[Cut], positions: list[int]) -> None:
    for cut in cuts_of_stack:
        table = getattr(model.get_submodule(cut.block.path), "relative_attention_bias", None)
        if isinstance(table, nn.Embedding):
            table.weight = nn.Parameter(table.weight.data[:, positions].clone(), requires_grad=table.weight.requires_grad)
            table.embedding_dim = len(positions)


def _write_cut_record(model: nn.Module, cuts: list[Cut], argument_heads_by_block: dict[str, tuple[int, ...]]) -> None:
    blocks = record.read_cut_record(model)
    for cut in cuts:
        total, path = cut.block.n_original, record.path_without_base_prefix(model, cut.block.path)
        shared = any(argument.returned for argument in cut.block.arguments)
        columns = argument_heads_by_block[cut.block.path] if shared else None
        if len(cut.heads) < total or (columns and len(columns) < total):
            blocks[path] = record.CutBlockRecord(_kept_original_indices(cut), total, columns)
    record.write_cut_record(model, blocks)


def cuts_keeping_positions(heads: HeadMap, kept_positions: Mapping[str, tuple[int, ...]]) -> list[Cut]:
    """Returns the cut of every block, by the positions of the heads that it keeps; a block that is not named keeps all."""
    positions = {block.path: kept_positions.get(block.path, tuple(range(block.n_heads))) for block in heads.blocks}
    kv_heads: dict[str, tuple[int, ...]] = {}
    for members in heads.sharing():
        read = tuple(sorted({block.group(position) for block in members for position in positions[block.path]}))
        kv_heads |= {block.path: read for block in members}
    return [Cut(block, positions[block.path], kv_heads[block.path]) for block in heads.blocks]
