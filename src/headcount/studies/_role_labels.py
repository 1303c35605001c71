"""The roles of a model by what the definition judges by: the sieve bias, or the share of tokens whose strongest key shows the role. No torch here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from headcount.core.figure import Axis, BarFigure, Bars
from headcount.core.study_result import Cell, Column, Table, interval_columns
from headcount.studies._parts import Part

if TYPE_CHECKING:
    from headcount.core.definition import Definition
    from headcount.core.role_table import BestHead, RoleScore, RoleTable

ABOVE_TAU, AT_THRESHOLD, WITH_ROLE = "heads with bias above τ", "heads that reach the threshold", "heads with the role"
MOST_ROLES = 36
"""Roles that a figure has room for; those with the most heads or the largest bias are drawn."""
CHOSEN_ON_HALF = "the most accurate head is chosen on one half of the sentences, and its numbers are those of the other"
KEYS = "its strongest keys"
"""The share of tokens whose strongest key shows the role."""
_BIAS_COLUMNS = (
    Column("strongest head"),
    *interval_columns("its bias", ".2f"),
    Column("largest possible", "bias", ".2f"),
    Column(ABOVE_TAU),
)
_ACCURACY_COLUMNS = (
    Column("most accurate head"),
    *interval_columns(KEYS, ".1%", "share of tokens"),
    Column("threshold", format=".1%"),
    Column("best offset"),
    Column("of the best offset", format=".1%"),
    Column("of a random key", format=".1%"),
    Column(AT_THRESHOLD),
)


class RoleSummary(NamedTuple):
    """How many sentences show a role, the head that shows it most, and the cells of the role's row that are about the criterion."""

    n_sentences: int
    best_head: str | None
    cells: tuple[Cell, ...]


class DrawnRoles(NamedTuple):
    """The roles that a figure has room for, and the note that says how many others there are; empty if there are none."""

    roles: tuple[str, ...]
    note: str


def build_role_table(rows: Sequence[RoleScore], best_heads: Sequence[BestHead], definition: Definition) -> Table:
    """Returns a row for every role with what the definition judges by: the sieve bias, or else the share of the strongest keys."""
    by_bias, best_of_role = is_judged_by_bias(rows, definition), {best.role: best for best in best_heads}
    columns, note = (_BIAS_COLUMNS, "") if by_bias else (_ACCURACY_COLUMNS, f"; {CHOSEN_ON_HALF}")
    cells = []
    for role in dict.fromkeys(row.role for row in rows):
        of_role = [row for row in rows if row.role == role]
        summary = (
            _summarize_by_bias(of_role, definition) if by_bias else _summarize_by_accuracy(of_role, best_of_role.get(role), definition)
        )
        n_with_role = sum(row.has_role for row in of_role)
        cells.append((role, definition.family_of(role), len(of_role), summary.n_sentences, summary.best_head, *summary.cells, n_with_role))
    columns = (Column("role"), Column("family"), Column("heads tested"), Column("sentences"), *columns, Column(WITH_ROLE))
    return Table("roles", columns, tuple(cells), f"Roles by {definition}; intervals of 95 % over sentences{note}")


def is_judged_by_bias(rows: Sequence[RoleScore], definition: Definition) -> bool:
    """Whether the sieve bias decides about these roles."""
    return all(definition.accuracy_threshold(row) is None for row in rows)


def _summarize_by_bias(rows_of_role: Sequence[RoleScore], definition: Definition) -> RoleSummary:
    """Returns the head of the largest bias, and its numbers."""
    top = max(rows_of_role, key=lambda row: row.bias)
    n_above_tau = sum(row.bias > definition.tested_bias for row in rows_of_role)
    return RoleSummary(top.n_sentences, str(top.head), (top.bias, top.low, top.high, top.maximum, n_above_tau))


def _summarize_by_accuracy(rows_of_role: Sequence[RoleScore], best: BestHead | None, definition: Definition) -> RoleSummary:
    """Returns the head whose strongest key is in the sieve most often on one half of the sentences, and its numbers on the other.

    Without enough sentences in both halves there are none.
    """
    n_at_threshold = sum(row.accuracy >= _accuracy_threshold_or_one(row, definition) for row in rows_of_role)
    if best is None:
        return RoleSummary(max(row.n_sentences for row in rows_of_role), None, (*[None] * 7, n_at_threshold))
    (row,) = (row for row in rows_of_role if row.head == best.head)
    measured = replace(row, baseline=best.baseline, chance=best.chance)
    numbers = (best.accuracy, best.accuracy_low, best.accuracy_high, _accuracy_threshold_or_one(measured, definition))
    cells = (*numbers, f"{best.baseline_offset:+d}", best.baseline, best.chance, n_at_threshold)
    return RoleSummary(best.n_sentences, str(best.head), cells)


