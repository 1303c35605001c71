"""The roles of a run as the page shows them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from headcount.core.registry import ROLES
from headcount.core.stats.significance import benjamini_hochberg
from headcount.runs.artifacts import Artifact
from headcount.runs.report.plain import column, plural, short
from headcount.runs.report.scores import summarise
from headcount.runs.schema import BestHeadRecord, RolesRecord
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
)
SYNTAX = "syntax:"
DIGITS = 4
ALPHA = 0.05


def roles_record(run: Run) -> RolesRecord | None:
    """The roles that a run shows, if any."""
    artifacts: list[Artifact] = list(run.results("roles").values())
    return RolesRecord.model_validate(artifacts[0].content) if artifacts else None


def roles_of(record: RolesRecord, heads: Sequence[str]) -> dict[str, Any]:
    """All rows by column, the labels of every head, and the best head of every relation."""
    rows = [row for row in record.rows if row.head in set(heads)]
    names = list(dict.fromkeys(row.role for row in rows))
    place, number = {head: i for i, head in enumerate(heads)}, {name: i for i, name in enumerate(names)}
    labels: list[list[int]] = [[] for _ in heads]
    for row in sorted(rows, key=lambda row: -row.normalised):
        if row.has_role:
            labels[place[row.head]].append(number[row.role])
    table: dict[str, list[Any]] = {name: column([getattr(row, name) for row in rows], DIGITS) for name in COLUMNS}
    table |= {"head": [place[row.head] for row in rows], "role": [number[row.role] for row in rows]}
    table |= {
        "has_role": [row.has_role for row in rows],
        "by_argmax": [row.by_argmax for row in rows],
        "n": [row.n_sentences for row in rows],
    }
    best_heads = [best for best in record.best_heads or () if best.role in number and best.head in place]
    return {
        "names": names,
        "about": [summarise(ROLES, name) for name in names],
        "letters": letters(names),
        "labels": labels,
        "rows": table,
        "best": None if record.best_heads is None else [_best_of(best, number, place) for best in best_heads],
        "relations": relations_of([best for best in best_heads if best.role.startswith(SYNTAX)], number, place),
        "n_sentences": record.conditions.get("n_examples"),
        "tau": record.tau,
        "alpha": record.alpha,
        "skipped": [f"{plural(count, 'sentence')}: {reason}" for reason, count in record.refused.items()],
    }


def _best_of(best: BestHeadRecord, number: Mapping[str, int], place: Mapping[str, int]) -> dict[str, Any]:
    """The best head of a role with its accuracy on the half of the sentences that did not choose it."""
    values = {name: short(getattr(best, name), DIGITS) for name in ("accuracy", "accuracy_low", "accuracy_high", "baseline", "chance")}
    return {"role": number[best.role], "head": place[best.head], **values, "n": best.n_sentences}


def relations_of(best_heads: Sequence[BestHeadRecord], number: Mapping[str, int], place: Mapping[str, int]) -> list[dict[str, Any]]:
    """The best head of every relation against the best fixed offset, both chosen on one half of the sentences and measured on the other.

    A relation holds where the head is significantly above the offset: q is corrected over relations, its p and the interval are of one test.
    """
    q = benjamini_hochberg([best.p for best in best_heads]).tolist() if best_heads else []
    return [
        {
            "role": number[best.role],
            "head": place[best.head],
            "accuracy": short(best.accuracy, DIGITS),
            "baseline": short(best.baseline, DIGITS),
            "baseline_offset": best.baseline_offset,
            "difference": short(best.accuracy - best.baseline, DIGITS),
            "low": short(best.accuracy_low - best.baseline, DIGITS),
            "high": short(best.accuracy_high - best.baseline, DIGITS),
            "q": short(corrected, DIGITS),
            "n": best.n_tokens,
            "holds": corrected < ALPHA and best.accuracy > best.baseline,
        }
        for best, corrected in zip(best_heads, q, strict=True)
    ]


def letters(names: Sequence[str]) -> list[str]:
    """A mark of one or two signs for every role, no two alike: numbers of offsets as they are, else letters of the name."""
    taken: set[str] = set()
    found = []
    for name in names:
        mark = next(mark for mark in _candidates(name) if mark not in taken)
        taken.add(mark)
        found.append(mark)
    return found


def _candidates(name: str) -> Sequence[str]:
    file, _, rest = name.partition(":")
    if file == "offset" and len(rest) <= 2:
        return (rest, *_spelled(f"o{rest}"))
    back = rest.endswith("-of")
    own = rest.removesuffix("-of") if rest else file
    return _spelled(own.upper() if back else own)


def _spelled(text: str) -> tuple[str, ...]:
    signs = [sign for sign in text if sign.isalnum()] or ["r"]
    first = signs[0]
    pairs = [first + sign for sign in signs[1:]]
    every = [a + b for a in "abcdefghijklmnopqrstuvwxyz" for b in "abcdefghijklmnopqrstuvwxyz0123456789"]
    return (*pairs, first, *(first + sign for sign in "abcdefghijklmnopqrstuvwxyz0123456789"), *every)


def untested(record: RolesRecord) -> list[dict[str, Any]]:
    """Roles that were not tested, as a table with the reasons."""
    rows = [[role, why] for role, why in record.untested.items()]
    told = "Roles that the text could not show, and why."
    return [{"name": "roles not tested", "about": told, "columns": ["role", "why"], "rows": rows}] if rows else []
