"""Validation of the fields of a request: texts of bounded length, whole numbers in bounds, indices of heads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

MAX_TEXT = 4000


class InvalidRequest(ValueError):
    """A request that does not follow the contract."""


def read_fields(body: Any, required: Sequence[str], defaults: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Returns the fields of a request, which must be exactly these; fields with defaults may be missing."""
    known = {*required, *(defaults or {})}
    if not isinstance(body, dict) or not set(required) <= set(body) <= known:
        content = ", ".join(sorted(map(str, body))) if isinstance(body, dict) else type(body).__name__
        optional = f", and may hold {', '.join(defaults)}" if defaults else ""
        raise InvalidRequest(f"the request must hold {', '.join(required)}{optional}; it holds {content:.200}")
    return {**(defaults or {}), **body}


def read_text_field(value: Any, field_name: str, *, optional: bool = False) -> str | None:
    """Returns a text that is not empty; None if it is optional and missing."""
    if optional and (value is None or value == ""):
        return None
    if not isinstance(value, str) or not value.strip() or len(value) > MAX_TEXT:
        raise InvalidRequest(f"{field_name} must be a text of 1 to {MAX_TEXT} characters")
    return value


def read_number(value: Any, field_name: str, low: int, high: int) -> int:
    """Returns a whole number within bounds."""
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise InvalidRequest(f"{field_name} must be a whole number from {low} to {high}, got {value!r:.40}")
    return value


def read_boolean(value: Any, field_name: str) -> bool:
    """Returns true or false."""
    if not isinstance(value, bool):
        raise InvalidRequest(f"{field_name} must be true or false, got {value!r:.40}")
    return value


def read_choice(value: Any, field_name: str, known: Sequence[str]) -> str:
    """Returns one of the known words."""
    if not isinstance(value, str) or value not in known:
        raise InvalidRequest(f"{field_name} must be one of {', '.join(known)}, got {value!r:.40}")
    return value


def read_head_indices(value: Any, field_name: str, n_heads: int, *, fewest: int = 0) -> list[int]:
    """Returns the sorted indices of different heads."""
    if not isinstance(value, list) or len(value) < fewest or len(value) > n_heads:
        raise InvalidRequest(f"{field_name} must be a list of {fewest} to {n_heads} heads")
    indices = [read_number(index, field_name, 0, n_heads - 1) for index in value]
    if len(set(indices)) < len(indices):
        raise InvalidRequest(f"{field_name} names a head twice")
    return sorted(indices)
