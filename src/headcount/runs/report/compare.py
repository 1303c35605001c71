"""Two runs side by side: B − A head by head, how far their rankings agree, changed roles, paired outcomes, and what else differs."""

from __future__ import annotations

from typing import Any

import numpy as np

from headcount.core.errors import StatisticsError
from headcount.core.evaluation import Evaluation, is_right_or_wrong
from headcount.core.scores import SCALED, Scores
from headcount.core.stats.away import away_from_zero
from headcount.core.stats.corrections import benjamini_hochberg
from headcount.core.stats.correlation import correlate, spearman
from headcount.core.stats.paired import mcnemar, paired_t
from headcount.runs.report.curves import dense_of
from headcount.runs.report.plain import column, flat, short
from headcount.runs.scores import all_scores
from headcount.runs.store import Run

ALPHA = 0.05
Side = tuple[Run, dict[str, Any]]
COMPARED = ("task", "seed", "model", "versions", "machine", "config", "data")


def comparison(a: Side, b: Side) -> tuple[dict[str, Any] | None, str]:
    """What B changed against A, or why they cannot be compared."""
    (run_a, data_a), (run_b, data_b) = a, b
    why = not_comparable(run_a, run_b)
    if why:
        return None, why
    dense_a, dense_b = dense_of(run_a), dense_of(run_b)
    outcomes = _outcomes(dense_a, dense_b)
    made = {
        "title": f"{data_b['name']} ({data_b['model']['name']}) against {data_a['name']} ({data_a['model']['name']}): B − A",
        "scores": _scores(all_scores(run_a), all_scores(run_b), data_a["heads"]),
        "roles": _roles(data_a, data_b),
        "roles_only": {"a": _only(data_a, data_b), "b": _only(data_b, data_a)},
        "outcomes": outcomes,
        "config": _differences(data_a, data_b),
        "warnings": [*_warnings(data_a, data_b, dense_a, dense_b), *_scaled_apart(all_scores(run_a), all_scores(run_b))],
    }
    return made, ""


def not_comparable(a: Run, b: Run) -> str:
    """Why two runs cannot be compared, if so."""
    mine, theirs = ([head for block in run.heads().blocks for head in block.heads] for run in (a, b))
    if mine == theirs:
        return ""
    names = [run.record().model.name for run in (a, b)]
    return (
        f"The runs are of different heads ({len(mine)} of {names[0]}, {len(theirs)} of {names[1]}), so they stand side by side and are not "
        "compared."
    )


def _scores(a: dict[str, Scores], b: dict[str, Scores], heads: list[str]) -> list[dict[str, Any]]:
    found = []
    for name, mine in a.items():
        if name in b and mine.normalise == b[name].normalise:
            shift, sure = _shift(mine, b[name], heads)
            value, low, high = _agreement(mine, b[name])
            found.append({"name": name, "difference": shift, "significant": sure, "spearman": value, "low": low, "high": high})
    return found


def _scaled_apart(a: dict[str, Scores], b: dict[str, Scores]) -> list[str]:
    """Sentences about the scores that are left out because the two runs normalised them differently."""
    return [
        f"{name} is left out: in A its scores are {SCALED[scores.normalise]}, in B {SCALED[b[name].normalise]}."
        for name, scores in a.items()
        if name in b and scores.normalise != b[name].normalise
    ]


def _shift(a: Scores, b: Scores, heads: list[str]) -> tuple[list[Any], list[bool] | None]:
    """B − A of every head, and which are away from zero: the errors of both together, corrected over heads."""
    mine, theirs = ({str(head): i for i, head in enumerate(scores.heads)} for scores in (a, b))
    both = [head for head in heads if head in mine and head in theirs]
    gap = {head: b.values[theirs[head]] - a.values[mine[head]] for head in both}
    n, sure = min(a.n_examples, b.n_examples), None
    if both and n > 1 and any(a.stderr) and any(b.stderr):
        error = np.array([np.hypot(a.stderr[mine[head]], b.stderr[theirs[head]]) for head in both])
        shift = np.array([gap[head] for head in both])
        away = dict(zip(both, (benjamini_hochberg(away_from_zero(shift, error, n - 1)) <= ALPHA).tolist(), strict=True))
        sure = [away.get(head, False) for head in heads]
    return column([gap.get(head) for head in heads]), sure


