"""Plain numbers and texts for the page: short, finite, and nothing that JSON cannot say."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

DIGITS = 5


def short(value: Any, digits: int = DIGITS) -> float | int | None:
    """A number with so many digits; None for one that does not exist."""
    if value is None or isinstance(value, bool) or not math.isfinite(value):
        return None
    if isinstance(value, int):
        return value
    made = float(f"{float(value):.{digits}g}")
    return int(made) if made.is_integer() and abs(made) < 1e15 else made


def plural(number: int, word: str) -> str:
    """How many there are of something: `1 model`, `2 models`."""
    return f"{number} {word}{'s' * (number != 1)}"


def column(values: Iterable[Any], digits: int = DIGITS) -> list[float | int | None]:
    """Numbers, each short."""
    return [short(value, digits) for value in values]


def readable(text: object) -> str:
    """A text without anything that steers a terminal or turns the direction of writing."""
    return "".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in str(text))


def told(value: Any) -> str:
    """A value of a configuration as one line of text."""
    if isinstance(value, Mapping):
        return ", ".join(f"{key}: {told(inner)}" for key, inner in value.items())
    if isinstance(value, list | tuple):
        return ", ".join(map(told, value))
    return "" if value is None else str(value)


def flat(value: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """The entries of nested mappings by their dotted names, as texts."""
    found: dict[str, str] = {}
    for key, inner in value.items():
        found |= flat(inner, f"{prefix}{key}.") if isinstance(inner, Mapping) else {f"{prefix}{key}": told(inner)}
    return found
