"""Scores: one number per head in flat order, with its standard error, method, direction and the data it comes from. Knows no model."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from jaxtyping import Float

from headcount.core import html as notebook
from headcount.core.damage import Damage, HeadVerdicts, judge_damage
from headcount.core.errors import ArtifactError, HeadNameError, PlanError, unknown_name_error
from headcount.core.heads import Head, HeadIndex, hashed_tie_ranks
from headcount.core.normalisation import NORMALISATIONS, Scaling
from headcount.core.score_tables import LocatedRow, parse_optional_number, read_table
from headcount.core.stats.means import mean_interval
from headcount.core.stats.resampling import bootstrap_scores
from headcount.core.stats.samples import Samples
from headcount.core.tolerance import TOLERANCE, Tolerance

if TYPE_CHECKING:
    from pandas import DataFrame

SCALED: Mapping[Scaling, str] = {
    "none": "not normalised",
    "layer": "divided by the ℓ2 norm of their layer",
    "global": "divided by the ℓ2 norm of all",
    "standard": "standardised within their layer",
}
MAX_BLOCKS = 12
"""The most blocks that a message names."""
ROUNDING = "rounding"
"""The column with the standard deviation that rounding alone causes in each score."""


class ScoreInterval(NamedTuple):
    """The interval of a score, and the two-sided p-value of 0 by the same test."""

    low: float
    high: float
    p: float


def check_normalise(normalise: str) -> None:
    """Raises UnknownName for an unknown normalisation."""
    if normalise not in NORMALISATIONS:
        raise unknown_name_error("normalisation", str(normalise), NORMALISATIONS)


@dataclass(frozen=True, slots=True)
class Scores:
    """The importance of each head by some method; `units` are the heads that are kept or removed together (KV groups), by default single heads.

    `stderr` is the standard error over examples, 0 where a method reads no data. `samples` keeps what bootstrap and tests need, `damage` what
    removing each head does to each example, for methods that measure it. `columns` are
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
    damage: Damage | None = field(default=None, repr=False, compare=False)
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
    def read(cls, path: str | Path, *, only_method: str | None = None, higher_is_keep: bool | None = None) -> Scores:
        """Reads scores from a table (csv, tsv, json, parquet) with the columns head and score, and optionally stderr and method.

        Args:
            path: The table.
            only_method: The method whose rows to read, if the table holds several.
            higher_is_keep: Whether more means keep; by default yes, or as the ranks in a table written by a run show.

        Raises:
            ArtifactError: A number is missing or not finite, or a head occurs twice; names the line.
        """
        path = Path(path)
        columns, rows = read_table(path)
        for name in ("head", "score"):
            if name not in columns:
                raise ArtifactError(
                    f"{path} has no column '{name}': it has {', '.join(map(repr, columns))[:200] or 'none'}. Write one row for each head, "
                    "with its address (L3H7) in 'head' and a number in 'score', and commas (csv) or tabs (tsv) between"
                )
        method, rows = _select_method(path, columns, rows, only_method)
        heads, values = _parse_heads(rows), _parse_column(rows, "score")
        direction = _infer_higher_is_keep(path, columns, rows, values) if higher_is_keep is None else higher_is_keep
        return cls(heads, values, method, direction, stderr=_parse_stderr(rows), normalise=_parse_scaling(path, rows))

    def reorder(self, heads: HeadIndex) -> Scores:
        """Returns the scores in the order and units of a model; raises PlanError unless they are of exactly its heads."""
        scored, existing = set(self.heads), set(heads.heads)
        for unmatched, text in ((scored - existing, "is not in this model"), (existing - scored, "has no score")):
            if unmatched:
                more = f" and {len(unmatched) - 1} more" if len(unmatched) > 1 else ""
                raise PlanError(
                    f"{min(unmatched)}{more} {text}: the scores are of {len(self.heads)} heads, the model has {heads.describe()}. Use scores of this "
                    "very model"
                )
        index = {head: i for i, head in enumerate(self.heads)}
        order = [index[head] for head in heads.heads]
        columns = {name: tuple(column[i] for i in order) for name, column in self.columns.items()}
        values, stderr = (tuple(column[i] for i in order) if column else () for column in (self.values, self.stderr))
        return replace(
            self, heads=heads.heads, values=values, stderr=stderr, columns=columns, units=heads.units(), samples=None, damage=None
        )

    def __getitem__(self, head: str | Head) -> float:
        address = Head.parse(head)
        if address not in self.heads:
            blocks = {name: len(positions) for name, positions in self.blocks().items()}
            names = ", ".join(f"{name} x {number}" for name, number in list(blocks.items())[:MAX_BLOCKS])
            more = f" and {len(blocks) - MAX_BLOCKS} blocks more" if len(blocks) > MAX_BLOCKS else ""
            raise HeadNameError(f"no score of head {address}: there are {len(self.heads)} heads, {names}{more}. Name one of scores.heads")
        return self.values[self.heads.index(address)]

    def all_units(self) -> tuple[tuple[Head, ...], ...]:
        """Returns the units, single heads if none were given."""
        return self.units or tuple((head,) for head in self.heads)

    def keep_values(self) -> dict[Head, float]:
        """Returns every head's score with the sign that makes more mean keep."""
        sign = 1.0 if self.higher_is_keep else -1.0
        return {head: sign * value for head, value in zip(self.heads, self.values, strict=True)}

    def ranking(self) -> list[Head]:
        """Returns the heads from the one to keep first to the one to remove first; ties are broken by a hash of seed and address."""
        sign, ties = -1.0 if self.higher_is_keep else 1.0, self.ties()
        order = sorted(range(len(self.heads)), key=lambda i: (sign * self.values[i], ties[i]))
        return [self.heads[i] for i in order]

    def ties(self) -> tuple[int, ...]:
        """Returns for each head its rank among heads of equal score."""
        return hashed_tie_ranks(self.heads, self.seed)

    def head_indices_of_units(self) -> tuple[tuple[int, ...], ...]:
        """Returns the units by the indices of their heads."""
        index = {head: i for i, head in enumerate(self.heads)}
        return tuple(tuple(index[head] for head in unit) for unit in self.all_units())

    def blocks(self) -> dict[str, list[int]]:
        """Returns the indices of the heads of each block, by the block's address (`L3`, `cross.L3`)."""
        by_block: dict[str, list[int]] = {}
        for i, head in enumerate(self.heads):
            by_block.setdefault(str(head).rpartition("H")[0], []).append(i)
        return by_block

    def grid(self) -> tuple[list[str], Float[np.ndarray, "blocks heads"]]:
        """Returns block addresses and an array [blocks, heads] by original head number, NaN for removed heads."""
        blocks = self.blocks()
        width = max((head.index + 1 for head in self.heads), default=0)
        table = np.full((len(blocks), width), np.nan)
        for row, positions in enumerate(blocks.values()):
            for i in positions:
                table[row, self.heads[i].index] = self.values[i]
        return list(blocks), table

    @property
    def label(self) -> str:
        """The method and the normalisation of its scores."""
        return f"{self.method or 'scores'} ({SCALED[self.normalise]})" if self.normalise != "none" else self.method or "scores"

    def heads_within_rounding(self) -> tuple[Head, ...]:
        """Returns the heads whose rounding error exceeds the standard error of their score; none if rounding was not measured."""
        pairs = zip(self.heads, self.columns.get(ROUNDING, ()), self.stderr, strict=False)
        return tuple(head for head, rounding, error in pairs if rounding > error)

    def normalise_by(self, scaling: Scaling) -> Scores:
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
        centre, scale = self._centres_and_divisors(values, scaling)
        stderr = tuple((np.asarray(self.stderr) / scale).tolist()) if self.stderr else ()
        rounding = {name: tuple((np.asarray(self.columns[name]) / scale).tolist()) for name in (ROUNDING,) if name in self.columns}
        columns = {**self.columns, **rounding}
        scaled = replace(self, values=tuple(((values - centre) / scale).tolist()), stderr=stderr, normalise=scaling, columns=columns)
        samples = scaled.scaled_samples() if stderr else None
        return scaled if samples is None else replace(scaled, stderr=tuple(samples.stderr().tolist()))

    def _centres_and_divisors(self, values: np.ndarray, scaling: Scaling) -> tuple[np.ndarray, np.ndarray]:
        """Returns what is subtracted from `values` [..., heads] and what the difference is divided by: 1 where a block has norm or deviation 0."""
        centre, scale = np.zeros_like(values), np.ones_like(values)
        if scaling == "none":
            return centre, scale
        for positions in self._positions_scaled_together(scaling):
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
        centre, scale = self._centres_and_divisors(means, self.normalise)
        values, total = (means - centre) / scale, weights.sum(0)
        shift = self.samples.residuals() / total  # [groups, heads]: how far a group moves each mean
        for positions in self._positions_scaled_together(self.normalise):
            part, own = shift[:, positions], values[positions]
            along = (part @ own)[:, None] * own
            if self.normalise == "standard":
                along = along / len(positions) + part.mean(axis=1, keepdims=True)
            shift[:, positions] = (part - along) / scale[positions]
        return Samples(values * weights + shift * total, weights, self.samples.n)

    def _positions_scaled_together(self, scaling: Scaling) -> list[list[int]]:
        """Returns the indices of the heads that are normalised together."""
        return [list(range(len(self.heads)))] if scaling == "global" else list(self.blocks().values())

    def intervals(self, level: float = 0.95) -> list[ScoreInterval | None]:
        """Returns the interval of every score by the t statistic with Hall's transform, which corrects for skewness, and the p-value of 0.

        It is None where the score reads no data, and where the examples are too few or too skewed for it (`stats.means.are_too_few_or_skewed`).
        """
        samples = self.scaled_samples()
        if samples is None or samples.drop_empty_groups().n_groups < 2:
            return [None] * len(self.heads)
        is_plain = self.damage is not None and self.normalise == "none"
        values = np.asarray(self.damage.losses, dtype=np.float64) if is_plain and self.damage is not None else samples.group_pseudovalues()
        rows: list[ScoreInterval | None] = []
        for column in values.T:
            mean = mean_interval(column, level=level)
            if mean.low is None or mean.high is None or mean.p is None:
                rows.append(None)
            else:
                rows.append(ScoreInterval(mean.low, mean.high, mean.p))
        return rows

    def judge_heads(self, tolerance: str | float | Tolerance = TOLERANCE, *, level: float = 0.95) -> HeadVerdicts:
        """Returns for every head how much removing it alone costs at most, and whether that is safe; see `core.damage`.

        Args:
            tolerance: What a safe head costs at most on average: nats of loss (0.02), or points of right answers ("0.5pt").
            level: The confidence.

        Raises:
            PlanError: the method does not measure what is lost, or it was measured on a split that verdicts must not rest on.

        Example:
            >>> verdicts = hc.score(model, task, "ablation", split="report").judge_heads()  # doctest: +SKIP
        """
        if self.damage is None:
            raise PlanError(f"{self.method or 'this table'} does not say what each example loses without a head; score by ablation")
        split = self.conditions.get("split") or "report"
        if split != "report":
            raise PlanError(f"these scores were taken on the {split} split, which rankings rest on; judge those of split='report'")
        return judge_damage(self.heads, self.damage, tolerance=tolerance, level=level, method=self.method)

    def replicates(self, repeats: int = 2000, seed: int = 0) -> Float[np.ndarray, "repeats heads"]:
        """Returns bootstrap scores [repeats, heads] with the same normalisation."""
        if self.samples is None:
            raise PlanError(f"{self.method} has no samples to resample: it reads no data, or comes from a file without them")
        replicates = bootstrap_scores(self.samples, repeats=repeats, seed=seed)
        centre, scale = self._centres_and_divisors(replicates, self.normalise)
        return (replicates - centre) / scale

    def to_pandas(self) -> DataFrame:
        """Returns a table with one row per head: address, score, standard error, rank and further columns."""
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
        """Returns a coloured grid of blocks by heads, for notebooks."""
        names, values = self.grid()
        way = "more" if self.higher_is_keep else "less"
        rounding = f", rounding moves scores by up to {max(self.columns[ROUNDING]):.2g}" if ROUNDING in self.columns else ""
        return notebook.html_grid(names, values.tolist(), f"{self.label}: {way} means keep, {self.n_examples} examples{rounding}")


