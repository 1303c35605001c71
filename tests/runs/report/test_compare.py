"""Two runs beside each other: what B changed, how surely, and what else differs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from contract import check
from kit import make_run

from headcount.core.evaluation import Evaluation
from headcount.core.stats.agreement import spearman
from headcount.core.stats.means import mean_interval
from headcount.core.stats.significance import tango
from headcount.runs.report.collect import collect_report
from headcount.runs.report.compare import _compare_dense_outcomes
from headcount.runs.results import unpack_evaluation
from headcount.runs.scores import all_scores


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory):
    folder = tmp_path_factory.mktemp("pair")
    return make_run(folder / "a"), make_run(folder / "b", seed=1)


def test_differences_are_b_minus_a(pair) -> None:
    report = collect_report(*pair).with_all_maps()
    check(report, "Report")
    mine, theirs = (all_scores(run) for run in pair)
    for row in report["comparison"]["scores"]:
        a, b = np.array(mine[row["name"]].values), np.array(theirs[row["name"]].values)
        assert np.allclose(row["difference"], b - a, rtol=1e-3, atol=1e-9)
        assert row["spearman"] == pytest.approx(float(spearman(a, b)), rel=1e-4)
        assert row["low"] <= row["high"] and len(row["significant"]) == len(a)


def test_turning_the_runs_round_turns_every_sign(pair) -> None:
    comparison, two = collect_report(*pair).report["comparison"], collect_report(*pair[::-1]).report["comparison"]
    for a, b in zip(comparison["scores"], two["scores"], strict=True):
        assert a["difference"] == [-value for value in b["difference"]] and a["significant"] == b["significant"]
    assert (comparison["outcomes"]["only_a"], comparison["outcomes"]["only_b"]) == (two["outcomes"]["only_b"], two["outcomes"]["only_a"])
    assert comparison["outcomes"]["p"] == two["outcomes"]["p"]
    assert {(row["key"], row["a"]) for row in comparison["config"]} == {(row["key"], row["b"]) for row in two["config"]}


def test_a_run_against_itself_has_no_differences(pair) -> None:
    comparison = collect_report(pair[0], pair[0]).report["comparison"]
    assert all(not any(row["difference"]) and not any(row["significant"]) and row["spearman"] == 1 for row in comparison["scores"])
    assert comparison["roles"] == [] and comparison["config"] == []
    assert comparison["outcomes"]["only_a"] == comparison["outcomes"]["only_b"] == 0 and comparison["outcomes"]["p"] == 1
    assert comparison["warnings"] == ["Both runs are of the same weights."]


def test_outcomes_are_paired_and_changed_roles_listed(pair) -> None:
    report = collect_report(*pair).report
    comparison, dense = report["comparison"], [unpack_evaluation(run.results("evaluation")["dense"]) for run in pair]
    outcomes = comparison["outcomes"]
    assert outcomes["both"] + outcomes["only_a"] + outcomes["only_b"] + outcomes["neither"] == 300 and outcomes["test"] == "Tango"
    assert outcomes["p"] == pytest.approx(tango(dense[0].parts[:, 0], dense[1].parts[:, 0]).p, rel=1e-2)
    names = [run["roles"]["names"] for run in report["runs"]]
    labels = [run["roles"]["labels"] for run in report["runs"]]
    changed = {row["head"] for row in comparison["roles"]}
    for head in range(8):
        same = {names[0][i] for i in labels[0][head]} == {names[1][i] for i in labels[1][head]}
        assert (head in changed) != same


def test_roles_that_one_run_did_not_test_are_no_change(pair) -> None:
    from headcount.runs.report.compare import _role_changes, _roles_only_in

    a: Any = collect_report(*pair).report["runs"][0]["roles"]
    b: Any = {**a, "names": a["names"][:1], "labels": [[i for i in labels if i == 0] for labels in a["labels"]]}
    assert any(i > 0 for labels in a["labels"] for i in labels), "there are labels that B cannot have"
    assert _role_changes(a, b) == [] and _roles_only_in(a, b) == a["names"][1:] and _roles_only_in(b, a) == []


def test_losses_are_compared_where_nothing_is_right_or_wrong() -> None:
    rng = np.random.default_rng(0)
    a, b = (Evaluation("t", "report", 240, rng.random(240), data="d") for _ in range(2))
    dense_outcomes = _compare_dense_outcomes(a, b)
    assert dense_outcomes is not None and dense_outcomes["metric"] == "loss"
    assert dense_outcomes["p"] == pytest.approx(mean_interval(b.losses - a.losses).p, rel=1e-2)
    assert (dense_outcomes["only_a"], dense_outcomes["only_b"]) == (
        int((a.losses < b.losses).sum()),
        int((b.losses < a.losses).sum()),
    )
    evaluation = Evaluation("t", "report", 40, rng.random(40), data="other")
    assert _compare_dense_outcomes(a, evaluation) is None and _compare_dense_outcomes(a, None) is None


def test_runs_of_different_heads_or_data_say_so(pair, tmp_path: Path) -> None:
    larger = make_run(tmp_path / "larger", layers=3)
    report = collect_report(pair[0], larger).with_all_maps()
    check(report, "Report")
    assert report["comparison"] is None and "different heads" in report["left_out"][0] and len(report["runs"]) == 2
    elsewhere = make_run(tmp_path / "elsewhere", seed=2, data="elsewhere")
    comparison = collect_report(pair[0], elsewhere).report["comparison"]
    assert comparison["outcomes"] is None and any("different examples" in text for text in comparison["warnings"])
