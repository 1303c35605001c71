"""Looking at modules: wrappers, linear-like layers, paths, and the names that a class reads at run time."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from functools import lru_cache
from types import CodeType
from typing import Any

import torch
from torch import Tensor, nn

from headcount.core.errors import UnsupportedModel

Batch = Mapping[str, Any]
"""Keyword arguments of a model's forward pass, and labels."""


def unwrap(model: nn.Module) -> nn.Module:
    """The transformers model inside DDP, FSDP, torch.compile or peft wrappers."""
    for _ in range(8):
        if hasattr(model, "_orig_mod"):
            model = model._orig_mod  # pyright: ignore[reportAssignmentType]
        elif hasattr(model, "get_base_model"):
            model = model.get_base_model()  # pyright: ignore[reportCallIssue]
        elif isinstance(getattr(model, "module", None), nn.Module) and not hasattr(model, "config"):
            model = model.module  # pyright: ignore[reportAssignmentType]
        else:
            return model
    raise UnsupportedModel(f"{type(model).__name__} is wrapped more than eight times; pass the model inside")


def device_of(model: nn.Module) -> torch.device:
    """Where a model takes its inputs: where it runs, for one that accelerate keeps elsewhere, else where its weights are."""
    devices = (getattr(getattr(module, "_hf_hook", None), "execution_device", None) for module in model.modules())
    placed = next((device for device in devices if device is not None), None)
    return next(model.parameters()).device if placed is None else torch.device(placed)


def pad_id(model: nn.Module) -> int:
    """The token that fills a model's batches; 0 where its configuration names none."""
    token = getattr(model.config, "pad_token_id", None)
    return token if isinstance(token, int) else 0


def decoder_start_id(model: nn.Module) -> int | None:
    """The token that a decoder behind an encoder starts with; None for other models."""
    if not getattr(model.config, "is_encoder_decoder", False):
        return None
    token = getattr(model.config, "decoder_start_token_id", None)
    return token if isinstance(token, int) else pad_id(model)


def constructor_config_class(model_class: type) -> type | None:
    """The configuration class that the constructor names, which for a part of a family need not be the `config_class`; None where it names none."""
    parameter = inspect.signature(model_class.__init__).parameters.get("config")
    annotation = None if parameter is None else parameter.annotation
    return annotation if isinstance(annotation, type) and hasattr(annotation, "model_type") else None


def is_transposed(module: nn.Module) -> bool:
    """Whether a linear layer stores (in, out), as transformers' Conv1D does."""
    return hasattr(module, "nf") and not hasattr(module, "out_features")


def linear_in_and_out_size(module: nn.Module | None) -> tuple[int, int] | None:
    """(in, out) of a linear-like layer, or None. Duck-typed, since peft and quantised layers are no nn.Linear."""
    if module is None:
        return None
    if hasattr(module, "in_features") and hasattr(module, "out_features"):
        return int(module.in_features), int(module.out_features)  # pyright: ignore[reportArgumentType]
    if hasattr(module, "nf") and hasattr(module, "nx"):
        return int(module.nx), int(module.nf)  # pyright: ignore[reportArgumentType]
    inner = getattr(module, "linear", None)  # a wrapper with one linear inside, such as a clipped one
    return linear_in_and_out_size(inner) if isinstance(inner, nn.Linear) else None


def weight_layer_path(module: nn.Module, path: str) -> str:
    """The path of the layer that really holds the weight of a linear-like module."""
    return f"{path}.linear" if isinstance(getattr(module, "linear", None), nn.Linear) else path


def descendant(module: nn.Module, path: str) -> nn.Module | None:
    """The descendant at a dotted path, or None."""
    for name in path.split("."):
        descendant = module._modules.get(name)
        if descendant is None:
            return None
        module = descendant
    return module


def int_attribute(owner: Any, name: str) -> int | None:
    """An integer attribute of a module or configuration; None where there is none, or where it differs from layer to layer."""
    try:
        value = getattr(owner, name, None)
    except (AttributeError, ValueError, RuntimeError):  # configurations with per-layer values refuse a global reading
        return None
    return value if type(value) is int else None


def first_positive_int_attribute(module: Any, names: tuple[str, ...]) -> int | None:
    """The first positive integer among the attributes called `names`."""
    return next((value for name in names if (value := int_attribute(module, name)) is not None and value > 0), None)


def join_path(*parts: str) -> str:
    """A dotted path without empty parts."""
    return ".".join(part for part in parts if part)


def _names_in_code(code: CodeType) -> set[str]:
    nested = (_names_in_code(const) for const in code.co_consts if isinstance(const, CodeType))
    return set(code.co_names).union(*nested)


@lru_cache(maxsize=4096)
def names_read_by_methods(cls: type) -> frozenset[str]:
    """Every attribute and global name that the methods of a class read, its constructor apart."""
    names: set[str] = set()
    for base in cls.__mro__:
        if base in (nn.Module, object):
            continue
        for name, member in vars(base).items():
            function = getattr(member, "__wrapped__", member)
            code = getattr(getattr(function, "__func__", function), "__code__", None)
            if code is not None and name != "__init__":
                names |= _names_in_code(code)
    return frozenset(names)


def shifts_labels(model: nn.Module) -> bool:
    """Whether a model's labels are its own inputs, so that position t is trained on the label at t + 1."""
    name = type(unwrap(model)).__name__
    if getattr(unwrap(model).config, "is_encoder_decoder", False):
        return False
    return "CausalLM" in name or "LMHead" in name or "ForConditionalGeneration" in name


def in_float32_or_float64(values: Tensor) -> Tensor:
    """Values in float32, float64 as it is: half precision is too coarse to sum up, and double would lose its digits."""
    return values if values.dtype == torch.float64 else values.float()
