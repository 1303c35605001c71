"""Batches that a file hands from one environment to another: arrays named `place/name` of an .npz file."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

Batch = dict[str, torch.Tensor]


def write(batches: list[Batch], path: Path) -> str:
    np.savez(path, **{f"{i}/{name}": value.numpy() for i, batch in enumerate(batches) for name, value in batch.items()})
    return str(path)


def read(path: str) -> list[Batch]:
    """The batches in their order."""
    found: dict[int, Batch] = {}
    with np.load(path) as arrays:
        for key in arrays.files:
            place, _, name = key.partition("/")
            found.setdefault(int(place), {})[name] = torch.from_numpy(arrays[key])
    return [found[i] for i in range(len(found))]