RUN_COLUMNS = frozenset({"method", "head", "stack", "layer", "index", "score", "stderr", "rank"})
"""The columns of the tables that runs write; rank 1 is the head to keep first."""


def _select_method(path: Path, columns: Sequence[str], rows: list[LocatedRow], only_method: str | None) -> tuple[str, list[LocatedRow]]:
    """Returns the name of the method and its rows."""
    if "method" not in columns:
        if only_method is not None:
            raise ArtifactError(f"{path} has no column 'method' in which {only_method!r:.60} could be; name no method")
        return "", rows
    names = list(dict.fromkeys(str(row.get("method")) for _, row in rows))
    if only_method is None and len(names) > 1:
        raise ArtifactError(f"{path} holds scores by {', '.join(names)[:300]}; choose one, such as only_method={names[0]!r:.40}")
    chosen = names[0] if only_method is None else only_method
    if chosen not in names:
        raise unknown_name_error(f"method in {path}", chosen, [name[:60] for name in names[:50]])
    return chosen, [(location, row) for location, row in rows if str(row.get("method")) == chosen]


def _parse_heads(rows: list[LocatedRow]) -> tuple[Head, ...]:
    locations: dict[Head, str] = {}
    for location, row in rows:
        try:
            head = Head.parse(row.get("head"))  # pyright: ignore[reportArgumentType]
        except HeadNameError as error:
            raise ArtifactError(f"{location}: {error}") from error
        if head in locations:
            raise ArtifactError(f"{location}: {head} comes twice, first in {locations[head]}; write one row for each head")
        locations[head] = location
    return tuple(locations)


