"""The scores of a run as the page shows them: one number per head, its error, and where it is surely not zero."""

from __future__ import annotations

from typing import Any

import numpy as np

from headcount.core.plan import rank_units
from headcount.core.registry import IMPORTANCES, Registry
from headcount.core.scores import ROUNDING, SCALED, Scores
from headcount.core.stats.away import away_from_zero
from headcount.core.stats.corrections import benjamini_hochberg
from headcount.runs.report.plain import column
from headcount.runs.scores import all_scores
from headcount.runs.store import Run

DESCRIPTIONS = frozenset({"confidence", "entropy", "distance"})
"""Methods that describe a head rather than say what is lost without it, in runs that do not tell."""
CHANGES, ERRORS, LOWER_IS_BETTER = " change", " stderr", "perplexity"
"""How further columns of a method are named, and in runs that do not tell, the one metric of which less is better."""
ALPHA = 0.05


def about(registry: Registry, name: str) -> str:
    """The sentence that a file says about itself; empty for what is not installed here."""
    file = name.partition(":")[0].partition("(")[0]
    return registry.summary(file) if file in registry.names() else ""


def scores_of(run: Run, heads: list[str]) -> list[dict[str, Any]]:
    """Every score of the run, importances first, with the further columns that methods bring along."""
    found = [made for name, scores in all_scores(run).items() for made in _of(name, scores, heads)]
    return sorted(found, key=lambda score: score["kind"] != "importance")


def _of(name: str, scores: Scores, heads: list[str]) -> list[dict[str, Any]]:
    place = {str(head): i for i, head in enumerate(scores.heads)}
    order = [place.get(head) for head in heads]
    errors = _in_order(scores.stderr, order) if scores.stderr and any(scores.stderr) else None
    described = name.partition(":")[0] in DESCRIPTIONS if scores.describes is None else scores.describes
    first = {
        "name": name,
        "about": f"{about(IMPORTANCES, name)} Scores are {SCALED[scores.normalise]}.".strip(),
        "kind": "description" if described else "importance",
        "higher_is_keep": scores.higher_is_keep,
        "values": column(_in_order(scores.values, order)),
        "stderr": None if errors is None else column(errors),
        "significant": significant(_in_order(scores.values, order), errors, scores.n_examples),
        "n_examples": scores.n_examples or None,
        "removal_order": None if described else removal_order(scores, heads),
        "group_removal_order": None if described else group_removal_order(scores, heads),
    }
    return [first, *(_column(first, scores, title, order) for title in scores.columns if not title.endswith(ERRORS))]


def removal_order(scores: Scores, heads: list[str]) -> list[int]:
    """The places in `heads` from the first to go to the last, as `Scores.ranking` has them; those without a score at the end."""
    index = {head: i for i, head in enumerate(heads)}
    scored = [index[str(head)] for head in reversed(scores.ranking()) if str(head) in index]
    return scored + sorted(set(index.values()).difference(scored))


def group_removal_order(scores: Scores, heads: list[str]) -> list[list[int]] | None:
    """The heads that go together, by places in `heads`, from the group that goes first to the last, as `Plan.keep_top` ranks them.

    None where every head goes by itself, or where the scores are not those of just these heads.
    """
    index = {head: i for i, head in enumerate(heads)}
    if not scores.units or all(len(unit) == 1 for unit in scores.units) or set(map(str, scores.heads)) != set(index):
        return None
    return [[index[str(head)] for head in unit] for unit in reversed(rank_units(scores))]


def _column(first: dict[str, Any], scores: Scores, title: str, order: list[int | None]) -> dict[str, Any]:
    """A further number of a method, such as the change of the metric, with its error where there is one."""
    known = scores.columns.get(title.removesuffix(CHANGES) + ERRORS)
    values, errors = _in_order(scores.columns[title], order), None if known is None else _in_order(known, order)
    return {
        **first,
        "name": f"{first['name']}: {title}",
        "about": _about(first["name"], title),
        "kind": "description",
        "higher_is_keep": scores.directions.get(title, _guessed(scores, title)),
        "values": column(values),
        "stderr": None if errors is None else column(errors),
        "significant": significant(values, errors, scores.n_examples),
        "removal_order": None,
        "group_removal_order": None,
    }


def _guessed(scores: Scores, title: str) -> bool:
    """Whether more of a column means keep, by its name: a change for the better is a lower loss, and other numbers have no direction."""
    return not title.endswith(CHANGES) or scores.higher_is_keep == title.startswith(LOWER_IS_BETTER)


def _about(method: str, title: str) -> str:
    if title.endswith(CHANGES):
        return (
            f"The {title.removesuffix(CHANGES)} with the head changed as by {method}, minus that of the whole model, on the same examples."
        )
    if title == ROUNDING:
        return f"By how much rounding alone moves the score of {method}, as a standard deviation: compare it with the standard error."
    return f"The {title} of each head, noted by {method} beside its score."


def _in_order(values: Any, order: list[int | None]) -> list[float | None]:
    return [None if place is None else values[place] for place in order]


def significant(values: list[float | None], errors: list[float | None] | None, n: int) -> list[bool] | None:
    """Which values are away from zero, by t-tests corrected over all heads (Benjamini–Hochberg, 5 %); None where nothing can be tested."""
    seen = [i for i, value in enumerate(values) if value is not None]
    if errors is None or n < 2 or not seen:
        return None
    value, error = (np.array([column[i] for i in seen], dtype=np.float64) for column in (values, errors))
    sure = benjamini_hochberg(away_from_zero(value, error, n - 1)) <= ALPHA
    found = [False] * len(values)
    for i, is_sure in zip(seen, sure.tolist(), strict=True):
        found[i] = is_sure
    return found
