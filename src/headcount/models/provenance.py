"""Which model a run is about, by a hash over all of its weights, and on what it computes. The only part of runs that touches torch."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

from headcount.runs.describe import versions
from headcount.runs.schema import ModelRecord

if TYPE_CHECKING:
    from torch import nn


def weight_hash(model: nn.Module) -> str:
    """The SHA-256 over names, dtypes, shapes and bytes of all weights."""
    import torch

    digest = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def model_record(model: nn.Module, name: str) -> ModelRecord:
    """Returns the record of a model in a run folder."""
    config: Any = model.config
    return ModelRecord(
        name=name,
        class_name=type(model).__name__,
        model_type=config.model_type,
        weights=weight_hash(model),
        n_parameters=sum(parameter.numel() for parameter in model.parameters()),
    )


def model_key(model: nn.Module) -> dict[str, Any]:
    """Returns what a result depends on beside the inputs: weights, dtype, attention implementation and device type."""
    return {"weights": weight_hash(model), **compute_settings(model)}


def compute_settings(model: nn.Module) -> dict[str, Any]:
    """Returns the dtype, attention implementation and device type of a model."""
    first = next(model.parameters())
    return {
        "dtype": str(first.dtype).removeprefix("torch."),
        "attention": getattr(model.config, "_attn_implementation", None) or "eager",
        "device": first.device.type,
    }


def machine_entries(model: nn.Module) -> dict[str, Any]:
    """Returns the entries of run.json about the machine: threads, CPU capability, device type and dtype."""
    settings = {name: value for name, value in compute_settings(model).items() if name in ("device", "dtype")}
    return {name: value for name, value in rounding_provenance().items() if name != "versions"} | settings


def rounding_provenance() -> dict[str, Any]:
    """Returns the provenance that can affect rounding: library versions, threads and CPU capability."""
    import torch

    return {"versions": versions(), "threads": torch.get_num_threads(), "cpu": torch.backends.cpu.get_cpu_capability()}
