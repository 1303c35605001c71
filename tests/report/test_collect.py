"""What the page gets out of a run folder: the contract to the letter, and the numbers that the library itself would tell."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import numpy as np
import pytest
from contract import TYPES, check, wrong
from kit import heads_of, make_run

from headcount.report import collect
from headcount.report._attention import unpack
from headcount.report._curves import interval
from headcount.report._roles import letters
from headcount.report._scores import significant
from headcount.runs.outcomes import Evaluation, compare_with, outcome, unpack_evaluation
from headcount.runs.scores import all_scores
from headcount.runs.store import Run
from headcount.stats import benjamini_hochberg
from headcount.stats.parts import ratio, total_of

EVERYTHING = ("scores", "roles", "evaluation", "pruned", "bench", "study", "portraits")


def test_the_checker_finds_what_does_not_fit() -> None:
    good = {"of": "a", "method": None, "keep": 3, "name": "dense", "batch": 1, "length": 2, "seconds": 0.1}
    good |= {"low": 0.1, "high": 0.1, "speedup": 1, "rounds": 5}
    assert wrong(good, "BenchRow") == [] and len(TYPES) > 15
    for bad in ({"name": "whole"}, {"batch": "1"}, {"seconds": None}, {"extra": 1}, {"keep": True}):
        assert wrong({**good, **bad}, "BenchRow"), bad
    assert wrong({key: value for key, value in good.items() if key != "rounds"}, "BenchRow")


@pytest.mark.parametrize("left", EVERYTHING)
def test_a_run_fits_the_contract_whatever_is_missing(left: str, tmp_path: Path) -> None:
    kinds = [kind for kind in EVERYTHING if kind != left and not (left in ("pruned", "evaluation") and kind == "bench")]
    report = collect(make_run(tmp_path / "run", kinds=kinds)).whole()
    check(report, "Report")
    (data,) = report["runs"]
    assert len(data["summary"]) == 3 and all(data["summary"])
    empty = {"scores": [], "roles": None, "evaluation": None, "pruned": None, "bench": [], "study": [], "portraits": None}
    key = {"evaluation": "curves", "pruned": "curves", "study": "tables"}.get(left, left)
    found = [table for table in data["tables"] if table["name"] == "survivors"] if left == "study" else data[key]
    assert found == empty[left]


def test_a_run_of_nothing_but_scores_and_the_frozen_run_open(tmp_path: Path) -> None:
    check(collect(make_run(tmp_path / "run", kinds=("scores",))).whole(), "Report")
    frozen = Run.open(Path(__file__).parents[1] / "frozen" / "run-v2")
    report = collect(frozen).whole()
    check(report, "Report")
    assert {score["name"] for score in report["runs"][0]["scores"]} >= {"ablation", "gradient", "magnitude"}


def test_heads_are_numbered_and_groups_follow(tmp_path: Path) -> None:
    data = collect(make_run(tmp_path / "run", kv_heads=2)).report["runs"][0]
    assert data["heads"] == heads_of()
    assert [head for block in data["blocks"] for head in block["heads"]] == list(range(8))
    assert data["blocks"][0]["kv_group"] == [0, 0, 1, 1] and data["curves"]["unit"] == 2
    assert collect(make_run(tmp_path / "other")).report["runs"][0]["blocks"][0]["kv_group"] is None


def test_scores_are_those_of_the_run_with_corrected_significance(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    data, scores = collect(run).report["runs"][0], all_scores(run)
    by_name = {score["name"]: score for score in data["scores"]}
    assert [score["kind"] for score in data["scores"]] == ["importance", "importance", "description"]
    for name, made in scores.items():
        assert np.allclose(by_name[name]["values"], made.values, rtol=1e-4, atol=1e-12)
        from scipy import stats

        p = 2 * stats.t.sf(np.abs(np.array(made.values) / np.array(made.stderr)), made.n_examples - 1)
        assert by_name[name]["significant"] == (benjamini_hochberg(p) <= 0.05).tolist()
        assert by_name[name]["about"]


def test_significance_is_told_only_where_it_can_be() -> None:
    assert significant([1.0, 2.0], None, 100) is None
    assert significant([1.0, 2.0], [0.1, 0.1], 1) is None
    assert significant([0.0, 1.0, None, 5.0], [0.0, 0.0, None, 100.0], 50) == [False, True, False, False]
    noise = np.random.default_rng(0).normal(size=400).tolist()
    assert sum(significant(noise, [1.0] * 400, 1000) or []) <= 2, "without a true effect hardly any head is called"


def test_curves_are_what_the_library_tells(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    curves = collect(run).report["runs"][0]["curves"]
    dense = unpack_evaluation(run.results("evaluation")["dense"])
    assert curves["metric"] == "accuracy" and curves["dense"]["n_examples"] == 300
    assert curves["dense"]["low"] < curves["dense"]["value"] < curves["dense"]["high"]
    cells = {
        (cell.content["wish"]["method"], cell.content["wish"]["keep"], cell.content["wish"]["seed"]): cell
        for cell in run.results("pruned").values()
    }
    assert len(curves["points"]) == len(cells) == 8
    for point in curves["points"]:
        cell = cells[point["method"], point["keep"], point["seed"]]
        change = compare_with(dense, outcome(cell), ratio)["metric"]
        assert point["difference"] == pytest.approx(change.difference, rel=1e-4, abs=1e-6)
        assert (point["low"], point["high"]) == pytest.approx((change.low, change.high), rel=1e-4)
        assert point["p"] == pytest.approx(change.p, rel=1e-2) and point["test"] == "McNemar"
        assert len(point["removed"]) == 8 - point["keep"] and point["is_random"] == (point["method"] == "random")
    assert curves["smallest_safe"]["random"] is None


def test_models_of_other_examples_are_left_out_and_named(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", data="one")
    make_run(tmp_path / "other", data="two")
    (tmp_path / "run" / "cells" / "pruned").rename(tmp_path / "away")
    (tmp_path / "other" / "cells" / "pruned").rename(tmp_path / "run" / "cells" / "pruned")
    data = collect(Run.open(run.folder)).report["runs"][0]
    assert data["curves"] is None
    assert any("other examples" in warning for warning in data["warnings"])


def test_the_command_of_a_point_names_all_that_was_asked(tmp_path: Path) -> None:
    from headcount.report._curves import command_of
    from headcount.runs.cells import Cell, Spec

    run = make_run(tmp_path / "run", text="a name; rm -rf /")
    told = {"method": "rank", "keep": 6, "seed": 3, "repair": False, "recover": 2.0, "floor": 1, "unit": "even"}
    told |= {"options": {"by": "fisher", "again": "true"}, "kinds": ["cross"], "limit": None}
    words = shlex.split(command_of(run.record(), "run", Cell(Spec("pruned", "x", {}), {"wish": told})))
    assert words[:3] == ["headcount", "prune", "a name; rm -rf /"]
    for pair in (
        ("--method", "fisher"),
        ("--option", "again=true"),
        ("--keep", "6"),
        ("--kinds", "cross"),
        ("--seed", "3"),
        ("--recover", "2"),
    ):
        assert words[words.index(pair[0]) + 1] == pair[1]
    assert "--no-repair" in words and words[-2:] == ["--out", "run"]


def test_roles_keep_every_row_and_say_where_no_head_beats_the_baseline(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    roles = collect(run).report["runs"][0]["roles"]
    rows = next(iter(run.results("roles").values())).content["rows"]
    assert len(roles["rows"]["head"]) == len(rows) == 8 * 5
    for i, row in enumerate(rows):
        assert roles["names"][roles["rows"]["role"][i]] == row["role"]
        assert roles["rows"]["bias"][i] == pytest.approx(row["bias"], rel=1e-3)
    for head, labels in enumerate(roles["labels"]):
        has = {row["role"] for row in rows if row["head"] == heads_of()[head] and row["has_role"]}
        assert {roles["names"][role] for role in labels} == has
    assert len(roles["relations"]) == 2
    for relation in roles["relations"]:
        mine = [row for row in rows if row["role"] == roles["names"][relation["role"]]]
        assert relation["accuracy"] == pytest.approx(max(row["accuracy"] for row in mine), rel=1e-3)
        assert relation["holds"] == (relation["low"] > 0)
    assert roles["skipped"] == ["2 sentences: plain"]


def test_no_two_roles_share_a_mark() -> None:
    names = [*(f"offset:{n:+d}" for n in range(-3, 4)), *(f"syntax:{r}{e}" for r in ("nsubj", "nmod", "obj", "obl") for e in ("", "-of"))]
    names += [f"pos:X{i}" for i in range(60)]
    marks = letters(names)
    assert len(set(marks)) == len(names) and all(1 <= len(mark) <= 2 for mark in marks)
    assert marks[:3] == ["-3", "-2", "-1"]


def test_maps_come_back_byte_by_byte(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    attention = collect(run).whole()["runs"][0]["attention"]
    arrays = next(iter(run.results("portraits").values())).arrays
    for sentence in range(3):
        for block in range(2):
            assert unpack(attention["maps"][sentence][block]) == arrays[f"{sentence}/{block}"].tobytes()


def test_totals_by_name_are_those_of_the_metrics() -> None:
    from headcount import metrics

    for metric in (*metrics.BY_NAME.values(), metrics.TOKEN_ACCURACY, metrics.PERPLEXITY):
        assert total_of(metric.name) is metric.total
    sums = np.random.default_rng(0).integers(1, 9, (3, 10)).astype(float)
    sums[:, 0] = sums[:, 1] = 20
    assert np.allclose(total_of("BLEU")(sums), metrics.bleu(lambda *_: ([], [])).total(sums))  # pyright: ignore[reportOptionalCall]
    assert total_of("somebody's own") is None


def test_the_interval_of_a_metric_holds_the_truth_nineteen_times_in_twenty() -> None:
    rng, held = np.random.default_rng(0), 0
    for _ in range(200):
        parts = np.stack([(rng.random(150) < 0.8).astype(float), np.ones(150)], -1)
        low, high = interval(Evaluation("t", "report", 150, np.zeros(150), "accuracy", True, float(parts[:, 0].mean()), parts), ratio)
        assert low is not None and high is not None
        held += low <= 0.8 <= high
    assert 180 <= held <= 199


def test_few_examples_damage_and_failures_are_told(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", n=50)
    (run.folder / "quarantine").mkdir()
    (run.folder / "quarantine" / "0000.x").write_text("x")
    with (run.folder / "log.txt").open("a") as log:
        log.write("2026-01-01T00:00:00+00:00 1 failed: pruned l0: no luck\n" * 2)
    warnings = collect(run).report["runs"][0]["warnings"]
    assert sum("50 examples" in text for text in warnings) == 1
    assert sum("1 damaged" in text for text in warnings) == 1
    assert warnings.count("Failed: pruned l0: no luck") == 1


@pytest.mark.parametrize("seed", range(4))
def test_the_summary_quotes_the_test_that_decides(seed: int, tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", seed=seed)
    data = collect(run).report["runs"][0]
    dense, sentence = unpack_evaluation(run.results("evaluation")["dense"]), data["summary"][1]
    quoted = re.search(
        r"by (\w+): loss \S+ against \S+ \(paired t p = (\S+), n = 300\); accuracy \S+ against \S+ \(McNemar p = (\S+)\)", sentence
    )
    assert quoted is not None, sentence
    safe = "without a significant loss" in sentence
    keep = 8 - int(sentence.split()[0]) if safe else int(re.search(r"even (\d+) by", sentence)[1])  # pyright: ignore[reportOptionalSubscript]
    wished = [
        cell
        for cell in run.results("pruned").values()
        if (cell.content["wish"]["method"], cell.content["wish"]["keep"]) == (quoted[1], keep)
    ]
    changes = [compare_with(dense, outcome(cell), ratio) for cell in wished]
    assert (quoted[2], quoted[3]) in {(f"{made['loss'].p:.2g}", f"{made['metric'].p:.2g}") for made in changes}
    down = float(re.search(r"accuracy (\S+) against", sentence)[1]) < dense.value  # pyright: ignore[reportOptionalSubscript]
    assert not safe or (float(quoted[2]) >= 0.05 and (float(quoted[3]) >= 0.05 or not down))
