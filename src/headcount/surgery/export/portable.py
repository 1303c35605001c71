from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from headcount.core.errors import ArtifactError, DataError, UnsupportedModel, VerificationError
from headcount.core.folders import check_output_folder, new_folder
from headcount.core.options import option
from headcount.data.task import Data
from headcount.models.archs import cut_record as record
from headcount.models.dummy_inputs.text import naming_inputs_in_errors, probe_inputs
from headcount.models.head_map import HeadMap
from headcount.models.modules import Batch
from headcount.models.ownership import holds_model
from headcount.models.randomness import fork_rng
from headcount.models.state import preserve
from headcount.surgery import manifest
from headcount.surgery.config import assign_config_values
from headcount.surgery.export_base import ComparisonInputs, Exported, ExportInfo, ExportTarget
from headcount.surgery.load import load_by_plain_transformers
from headcount.surgery.named_heads import assign_config_head_pairs, config_head_pairs_of_dense_model
from headcount.surgery.reshape import cuts_keeping_positions
from headcount.surgery.save import MAX_SHARD_SIZE, check_savable, write_tokenizer_card_and_manifest, write_weights
from headcount.surgery.sizes import BUILD_LOCK
from headcount.surgery.state import write_unrestored_tensors
from headcount.surgery.verify import (
    HALF,
    checked_relative_difference,
    copy_in_float32,
    forward_outputs,
    largest_relative_difference,
    lowest_float_dtype,
)

NOT_WRITTEN = "Nothing was written. Save the smaller model instead (headcount.save), and report the model class."


@dataclass(frozen=True, slots=True)
class PortableExport(Exported):
    """A portable folder, and what plain from_pretrained of transformers changes of it.

    Attributes:
        changed: The parameters and buffers that it changes: padding rows that it zeroes, buffers that it computes anew.
        difference: The relative difference of the outputs that follows, in float32 for half precision.
    """

    changed: tuple[str, ...]
    difference: float

    @property
    def caveats(self) -> tuple[str, ...]:
        """Returns a sentence on what plain loading changes, if it changes anything."""
        if not self.changed:
            return ()
        first, *others = self.changed
        more = f" and {len(others)} more" if others else ""
        return (
            f"Plain from_pretrained of transformers changes '{first}'{more} on loading this model; its outputs differ by "
            f"{self.difference:.2g} (relative). headcount.load, and from_pretrained after headcount.register(), restore it.",
        )


@dataclass(frozen=True)
class Portable(ExportTarget):
    """A folder at the original shapes, in which removed heads have zero weights. Any tool loads it; it is no smaller and no faster.

    It is loaded by plain from_pretrained and compared before it is kept. What that changes, such as padding rows, is in the model card.
    """

    _: KW_ONLY
    max_shard_size: str = option(MAX_SHARD_SIZE, "Largest weight file, such as 2GB; more weights are split into several files")
    info = ExportInfo(writes="folder")

    def check_path(self, path: Path, *, overwrite: bool) -> None:
        """Raises ArtifactError unless the folder is new or empty, or was written by headcount and may be overwritten."""
        check_output_folder(path, overwrite, manifest.NAME)

    @holds_model("an export")
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
    ) -> PortableExport:
        """Writes the folder, after comparing the widened model, and the one that plain loading gives, with the model on one batch."""
        if data is not None:
            raise DataError("a portable export is compared on one batch and takes no data; pass inputs, or leave data out")
        if inputs is not None and not isinstance(inputs, Mapping):
            raise DataError(f"a portable export is compared on one batch, a mapping of tensors; got {type(inputs).__name__}")
        check_savable(model, tokenizer)
        batch = dict(inputs) if inputs is not None else probe_inputs(model)
        dense = restore_dense_shapes(model)
        with naming_inputs_in_errors(model, batch, is_dummy=inputs is None):
            expected = forward_outputs(model, batch)
        _checked_output_difference(expected, forward_outputs(dense, batch), lowest_float_dtype(model), "the portable model")
        if lowest_float_dtype(model) in HALF:  # rounding could hide an error: the proof is repeated in float32
            exact, exact_batch = copy_in_float32(model, batch)
            outputs = forward_outputs(copy_in_float32(dense, {})[0], exact_batch)
            _checked_output_difference(forward_outputs(exact, exact_batch), outputs, torch.float32, "the portable model in float32")
        with new_folder(path, overwrite=overwrite, marker_file=manifest.NAME) as folder, preserve(dense):
            write_weights(dense, folder, self.max_shard_size)
            unrestored_names = write_unrestored_tensors(dense, folder)
            effect = compare_with_plain_loading(dense, folder, batch)
            exported = PortableExport(path, effect.changed_tensors, effect.difference)
            write_tokenizer_card_and_manifest(
                dense,
                folder,
                HeadMap.of(dense),
                tokenizer=tokenizer,
                notes=exported.caveats,
                command=command,
                unrestored_names=unrestored_names,
            )
        return exported


class PlainLoadingEffect(NamedTuple):
    """The tensors that plain from_pretrained changes of a model, and the relative difference of its outputs then."""

    changed_tensors: tuple[str, ...]
    difference: float


