"""Scores of a run for the report: one number per head, its interval, and whether it differs significantly from zero; verdicts on single heads."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from headcount.core.plan import rank_units_best_first
from headcount.core.registry import IMPORTANCES, Registry
from headcount.core.scores import ROUNDING, SCALED, ScoreInterval, Scores
from headcount.core.stats.significance import benjamini_hochberg
from headcount.core.stats.tango import PairedCounts
from headcount.runs.report import contract
from headcount.runs.report.plain import round_column
from headcount.runs.scores import all_scores, all_verdicts
from headcount.runs.store import Run

DESCRIPTIONS = frozenset({"confidence", "entropy", "distance"})
"""Methods that describe a head rather than its importance, for scores that do not say so themselves."""
CHANGES, ERRORS, LOWER_IS_BETTER = " change", " stderr", "perplexity"
"""Suffixes of further columns, and the one metric of which less is better, for scores that give no direction."""
ALPHA = 0.05
ACCURACY = "accuracy"


def summary_of_registered(registry: Registry, label: str) -> str:
    """Returns the first sentence of the documentation of a method, role or study; empty if it is not installed."""
    registered = label.partition(":")[0].partition("(")[0]
    return registry.summary(registered) if registered in registry.names() else ""


def collect_scores(run: Run, heads: list[str]) -> list[contract.Score]:
    """Returns every score of the run, importances first, each followed by its further columns."""
    columns = [column for name, scores in all_scores(run).items() for column in _score_columns(name, scores, heads)]
    return sorted(columns, key=lambda score: score["kind"] != "importance")


def _score_columns(name: str, scores: Scores, heads: list[str]) -> list[contract.Score]:
    position_of = {str(head): i for i, head in enumerate(scores.heads)}
    positions = [position_of.get(head) for head in heads]
    errors = _values_at_positions_or_none(scores.stderr, positions) if scores.stderr and any(scores.stderr) else None
    tested = _test_scores_against_zero(_values_at_positions_or_none(scores.intervals(), positions))
    described = name.partition(":")[0] in DESCRIPTIONS if scores.describes is None else scores.describes
    first: contract.Score = {
        "name": name,
        "about": f"{summary_of_registered(IMPORTANCES, name)} Scores are {SCALED[scores.normalise]}.".strip(),
        "kind": "description" if described else "importance",
        "higher_is_keep": scores.higher_is_keep,
        "values": round_column(_values_at_positions_or_none(scores.values, positions)),
        "stderr": None if errors is None else round_column(errors),
        "low": tested.low,
        "high": tested.high,
        "significant": tested.significant,
        "n_examples": scores.n_examples or None,
        "removal_order": None if described else head_indices_in_removal_order(scores, heads),
        "group_removal_order": None if described else head_index_groups_in_removal_order(scores, heads),
    }
    return [first, *(_extra_column(first, scores, title, positions) for title in scores.columns if not title.endswith(ERRORS))]


def head_indices_in_removal_order(scores: Scores, heads: list[str]) -> list[int]:
    """Returns indices into `heads` in the order of removal by `Scores.ranking`; heads without a score come last."""
    index = {head: i for i, head in enumerate(heads)}
    scored = [index[str(head)] for head in reversed(scores.ranking()) if str(head) in index]
    return scored + sorted(set(index.values()).difference(scored))


def head_index_groups_in_removal_order(scores: Scores, heads: list[str]) -> list[list[int]] | None:
    """Returns the groups of heads that are removed together, as indices into `heads`, in the order of removal by `Plan.keep_top`.

    None if every head is a unit by itself, or the scores are not of exactly these heads.
    """
    index = {head: i for i, head in enumerate(heads)}
    if not scores.units or all(len(unit) == 1 for unit in scores.units) or set(map(str, scores.heads)) != set(index):
        return None
    return [[index[str(head)] for head in unit] for unit in reversed(rank_units_best_first(scores))]


def _extra_column(method_column: contract.Score, scores: Scores, title: str, positions: list[int | None]) -> contract.Score:
    """Returns a further column of a method, such as the change of the metric, with its standard error if known."""
    stderr = scores.columns.get(title.removesuffix(CHANGES) + ERRORS)
    values, errors = (
        _values_at_positions_or_none(scores.columns[title], positions),
        None if stderr is None else _values_at_positions_or_none(stderr, positions),
    )
    tested = _test_scores_against_zero(_values_at_positions_or_none(_column_intervals(scores, title), positions))
    # A lower loss is a change for the better; other numbers have no direction.
    more_is_keep = not title.endswith(CHANGES) or scores.higher_is_keep == title.startswith(LOWER_IS_BETTER)
    return {
        **method_column,
        "name": f"{method_column['name']}: {title}",
        "about": _describe_column(method_column["name"], title),
        "kind": "description",
        "higher_is_keep": scores.directions.get(title, more_is_keep),
        "values": round_column(values),
        "stderr": None if errors is None else round_column(errors),
        "low": tested.low,
        "high": tested.high,
        "significant": tested.significant,
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


def _column_intervals(scores: Scores, title: str) -> Sequence[ScoreInterval | None]:
    """Returns the intervals of a change of right answers by Tango's score method; None for each head for other columns, which have no such test."""
    answers = None if scores.damage is None else scores.damage.answers
    if answers is None or title != f"{ACCURACY}{CHANGES}":
        return [None] * len(scores.heads)
    counts = [PairedCounts(len(answers), int((column > 0).sum()), int((column < 0).sum())) for column in answers.T]
    by_count = {pair: ScoreInterval(*pair.interval(), pair.p_value_of_equal()) for pair in set(counts)}
    return [by_count[pair] for pair in counts]


