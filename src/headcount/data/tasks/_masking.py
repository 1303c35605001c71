"""Which tokens a masked language model has to guess: a function of seed, example and place, so that every run asks the same."""

from __future__ import annotations

import hashlib

import numpy as np

from headcount.core.errors import DataError
from headcount.data.metrics import IGNORED
from headcount.data.open_task import Request

SHARE = 0.15


def masked(ids: list[int], where: tuple[int, int], *, mask_id: int, special: frozenset[int]) -> dict[str, list[int]]:
    """Tokens of which 15 % of the ordinary ones, and one at least, are replaced by the mask token; only these have labels.

    `where` is (seed, number of the example): all that the choice depends on.
    """
    draws = np.frombuffer(hashlib.shake_128(repr(where).encode()).digest(4 * len(ids)), dtype="<u4") / 2**32
    ordinary = [place for place, token in enumerate(ids) if token not in special]
    if not ordinary:
        raise DataError(f"example {where[1]} holds special tokens only, so nothing in it can be masked; remove it")
    chosen = {place for place in ordinary if draws[place] < SHARE} or {min(ordinary, key=lambda place: draws[place])}
    return {
        "input_ids": [mask_id if place in chosen else token for place, token in enumerate(ids)],
        "labels": [token if place in chosen else IGNORED for place, token in enumerate(ids)],
    }


def mask_id(request: Request) -> int:
    """The tokenizer's mask token."""
    found = getattr(request.tokenizer, "mask_token_id", None)
    if found is None:
        raise DataError(f"the tokenizer has no mask token, so task '{request.name}' is not for its model; try causal-lm")
    return found
