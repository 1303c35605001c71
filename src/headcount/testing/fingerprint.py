"""Everything that a model holds, by path, so that two moments can be compared and the differences named.

Independent of `models.state`, which restores models: this walks all attributes of all modules and objects, whatever their class.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from headcount.core.errors import HeadcountError

SIMPLE = (int, float, complex, str, bytes, type(None), torch.dtype, torch.device, torch.Size)


class ModelChanged(HeadcountError, AssertionError):
    """A call that changed a model, with what it changed."""


def describe_model(model: nn.Module) -> dict[str, Any]:
    """By path: parameters with their identity, gradients and contents, buffers, modes, hooks, attributes, configurations."""
    entries: dict[str, Any] = {}
    for path, module in model.named_modules():
        entries[f"{path}: class"] = (type(module).__qualname__, id(module))
        for name, value in vars(module).items():
            key_path = f"{path}.{name}"
            if name == "_parameters":
                entries |= {
                    f"{path}.{key}": None
                    if parameter is None
                    else (id(parameter), parameter.requires_grad, parameter.grad is None, *_describe_tensor(parameter))
                    for key, parameter in value.items()
                }
            elif name == "_modules":
                entries[key_path] = [(key, id(child)) for key, child in value.items()]
            elif "hook" in name:
                entries[key_path] = [id(hook) for hook in value.values()] if isinstance(value, Mapping) else id(value)
            else:
                entries |= _describe_value(key_path, value, {id(module)})
    return entries


def differing_paths(before: Mapping[str, object], after: Mapping[str, object]) -> list[str]:
    """The paths whose entries differ, appeared or vanished."""
    return [path for path in {**before, **after} if path not in before or path not in after or before[path] != after[path]]


@contextmanager
def require_unchanged(model: nn.Module, call: str, *, random_numbers: bool = True) -> Iterator[None]:
    """Raises ModelChanged unless the model, and torch's random numbers, are after the body what they were before, also where it raises."""
    before, random = describe_model(model), torch.get_rng_state()
    try:
        yield
    finally:
        changed = differing_paths(before, describe_model(model))
        if changed:
            raise ModelChanged(f"{call} changed {', '.join(changed[:4])}{f' and {len(changed) - 4} more' if len(changed) > 4 else ''}")
        if random_numbers and not torch.equal(random, torch.get_rng_state()):
            raise ModelChanged(f"{call} moved torch's random numbers")


def _describe_tensor(tensor: Tensor) -> tuple[Any, ...]:
    shape = (tuple(tensor.shape), tensor.dtype, tensor.device)
    if tensor.is_meta:
        return shape
    content = tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes()
    return (*shape, hashlib.blake2b(content, digest_size=16).digest())


def _describe_value(path: str, value: Any, enclosing_ids: set[int]) -> dict[str, Any]:
    """The entries of a value and of all that it holds; `enclosing_ids` are the ids of the objects around it."""
    if isinstance(value, Tensor):
        return {path: _describe_tensor(value)}
    if isinstance(value, SIMPLE):
        return {path: (type(value), repr(value))}
    if id(value) in enclosing_ids or isinstance(value, type | nn.Module) or callable(value):
        return {path: id(value)}
    if isinstance(value, set | frozenset):
        return {path: sorted(map(repr, value))}
    if isinstance(value, list | tuple):
        parts = {f"{path}[{index}]": part for index, part in enumerate(value)}
    elif isinstance(value, Mapping):
        parts = {f"{path}[{key!r:.80}]": part for key, part in value.items()}
    elif hasattr(value, "__dict__"):
        parts = {f"{path}.{key}": part for key, part in vars(value).items()}
    else:
        return {path: id(value)}
    entries: dict[str, Any] = {path: (type(value), list(parts))}
    for part_path, part in parts.items():
        entries |= _describe_value(part_path, part, enclosing_ids | {id(value)})
    return entries
