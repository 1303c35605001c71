"""Arguments of public functions: what does not fit an annotation is refused before any work, naming argument, value and remedy."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from functools import cache, wraps
from inspect import signature
from numbers import Integral, Real
from pathlib import Path
from typing import Any, Literal, ParamSpec, TypeVar, get_args, get_origin, get_type_hints

from headcount.core.errors import OptionError, raising_out_of_memory, unknown_name_error
from headcount.core.options import Bounds, Option, format_value, union_members

P = ParamSpec("P")
R = TypeVar("R")

MINIMUM = {"limit": 1, "batch_size": 1, "max_length": 1, "seed": 0, "seeds": 1}
"""The least value of arguments that mean the same in every public function."""
REMEDIES = {
    "Module": "load it by headcount.load",
    "Task": "open it by headcount.open_task",
    "Margin": "write '1%' for a share of the dense model's metric, or '1pt' for points of it",
    "Plan": "make it by headcount.Plan.removing, or read it by headcount.Plan.read",
}
"""How to get an object of a class, by its name."""
LONGEST = 120
"""How many characters of a value a message shows."""
_hints_of = cache(get_type_hints)


def check_arguments(function: Callable[P, R]) -> Callable[P, R]:
    """Decorates a public function so that its arguments are compared with their annotations before it runs.

    Raises:
        TypeError: an argument is unknown or missing.
        OptionError: an argument has the wrong type, or is below its `MINIMUM`.
        UnknownName: an argument is none of the choices of its `Literal`.
        OutOfMemory: memory ran out, in whatever words a library says so.
    """
    parameters = signature(function)
    owner_name = function.__qualname__.removesuffix(".__init__")

    @wraps(function)
    def _check_and_call(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            bound = parameters.bind(*args, **kwargs)
        except TypeError as error:
            raise TypeError(f"{owner_name}() {error}") from None
        hints = _hints_of(function)
        for name, value in bound.arguments.items():
            if name == "out" and value == "":
                raise OptionError(
                    f"out of {owner_name} is an empty text, which names no folder or file; name one, or '.' for the folder you are in"
                )
            if name in hints:
                _check_argument(Option(name, hints[name], None, "", Bounds(minimum=MINIMUM.get(name)), False), value, owner_name)
        with raising_out_of_memory(owner_name):
            return function(*args, **kwargs)

    return _check_and_call


def _check_argument(argument: Option, value: object, owner_name: str) -> None:
    """Raises OptionError or UnknownName unless a value fits the annotation of an argument."""
    if _fits_type_and_bounds(argument.type, value, argument.bounds):
        return
    if argument.choices and isinstance(value, str):
        raise unknown_name_error(f"{argument.name} of {owner_name}", value, map(format_value, argument.choices))
    text = repr(value)
    text = text if len(text) <= LONGEST else f"{text[:LONGEST]}…"
    members = union_members(argument.type)
    remedies = [REMEDIES[name] for member in members if (name := getattr(member, "__name__", "")) in REMEDIES]
    if isinstance(value, str) and any(_is_list_type(member) for member in members):
        remedies.append(f"write [{value!r}]")
    raise OptionError("; ".join([f"option {argument.name} of {owner_name} must be {argument.type_label}", f"got {text}", *remedies[:1]]))


def _is_list_type(hint: Any) -> bool:
    """Whether an annotation is a list, a sequence or an iterable of something."""
    origin = get_origin(hint)
    return isinstance(origin, type) and issubclass(origin, Iterable) and not issubclass(origin, Mapping)


def _fits_type_and_bounds(hint: Any, value: Any, bounds: Bounds) -> bool:
    """Whether a value is of an annotated type. True is no number, an int is a float, and a text is no list of texts."""
    members, origin, arguments = union_members(hint), get_origin(hint), get_args(hint)
    if len(members) > 1:
        return any(_fits_type_and_bounds(member, value, bounds) for member in members)
    if hint is Any or hint is object:
        return True
    if origin is Literal:
        return isinstance(value, str) and value in arguments
    if hint in (int, float):
        return isinstance(value, Integral if hint is int else Real) and not isinstance(value, bool) and bounds.contains(float(value))
    if hint is Path:
        return isinstance(value, os.PathLike)
    if origin is Callable:
        return callable(value)
    if origin is not None and issubclass(origin, Mapping):
        key_type, entry_type = arguments
        return isinstance(value, Mapping) and all(
            _fits_type_and_bounds(key_type, key, bounds) and _fits_type_and_bounds(entry_type, value[key], bounds) for key in value
        )
    if _is_list_type(hint):
        is_list = (hasattr(value, "__iter__") or hasattr(value, "__getitem__")) and not isinstance(value, str | bytes | Mapping)
        entries = value if isinstance(value, list | tuple | set | frozenset) else ()
        return is_list and all(_fits_type_and_bounds(arguments[0], entry, bounds) for entry in entries)
    return isinstance(value, origin or hint)