def compare_with_plain_loading(model: nn.Module, folder: Path, batch: Batch) -> PlainLoadingEffect:
    """Loads a folder by plain from_pretrained, and compares the result with the model that was saved there.

    Raises:
        VerificationError: plain loading fails, or changes the outputs and no tensor.
    """
    try:
        plain = load_by_plain_transformers(model, folder)
    except ArtifactError as error:
        raise VerificationError(f"plain from_pretrained does not load the portable model: {error}. {NOT_WRITTEN}") from error
    loaded = _parameters_and_buffers(plain)
    changed = tuple(
        name
        for name, tensor in _parameters_and_buffers(model).items()
        if name not in loaded or _has_changed_on_loading(tensor, loaded[name])
    )
    dtype = lowest_float_dtype(model)
    if dtype in HALF:
        (exact, batch), (plain, _) = copy_in_float32(model, batch), copy_in_float32(plain, {})
        outputs, plain_outputs, dtype = forward_outputs(exact, batch), forward_outputs(plain, batch), torch.float32
    else:
        outputs, plain_outputs = forward_outputs(model, batch), forward_outputs(plain, batch)
    if changed:
        return PlainLoadingEffect(changed, largest_relative_difference(plain_outputs, outputs))
    return PlainLoadingEffect(
        (), _checked_output_difference(outputs, plain_outputs, dtype, "the portable model, loaded by plain from_pretrained,")
    )


def _has_changed_on_loading(saved: Tensor, loaded: Tensor) -> bool:
    """Whether a tensor has other values, or a parameter another dtype; a wider buffer of the same values gives the same."""
    if isinstance(saved, nn.Parameter) and saved.dtype != loaded.dtype:
        return True
    dtype = torch.promote_types(saved.dtype, loaded.dtype)
    return not torch.equal(saved.to(dtype).nan_to_num(), loaded.to(dtype).nan_to_num())


def _parameters_and_buffers(model: nn.Module) -> dict[str, Tensor]:
    return dict(model.named_parameters()) | dict(model.named_buffers())


def _checked_output_difference(expected: Sequence[Tensor], outputs: Sequence[Tensor], dtype: torch.dtype, model_name: str) -> float:
    return checked_relative_difference(expected, outputs, dtype, model_name, reference_name="the smaller one", remedy=NOT_WRITTEN)


def restore_dense_shapes(model: nn.Module) -> nn.Module:
    """Returns the model at its original shapes: removed heads come back with all their weights zero, so they add nothing."""
    config = copy.deepcopy(model.config)
    assign_config_values(config, record.config_values_before_uniform_cut(model))
    vars(config).pop(record.KEY, None)
    options = {"dtype": lowest_float_dtype(model), "attn_implementation": getattr(model.config, "_attn_implementation", None)}
    with BUILD_LOCK, fork_rng(()):  # first weights are drawn, and replaced below
        dense: Any = type(model)._from_config(config, **options)  # pyright: ignore[reportAttributeAccessIssue]
    dense = dense.to(next(model.parameters()).device).eval()
    cut_heads, dense_heads = HeadMap.of(model), HeadMap.of(dense)
    if hasattr(model, "generation_config"):
        dense.generation_config = copy.deepcopy(model.generation_config)
    assign_config_head_pairs(dense, config_head_pairs_of_dense_model(model, cut_heads))
    if [block.n_original for block in cut_heads.blocks] != [block.n_heads for block in dense_heads.blocks]:
        raise UnsupportedModel(f"the configuration of this {type(model).__name__} does not build it at its original size")
    indices = {
        dense_block.path: tuple(head.index for head in block.heads)
        for block, dense_block in zip(cut_heads.blocks, dense_heads.blocks, strict=True)
    }
    cuts = {part.tensor: cut for cut in cuts_keeping_positions(dense_heads, indices) for part in cut.block.slices}
    table_columns = _kept_heads_of_bias_tables(model, cut_heads)
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
            entries = sorted(entry for part in parts for entry in part.rows.keep(cuts[name].kept_unit_indices(part)))
            target.data.index_copy_(parts[0].axis, torch.tensor(entries, dtype=torch.long, device=target.device), tensor)
        else:
            target.data[:, table_columns[name]] = tensor
    buffers = dict(model.named_buffers(remove_duplicate=False))
    for name, _ in list(dense.named_buffers(remove_duplicate=False)):
        if name in buffers:
            owner, _, leaf = name.rpartition(".")
            dense.get_submodule(owner)._buffers[leaf] = buffers[name].clone()  # also those that no checkpoint holds, which a cast rounds
    return dense


def _kept_heads_of_bias_tables(model: nn.Module, heads: HeadMap) -> dict[str, list[int]]:
    """Returns, by tensor name, the original heads whose columns a bias table that layers share still has."""
    recorded = record.read_cut_record(model)
    columns: dict[str, list[int]] = {}
    for block in heads.blocks:
        entry = recorded.get(record.path_without_base_prefix(model, block.path))
        if entry is not None and entry.columns:
            columns[f"{block.path}.relative_attention_bias.weight"] = list(entry.columns)
    return columns
