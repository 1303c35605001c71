"""Budgets: how much of a model may stay."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace
from numbers import Integral, Real
from typing import Any, Literal

from headcount.core.errors import PlanError
from headcount.core.heads import Head
from headcount.core.options import convert_to_declared_types, option, options_of

PruningUnit = Literal["kv_group", "even"]
SizeField = Literal["keep", "fraction", "parameters", "kv_bytes", "latency"]
LimitField = Literal["parameters", "kv_bytes", "latency"]
SIZES: tuple[SizeField, ...] = ("keep", "fraction", "parameters", "kv_bytes", "latency")
"""The fields of a budget that say how much stays; one of them is set at most."""
LIMITS: tuple[LimitField, ...] = ("parameters", "kv_bytes", "latency")
"""The sizes that are no number of heads."""


@dataclass(frozen=True)
class Budget:
    """How much may stay: a number of heads, a share of them, or what fits into a limit of parameters, KV cache or latency.

    `keep` is a whole number of heads, a share of them as a float above 0 and below 1, or a text such as "25%"; shares are stored as `fraction`.
    `keep=1.0`, which could mean one head or all of them, is refused. `headcount.prune` turns limits of parameters, KV cache and latency into plans;
    a ranking alone (`Plan.keep_top`) takes numbers and shares of heads.

    Raises:
        PlanError: `keep` or `protected` is none of these, or two of the sizes are given.
        OptionError: another value has the wrong type or is out of range.
        UnknownName: there is no such unit.
    """

    keep: int | float | str | None = option(None, "How many heads stay: a number, or a share such as 25%.")
    fraction: float | None = option(None, "The share of heads that stays, above 0 and at most 1.", above=0, maximum=1)
    parameters: int | None = option(None, "How many parameters may stay.", minimum=1)
    kv_bytes: int | None = option(None, "Bytes of KV cache per token.", minimum=1)
    latency: float | None = option(
        None, "Seconds of one pass over `bench_batch` rows of `bench_length` tokens, or as many as the model reads, measured here.", above=0
    )
    bench_batch: int = option(8, "Rows of the pass that latency is measured with.", minimum=1)
    bench_length: int = option(128, "Tokens of the pass that latency is measured with.", minimum=1)
    floor: int = option(0, "Heads that stay at least in every block.", minimum=0)
    protected: frozenset[Head] = option(frozenset(), "Heads that stay whatever their score.")
    unit: PruningUnit = option("kv_group", "kv_group, or even: what goes together where heads share keys and values.")

    def __post_init__(self) -> None:
        named = [self.protected] if isinstance(self.protected, str | Head) else self.protected
        if not isinstance(named, Iterable):
            raise PlanError(f"protected must be head addresses, such as ['L0H1']; got {named!r}")
        object.__setattr__(self, "protected", frozenset(Head.parse(head) for head in named))
        sizes = {name: getattr(self, name) for name in SIZES if getattr(self, name) is not None}
        if len(sizes) > 1:
            arguments = " and ".join(f"{name}={value}" for name, value in sizes.items())
            raise PlanError(f"a budget needs exactly one of {', '.join(SIZES[:-1])} and {SIZES[-1]}; got {arguments}")
        if self.keep is not None:
            share = _parse_share(self.keep)
            object.__setattr__(self, "keep", None if share is not None else int(self.keep))
            object.__setattr__(self, "fraction", share)
        for name in ("parameters", "kv_bytes"):
            limit = getattr(self, name)
            if isinstance(limit, float) and limit.is_integer():  # 60e6
                object.__setattr__(self, name, int(limit))
        declared = [item for item in options_of(Budget) if item.name not in ("keep", "protected")]
        convert_to_declared_types(self, declared, "a budget")

    @property
    def size(self) -> tuple[SizeField, float] | None:
        """The size that is given, as the name of its field and its value; None where a method decides."""
        return next(((name, getattr(self, name)) for name in SIZES if getattr(self, name) is not None), None)

    @property
    def limit(self) -> tuple[LimitField, float] | None:
        """The limit of parameters, kv_bytes or latency; None where heads are counted."""
        return next(((name, getattr(self, name)) for name in LIMITS if getattr(self, name) is not None), None)

    def heads(self, total: int) -> int:
        """Returns how many heads of `total` stay.

        Raises:
            PlanError: the budget gives no number of heads, or one above `total`.
        """
        if self.limit is not None:
            raise PlanError(f"a budget of {self.limit[0]} is no number of heads; prune by it (headcount.prune), or name keep or fraction")
        if self.size is None:
            raise PlanError("a budget needs exactly one of keep and fraction; got neither")
        if self.fraction is not None:
            return max(1, round(self.fraction * total))
        assert isinstance(self.keep, int)
        if self.keep > total:
            raise _invalid_keep_error(self.keep, f"from 1 to {total}")
        return self.keep

    def resized(self, keep: int | float | str) -> Budget:
        """Returns the budget with another number or share of heads in place of its size."""
        return replace(self, **{**dict.fromkeys(SIZES), "keep": keep})

    def to_dict(self) -> dict[str, Any]:
        """Returns every field as plain data."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return values | {"protected": sorted(map(str, self.protected))}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Budget:
        """Returns the budget that `to_dict` described."""
        return cls(**{**values, "protected": frozenset(map(Head.parse, values["protected"]))})


def _parse_share(keep: Any) -> float | None:
    """Returns `keep` as a share of the heads, or None where it is a number of heads."""
    if isinstance(keep, str) and keep.strip().endswith("%"):
        try:
            share = float(keep.strip()[:-1]) / 100
        except ValueError:
            share = 0.0
        if not 0 < share <= 1:
            raise PlanError(f"keep must be a share above 0% and up to 100%, such as 25%; got {keep!r}")
        return share
    if isinstance(keep, Integral) and not isinstance(keep, bool) and int(keep) >= 1:
        return None
    if isinstance(keep, Real) and not isinstance(keep, Integral) and 0 < float(keep) < 1:
        return float(keep)
    raise _invalid_keep_error(keep, "from 1 on")


def _invalid_keep_error(keep: Any, permitted_numbers: str) -> PlanError:
    return PlanError(
        f"keep must be a whole number of heads {permitted_numbers}, or a share of them, a float above 0 and below 1 such as 0.25, "
        f"or '25%'; got {keep!r}"
    )