def _accuracy_threshold_or_one(row: RoleScore, definition: Definition) -> float:
    threshold = definition.accuracy_threshold(row)
    return 1.0 if threshold is None else threshold


def choose_roles_to_draw(size_by_role: Mapping[str, float], criterion: str) -> DrawnRoles:
    """Returns the roles that a figure has room for, in their order, and the note that says which others there are."""
    largest = sorted(size_by_role, key=lambda role: -size_by_role[role])[:MOST_ROLES]
    n_left = len(size_by_role) - len(largest)
    note = f"The {len(largest)} roles with the {criterion}; {n_left} further ones are in the table." if n_left else ""
    return DrawnRoles(tuple(role for role in size_by_role if role in largest), note)


def build_labels_part(role_table: Table, head_table: Table, definition: Definition, scores_by_head_and_role: RoleTable) -> Part:
    """Returns how many heads have each role, and where strongest keys decide the best head of each beside its threshold."""
    is_of_bias = ABOVE_TAU in [column.name for column in role_table.columns]
    names = (ABOVE_TAU if is_of_bias else AT_THRESHOLD, WITH_ROLE)
    numbers = {str(record["role"]): tuple(float(record[name] or 0) for name in names) for record in role_table.records()}
    chosen, note = choose_roles_to_draw({role: max(pair) for role, pair in numbers.items() if any(pair)}, "most heads")
    n_empty = sum(not any(pair) for pair in numbers.values())
    notes = [f"{n_empty} roles that no head has are left out."] if n_empty else []
    counts = BarFigure(
        name="labels",
        title=f"Heads that have each role, by {definition}",
        x=Axis("role"),
        y=Axis("heads", is_count=True),
        table="roles",
        n=len(scores_by_head_and_role.heads),
        n_unit="heads",
        note=" ".join([*notes, *([note] if note else [])]),
        categories=chosen,
        bars=tuple(Bars(name, tuple(numbers[role][at] for role in chosen)) for at, name in enumerate(names)),
        is_horizontal=True,
    )
    n_labelled = sum(any(definition.family_of(role) for role in labels) for labels in scores_by_head_and_role.labels().values())
    sentence = f"{n_labelled} of {len(scores_by_head_and_role.heads)} heads have a role of {definition}."
    measured = () if is_of_bias else tuple(record for record in role_table.records() if record[KEYS] is not None)
    if not measured:
        return Part((role_table, head_table), (counts,), sentence)
    return Part((role_table, head_table), (_accuracy_figure(measured, definition), counts), f"{sentence} {_accuracy_sentence(measured)}")


def _accuracy_figure(measured_roles: Sequence[Mapping[str, Cell]], definition: Definition) -> BarFigure:
    """Returns the most accurate head of every role beside the threshold that it must reach."""
    leads = {str(record["role"]): float(record[KEYS] or 0) - float(record["threshold"] or 0) for record in measured_roles}
    chosen, note = choose_roles_to_draw(leads, "largest lead over the threshold")
    records = [record for record in measured_roles if record["role"] in chosen]
    shares, low, high, thresholds = (
        tuple(float(record[name] or 0) for record in records) for name in (KEYS, f"{KEYS} low", f"{KEYS} high", "threshold")
    )
    sizes = [int(record["sentences"] or 0) for record in records]
    return BarFigure(
        name="strongest keys",
        title=f"Share of tokens whose strongest key shows the role, and the share that a role of {definition} needs",
        x=Axis("role"),
        y=Axis("share of tokens", is_share=True),
        table="roles",
        n=max(sizes, default=None),
        n_unit="sentences at most",
        note=f"{CHOSEN_ON_HALF.capitalize()}. {note}".strip(),
        categories=tuple(str(record["role"]) for record in records),
        bars=(Bars("most accurate head", shares, low, high), Bars("threshold", thresholds)),
        is_horizontal=True,
    )


def _accuracy_sentence(measured_roles: Sequence[Mapping[str, Cell]]) -> str:
    """Returns by family which head comes nearest to its threshold, or exceeds it most."""
    best: dict[Cell, dict[str, Cell]] = {}
    for record in measured_roles:
        lead = float(record[KEYS] or 0) - float(record["threshold"] or 0)
        if record["family"] not in best or lead > float(best[record["family"]]["lead"] or 0):
            best[record["family"]] = {**record, "lead": lead}
    parts = [
        f"{family} {record['most accurate head']} with {record['role']}, {record[KEYS]:.0%} against {record['threshold']:.0%}"
        for family, record in best.items()
    ]
    return f"Strongest keys against their threshold, best of each family: {'; '.join(parts)}."
