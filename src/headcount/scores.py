"""Scores: one number per head in flat order, with its standard error, method, direction and the data it comes from. Knows no model."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from headcount.errors import PlanError, UnknownName
from headcount.heads import Head
from headcount.stats import Samples

if TYPE_CHECKING:
    from pandas import DataFrame

Normalise = Literal["none", "layer", "global"]


def check_normalise(how: str) -> None:
    """Raises UnknownName for a way to normalise that is not known."""
    if how not in ("none", "layer", "global"):
        raise UnknownName(f"normalise must be 'none', 'layer' or 'global', got {how!r}")


@dataclass(frozen=True, slots=True)
class Scores:
    """How much each head matters by some method; `units` are the heads that go or stay together (KV groups), by default single heads.

    `stderr` is the standard error over examples, 0 where a method reads no data. `samples` keeps what bootstrap and tests need. `columns` are
    further numbers per head, such as the change of the metric. `data` is the fingerprint of the examples, `conditions` say how it was measured.
    """

    heads: tuple[Head, ...]
    values: tuple[float, ...]
    method: str = ""
    higher_is_keep: bool = True
    units: tuple[tuple[Head, ...], ...] = ()
    stderr: tuple[float, ...] = ()
    n_examples: int = 0
    samples: Samples | None = field(default=None, repr=False, compare=False)
    data: str = ""
    seed: int = 0
    normalise: Normalise = "none"
    columns: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    conditions: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if len(self.heads) != len(self.values):
            raise PlanError(f"scores need one value per head, got {len(self.values)} values for {len(self.heads)} heads")
        bad = next((head for head, value in zip(self.heads, self.values, strict=True) if not math.isfinite(value)), None)
        if bad is not None:
            raise PlanError(f"the score of {bad} is not a finite number; a ranking of it would mean nothing")
        for name, column in {"stderr": self.stderr, **self.columns}.items():
            if column and len(column) != len(self.heads):
                raise PlanError(f"{name} has {len(column)} numbers for {len(self.heads)} heads")
        members = [head for unit in self.units for head in unit]
        if self.units and sorted(members) != sorted(self.heads):
            raise PlanError("units must hold every scored head exactly once")

    def __getitem__(self, head: str | Head) -> float:
        return self.values[self.heads.index(Head.parse(head))]

    def tied(self) -> tuple[tuple[Head, ...], ...]:
        """The units, single heads where none were given."""
        return self.units or tuple((head,) for head in self.heads)

    def signed(self) -> dict[Head, float]:
        """Every head's score, signed so that more means keep."""
        sign = 1.0 if self.higher_is_keep else -1.0
        return {head: sign * value for head, value in zip(self.heads, self.values, strict=True)}

    def ranking(self) -> list[Head]:
        """The heads from the one to keep first to the one to remove first; ties in flat order."""
        sign = -1.0 if self.higher_is_keep else 1.0
        order = sorted(range(len(self.heads)), key=lambda i: (sign * self.values[i], i))
        return [self.heads[i] for i in order]

    def unit_places(self) -> tuple[tuple[int, ...], ...]:
        """The units by the places of their heads."""
        place = {head: number for number, head in enumerate(self.heads)}
        return tuple(tuple(place[head] for head in unit) for unit in self.tied())

    def blocks(self) -> dict[str, list[int]]:
        """The places of the heads of each block, by the block's address (`L3`, `cross.L3`)."""
        found: dict[str, list[int]] = {}
        for place, head in enumerate(self.heads):
            found.setdefault(str(head).rpartition("H")[0], []).append(place)
        return found

    def grid(self) -> tuple[list[str], np.ndarray]:
        """A view for people: block addresses, and an array [blocks, heads] by original head number, NaN where a head is gone."""
        blocks = self.blocks()
        width = max((head.index + 1 for head in self.heads), default=0)
        table = np.full((len(blocks), width), np.nan)
        for row, places in enumerate(blocks.values()):
            for place in places:
                table[row, self.heads[place].index] = self.values[place]
        return list(blocks), table

    def normalised(self, how: Normalise) -> Scores:
        """The scores divided by the ℓ2 norm of their block ("layer") or of all ("global"); standard errors take the norm as given."""
        check_normalise(how)
        if how == "none":
            return self
        factor = self.norms(np.asarray(self.values), how)
        values = tuple((np.asarray(self.values) / factor).tolist())
        stderr = tuple((np.asarray(self.stderr) / factor).tolist()) if self.stderr else ()
        return replace(self, values=values, stderr=stderr, normalise=how)

    def norms(self, values: np.ndarray, how: Normalise) -> np.ndarray:
        """What each of `values` [..., heads] is divided by; 1 where all of a block are zero."""
        factor = np.ones_like(values)
        if how == "none":
            return factor
        for places in self.blocks().values() if how == "layer" else [list(range(len(self.heads)))]:
            norm = np.linalg.norm(values[..., places], axis=-1, keepdims=True)
            factor[..., places] = np.where(norm > 0, norm, 1.0)
        return factor

    def replicates(self, repeats: int = 2000, seed: int = 0) -> np.ndarray:
        """Bootstrap scores [repeats, heads], normalised as these are."""
        if self.samples is None:
            raise PlanError(f"{self.method} has no samples to draw from again: it reads no data, or comes from a file without them")
        from headcount.stats import bootstrap

        drawn = bootstrap(self.samples, repeats=repeats, seed=seed)
        return drawn / self.norms(drawn, self.normalise)

    def to_pandas(self) -> DataFrame:
        """A table with one row per head: address, score, standard error, rank and further columns."""
        import pandas

        rank = {head: number for number, head in enumerate(self.ranking(), 1)}
        table: dict[str, Any] = {
            "head": [str(head) for head in self.heads],
            "stack": [head.stack for head in self.heads],
            "layer": [head.layer for head in self.heads],
            "index": [head.index for head in self.heads],
            "score": self.values,
            "stderr": self.stderr or [math.nan] * len(self.heads),
            "rank": [rank[head] for head in self.heads],
        }
        return pandas.DataFrame({**table, **{name: list(column) for name, column in self.columns.items()}})
