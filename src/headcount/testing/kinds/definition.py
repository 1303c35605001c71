"""The laws of definitions of roles."""

from __future__ import annotations

from collections.abc import Set
from dataclasses import fields, replace
from enum import StrEnum
from functools import cache

import headcount as hc
from headcount.core.definition import Definition, DefinitionInfo
from headcount.core.options import Configurable
from headcount.core.registry import DEFINITIONS, ROLES
from headcount.core.role_table import COMPARED_DEFINITIONS, RoleScore, RoleTable
from headcount.data.embedded.sentences import draw_sentences
from headcount.surgery.source import local_folder
from headcount.testing.kinds.declaration import Checks, KindOfMethod, parse_and_check_declaration

N_SENTENCES = 60
ROLES_OF_TABLE = ["local", "offset", "delimiter", "sink", "syntax", "segment", "rare", "pos"]
VERDICTS = frozenset({"has_role", "note", "p", "q", "p_t", "p_permutation", "effect", "attainable", "normalised"})
"""The numbers of a row that a definition decides; all others are measured."""
VERDICTS_OF_TABLE = frozenset({"rows", "tau", "alpha", "definition"})


class DefinitionLaw(StrEnum):
    """The laws of definitions beside those of declarations."""

    LABELS_A_TABLE = "it labels a table"
    FAMILIES_ARE_KNOWN = "the roles of its families are registered"
    LEAVES_THE_TABLE = "the table that it reads stays as it was"
    SAME_ROWS = "it labels the same heads and roles, in their order"
    KEEPS_MEASUREMENTS = "it changes labels and their tests alone, no measurement of a row"
    KEEPS_THE_TABLE = "it changes rows, thresholds and the name of the definition alone, nothing else of the table"
    NAMES_ITSELF = "the table names the definition of its labels"
    IS_IDEMPOTENT = "labelling twice is labelling once"
    FORGETS_OTHER_LABELS = "labels do not depend on the definition before"
    ORDER_DOES_NOT_MATTER = "the order of the rows does not matter"
    IS_MONOTONE = "a label stays where all evidence for it grows"
    FOLLOWS_ITS_THRESHOLD = "where it names a threshold for a role of its families, no head below it has the role"


KIND = KindOfMethod(DEFINITIONS, Definition, DefinitionInfo, Definition.parse, DefinitionLaw)


@cache
def measured_table() -> RoleTable:
    """Returns roles of demo/encoder on the embedded English: some by position, some by content, some that are labels and some that are not."""
    from transformers import AutoTokenizer

    name = "demo/encoder"
    tokenizer = AutoTokenizer.from_pretrained(local_folder(name))
    sentences = draw_sentences("english", N_SENTENCES)
    return hc.roles(hc.load(name).eval(), sentences, tokenizer, only=ROLES_OF_TABLE, swaps=0, progress=False)


def check_definition(definition: str | Configurable, table: RoleTable | None = None) -> None:
    """Raises LawBroken, an AssertionError, unless a definition keeps the laws of definitions on a measured table of roles.

    The laws: it is a frozen dataclass with a docstring, documented options that refuse wrong values, and a complete `info` whose families hold
    registered roles; its text gives it back; `relabel` returns the same heads and roles with other labels and tests, and touches no measurement;
    labelling twice is labelling once, whatever the labels were before and in whatever order the rows stand; a label stays where bias, accuracy and
    excess mass grow; a head
    below the threshold of `accuracy_threshold` has no role of its families.

    Args:
        definition: The definition as an object, or its text, such as "pande2021(tau=2)".
        table: The table that is labelled, by default roles of demo/encoder on the embedded English.

    Example:
        >>> check_definition("pande2021(tau=2)")
    """
    method, checks = parse_and_check_declaration(definition, KIND)
    unknown = [name for name in method.roles_of_families if name.partition(":")[0] not in ROLES.names()]
    checks.require(not unknown, DefinitionLaw.FAMILIES_ARE_KNOWN, f"{', '.join(unknown)} is none")
    table = measured_table() if table is None else table
    before = table.to_dict()
    with checks.require_success(DefinitionLaw.LABELS_A_TABLE):
        labelled = method.relabel(table)
    checks.require(table.to_dict() == before, DefinitionLaw.LEAVES_THE_TABLE, "it wrote into it")
    checks.require(
        [(row.head, row.role) for row in labelled] == [(row.head, row.role) for row in table],
        DefinitionLaw.SAME_ROWS,
        f"{len(table)} rows were measured, the labelled table has {len(labelled)}, or others",
    )
    for row, labelled_row in zip(table, labelled, strict=True):
        changed = _list_changes(row, labelled_row, VERDICTS)
        checks.require(not changed, DefinitionLaw.KEEPS_MEASUREMENTS, f"{', '.join(changed)} of {row.head}, {row.role}")
    changed = _list_changes(table, labelled, VERDICTS_OF_TABLE)
    checks.require(not changed, DefinitionLaw.KEEPS_THE_TABLE, f"it changed {', '.join(changed)}")
    checks.require(labelled.definition == str(method), DefinitionLaw.NAMES_ITSELF, f"it names {labelled.definition}")
    _check_labels(method, table, labelled, checks)


