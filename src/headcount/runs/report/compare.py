"""Comparison of two runs: B − A of every head, agreement of the rankings, changed roles, paired outcomes, and differences of configuration."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from headcount.core.errors import StatisticsError
from headcount.core.evaluation import Evaluation, examples_are_right_or_wrong
from headcount.core.scores import SCALED, Scores
from headcount.core.stats.agreement import correlate, spearman
from headcount.core.stats.means import mean_interval
from headcount.core.stats.significance import benjamini_hochberg, p_values_of_zero, tango
from headcount.runs.report import contract
from headcount.runs.report.curves import dense_evaluation_of
from headcount.runs.report.plain import flatten_entries, round_column, round_number, round_or_none
from headcount.runs.scores import all_scores
from headcount.runs.store import Run

ALPHA = 0.05
RunAndData = tuple[Run, contract.RunData]
"""One of the two runs, and its data."""
COMPARED = ("task", "seed", "model", "versions", "machine", "config", "data")


def compare_runs_or_give_reason(a: RunAndData, b: RunAndData) -> tuple[contract.RunComparison | None, str]:
    """Returns the comparison B − A and an empty text, or None and the reason why the runs cannot be compared."""
    (run_a, data_a), (run_b, data_b) = a, b
    reason = why_not_comparable(run_a, run_b)
    if reason:
        return None, reason
    dense_a, dense_b = dense_evaluation_of(run_a), dense_evaluation_of(run_b)
    roles_a, roles_b = data_a["roles"], data_b["roles"]
    content: contract.RunComparison = {
        "title": f"{data_b['name']} ({data_b['model']['name']}) against {data_a['name']} ({data_a['model']['name']}): B − A",
        "scores": _scores_of_b_minus_a(all_scores(run_a), all_scores(run_b), data_a["heads"]),
        "roles": _role_changes(roles_a, roles_b),
        "roles_only": {"a": _roles_only_in(roles_a, roles_b), "b": _roles_only_in(roles_b, roles_a)},
        "outcomes": _compare_dense_outcomes(dense_a, dense_b),
        "config": _setting_differences(data_a, data_b),
        "warnings": [
            *_comparison_warnings(data_a, data_b, dense_a, dense_b),
            *_normalisation_warnings(all_scores(run_a), all_scores(run_b)),
        ],
    }
    return content, ""


def why_not_comparable(a: Run, b: Run) -> str:
    """Returns why two runs cannot be compared; empty if they can."""
    heads_a, heads_b = ([head for block in run.heads().blocks for head in block.heads] for run in (a, b))
    if heads_a == heads_b:
        return ""
    names = [run.record().model.name for run in (a, b)]
    return (
        f"The runs are of different heads ({len(heads_a)} of {names[0]}, {len(heads_b)} of {names[1]}), so they stand side by side and are not "
        "compared."
    )


def _scores_of_b_minus_a(a: dict[str, Scores], b: dict[str, Scores], heads: list[str]) -> list[contract.ScoreDifference]:
    rows: list[contract.ScoreDifference] = []
    for name, scores in a.items():
        if name in b and scores.normalise == b[name].normalise:
            difference, significant = _b_minus_a_by_head(scores, b[name], heads)
            value, low, high = _rank_agreement(scores, b[name])
            rows.append({"name": name, "difference": difference, "significant": significant, "spearman": value, "low": low, "high": high})
    return rows


def _normalisation_warnings(a: dict[str, Scores], b: dict[str, Scores]) -> list[str]:
    """Returns a sentence for each score that is left out because the runs normalised it differently."""
    return [
        f"{name} is left out: in A its scores are {SCALED[scores.normalise]}, in B {SCALED[b[name].normalise]}."
        for name, scores in a.items()
        if name in b and scores.normalise != b[name].normalise
    ]


class HeadDifferences(NamedTuple):
    """B − A of every head, and which heads differ significantly from zero; None if the errors of the scores are not known."""

    difference: list[contract.Maybe]
    significant: list[bool] | None


def _b_minus_a_by_head(a: Scores, b: Scores, heads: list[str]) -> HeadDifferences:
    """Returns B − A of every head, and which differ from zero by the errors of both, corrected over heads."""
    position_a, position_b = ({str(head): i for i, head in enumerate(scores.heads)} for scores in (a, b))
    both = [head for head in heads if head in position_a and head in position_b]
    gap = {head: b.values[position_b[head]] - a.values[position_a[head]] for head in both}
    n, significant = min(a.n_examples, b.n_examples), None
    if both and n > 1 and any(a.stderr) and any(b.stderr):
        error = np.array([np.hypot(a.stderr[position_a[head]], b.stderr[position_b[head]]) for head in both])
        shift = np.array([gap[head] for head in both])
        away = dict(zip(both, (benjamini_hochberg(p_values_of_zero(shift, error, n - 1)) <= ALPHA).tolist(), strict=True))
        significant = [away.get(head, False) for head in heads]
    return HeadDifferences(round_column([gap.get(head) for head in heads]), significant)


class RankAgreement(NamedTuple):
    """Spearman's correlation of two rankings with the ends of its 95 % interval, each None where it is not known."""

    spearman: float | None
    low: float | None
    high: float | None


