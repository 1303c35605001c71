"""What transformers does not restore from a checkpoint: buffers that it computes anew, padding rows that it zeroes, dtypes that it chooses.

`save` writes these beside the weights, `load` puts them back, so that a reload repeats every bit of a model that was cast or trained.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from headcount.core.errors import ArtifactError, reraise_if_out_of_memory
from headcount.models.archs.cut_record import path_without_base_prefix

NAME = "heads.state"
BUFFER, ROW, PARAMETER = "buffer:", "padding row:", "parameter:"
DTYPES = {str(dtype).removeprefix("torch."): dtype for dtype in (torch.float64, torch.float32, torch.bfloat16, torch.float16)}


class _OwnedTensor(NamedTuple):
    """A tensor of a model, with its path, the module that holds it, and its name there."""

    path: str
    owner: nn.Module
    name: str
    tensor: Tensor


def _floating_buffers(model: nn.Module) -> Iterator[_OwnedTensor]:
    """Yields every floating-point buffer."""
    for path, module in model.named_modules():
        for name, buffer in module._buffers.items():
            if buffer is not None and buffer.is_floating_point():
                yield _OwnedTensor(f"{path}.{name}" if path else name, module, name, buffer)


def _floating_checkpoint_tensors(model: nn.Module) -> Iterator[_OwnedTensor]:
    """Yields every floating-point tensor of a checkpoint, tied ones once."""
    ids: set[int] = set()
    for path, module in model.named_modules():
        buffers = {name: value for name, value in module._buffers.items() if name not in module._non_persistent_buffers_set}
        for name, tensor in (*module._parameters.items(), *buffers.items()):
            if tensor is not None and _dtype_name(tensor) in DTYPES and id(tensor) not in ids:
                ids.add(id(tensor))
                yield _OwnedTensor(f"{path}.{name}" if path else name, module, name, tensor)


class _PaddingRow(NamedTuple):
    embedding_path: str
    tensor: Tensor


def _padding_rows(model: nn.Module) -> Iterator[_PaddingRow]:
    """Yields the row of the padding token of every embedding that has one."""
    for path, module in model.named_modules():
        weight, row = getattr(module, "weight", None), getattr(module, "padding_idx", None)
        if isinstance(module, nn.Embedding) and isinstance(weight, Tensor) and row is not None:
            yield _PaddingRow(path, weight.detach()[row])


def _parameters_confused_by_prefix(model: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
    """(path, parameter) of those whose names differ by the prefix of the base model only: transformers reads one for the other."""
    parameters, prefix = dict(model.named_parameters()), f"{getattr(model, 'base_model_prefix', '')}."
    for path, parameter in parameters.items():
        if prefix + path in parameters or (path.startswith(prefix) and path.removeprefix(prefix) in parameters):
            yield path, parameter


def _dtype_name(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def write_unrestored_tensors(model: nn.Module, folder: Path) -> list[str]:
    """Writes what transformers may not restore of a model, if there is any, in the format of safetensors; equal tensors are written once.

    Returns:
        The names of the tensors, each with its kind.
    """
    tensors: dict[str, Tensor] = {}
    same_as: dict[str, str] = {}
    written: dict[tuple[str, tuple[int, ...], bytes], str] = {}
    values: dict[str, Tensor] = {}
    for path, owner, name, buffer in _floating_buffers(model):
        is_wide = buffer.dtype == torch.float64  # loaded with fewer digits where the class makes it in float32
        if is_wide or name in owner._non_persistent_buffers_set:
            values[BUFFER + path_without_base_prefix(model, path)] = buffer
    values |= {
        ROW + path_without_base_prefix(model, row.embedding_path): row.tensor
        for row in _padding_rows(model)
        if bool(row.tensor.count_nonzero())
    }
    values |= {f"{PARAMETER}{type(model).__name__}.{path}": parameter for path, parameter in _parameters_confused_by_prefix(model)}
    for key, value in values.items():
        plain = value.detach().to("cpu", copy=True).contiguous()
        digest = (_dtype_name(plain), tuple(plain.shape), hashlib.sha256(plain.reshape(-1).view(torch.uint8).numpy().data).digest())
        if digest in written:
            same_as[key] = written[digest]
        else:
            written[digest], tensors[key] = key, plain
    dtypes = {path_without_base_prefix(model, path): _dtype_name(tensor) for path, _, _, tensor in _floating_checkpoint_tensors(model)}
    usual = Counter(dtypes.values()).most_common(1)[0][0] if dtypes else ""
    unusual = {name: dtype for name, dtype in dtypes.items() if dtype != usual}
    if tensors or unusual or DTYPES.get(usual) != torch.float32:  # some tensors come back in float32, whatever the file holds
        save_file(tensors, folder / NAME, metadata={"same_as": json.dumps(same_as), "dtype": usual, "other_dtypes": json.dumps(unusual)})
    return list(values)


@dataclass(frozen=True, slots=True)
class _State:
    """Tensors by key, those written once under each of their keys; the usual dtype of parameters, and those that have another one."""

    tensors: dict[str, Tensor]
    dtype: torch.dtype | None
    other_dtypes: dict[str, torch.dtype]


def _read_state(path: Path) -> _State:
    """The content of the file, checked."""
    try:
        with safe_open(path, "pt") as file:
            tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118 - not a dict
            metadata = file.metadata()
        tensors |= {key: tensors[written] for key, written in json.loads(metadata["same_as"]).items()}
        usual = DTYPES[metadata["dtype"]] if metadata["dtype"] else None
        return _State(tensors, usual, {name: DTYPES[dtype] for name, dtype in json.loads(metadata["other_dtypes"]).items()})
    except Exception as error:  # whatever is wrong with the file, it was changed after it was written
        reraise_if_out_of_memory(error)
        raise ArtifactError(f"{path} is damaged: {type(error).__name__}: {error}; restore it, or save the model again") from error


def restore_unrestored_tensors(model: nn.Module, folder: Path, dtype: Any = "auto") -> None:
    """Puts back what `write_unrestored_tensors` wrote, if the folder has it; another `dtype` that was asked for is left in force."""
    path = folder / NAME
    if not path.is_file():
        return
    state = _read_state(path)
    if dtype in ("auto", None) or str(dtype).removeprefix("torch.") == str(state.dtype).removeprefix("torch."):
        for name, owner, leaf, tensor in list(_floating_checkpoint_tensors(model)):
            saved = state.other_dtypes.get(path_without_base_prefix(model, name), state.dtype)
            if saved is not None and tensor.dtype != saved and leaf in owner._parameters:
                tensor.data = _reread_in_file_dtype(folder, name, tensor.data) if saved == torch.float64 else tensor.data.to(saved)
            elif saved is not None and tensor.dtype != saved:
                owner._buffers[leaf] = tensor.to(saved)
        for name, owner, leaf, buffer in _floating_buffers(model):
            value = state.tensors.get(BUFFER + path_without_base_prefix(model, name))
            if value is not None:
                if not _is_grown_position_table(owner, value, buffer):
                    _check_shape(path, name, buffer, value)
                owner._buffers[leaf] = value.to("cpu" if buffer.is_meta else buffer.device, copy=True)
    for name, row in _padding_rows(model):
        value = state.tensors.get(ROW + path_without_base_prefix(model, name))
        if value is not None and not row.is_meta:
            _check_shape(path, name, row, value)
            row.copy_(value)
    for name, parameter in _parameters_confused_by_prefix(model):
        value = state.tensors.get(f"{PARAMETER}{type(model).__name__}.{name}")
        if value is not None and not parameter.is_meta:
            _check_shape(path, name, parameter, value)
            parameter.data.copy_(value)


def _reread_in_file_dtype(folder: Path, name: str, loaded: Tensor) -> Tensor:
    """The tensor of a checkpoint in the dtype of its file, for one that the class makes in float32 and so was loaded with fewer digits."""
    for path in sorted(folder.glob("*.safetensors")):
        with safe_open(path, "pt") as file:
            if name in file.keys():  # noqa: SIM118 - not a dict
                return file.get_tensor(name).to(loaded.device)
    raise ArtifactError(
        f"{folder}: '{name}' was saved in float64, is loaded in float32, and no file holds it under this name; load with dtype=torch.float32"
    )


def _is_grown_position_table(owner: nn.Module, saved_buffer: Tensor, built_buffer: Tensor) -> bool:
    """Whether a buffer is a table of positions to which a pass over a longer input added entries, along one axis."""
    if "Positional" not in type(owner).__name__ or saved_buffer.ndim != built_buffer.ndim:
        return False
    differing = [(size, built_size) for size, built_size in zip(saved_buffer.shape, built_buffer.shape, strict=True) if size != built_size]
    return len(differing) == 1 and differing[0][0] > differing[0][1]


def _check_shape(state_file: Path, tensor_name: str, built_tensor: Tensor, saved_tensor: Tensor) -> None:
    if built_tensor.shape != saved_tensor.shape:
        raise ArtifactError(
            f"{state_file}: '{tensor_name}' has shape {tuple(saved_tensor.shape)}, the model that config.json builds "
            f"{tuple(built_tensor.shape)}; use files that were saved together"
        )
