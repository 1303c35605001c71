"""The roles of a run as the page shows them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from string import ascii_lowercase, digits
from typing import Any

from headcount.core.registry import ROLES
from headcount.core.role_table import ALPHA, BestHead, RoleTable
from headcount.core.stats.significance import benjamini_hochberg
from headcount.runs.report import contract
from headcount.runs.report.plain import format_count, round_column, round_or_none
from headcount.runs.report.scores import summary_of_registered
from headcount.runs.store import Run

COLUMNS = (
    "bias",
    "low",
    "high",
    "q",
    "effect",
    "normalised",
    "accuracy",
    "accuracy_low",
    "accuracy_high",
    "baseline",
    "baseline_offset",
    "compared_bias",
    "twin_bias",
    "excess",
    "excess_low",
    "excess_high",
)
BEST_COLUMNS = ("accuracy", "accuracy_low", "accuracy_high", "baseline", "chance")
SYNTAX = "syntax:"
DIGITS = 4


def find_roles(run: Run) -> RoleTable | None:
    """Returns the roles that a run shows, if any."""
    artifacts = list(run.results("roles").values())
    return RoleTable.from_dict(artifacts[0].content) if artifacts else None


def pack_roles(table: RoleTable, heads: Sequence[str]) -> contract.Roles:
    """Returns all rows by column, the labels of every head, and the best head of every relation."""
    head_index = {head: i for i, head in enumerate(heads)}
    rows = [row for row in table if str(row.head) in head_index]
    names = list(dict.fromkeys(row.role for row in rows))
    role_index = {name: i for i, name in enumerate(names)}
    labels: list[list[int]] = [[] for _ in heads]
    for row in sorted(rows, key=lambda row: -row.normalised):
        if row.has_role:
            labels[head_index[str(row.head)]].append(role_index[row.role])
    columns: dict[str, list[Any]] = {name: round_column([getattr(row, name) for row in rows], DIGITS) for name in COLUMNS}
    columns |= {"head": [head_index[str(row.head)] for row in rows], "role": [role_index[row.role] for row in rows]}
    columns |= {
        "has_role": [row.has_role for row in rows],
        "by_argmax": [row.by_argmax for row in rows],
        "n": [row.n_sentences for row in rows],
        "is_content": [row.is_content for row in rows],
        "explained": round_column([row.explained_by_distance for row in rows], DIGITS),
    }
    best_heads = [best for best in table.best_heads if best.role in role_index and str(best.head) in head_index]
    return {
        "names": names,
        "about": [summary_of_registered(ROLES, name) for name in names],
        "letters": short_mark_of_each_role(names),
        "labels": labels,
        "rows": columns,
        "curves": [
            {
                "head": head_index[str(curve.head)],
                "role": role_index[curve.role],
                "offsets": list(curve.offsets),
                "attention": round_column(curve.attention, DIGITS),
                "twin": round_column(curve.twin, DIGITS),
            }
            for curve in table.curves
            if str(curve.head) in head_index and curve.role in role_index
        ],
        "swapped": _pack_swap_test(table),
        "definition": table.definition,
        "best": [
            {
                "role": role_index[best.role],
                "head": head_index[str(best.head)],
                **{name: round_or_none(getattr(best, name), DIGITS) for name in BEST_COLUMNS},
                "n": best.n_sentences,
            }
            for best in best_heads
        ],
        "relations": pack_syntax_relations([best for best in best_heads if best.role.startswith(SYNTAX)], role_index, head_index),
        "n_sentences": table.conditions.get("n_examples"),
        "tau": table.tau,
        "alpha": table.alpha,
        "skipped": [f"{format_count(count, 'sentence')}: {reason}" for reason, count in table.refused.items()],
    }


def _pack_swap_test(table: RoleTable) -> dict[str, Any] | None:
    """Returns the labels under swapped annotations and the estimated share of false ones."""
    swapped = table.swapped
    if swapped is None:
        return None
    names = ("n_swaps", "n_sentences", "labels", "swapped_labels", "ratio")
    return {name: getattr(swapped, name) for name in names}


def pack_syntax_relations(
    best_heads: Sequence[BestHead], role_index: Mapping[str, int], head_index: Mapping[str, int]
) -> list[contract.Relation]:
    """Returns the best head of every relation against the best fixed offset, both chosen on one half of the sentences and measured on the other.

    A relation holds where the head is significantly above the offset: q is corrected over relations, its p and the interval are of one test.
    """
    q = benjamini_hochberg([best.p for best in best_heads]).tolist() if best_heads else []
    return [
        {
            "role": role_index[best.role],
            "head": head_index[str(best.head)],
            "accuracy": round_or_none(best.accuracy, DIGITS),
            "baseline": round_or_none(best.baseline, DIGITS),
            "baseline_offset": best.baseline_offset,
            "difference": round_or_none(best.accuracy - best.baseline, DIGITS),
            "low": round_or_none(best.accuracy_low - best.baseline, DIGITS),
            "high": round_or_none(best.accuracy_high - best.baseline, DIGITS),
            "q": round_or_none(corrected, DIGITS),
            "n": best.n_tokens,
            "holds": corrected < ALPHA and best.accuracy > best.baseline,
        }
        for best, corrected in zip(best_heads, q, strict=True)
    ]


def short_mark_of_each_role(names: Sequence[str]) -> list[str]:
    """Returns a mark of one or two characters for every role, all different: offsets as they are, else letters of the name."""
    marks: dict[str, None] = {}
    for name in names:
        marks[next(mark for mark in _candidate_marks_of_role(name) if mark not in marks)] = None
    return list(marks)


def _candidate_marks_of_role(name: str) -> Iterator[str]:
    family, _, variant = name.partition(":")
    if family == "offset" and len(variant) <= 2:
        yield variant
        text = f"o{variant}"
    else:
        text = variant.removesuffix("-of").upper() if variant.endswith("-of") else variant or family
    characters = [character for character in text if character.isalnum()] or ["r"]
    first = characters[0]
    yield from (first + character for character in characters[1:])
    yield first
    yield from (first + character for character in ascii_lowercase + digits)
    yield from (a + b for a in ascii_lowercase for b in ascii_lowercase + digits)


def untested_roles_table(table: RoleTable) -> list[contract.PageTable]:
    """Returns the roles that were not tested, as a table with the reasons."""
    rows = [[role, reason] for role, reason in table.untested.items()]
    caption = "Roles that the text could not show, and why."
    return [{"name": "roles not tested", "about": caption, "columns": ["role", "why"], "rows": rows}] if rows else []
