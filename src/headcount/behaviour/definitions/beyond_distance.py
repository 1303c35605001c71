from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass, replace

import numpy as np

from headcount.behaviour.definitions.pande2021 import Pande2021
from headcount.core.definition import TAU, Definition, DefinitionInfo
from headcount.core.errors import ArtifactError
from headcount.core.options import option
from headcount.core.role_table import ALPHA, MIN_SENTENCES, RoleScore, RoleTable
from headcount.core.stats.significance import benjamini_hochberg
from headcount.core.twin_score import MIN_EXCESS, excess_p_values


@dataclass(frozen=True)
class BeyondDistance(Definition):
    """A head has a role of content if it attends to the sieve more than its distance twin does: H0 excess mass ≤ 0.05.

    The distance twin attends by offset alone, fitted to the head on pairs outside the sieve. p is of a one-sided t-test with the jackknife over 20
    folds of sentences, corrected by Benjamini-Hochberg over heads × roles of content. Roles of position (offset, local, near, diagonal, row, column,
    segment, delimiter, sink) are labels by pande2021(correct=bh): a bias above τ.
    """

    _: KW_ONLY
    excess: float = option(MIN_EXCESS, "The excess mass that a head must exceed for a role of content", minimum=0, below=1)
    alpha: float = option(ALPHA, "The level of the tests, after correction", above=0, below=1)
    tau: float = option(TAU, "The bias that a head must exceed for a role of position", minimum=0)
    info = DefinitionInfo(source="headcount", families=Pande2021.info.families)

    @property
    def tested_bias(self) -> float:
        """The bias that a head must exceed for a role of position."""
        return self.tau

    def relabel(self, table: RoleTable) -> RoleTable:
        """Returns the table with p-values and labels by this rule.

        Raises:
            ArtifactError: the table is of a version without distance twins.
        """
        if any(row.is_content is None or row.skewness is None for row in table.rows):
            raise ArtifactError("these roles were measured by an older version, without distance twins; measure them again")
        by_bias = Pande2021(tau=self.tau, alpha=self.alpha, correct="bh")
        rows: dict[int, RoleScore] = {}
        for is_content in (False, True):
            numbers = [number for number, row in enumerate(table.rows) if row.is_content is is_content]
            labelled = by_bias.label_rows([table.rows[number] for number in numbers], permutation_tested_bias=table.tau) if numbers else ()
            rows |= dict(zip(numbers, self._label_content_roles(labelled) if is_content else labelled, strict=True))
        return replace(table, rows=tuple(rows[number] for number in sorted(rows)), tau=self.tau, alpha=self.alpha, definition=str(self))

    def _label_content_roles(self, rows: Sequence[RoleScore]) -> tuple[RoleScore, ...]:
        """Returns rows of content roles with p-values and labels by the excess mass."""
        notes = [_label_obstacle(row) for row in rows]
        excess, stderr = np.array([row.excess for row in rows], dtype=float), np.array([row.excess_stderr for row in rows], dtype=float)
        p = excess_p_values(excess, stderr, np.array([row.n_folds for row in rows]), self.excess)
        can_be_label = np.array([not note for note in notes], dtype=bool)
        q = np.ones_like(p)
        if can_be_label.any():
            q[can_be_label] = benjamini_hochberg(p[can_be_label])
        return tuple(
            replace(row, p=float(p[i]), q=float(q[i]), has_role=bool(can_be_label[i] and q[i] <= self.alpha), note=notes[i])
            for i, row in enumerate(rows)
        )


def _label_obstacle(row: RoleScore) -> str:
    """Returns why a head can have no label for a role of content; empty if it can."""
    if row.n_sentences < MIN_SENTENCES:
        return f"{row.n_sentences} sentences; a label needs {MIN_SENTENCES}"
    if row.excess is not None:
        return ""
    if not row.n_pairs:
        return "not testable: this block's mask is not one of positions, so that no distance twin can be fitted"
    return f"not testable: {row.n_kept_pairs} of {row.n_pairs} pairs are at offsets that also occur often enough outside the sieve"