def _agreement(a: Scores, b: Scores) -> tuple[float | None, float | None, float | None]:
    """Spearman's correlation of the rankings; with its interval where both keep what it is made of."""
    if a.heads != b.heads:
        return None, None, None
    try:
        first, second = a.scaled_samples(), b.scaled_samples()
        if first is not None and second is not None:
            paired = a.data == b.data and first.n_groups == second.n_groups and first.n == second.n
            made = correlate(first, second, seed=0, paired=paired, repeats=1000)
            return short(made.value), short(made.low), short(made.high)
        return short(float(spearman(a.values, b.values))), None, None
    except StatisticsError:
        return None, None, None


def _roles(a: dict[str, Any], b: dict[str, Any]) -> list[dict[str, Any]] | None:
    if a["roles"] is None or b["roles"] is None:
        return None
    names_a, names_b = a["roles"]["names"], b["roles"]["names"]
    both = {*names_a} & {*names_b}
    found = []
    for head, (mine, theirs) in enumerate(zip(a["roles"]["labels"], b["roles"]["labels"], strict=True)):
        tested_a, tested_b = [i for i in mine if names_a[i] in both], [i for i in theirs if names_b[i] in both]
        if {names_a[i] for i in tested_a} != {names_b[i] for i in tested_b}:
            found.append({"head": head, "a": tested_a, "b": tested_b})
    return found


def _only(a: dict[str, Any], b: dict[str, Any]) -> list[str]:
    """The roles that were tested in the first and not in the second."""
    return [name for name in a["roles"]["names"] if name not in b["roles"]["names"]] if a["roles"] and b["roles"] else []


def _outcomes(a: Evaluation | None, b: Evaluation | None) -> dict[str, Any] | None:
    """The whole models on the same examples: right and wrong by McNemar, else which has the smaller loss, by a paired t."""
    if a is None or b is None or a.data != b.data or a.metric != b.metric or len(a.losses) != len(b.losses) or len(a.losses) < 2:
        return None
    if is_right_or_wrong(a) and is_right_or_wrong(b):
        assert a.parts is not None and b.parts is not None and a.value is not None and b.value is not None
        right_a, right_b = a.parts[:, 0] > 0, b.parts[:, 0] > 0
        made = mcnemar(a.parts[:, 0], b.parts[:, 0])
        counts = {"both": int((right_a & right_b).sum()), "only_a": made.only_a, "only_b": made.only_b}
        rest = {"neither": int((~right_a & ~right_b).sum()), "p": short(made.p, 3), "test": "McNemar", "metric": a.metric}
        return {**counts, **rest, "a": short(a.value), "b": short(b.value)}
    gap = b.losses - a.losses
    counts = {"both": int((gap == 0).sum()), "only_a": int((gap > 0).sum()), "only_b": int((gap < 0).sum()), "neither": 0}
    told = "paired t of the losses; an example counts for the model with the smaller one"
    return {**counts, "p": short(paired_t(gap).p, 3), "test": told, "metric": "loss", "a": short(a.loss), "b": short(b.loss)}


def _differences(a: dict[str, Any], b: dict[str, Any]) -> list[dict[str, str]]:
    mine, theirs = (flat({key: data[key] for key in COMPARED}) for data in (a, b))
    names = list(dict.fromkeys([*mine, *theirs]))
    return [
        {"key": name, "a": mine.get(name, ""), "b": theirs.get(name, "")} for name in names if mine.get(name, "") != theirs.get(name, "")
    ]


def _warnings(a: dict[str, Any], b: dict[str, Any], dense_a: Evaluation | None, dense_b: Evaluation | None) -> list[str]:
    found = []
    if a["versions"] != b["versions"]:
        found.append("The runs were computed with different versions of the software.")
    if a["task"] != b["task"]:
        found.append(f"The runs are of different tasks ({a['task'] or 'none'}, {b['task'] or 'none'}): differences of scores mix both.")
    if dense_a is not None and dense_b is not None and dense_a.data != dense_b.data:
        found.append("The whole models were evaluated on different examples, so their outcomes cannot be paired.")
    if a["model"]["weights"] == b["model"]["weights"]:
        found.append("Both runs are of the same weights.")
    return found
