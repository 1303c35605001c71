"""What requests ask for, checked field by field: strings of bounded length, whole numbers in bounds, places of heads."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

MAX_TEXT = 4000


class Unwanted(ValueError):
    """A request that asks for something else than the contract says."""


def fields_of(asked: Any, names: Sequence[str]) -> dict[str, Any]:
    """The fields of a request: just these."""
    if not isinstance(asked, dict) or set(asked) != set(names):
        told = ", ".join(sorted(map(str, asked))) if isinstance(asked, dict) else type(asked).__name__
        raise Unwanted(f"the request must hold {', '.join(names)}; it holds {told:.200}")
    return asked


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


def places(value: Any, name: str, n_heads: int, *, least: int = 0) -> list[int]:
    """Different heads by their places."""
    if not isinstance(value, list) or len(value) < least or len(value) > n_heads:
        raise Unwanted(f"{name} must be a list of {least} to {n_heads} heads")
    found = [number(each, name, 0, n_heads - 1) for each in value]
    if len(set(found)) < len(found):
        raise Unwanted(f"{name} names a head twice")
    return sorted(found)
