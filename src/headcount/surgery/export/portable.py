from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from headcount.core.errors import DataError, UnsupportedModel
from headcount.core.folders import check_output_folder
from headcount.core.options import option
from headcount.data.task import Data
from headcount.models.archs import cut_record as record
from headcount.models.dummy_inputs.text import probe_inputs, reporting_inputs
from headcount.models.head_map import HeadMap
from headcount.models.ownership import holds
from headcount.models.randomness import fork_rng
from headcount.surgery import manifest
from headcount.surgery.config import assign_values
from headcount.surgery.export_base import ComparisonInputs, Exported, ExportInfo, ExportTarget
from headcount.surgery.named_heads import assign_fields, original_fields
from headcount.surgery.reshape import cuts_of
from headcount.surgery.save import MAX_SHARD_SIZE, save
from headcount.surgery.sizes import BUILD_LOCK
from headcount.surgery.verify import check_equal, float_dtype, forward_outputs


@dataclass(frozen=True)
class Portable(ExportTarget):
    """A folder at the original shapes, in which removed heads have zero weights. Any tool loads it; it is no smaller and no faster."""

    _: KW_ONLY
    max_shard_size: str = option(MAX_SHARD_SIZE, "Largest weight file, such as 2GB; more weights are split into several files")
    info = ExportInfo(writes="folder")

    def check_path(self, path: Path, *, overwrite: bool) -> None:
        """Raises ArtifactError unless the folder is new or empty, or was written by headcount and may be overwritten."""
        check_output_folder(path, overwrite, manifest.NAME)

    @holds("an export")
    def write(
        self,
        model: nn.Module,
        path: Path,
        *,
        tokenizer: Any = None,
        data: Data = None,
        inputs: ComparisonInputs = None,
        command: str | None = None,
        overwrite: bool = False,
    ) -> Exported:
        """Writes the folder, after comparing the widened model with the model on one batch."""
        if data is not None:
            raise DataError("a portable export is compared on one batch and takes no data; pass inputs, or leave data out")
        if inputs is not None and not isinstance(inputs, Mapping):
            raise DataError(f"a portable export is compared on one batch, a mapping of tensors; got {type(inputs).__name__}")
        batch = dict(inputs) if inputs is not None else probe_inputs(model)
        dense = widen(model)
        with reporting_inputs(model, batch, dummy=inputs is None):
            expected = forward_outputs(model, batch)
        check_equal(
            expected,
            forward_outputs(dense, batch),
            float_dtype(model),
            "the portable model",
            reference="the smaller one",
            remedy="Nothing was written. Save the smaller model instead (headcount.save), and report the model class.",
        )
        folder = save(dense, path, tokenizer=tokenizer, command=command, max_shard_size=self.max_shard_size, overwrite=overwrite)
        return Exported(folder)


def widen(model: nn.Module) -> nn.Module:
    """Returns the model at its original shapes: removed heads come back with all their weights zero, so they add nothing."""
    config = copy.deepcopy(model.config)
    assign_values(config, record.values_before_uniform_cut(model))
    vars(config).pop(record.KEY, None)
    options = {"dtype": float_dtype(model), "attn_implementation": getattr(model.config, "_attn_implementation", None)}
    with BUILD_LOCK, fork_rng(()):  # first weights are drawn, and replaced below
        dense: Any = type(model)._from_config(config, **options)  # pyright: ignore[reportAttributeAccessIssue]
    dense = dense.to(next(model.parameters()).device).eval()
    cut_heads, dense_heads = HeadMap.of(model), HeadMap.of(dense)
    if hasattr(model, "generation_config"):
        dense.generation_config = copy.deepcopy(model.generation_config)
    assign_fields(dense, original_fields(model, cut_heads))
    if [block.n_original for block in cut_heads.blocks] != [block.n_heads for block in dense_heads.blocks]:
        raise UnsupportedModel(f"the configuration of this {type(model).__name__} does not build it at its original size")
    indices = {
        dense_block.path: tuple(head.index for head in block.heads)
        for block, dense_block in zip(cut_heads.blocks, dense_heads.blocks, strict=True)
    }
    cuts = {part.tensor: cut for cut in cuts_of(dense_heads, indices) for part in cut.block.slices}
    table_columns = _table_columns(model, cut_heads)
    source = model.state_dict()
    missing = dense.state_dict().keys() ^ source.keys()
    if missing:
        raise UnsupportedModel(f"{type(model).__name__} rebuilt from its configuration has other tensors: {sorted(missing)[0]}")
    for name, target in dense.named_parameters():
        tensor = source[name]
        if tensor.shape == target.shape:
            target.data = tensor.clone()
            continue
        target.data = torch.zeros(target.shape, dtype=tensor.dtype, device=tensor.device)
        if name in cuts:
            parts = [part for part in cuts[name].block.slices if part.tensor == name]
            entries = sorted(entry for part in parts for entry in part.rows.keep(cuts[name].kept_units(part)))
            target.data.index_copy_(parts[0].axis, torch.tensor(entries, dtype=torch.long, device=target.device), tensor)
        else:
            target.data[:, table_columns[name]] = tensor
    for name, buffer in dense.named_buffers():
        if name in source:
            buffer.data = source[name].clone()
    return dense


def _table_columns(model: nn.Module, heads: HeadMap) -> dict[str, list[int]]:
    """Returns, by tensor name, the original heads whose columns a bias table that layers share still has."""
    recorded = record.read_cut_record(model)
    columns: dict[str, list[int]] = {}
    for block in heads.blocks:
        entry = recorded.get(record.relative_path(model, block.path))
        if entry is not None and entry.columns:
            columns[f"{block.path}.relative_attention_bias.weight"] = list(entry.columns)
    return columns
