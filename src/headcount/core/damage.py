"""Damage: what removing one head does to every example, and the verdict on each head removed alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from math import ceil
from typing import Any, Literal, Self

import numpy as np
from jaxtyping import Float
from numpy.typing import ArrayLike, NDArray

from headcount.core.errors import DataError, OptionError
from headcount.core.heads import Head
from headcount.core.stats.betting import fewest_zeros_to_refute, p_value_of_mean_at_least, upper_bound_of_mean
from headcount.core.stats.samples import error_probability
from headcount.core.stats.significance import benjamini_hochberg
from headcount.core.tolerance import TOLERANCE, Tolerance

LEVEL = 0.95
FEWEST_DOCUMENTS = 30
"""With fewer documents there is no verdict."""


@dataclass(frozen=True, slots=True, eq=False)
class Damage:
    """What removing one head does to every example; examples are in the order of the hashes of their content.

    Attributes:
        losses: By how much the loss of each example rises, [examples, heads], float32.
        answers: 1 where the answer turns wrong, −1 where it turns right, else 0, [examples, heads]; None where answers are not right or wrong.
        documents: The number of the document of each example; None where the data name no documents.
    """

    losses: NDArray[np.float32]
    answers: NDArray[np.int8] | None = None
    documents: NDArray[np.int64] | None = None

    def __post_init__(self) -> None:
        for part in (self.answers, self.documents):
            if part is not None and len(part) != len(self.losses):
                raise DataError(f"damage is of {len(self.losses)} examples, but answers or documents are of {len(part)}")

    @classmethod
    def in_hash_order(
        cls,
        hashes: Sequence[bytes],
        loss_rises: ArrayLike,
        answer_changes: ArrayLike | None = None,
        documents: ArrayLike | None = None,
    ) -> Self:
        """Returns the damage of examples with these content hashes, in their order."""
        order = sorted(range(len(hashes)), key=lambda number: hashes[number])
        return cls(
            np.asarray(loss_rises, dtype=np.float32)[order],
            None if answer_changes is None else np.asarray(answer_changes).astype(np.int8)[order],
            None if documents is None else np.asarray(documents, dtype=np.int64)[order],
        )

    @property
    def n_documents(self) -> int | None:
        """The number of documents; None where the data name none."""
        return None if self.documents is None else len(np.unique(self.documents))

    @property
    def document_sizes(self) -> Float[np.ndarray, " documents"] | None:
        """How many examples each document has, in the order of `clipped_damage`: its weight in a mean over examples; None without documents."""
        if self.documents is None:
            return None
        _, first, sizes = np.unique(self.documents, return_index=True, return_counts=True)
        return sizes[np.argsort(first)].astype(float)

    def clipped_damage(self, tolerance: Tolerance) -> Float[np.ndarray, "examples_or_documents heads"]:
        """Returns what the gamblers bet on, in the unit of the tolerance: the clipped damage of every example, or its mean over every document.

        Raises:
            OptionError: the tolerance is in points, but answers are not right or wrong.
        """
        if tolerance.unit == "points" and self.answers is None:
            raise OptionError("a tolerance in points needs a task whose answers are right or wrong; give it in nats of loss, such as 0.02")
        values = self.losses if tolerance.unit == "nats" else self.answers
        clipped = np.clip(np.asarray(values, dtype=np.float64), -tolerance.clip, tolerance.clip)
        if self.documents is None:
            return clipped
        _, first, numbers = np.unique(self.documents, return_index=True, return_inverse=True)
        sums = np.zeros((len(first), clipped.shape[1]))
        np.add.at(sums, numbers, clipped)
        return (sums / np.bincount(numbers)[:, None])[np.argsort(first)]


@dataclass(frozen=True, slots=True)
class HeadVerdict:
    """What removing one head alone costs: the mean clipped damage, its upper bound, and whether it is safe.

    Attributes:
        head: The head.
        cost: The mean clipped damage that was observed.
        bound: How much it costs at most, on average, at the confidence of one head.
        p: The p-value of costing the tolerance or more.
        q: The same, corrected over heads (Benjamini–Hochberg).
        safe: Whether q is small enough to call the head safe; None where the examples are too few for any verdict.
    """

    head: Head
    cost: float
    bound: float
    p: float
    q: float
    safe: bool | None


@dataclass(frozen=True, slots=True)
class HeadVerdicts:
    """The verdicts on all heads, each removed alone: they say nothing about several heads removed together.

    Attributes:
        method: The ablation that was measured.
        rows: One verdict per head.
        tolerance: How much a safe head may cost.
        level: The confidence of the bounds, and one less the rate of false verdicts.
        n_examples: How many examples were read.
        n_documents: How many documents they come from; None where the data name none.
        n_needed: With fewer examples (or documents) there is no verdict, even if no example changes.
        n_enough: With so many, a head that changes no example is safe whatever the other heads do.
        reason: Why there is no verdict; empty where there is.
    """

    method: str
    rows: tuple[HeadVerdict, ...]
    tolerance: Tolerance
    level: float
    n_examples: int
    n_documents: int | None
    n_needed: int
    n_enough: int
    reason: str = ""

    def __getitem__(self, head: str | Head) -> HeadVerdict:
        address = Head.parse(head)
        return next(row for row in self.rows if row.head == address)

    @property
    def safe_heads(self) -> tuple[Head, ...]:
        """The heads marked safe, each when it is removed alone."""
        return tuple(row.head for row in self.rows if row.safe)

    @property
    def n_examples_or_documents(self) -> int:
        """How many examples, or documents, were bet on."""
        return self.n_examples if self.n_documents is None else self.n_documents

    @property
    def unit_name(self) -> Literal["examples", "documents"]:
        """What was bet on: examples, or documents."""
        return "examples" if self.n_documents is None else "documents"

    @property
    def n_missing_for_harmless_head(self) -> int:
        """How many examples or documents are missing for a head that changes nothing to be safe whatever the other heads do."""
        return max(0, self.n_enough - self.n_examples_or_documents)

    def to_dict(self) -> dict[str, Any]:
        """Returns the verdicts as plain data."""
        rows = [{**asdict(row), "head": str(row.head)} for row in self.rows]
        return {**asdict(self), "rows": rows, "clip": self.tolerance.clip}


def examples_needed_for_harmless_head(n_heads: int, tolerance: Tolerance | None = None, level: float = LEVEL) -> int:
    """Returns how many examples a head that changes none of them needs to be safe, whatever the other heads do."""
    size = tolerance or Tolerance.parse(TOLERANCE)
    return fewest_zeros_to_refute(size.size, size.clip, error_probability(level) / max(1, n_heads))


def judge_damage(
    heads: Sequence[Head], damage: Damage, *, tolerance: str | float | Tolerance, level: float = LEVEL, method: str = ""
) -> HeadVerdicts:
    """Returns for every head how much removing it alone costs at most, and whether that is within the tolerance.

    Bounds and p-values come from betting on the clipped damage (`stats.betting`), which holds for every distribution within the clip, also where rare
    harm was not drawn. Where there are documents, their means are bet on in proportion to their sizes, so that the mean is one over examples.
    p-values are corrected over heads by Benjamini–Hochberg.

    Raises:
        OptionError: the tolerance is out of range, or in points where answers are not right or wrong.
    """
    size = Tolerance.parse(tolerance)
    values, weights = damage.clipped_damage(size), damage.document_sizes
    p = p_value_of_mean_at_least(values, size.size, size.clip, weights)
    bounds, costs = upper_bound_of_mean(values, size.clip, level, weights), np.average(values, axis=0, weights=weights)
    q, n_needed = benjamini_hochberg(p), fewest_zeros_to_refute(size.size, size.clip, error_probability(level))
    unit_name = "examples" if damage.documents is None else "documents"
    few_documents = FEWEST_DOCUMENTS if damage.documents is not None else 0
    least = max(n_needed, few_documents)
    share_laid = 1.0 if weights is None else float(weights.mean() / weights.max())  # a document smaller than the largest gets a smaller bet
    reason = "" if len(values) >= least else f"a verdict needs at least {least} {unit_name}; there are {len(values)}"
    safe = [None if reason else bool(each <= error_probability(level)) for each in q]
    rows = zip(heads, costs.tolist(), bounds.tolist(), p.tolist(), q.tolist(), safe, strict=True)
    return HeadVerdicts(
        method=method,
        rows=tuple(HeadVerdict(*row) for row in rows),
        tolerance=size,
        level=level,
        n_examples=len(damage.losses),
        n_documents=damage.n_documents,
        n_needed=least,
        n_enough=max(least, ceil(examples_needed_for_harmless_head(len(heads), size, level) / share_laid)),
        reason=reason,
    )
