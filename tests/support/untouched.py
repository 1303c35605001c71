"""A model and data that nobody may look at before the arguments of a call are checked."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import nn


class Untouchable(nn.Module):
    """A model that nobody may run or look at."""

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(f"{name} of the model was read before the arguments were checked")


class Unread:
    """Data that nobody may read."""

    def __iter__(self) -> Iterator[Any]:
        raise AssertionError("data were read before the arguments were checked")
