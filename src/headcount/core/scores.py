"""Scores: one number per head in flat order, with its standard error, method, direction and the data it comes from. Knows no model."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from headcount.core import html as notebook
from headcount.core.errors import ArtifactError, HeadNameError, PlanError, unknown
from headcount.core.heads import Head, HeadIndex, tie_order
from headcount.core.score_tables import Row, number, read_table
from headcount.core.stats.resampling import bootstrap
from headcount.core.stats.samples import Samples

if TYPE_CHECKING:
    from pandas import DataFrame

Scaling = Literal["none", "layer", "global", "standard"]
"""How scores were normalised: not at all, by the ℓ2 norm of their block ("layer") or of all, or to mean 0 and deviation 1 within each block."""
Normalise = Literal["published", "none", "layer", "global", "standard"]
"""What can be asked for: "published" is the normalisation that belongs to the method."""
NORMALISATIONS: tuple[Normalise, ...] = ("published", "none", "layer", "global", "standard")
SCALED: Mapping[Scaling, str] = {
    "none": "not normalised",
    "layer": "divided by the ℓ2 norm of their layer",
    "global": "divided by the ℓ2 norm of all",
    "standard": "standardised within their layer",
}
SHOWN = 12
"""Blocks that a message names."""
ROUNDING = "rounding"
"""The column that says by how much rounding alone moves each score, as a standard deviation."""


def check_normalise(how: str) -> None:
    """Raises UnknownName for a way to normalise that is not known."""
    if how not in NORMALISATIONS:
        raise unknown("normalisation", str(how), NORMALISATIONS)


@dataclass(frozen=True, slots=True)
class Scores:
    """How much each head matters by some method; `units` are the heads that go or stay together (KV groups), by default single heads.

    `stderr` is the standard error over examples, 0 where a method reads no data. `samples` keeps what bootstrap and tests need. `columns` are
    further numbers per head, such as the change of the metric; `directions` say of those that have one whether more means keep. `describes`
    says that the method describes a head rather than tells what is lost without it, None that this is not known. `data` is the fingerprint of
    the examples, `conditions` say how it was measured.
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
    normalise: Scaling = "none"
    columns: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    conditions: Mapping[str, Any] = field(default_factory=dict)
    directions: Mapping[str, bool] = field(default_factory=dict)
    describes: bool | None = None

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

    @classmethod
    def read(cls, path: str | Path, *, method: str | None = None, higher_is_keep: bool | None = None) -> Scores:
        """The scores in a table (csv, tsv, json, parquet) with the columns head and score, maybe stderr and method.

        `method` chooses where a table holds several. More means keep, unless `higher_is_keep` says otherwise, or the table is one that a run
        wrote, whose ranks tell. What is not finite, missing or there twice is refused with its line.
        """
        path = Path(path)
        columns, rows = read_table(path)
        for name in ("head", "score"):
            if name not in columns:
                raise ArtifactError(
                    f"{path} has no column '{name}': it has {', '.join(map(repr, columns))[:200] or 'none'}. One row for each head is wanted, "
                    "with its address (L3H7) in 'head' and a number in 'score', and commas (csv) or tabs (tsv) between"
                )
        method, rows = _of_method(path, columns, rows, method)
        heads, values = _heads_of(rows), _numbers(rows, "score")
        direction = _direction(path, columns, rows, values) if higher_is_keep is None else higher_is_keep
        return cls(heads, values, method, direction, stderr=_errors(rows), normalise=_scaling(path, rows))

    def fitted(self, heads: HeadIndex) -> Scores:
        """The same scores in a model's order and units; PlanError unless they are of just its heads."""
        mine, theirs = set(self.heads), set(heads.heads)
        for odd, text in ((mine - theirs, "is not in this model"), (theirs - mine, "has no score")):
            if odd:
                more = f" and {len(odd) - 1} more" if len(odd) > 1 else ""
                raise PlanError(
                    f"{min(odd)}{more} {text}: the scores are of {len(self.heads)} heads, the model has {heads.describe()}. Use scores of this "
                    "very model"
                )
        place = {head: i for i, head in enumerate(self.heads)}
        order = [place[head] for head in heads.heads]
        columns = {name: tuple(column[i] for i in order) for name, column in self.columns.items()}
        values, stderr = (tuple(column[i] for i in order) if column else () for column in (self.values, self.stderr))
        fresh = {"heads": heads.heads, "values": values, "stderr": stderr, "columns": columns, "units": heads.units(), "samples": None}
        return replace(self, **fresh)

    def __getitem__(self, head: str | Head) -> float:
        wanted = Head.parse(head)
        if wanted not in self.heads:
            blocks = {name: len(places) for name, places in self.blocks().items()}
            told = ", ".join(f"{name} x {number}" for name, number in list(blocks.items())[:SHOWN])
            more = f" and {len(blocks) - SHOWN} blocks more" if len(blocks) > SHOWN else ""
            raise HeadNameError(f"no score of head {wanted}: there are {len(self.heads)} heads, {told}{more}. Name one of scores.heads")
        return self.values[self.heads.index(wanted)]

    def tied(self) -> tuple[tuple[Head, ...], ...]:
        """The units, single heads where none were given."""
        return self.units or tuple((head,) for head in self.heads)

    def signed(self) -> dict[Head, float]:
        """Every head's score, signed so that more means keep."""
        sign = 1.0 if self.higher_is_keep else -1.0
        return {head: sign * value for head, value in zip(self.heads, self.values, strict=True)}

    def ranking(self) -> list[Head]:
        """The heads from the one to keep first to the one to remove first; ties by a hash of seed and address."""
        sign, ties = -1.0 if self.higher_is_keep else 1.0, self.ties()
        order = sorted(range(len(self.heads)), key=lambda i: (sign * self.values[i], ties[i]))
        return [self.heads[i] for i in order]

    def ties(self) -> tuple[int, ...]:
        """For each head its place in the order in which heads of equal score are ranked."""
        return tie_order(self.heads, self.seed)

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

    @property
    def label(self) -> str:
        """The method, and how its scores were normalised."""
        return f"{self.method or 'scores'} ({SCALED[self.normalise]})" if self.normalise != "none" else self.method or "scores"

    def heads_within_rounding(self) -> tuple[Head, ...]:
        """The heads whose score rounding alone moves by more than its standard error; none where rounding was not measured."""
        pairs = zip(self.heads, self.columns.get(ROUNDING, ()), self.stderr, strict=False)
        return tuple(head for head, rounding, error in pairs if rounding > error)

    def normalised(self, scaling: Scaling) -> Scores:
        """Returns the scores divided by the ℓ2 norm of their block ("layer") or of all ("global"), or standardised within each block ("standard").

        Standard errors are those of the normalised scores, to first order, norm, mean and deviation being estimated from the same examples; without
        samples these are taken as known.

        Raises:
            PlanError: The scores are normalised already, and otherwise.
        """
        check_normalise(scaling)
        if scaling == self.normalise:
            return self
        if self.normalise != "none" or scaling == "published":
            raise PlanError(f"these scores are {SCALED[self.normalise]} already; score again with normalise={scaling!r}")
        values = np.asarray(self.values)
        centre, scale = self._centre_and_scale(values, scaling)
        stderr = tuple((np.asarray(self.stderr) / scale).tolist()) if self.stderr else ()
        rounding = {name: tuple((np.asarray(self.columns[name]) / scale).tolist()) for name in (ROUNDING,) if name in self.columns}
        columns = {**self.columns, **rounding}
        scaled = replace(self, values=tuple(((values - centre) / scale).tolist()), stderr=stderr, normalise=scaling, columns=columns)
        samples = scaled.scaled_samples() if stderr else None
        return scaled if samples is None else replace(scaled, stderr=tuple(samples.stderr().tolist()))

    def _centre_and_scale(self, values: np.ndarray, scaling: Scaling) -> tuple[np.ndarray, np.ndarray]:
        """What is subtracted from `values` [..., heads], and what the rest is divided by: 1 where a whole block has norm or deviation 0."""
        centre, scale = np.zeros_like(values), np.ones_like(values)
        if scaling == "none":
            return centre, scale
        for positions in self._parts(scaling):
            part = values[..., positions]
            if scaling == "standard":
                centre[..., positions] = part.mean(axis=-1, keepdims=True)
                size = part.std(axis=-1, keepdims=True)
            else:
                size = np.linalg.norm(part, axis=-1, keepdims=True)
            scale[..., positions] = np.where(size > 0, size, 1.0)
        return centre, scale

    def scaled_samples(self) -> Samples | None:
        """Returns samples whose means are the normalised values, and whose spread is theirs, to first order in what each group adds."""
        if self.samples is None or self.normalise == "none":
            return self.samples
        means, weights = self.samples.means(), self.samples.weights
        centre, scale = self._centre_and_scale(means, self.normalise)
        values, total = (means - centre) / scale, weights.sum(0)
        shift = self.samples.residuals() / total  # [groups, heads]: how far a group moves each mean
        for positions in self._parts(self.normalise):
            part, own = shift[:, positions], values[positions]
            along = (part @ own)[:, None] * own
            if self.normalise == "standard":
                along = along / len(positions) + part.mean(axis=1, keepdims=True)
            shift[:, positions] = (part - along) / scale[positions]
        return Samples(values * weights + shift * total, weights, self.samples.n)

    def _parts(self, scaling: Scaling) -> list[list[int]]:
        """The places of the heads that are normalised together."""
        return [list(range(len(self.heads)))] if scaling == "global" else list(self.blocks().values())

    def replicates(self, repeats: int = 2000, seed: int = 0) -> np.ndarray:
        """Bootstrap scores [repeats, heads], normalised as these are."""
        if self.samples is None:
            raise PlanError(f"{self.method} has no samples to draw from again: it reads no data, or comes from a file without them")

        drawn = bootstrap(self.samples, repeats=repeats, seed=seed)
        centre, scale = self._centre_and_scale(drawn, self.normalise)
        return (drawn - centre) / scale

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

    def _repr_html_(self) -> str:
        """A coloured grid of blocks by heads, for notebooks."""
        names, values = self.grid()
        way = "more" if self.higher_is_keep else "less"
        rounding = f", rounding moves scores by up to {max(self.columns[ROUNDING]):.2g}" if ROUNDING in self.columns else ""
        return notebook.grid(names, values.tolist(), f"{self.label}: {way} means keep, {self.n_examples} examples{rounding}")


