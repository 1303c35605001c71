"""What requests ask for, checked field by field: strings of bounded length, whole numbers in bounds, places of heads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

MAX_TEXT = 4000


class Unwanted(ValueError):
    """A request that asks for something else than the contract says."""


def fields_of(asked: Any, names: Sequence[str], defaults: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """The fields of a request: just these; those with defaults may be missing."""
    known = {*names, *(defaults or {})}
    if not isinstance(asked, dict) or not set(names) <= set(asked) <= known:
        told = ", ".join(sorted(map(str, asked))) if isinstance(asked, dict) else type(asked).__name__
        may = f", and may hold {', '.join(defaults)}" if defaults else ""
        raise Unwanted(f"the request must hold {', '.join(names)}{may}; it holds {told:.200}")
    return {**(defaults or {}), **asked}


def text(value: Any, name: str, *, optional: bool = False) -> str | None:
    """A text that is not empty; None where it may be missing."""
    if optional and (value is None or value == ""):
        return None
    if not isinstance(value, str) or not value.strip() or len(value) > MAX_TEXT:
        raise Unwanted(f"{name} must be a text of 1 to {MAX_TEXT} characters")
    return value


def number(value: Any, name: str, low: int, high: int) -> int:
    """A whole number in bounds."""
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise Unwanted(f"{name} must be a whole number from {low} to {high}, got {value!r:.40}")
    return value


def truth(value: Any, name: str) -> bool:
    """True or false."""
    if not isinstance(value, bool):
        raise Unwanted(f"{name} must be true or false, got {value!r:.40}")
    return value


def choice(value: Any, name: str, known: Sequence[str]) -> str:
    """One of some words."""
    if not isinstance(value, str) or value not in known:
        raise Unwanted(f"{name} must be one of {', '.join(known)}, got {value!r:.40}")
    return value


def places(value: Any, name: str, n_heads: int, *, least: int = 0) -> list[int]:
    """Different heads by their places."""
    if not isinstance(value, list) or len(value) < least or len(value) > n_heads:
        raise Unwanted(f"{name} must be a list of {least} to {n_heads} heads")
    found = [number(each, name, 0, n_heads - 1) for each in value]
    if len(set(found)) < len(found):
        raise Unwanted(f"{name} names a head twice")
    return sorted(found)
