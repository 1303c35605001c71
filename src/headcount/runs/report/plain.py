"""Numbers and texts for the page: rounded, finite, and valid JSON."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

DIGITS = 5


def round_number(value: float, significant_digits: int = DIGITS) -> float | int:
    """Returns a finite number rounded to so many significant digits."""
    if isinstance(value, int):
        return value
    rounded = float(f"{float(value):.{significant_digits}g}")
    return int(rounded) if rounded.is_integer() and abs(rounded) < 1e15 else rounded


def round_or_none(value: float | None, significant_digits: int = DIGITS) -> float | int | None:
    """Returns a number rounded by `round_number`; None if it is missing or not finite."""
    return None if value is None or isinstance(value, bool) or not math.isfinite(value) else round_number(value, significant_digits)


def format_exact_number(value: float) -> str:
    """Returns a number in as few digits as give it back."""
    if isinstance(value, int):
        return str(value)
    return next(text for digits in (6, 17) if float(text := f"{value:.{digits}g}") == value)


def format_count(number: int, noun: str) -> str:
    """Returns number and noun: `1 model`, `2 models`."""
    return f"{number} {noun}{'s' * (number != 1)}"


def round_column(values: Iterable[Any], significant_digits: int = DIGITS) -> list[float | int | None]:
    """Returns the numbers, each rounded by `round_or_none`."""
    return [round_or_none(value, significant_digits) for value in values]


def replace_control_characters(text: object) -> str:
    """Returns the text with control characters and direction marks replaced."""
    return "".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in str(text))


def value_to_line(value: Any) -> str:
    """Returns a value of a configuration as one line of text."""
    if isinstance(value, Mapping):
        return ", ".join(f"{key}: {value_to_line(inner)}" for key, inner in value.items())
    if isinstance(value, list | tuple):
        return ", ".join(map(value_to_line, value))
    return "" if value is None else str(value)


def flatten_entries(value: Mapping[str, object], prefix: str = "") -> dict[str, str]:
    """Returns the entries of nested mappings by their dotted names, as texts."""
    entries: dict[str, str] = {}
    for key, inner in value.items():
        entries |= flatten_entries(inner, f"{prefix}{key}.") if isinstance(inner, Mapping) else {f"{prefix}{key}": value_to_line(inner)}
    return entries


def format_speed(ratio: float, low: float | None = None, high: float | None = None) -> str:
    """Returns how fast one model is against another, in words: `1.27 times as fast (1.22 … 1.31)`, or, below 1, `1.27 times as slow`."""
    ends = "" if low is None or high is None else " ({:.2f} … {:.2f})".format(*((low, high) if ratio >= 1 else (1 / high, 1 / low)))
    text = f"{ratio if ratio >= 1 else 1 / ratio:.2f}"
    return "as fast" + ends if text == "1.00" else f"{text} times as {'fast' if ratio >= 1 else 'slow'}{ends}"
