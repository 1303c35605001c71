"""Scores of a run for the report: one number per head, its standard error, and whether it differs significantly from zero."""

from __future__ import annotations

from typing import Any

import numpy as np

from headcount.core.plan import rank_units
from headcount.core.registry import IMPORTANCES, Registry
from headcount.core.scores import ROUNDING, SCALED, Scores
from headcount.core.stats.significance import away_from_zero, benjamini_hochberg
from headcount.runs.report import contract
from headcount.runs.report.plain import round_column
from headcount.runs.scores import all_scores
from headcount.runs.store import Run

DESCRIPTIONS = frozenset({"confidence", "entropy", "distance"})
"""Methods that describe a head rather than its importance, for scores that do not say so themselves."""
CHANGES, ERRORS, LOWER_IS_BETTER = " change", " stderr", "perplexity"
"""Suffixes of further columns, and the one metric of which less is better, for scores that give no direction."""
ALPHA = 0.05


def method_summary(registry: Registry, name: str) -> str:
    """Returns the first sentence of the documentation of a method; empty if it is not installed."""
    registered = name.partition(":")[0].partition("(")[0]
    return registry.summary(registered) if registered in registry.names() else ""


def collect_scores(run: Run, heads: list[str]) -> list[contract.Score]:
    """Returns every score of the run, importances first, each followed by its further columns."""
    columns = [column for name, scores in all_scores(run).items() for column in _score_columns(name, scores, heads)]
    return sorted(columns, key=lambda score: score["kind"] != "importance")


def _score_columns(name: str, scores: Scores, heads: list[str]) -> list[contract.Score]:
    positions = {str(head): i for i, head in enumerate(scores.heads)}
    order = [positions.get(head) for head in heads]
    errors = _in_head_order(scores.stderr, order) if scores.stderr and any(scores.stderr) else None
    described = name.partition(":")[0] in DESCRIPTIONS if scores.describes is None else scores.describes
    first: contract.Score = {
        "name": name,
        "about": f"{method_summary(IMPORTANCES, name)} Scores are {SCALED[scores.normalise]}.".strip(),
        "kind": "description" if described else "importance",
        "higher_is_keep": scores.higher_is_keep,
        "values": round_column(_in_head_order(scores.values, order)),
        "stderr": None if errors is None else round_column(errors),
        "significant": mark_significant(_in_head_order(scores.values, order), errors, scores.n_examples),
        "n_examples": scores.n_examples or None,
        "removal_order": None if described else removal_order(scores, heads),
        "group_removal_order": None if described else group_removal_order(scores, heads),
    }
    return [first, *(_further_column(first, scores, title, order) for title in scores.columns if not title.endswith(ERRORS))]


def removal_order(scores: Scores, heads: list[str]) -> list[int]:
    """Returns indices into `heads` in the order of removal by `Scores.ranking`; heads without a score come last."""
    index = {head: i for i, head in enumerate(heads)}
    scored = [index[str(head)] for head in reversed(scores.ranking()) if str(head) in index]
    return scored + sorted(set(index.values()).difference(scored))


def group_removal_order(scores: Scores, heads: list[str]) -> list[list[int]] | None:
    """Returns the groups of heads that are removed together, as indices into `heads`, in the order of removal by `Plan.keep_top`.

    None if every head is a unit by itself, or the scores are not of exactly these heads.
    """
    index = {head: i for i, head in enumerate(heads)}
    if not scores.units or all(len(unit) == 1 for unit in scores.units) or set(map(str, scores.heads)) != set(index):
        return None
    return [[index[str(head)] for head in unit] for unit in reversed(rank_units(scores))]


def _further_column(first: contract.Score, scores: Scores, title: str, order: list[int | None]) -> contract.Score:
    """Returns a further column of a method, such as the change of the metric, with its standard error if known."""
    stderr = scores.columns.get(title.removesuffix(CHANGES) + ERRORS)
    values, errors = _in_head_order(scores.columns[title], order), None if stderr is None else _in_head_order(stderr, order)
    # A lower loss is a change for the better; other numbers have no direction.
    more_is_keep = not title.endswith(CHANGES) or scores.higher_is_keep == title.startswith(LOWER_IS_BETTER)
    return {
        **first,
        "name": f"{first['name']}: {title}",
        "about": _describe_column(first["name"], title),
        "kind": "description",
        "higher_is_keep": scores.directions.get(title, more_is_keep),
        "values": round_column(values),
        "stderr": None if errors is None else round_column(errors),
        "significant": mark_significant(values, errors, scores.n_examples),
        "removal_order": None,
        "group_removal_order": None,
    }


def _describe_column(method: str, title: str) -> str:
    if title.endswith(CHANGES):
        return (
            f"The {title.removesuffix(CHANGES)} with the head changed as by {method}, minus that of the dense model, on the same examples."
        )
    if title == ROUNDING:
        return f"By how much rounding alone moves the score of {method}, as a standard deviation: compare it with the standard error."
    return f"The {title} of each head, noted by {method} beside its score."


def _in_head_order(values: Any, order: list[int | None]) -> list[float | None]:
    return [None if position is None else values[position] for position in order]


def mark_significant(values: list[float | None], errors: list[float | None] | None, n: int) -> list[bool] | None:
    """Returns which values differ from zero, by t-tests corrected over all heads (Benjamini–Hochberg, 5 %); None if no test is possible."""
    known = [i for i, value in enumerate(values) if value is not None]
    if errors is None or n < 2 or not known:
        return None
    value, error = (np.array([column[i] for i in known], dtype=np.float64) for column in (values, errors))
    is_significant = benjamini_hochberg(away_from_zero(value, error, n - 1)) <= ALPHA
    flags = [False] * len(values)
    for i, flag in zip(known, is_significant.tolist(), strict=True):
        flags[i] = flag
    return flags