def _parse_column(rows: list[LocatedRow], column: str) -> tuple[float, ...]:
    values = [parse_optional_number(location, column, row.get(column)) for location, row in rows]
    if None in values:
        location = rows[values.index(None)][0]
        raise ArtifactError(f"{location}: the {column} is missing; a ranking needs a finite number for every head")
    return tuple(value for value in values if value is not None)


def _parse_stderr(rows: list[LocatedRow]) -> tuple[float, ...]:
    """Returns the standard errors; empty if the table has none."""
    if all(parse_optional_number(location, "stderr", row.get("stderr")) is None for location, row in rows):
        return ()
    errors = _parse_column(rows, "stderr")
    bad = next((i for i, value in enumerate(errors) if value < 0), None)
    if bad is not None:
        raise ArtifactError(f"{rows[bad][0]}: the stderr is {errors[bad]}; a standard error is 0 or more")
    return errors


def _parse_scaling(path: Path, rows: list[LocatedRow]) -> Scaling:
    """Returns the normalisation of a table's scores, by its column `normalise`."""
    names = {str(row.get("normalise") or "none") for _, row in rows} or {"none"}
    for scaling in SCALED:
        if names == {scaling}:
            return scaling
    raise ArtifactError(
        f"{path}: the column 'normalise' must hold one of {', '.join(SCALED)} for all heads, got {', '.join(sorted(names))[:80]}"
    )


def _infer_higher_is_keep(path: Path, columns: Sequence[str], rows: list[LocatedRow], values: Sequence[float]) -> bool:
    """Returns whether more means keep: by the ranks in a table that a run wrote, else True."""
    if not RUN_COLUMNS.issubset(columns):
        return True
    ranks = _parse_column(rows, "rank")
    ordered = [value for _, value in sorted(zip(ranks, values, strict=True), key=lambda pair: pair[0])]
    if ordered == sorted(values, reverse=True):
        return True
    if ordered == sorted(values):
        return False
    raise ArtifactError(
        f"{path}: ranks and scores contradict each other; the table was edited. Remove the column 'rank', or write it again"
    )
