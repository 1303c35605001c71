"""Rows and columns that studies of pruned models share. No torch here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Literal

from headcount.core.study_result import Cell, Column, interval_columns
from headcount.studies._base import SIGNIFICANT

if TYPE_CHECKING:
    from headcount.core.evaluation import Evaluation, PairedDifference
    from headcount.core.stats.seed_scores import SeedScores


def describe_better_and_worse(differences_and_q: Sequence[tuple[float | None, float | None]], *, higher_is_better: bool) -> str:
    """Returns at how many sizes something is better, and at how many worse: `better at 5 of 9 sizes, worse at 2, undecided at 2`.

    What is not significant is undecided: it is not shown to be equal.

    Args:
        differences_and_q: The difference and its corrected p-value at every size.
        higher_is_better: Whether more of what is measured is better.
    """
    signs = [
        (difference > 0) == higher_is_better
        for difference, q in differences_and_q
        if difference is not None and q is not None and q <= SIGNIFICANT
    ]
    n_undecided = len(differences_and_q) - len(signs)
    worse = f", worse at {signs.count(False)}" if False in signs else ""
    undecided = f", undecided at {n_undecided}" if n_undecided else ""
    return f"better at {signs.count(True)} of {len(differences_and_q)} sizes{worse}{undecided}"


def describe_undecided(n_shown: int, n_tested: int) -> str:
    """Returns what follows for those of which no difference was shown: `; the other 3 are undecided`. Nothing where there are none."""
    n_undecided = n_tested - n_shown
    if n_undecided == 0:
        return ""
    if n_shown == 0:
        return f"; {'it is' if n_tested == 1 else f'all {n_tested} are'} undecided"
    return f"; {'the other one is' if n_undecided == 1 else f'the other {n_undecided} are'} undecided"


@dataclass(frozen=True, slots=True, kw_only=True)
class DifferenceRow:
    """A row with a difference between two models on the same examples; `q` is its p-value, corrected over the table."""

    change: PairedDifference
    q: float | None = None

    @property
    def p(self) -> float | None:
        """The p-value of no difference; None where nothing was tested."""
        return self.change.p

    def to_dict(self) -> dict[str, object]:
        """Returns the row as plain data, with the parts of differences and of scores over seeds as entries of their own."""
        from headcount.core.evaluation import PairedDifference  # imports numpy, which options do without
        from headcount.core.stats.means import MeanDifference
        from headcount.core.stats.seed_scores import SeedScores
        from headcount.core.stats.significance import Difference

        values: dict[str, object] = {}
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, PairedDifference | Difference | MeanDifference):
                values[field.name] = value.difference
                values |= {f"{field.name}_{part}": getattr(value, part) for part in ("low", "high", "p")}
            elif isinstance(value, SeedScores):
                values |= {part.name: getattr(value, part.name) for part in fields(value)}
            else:
                values[field.name] = value
        return values


@dataclass(frozen=True, slots=True, kw_only=True)
class SizeRow(DifferenceRow):
    """A pruned model at one number of heads, over seeds, and its difference from the dense model."""

    n_kept: int
    scores: SeedScores


@dataclass(frozen=True, slots=True, kw_only=True)
class ControlledRow(SizeRow):
    """A pruned model that is tested against random heads; `against_random` is None for these."""

    against_random: PairedDifference | None

    @property
    def p(self) -> float | None:
        """The p-value of no difference from random heads; None for these."""
        return None if self.against_random is None else self.against_random.p


def is_significant(q: float | None) -> bool:
    """Whether a corrected p-value is at most 5 %; False where nothing was tested."""
    return q is not None and q <= SIGNIFICANT


def format_significance(name: Literal["p", "q"], value: float | None) -> str:
    """Returns a p- or q-value in words, such as `q = 0.03`; where there is none, that the examples are too thin for it."""
    return f"no {name}: too few or too skewed examples" if value is None else f"{name} = {value:.2g}"


def difference_with_interval(change: PairedDifference | None) -> tuple[float | None, float | None, float | None]:
    """Returns a difference with the ends of its interval; None for all three where there is none."""
    return (None, None, None) if change is None else (change.difference, change.low, change.high)


def seed_columns(metric_name: str) -> tuple[Column, ...]:
    """Returns the columns of `seed_cells`."""
    return Column("seeds"), *interval_columns(metric_name, ".4g"), Column("sd", format=".2g")


def seed_cells(scores: SeedScores) -> tuple[Cell, ...]:
    """Returns the scores of a model over seeds as cells of a table."""
    return scores.n_seeds, scores.mean, scores.low, scores.high, scores.deviation


def controlled_columns(metric_name: str) -> tuple[Column, ...]:
    """Returns the columns of `controlled_cells`."""
    return (
        Column("steps"),
        *seed_columns(metric_name),
        *interval_columns("against the dense model", "+.3g", metric_name),
        *interval_columns("against random", "+.3g", metric_name),
        Column("p", format=".2g"),
        Column("q", format=".2g"),
    )


def controlled_cells(row: ControlledRow) -> tuple[Cell, ...]:
    """Returns the score of a model over seeds, and its differences from the dense model and from random heads."""
    return (
        row.scores.steps,
        *seed_cells(row.scores),
        *difference_with_interval(row.change),
        *difference_with_interval(row.against_random),
        row.p,
        row.q,
    )


def choose_kinds_to_show(heads_by_kind_of_rows: Sequence[Mapping[str, float]]) -> list[str]:
    """Returns the kinds of attention that need columns of their own: all of them, or none where there is one kind."""
    kinds = list(dict.fromkeys(kind for by_kind in heads_by_kind_of_rows for kind in by_kind))
    return kinds if len(kinds) > 1 else []


def kept_heads_columns(kinds: Sequence[str]) -> tuple[Column, ...]:
    """Returns a column for the heads of each kind of attention that stay."""
    return tuple(Column(f"{kind} heads", format=".3g") for kind in kinds)


def dense_scores_to_dict(dense: Evaluation) -> dict[str, object]:
    """Returns the loss and the metric of the dense model as plain data."""
    return {"loss": dense.loss, "metric": dense.metric, "value": dense.value}


def dense_sentence(dense: Evaluation, condition: str = "") -> str:
    """Returns the sentence about the score of the dense model."""
    return f"Dense model{condition}: {dense.metric or 'loss'} {dense.score:.4g} on {dense.n_examples} examples."
