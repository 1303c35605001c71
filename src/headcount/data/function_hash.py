"""The hash of a function that a user wrote, such as a loss: two that compute differently must not share finished results."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from functools import partial
from types import CodeType, FunctionType, ModuleType
from typing import Any

import numpy as np
from torch import Tensor, nn


def hash_function(function: Any, containers: tuple[int, ...] = ()) -> str:
    """Returns the name of a function and the hash of its code and of the values that it holds: defaults, closure, state; "" for None.

    `containers` are the ids of the objects that hold it.
    """
    if function is None:
        return ""
    code = getattr(function, "__code__", None)
    held_values = _describe_held_values(function, (*containers, id(function)))
    body = _code_hash(code)[:16] if code is not None else ""
    if held_values:
        body = hashlib.sha256((body + repr(held_values)).encode()).hexdigest()[:16]
    return f"{getattr(function, '__module__', '')}.{getattr(function, '__qualname__', type(function).__qualname__)} {body}".strip()


def _describe_held_values(function: Any, containers: tuple[int, ...]) -> list[object]:
    """Returns what a function computes with besides its arguments and code, as values with the same text in every process; [] for plain functions."""
    if isinstance(function, FunctionType):
        cells = [cell.cell_contents for cell in function.__closure__ or ()]
        held = [*cells, *(function.__defaults__ or ()), *sorted((function.__kwdefaults__ or {}).items())]
    elif isinstance(function, partial):
        held = [function.func, *function.args, *sorted(function.keywords.items())]
    else:
        held = sorted(getattr(function, "__dict__", {}).items())
    return [_describe_value(value, containers) for value in held]


def _describe_value(value: Any, containers: tuple[int, ...]) -> object:
    """Returns a value, or what stands for it; `containers` are the ids of the objects that hold it."""
    if value is None or isinstance(value, str | int | float | bool | bytes):
        return value
    if id(value) in containers:
        return "itself"
    inside = (*containers, id(value))
    if isinstance(value, Tensor | np.ndarray):
        array = np.asarray(value.detach().cpu().double() if isinstance(value, Tensor) else value)
        return (str(array.shape), hashlib.sha256(array.tobytes()).hexdigest())
    if isinstance(value, nn.Module):
        return (type(value).__qualname__, [(name, _describe_value(tensor, inside)) for name, tensor in value.state_dict().items()])
    if isinstance(value, FunctionType | partial):
        return hash_function(value, containers)
    if isinstance(value, set | frozenset):
        return sorted(repr(_describe_value(item, inside)) for item in value)
    if isinstance(value, Mapping):
        return [(str(key), _describe_value(item, inside)) for key, item in value.items()]
    if isinstance(value, list | tuple):
        return [_describe_value(item, inside) for item in value]
    state = getattr(value, "__dict__", {}) if not isinstance(value, type | ModuleType) else {}
    name = getattr(value, "__qualname__", type(value).__qualname__)
    return (name, [(key, _describe_value(item, inside)) for key, item in sorted(state.items())])


def _code_hash(code: CodeType) -> str:
    """Returns the hash of what code does: the same in every process, wherever its file and the functions within it are."""
    constants = [
        _code_hash(constant)
        if isinstance(constant, CodeType)
        else sorted(map(repr, constant))
        if isinstance(constant, frozenset)
        else constant
        for constant in code.co_consts
    ]
    return hashlib.sha256(code.co_code + repr((code.co_names, constants)).encode()).hexdigest()