def _rank_agreement(a: Scores, b: Scores) -> RankAgreement:
    """Returns Spearman's correlation of the rankings, with its interval if both runs keep their samples."""
    if a.heads != b.heads:
        return RankAgreement(None, None, None)
    try:
        first, second = a.scaled_samples(), b.scaled_samples()
        if first is not None and second is not None:
            paired = a.data == b.data and first.n_groups == second.n_groups and first.n == second.n
            correlation = correlate(first, second, seed=a.seed, paired=paired, repeats=1000)
            return RankAgreement(round_or_none(correlation.value), round_or_none(correlation.low), round_or_none(correlation.high))
        return RankAgreement(round_or_none(float(spearman(a.values, b.values))), None, None)
    except StatisticsError:
        return RankAgreement(None, None, None)


def _role_changes(a: contract.Roles | None, b: contract.Roles | None) -> list[contract.RoleChange] | None:
    """Returns the heads whose labels differ, among the roles that were tested in both runs."""
    if a is None or b is None:
        return None
    names_a, names_b = a["names"], b["names"]
    both = {*names_a} & {*names_b}
    changes: list[contract.RoleChange] = []
    for head, (labels_a, labels_b) in enumerate(zip(a["labels"], b["labels"], strict=True)):
        tested_a, tested_b = [i for i in labels_a if names_a[i] in both], [i for i in labels_b if names_b[i] in both]
        if {names_a[i] for i in tested_a} != {names_b[i] for i in tested_b}:
            changes.append({"head": head, "a": tested_a, "b": tested_b})
    return changes


def _roles_only_in(a: contract.Roles | None, b: contract.Roles | None) -> list[str]:
    """Returns the roles that were tested in the first run and not in the second."""
    return [name for name in a["names"] if name not in b["names"]] if a is not None and b is not None else []


def _compare_dense_outcomes(a: Evaluation | None, b: Evaluation | None) -> contract.Outcomes | None:
    """Compares the dense models on the same examples: by Tango's test if answers are right or wrong, else by the mean difference of the losses."""
    if a is None or b is None or a.data != b.data or a.metric != b.metric or len(a.losses) != len(b.losses) or len(a.losses) < 2:
        return None
    if examples_are_right_or_wrong(a) and examples_are_right_or_wrong(b):
        assert a.parts is not None and b.parts is not None and a.value is not None and b.value is not None
        right_a, right_b = a.parts[:, 0] > 0, b.parts[:, 0] > 0
        return {
            "both": int((right_a & right_b).sum()),
            "neither": int((~right_a & ~right_b).sum()),
            "only_a": int((right_a & ~right_b).sum()),
            "only_b": int((right_b & ~right_a).sum()),
            "p": round_or_none(tango(a.parts[:, 0], b.parts[:, 0]).p, 3),
            "test": "Tango",
            "metric": a.metric,
            "a": round_number(a.value),
            "b": round_number(b.value),
        }
    gap = b.losses - a.losses
    return {
        "both": int((gap == 0).sum()),
        "only_a": int((gap > 0).sum()),
        "only_b": int((gap < 0).sum()),
        "neither": 0,
        "p": round_or_none(mean_interval(gap).p, 3),
        "test": "Hall's t of the losses; an example counts for the model with the smaller one",
        "metric": "loss",
        "a": round_number(a.loss),
        "b": round_number(b.loss),
    }


def _setting_differences(a: contract.RunData, b: contract.RunData) -> list[contract.Setting]:
    values_a, values_b = (flatten_entries({key: data[key] for key in COMPARED}) for data in (a, b))
    names = list(dict.fromkeys([*values_a, *values_b]))
    return [
        {"key": name, "a": values_a.get(name, ""), "b": values_b.get(name, "")}
        for name in names
        if values_a.get(name, "") != values_b.get(name, "")
    ]


def _comparison_warnings(a: contract.RunData, b: contract.RunData, dense_a: Evaluation | None, dense_b: Evaluation | None) -> list[str]:
    warnings = []
    if a["versions"] != b["versions"]:
        warnings.append("The runs were computed with different versions of the software.")
    if a["task"] != b["task"]:
        warnings.append(f"The runs are of different tasks ({a['task'] or 'none'}, {b['task'] or 'none'}): differences of scores mix both.")
    if dense_a is not None and dense_b is not None and dense_a.data != dense_b.data:
        warnings.append("The dense models were evaluated on different examples, so their outcomes cannot be paired.")
    if a["model"]["weights"] == b["model"]["weights"]:
        warnings.append("Both runs are of the same weights.")
    return warnings
