"""The most accurate head of every dependency relation against the best fixed offset, both chosen on one half of the sentences."""

from __future__ import annotations

from dataclasses import dataclass

from headcount.core.errors import DataError
from headcount.core.heads import Head
from headcount.core.role_table import MARGIN, RoleTable
from headcount.core.stats.corrected_rows import add_q_values
from headcount.studies._base import StudyContext
from headcount.studies._measure.role_tables import measure_role_table

SYNTAX, BACK = "syntax:", "-of"
DIRECTIONS = {False: "dependent → governor", True: "governor → dependent"}


@dataclass(frozen=True, slots=True)
class RelationRow:
    """One relation in one direction: the best head and the best offset of one half of the sentences, measured on the other; p of equal accuracy."""

    relation: str
    direction: str
    head: Head
    accuracy: float
    low: float
    high: float
    baseline: float
    offset: int
    chance: float
    n_tokens: int
    n_sentences: int
    p: float
    q: float | None = None

    @property
    def is_syntactic(self) -> bool:
        """Whether the head is 10 points more accurate than the best offset, as published."""
        return self.accuracy >= self.baseline + MARGIN


def measure_relations(context: StudyContext, study_name: str, max_sentences: int | None) -> list[RelationRow]:
    """Measures the best head of every relation of the text of a study.

    Raises:
        DataError: the text has no dependency trees, or no relation occurs in both halves of it.
    """
    table = measure_role_table(context, study_name, "voita2019", max_sentences)
    rows = list_best_heads_by_relation(table)
    if not rows:
        reason = table.untested.get("syntax", "no relation occurs often enough in both halves of the sentences")
        raise DataError(f"relations cannot be measured on this text: {reason}; use a CoNLL-U file, or a parser")
    return rows


def list_best_heads_by_relation(table: RoleTable) -> list[RelationRow]:
    """Returns the best head of every relation and direction, in the order of the table; q is corrected over all."""
    rows = []
    for best in table.best_heads:
        if best.role.startswith(SYNTAX):
            name = best.role.removeprefix(SYNTAX)
            ends = (best.accuracy, best.accuracy_low, best.accuracy_high)
            against = (best.baseline, best.baseline_offset, best.chance, best.n_tokens, best.n_sentences, best.p)
            rows.append(RelationRow(name.removesuffix(BACK), DIRECTIONS[name.endswith(BACK)], best.head, *ends, *against))
    return add_q_values(rows)