OURS = frozenset({"method", "head", "stack", "layer", "index", "score", "stderr", "rank"})
"""The columns of the tables that runs write; rank 1 is the head to keep first."""


def _of_method(path: Path, columns: Sequence[str], rows: list[Row], method: str | None) -> tuple[str, list[Row]]:
    """The rows of one method, and its name."""
    if "method" not in columns:
        if method is not None:
            raise ArtifactError(f"{path} has no column 'method' in which {method!r:.60} could be; leave method (--method) out")
        return "", rows
    names = list(dict.fromkeys(str(row.get("method")) for _, row in rows))
    if method is None and len(names) > 1:
        raise ArtifactError(f"{path} holds scores by {', '.join(names)[:300]}; choose one (method=…, --method {names[0]:.40})")
    wanted = names[0] if method is None else method
    if wanted not in names:
        raise unknown(f"method in {path}", wanted, [name[:60] for name in names[:50]])
    return wanted, [(where, row) for where, row in rows if str(row.get("method")) == wanted]


def _heads_of(rows: list[Row]) -> tuple[Head, ...]:
    seen: dict[Head, str] = {}
    for where, row in rows:
        try:
            head = Head.parse(row.get("head"))  # pyright: ignore[reportArgumentType]
        except HeadNameError as error:
            raise ArtifactError(f"{where}: {error}") from error
        if head in seen:
            raise ArtifactError(f"{where}: {head} comes twice, first in {seen[head]}; write one row for each head")
        seen[head] = where
    return tuple(seen)


