"""Draws for one split: what is drawn goes to the split that a hash of its text names, so that no two splits share an example."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from random import Random
from typing import Literal, TypeVar

DemoSplit = Literal["train", "calibration", "selection", "report"]
Drawn = TypeVar("Drawn")

_HELD_OUT: dict[int, DemoSplit] = {0: "calibration", 1: "selection", 2: "report"}


def split_by_hash_of_text(text: str) -> DemoSplit:
    """Returns the split that a text belongs to: 13 of 16 texts are for training."""
    return _HELD_OUT.get(hashlib.sha256(text.encode()).digest()[0] % 16, "train")


def draw_split(
    random: Random, split: DemoSplit, n_items: int, draw: Callable[[Random], Drawn], identity: Callable[[Drawn], str]
) -> list[Drawn]:
    """Returns `n_items` draws whose `identity` belongs to `split`."""
    examples: list[Drawn] = []
    while len(examples) < n_items:
        candidate = draw(random)
        if split_by_hash_of_text(identity(candidate)) == split:
            examples.append(candidate)
    return examples