def _values_at_positions_or_none(values: Any, positions: list[int | None]) -> list[Any]:
    return [None if position is None else values[position] for position in positions]


class ScoreTests(NamedTuple):
    """The ends of intervals, and which numbers differ from zero by the same test; None for all three if no head was tested."""

    low: list[float | int | None] | None
    high: list[float | int | None] | None
    significant: list[bool] | None


def _test_scores_against_zero(intervals: Sequence[ScoreInterval | None]) -> ScoreTests:
    """Returns the columns of intervals; p-values are corrected over heads (Benjamini–Hochberg, 5 %), and a head without an interval is untested."""
    tested = [i for i, interval in enumerate(intervals) if interval is not None]
    if not tested:
        return ScoreTests(None, None, None)
    is_away = benjamini_hochberg([interval.p for interval in intervals if interval is not None]) <= ALPHA
    significant = [False] * len(intervals)
    for i, flag in zip(tested, is_away.tolist(), strict=True):
        significant[i] = flag
    low, high = (
        round_column([None if interval is None else getattr(interval, name) for interval in intervals]) for name in ("low", "high")
    )
    return ScoreTests(low, high, significant)


def collect_verdicts(run: Run, heads: list[str]) -> contract.Verdicts | None:
    """Returns the verdicts on single heads by the first ablation of the run; None if it has none."""
    verdicts = next(iter(all_verdicts(run).values()), None)
    if verdicts is None:
        return None
    rows = {str(row.head): row for row in verdicts.rows}
    cost, bound, q = (round_column([getattr(rows.get(head), name, None) for head in heads]) for name in ("cost", "bound", "q"))
    return {
        "method": verdicts.method,
        "unit": verdicts.tolerance.unit,
        "tolerance": verdicts.tolerance.size,
        "clip": verdicts.tolerance.clip,
        "level": verdicts.level,
        "n_examples": verdicts.n_examples,
        "n_documents": verdicts.n_documents,
        "n_needed": verdicts.n_needed,
        "n_missing": verdicts.n_missing_for_harmless_head,
        "reason": verdicts.reason,
        "cost": cost,
        "bound": bound,
        "q": q,
        "safe": [getattr(rows.get(head), "safe", None) for head in heads],
    }