def _numbers(rows: list[Row], column: str) -> tuple[float, ...]:
    found = [number(where, column, row.get(column)) for where, row in rows]
    if None in found:
        where = rows[found.index(None)][0]
        raise ArtifactError(f"{where}: the {column} is missing; a ranking needs a finite number for every head")
    return tuple(value for value in found if value is not None)


def _errors(rows: list[Row]) -> tuple[float, ...]:
    """The standard errors, where there are any."""
    if all(number(where, "stderr", row.get("stderr")) is None for where, row in rows):
        return ()
    found = _numbers(rows, "stderr")
    bad = next((i for i, value in enumerate(found) if value < 0), None)
    if bad is not None:
        raise ArtifactError(f"{rows[bad][0]}: the stderr is {found[bad]}; a standard error is 0 or more")
    return found


def _scaling(path: Path, rows: list[Row]) -> Scaling:
    """How the scores of a table are normalised, where a column says so."""
    names = {str(row.get("normalise") or "none") for _, row in rows} or {"none"}
    for scaling in SCALED:
        if names == {scaling}:
            return scaling
    raise ArtifactError(
        f"{path}: the column 'normalise' must hold one of {', '.join(SCALED)} for all heads, got {', '.join(sorted(names))[:80]}"
    )


def _direction(path: Path, columns: Sequence[str], rows: list[Row], values: Sequence[float]) -> bool:
    """Whether more means keep: as the ranks tell in a table that a run wrote, else yes."""
    if not OURS.issubset(columns):
        return True
    ranks = _numbers(rows, "rank")
    ordered = [value for _, value in sorted(zip(ranks, values, strict=True), key=lambda pair: pair[0])]
    if ordered == sorted(values, reverse=True):
        return True
    if ordered == sorted(values):
        return False
    raise ArtifactError(
        f"{path}: ranks and scores contradict each other; the table was edited. Remove the column 'rank', or write it again"
    )