def _list_changes(before: RoleScore | RoleTable, after: RoleScore | RoleTable, verdicts: Set[str]) -> list[str]:
    """Returns the names of the fields that differ, apart from those that a definition decides."""
    names = [field.name for field in fields(before) if field.name not in verdicts]
    return [name for name in names if getattr(before, name) != getattr(after, name)]


def _labels(table: RoleTable) -> set[tuple[str, str]]:
    return {(str(row.head), row.role) for row in table if row.has_role}


def _check_labels(method: Definition, table: RoleTable, labelled: RoleTable, checks: Checks) -> None:
    """Checks what does and does not decide the labels."""

    def require_same_labels(relabelled: RoleTable, law: DefinitionLaw) -> None:
        with checks.require_success(law):
            difference = sorted(_labels(labelled) ^ _labels(method.relabel(relabelled)))
        checks.require(not difference, law, f"{', '.join(' '.join(pair) for pair in difference[:3])} is a label in one case alone")

    require_same_labels(labelled, DefinitionLaw.IS_IDEMPOTENT)
    for earlier_definition in COMPARED_DEFINITIONS:
        require_same_labels(table.relabel(earlier_definition), DefinitionLaw.FORGETS_OTHER_LABELS)
    require_same_labels(replace(table, rows=table.rows[::-1]), DefinitionLaw.ORDER_DOES_NOT_MATTER)
    with checks.require_success(DefinitionLaw.IS_MONOTONE):
        rows = tuple(_with_more_evidence(row) if label.has_role else row for row, label in zip(table, labelled, strict=True))
        lost = sorted(_labels(labelled) - _labels(method.relabel(replace(table, rows=rows))))
    checks.require(not lost, DefinitionLaw.IS_MONOTONE, f"{', '.join(' '.join(pair) for pair in lost[:3])} is lost")
    for row in labelled:
        threshold = method.accuracy_threshold(row) if method.family_of(row.role) else None
        checks.require(
            threshold is None or not row.has_role or row.accuracy >= threshold - 1e-9,
            DefinitionLaw.FOLLOWS_ITS_THRESHOLD,
            f"{row.head} has the role {row.role} with an accuracy of {row.accuracy:.3g}; the threshold is {threshold}",
        )


def _with_more_evidence(row: RoleScore) -> RoleScore:
    """Returns a row with a higher bias, accuracy and excess mass, at the same uncertainty."""
    rise = 0.25 * (row.maximum - row.bias)
    gain = 0.25 * (1 - row.accuracy)
    more = 0.0 if row.excess is None else 0.25 * (1 - row.excess)
    return replace(
        row,
        **{name: getattr(row, name) + rise for name in ("bias", "low", "high")},
        **{name: min(1.0, getattr(row, name) + gain) for name in ("accuracy", "accuracy_low", "accuracy_high")},
        **{name: value + more for name in ("excess", "excess_low", "excess_high") if (value := getattr(row, name)) is not None},
    )
