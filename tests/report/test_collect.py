"""What the page gets out of a run folder: the contract to the letter, and the numbers that the library itself would tell."""

from __future__ import annotations

import re
import shlex
from itertools import permutations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from contract import TYPES, check, wrong
from kit import MADE, heads_of, make_run, wish

from headcount.report import collect
from headcount.report._roles import letters
from headcount.report._scores import _of, significant
from headcount.report.attention import unpack
from headcount.runs.cells import Spec
from headcount.runs.outcomes import (
    Best,
    Evaluation,
    best_of,
    compare_with,
    interval,
    method_name,
    outcome,
    smallest_safe,
    told_p,
    unpack_evaluation,
    worse_by,
)
from headcount.runs.scores import all_scores
from headcount.runs.store import Run
from headcount.stats import benjamini_hochberg
from headcount.stats.parts import ratio, total_of

EVERYTHING = ("scores", "roles", "evaluation", "pruned", "bench", "study", "portraits")


def test_the_checker_finds_what_does_not_fit() -> None:
    good = {"of": "a", "point": None, "method": None, "keep": 3, "seed": 0, "name": "dense", "batch": 1, "length": 2, "seconds": 0.1}
    good |= {"low": 0.1, "high": 0.1, "speedup": 1, "rounds": 5, "is_noisy": False, "is_apart": False, "is_odd": False}
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


def test_what_an_earlier_command_left_is_no_part_of_the_curves(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", kinds=("evaluation",))
    with Run.lead(run.folder) as led:
        led.present(led.commit(*pack_pruned(run, wish("random", 4), heads_of()[4:], calibration="now"), made={}))
        led.commit(*pack_pruned(run, wish("random", 2), heads_of()[2:], calibration="before"), made={})
        led.commit(*pack_pruned(run, wish("random", 6), heads_of()[6:], calibration="now"), made={})
    data = collect(Run.open(run.folder)).report["runs"][0]
    assert [point["keep"] for point in data["curves"]["points"]] == [4, 6]
    assert sum(warning.startswith("1 pruned model of an earlier state") and "is left out" in warning for warning in data["warnings"]) == 1


def test_what_is_left_out_is_counted_in_words() -> None:
    from headcount.report.curves import _left_out

    assert _left_out(0, 0) == []
    assert _left_out(1, 2) == [
        "1 pruned model of an earlier state of the run, made on other data, is left out.",
        "2 pruned models were evaluated on other examples than the whole model and are left out.",
    ]


@pytest.mark.parametrize("how", [{}, {"repair": True}, {"repair": False}, {"recover": 2.0}, {"floor": 1}])
def test_a_time_names_the_very_model_that_was_timed(how: dict[str, Any], tmp_path: Path) -> None:
    from headcount.pruning import Wish

    run = make_run(tmp_path / "run", kinds=("evaluation",))
    times = {"batch": 8, "length": 64, "seconds": 0.2, "low": 0.1, "high": 0.3, "rounds": 5, "name": "removed", "speedup": 1.0}
    with Run.lead(run.folder) as led:
        for seed in range(3):
            asked = Wish("random", 4, seed, **how)
            _, content, arrays = pack_pruned(run, asked.parts(), heads_of()[4 - seed : 8 - seed])
            cell = led.commit(Spec("pruned", asked.name, {"wish": asked.parts()}), content, arrays, made={})
            led.present(cell, led.commit(Spec("bench", asked.name, {"of": cell.spec.key}), {"rows": [times]}, made={}))
    data = collect(Run.open(run.folder)).report["runs"][0]
    points = {point["id"]: point for point in data["curves"]["points"]}
    assert len(points) == len(data["bench"]) == 3
    for row in data["bench"]:
        point = points[row["point"]]
        assert (row["method"], row["keep"], row["seed"]) == (point["method"], point["keep"], point["seed"])
        assert point["removed"] == list(range(4 - row["seed"], 8 - row["seed"])), row["of"]


def test_times_of_a_model_that_is_gone_name_none(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    for path in (run.folder / "cells" / "pruned").iterdir():
        path.unlink()
    (report,) = collect(Run.open(run.folder)).whole()["runs"]
    assert {(row["point"], row["method"], row["keep"], row["seed"]) for row in report["bench"]} == {(None,) * 4}
    check(report, "RunData")


def test_the_best_model_is_decided_once(tmp_path: Path) -> None:
    row = {"removed": 4, "seed": 0, "loss p": 0.5, "loss difference": 0.1, "loss": 1.0, "method": "a", "keep": 4}
    worse = {"loss p": 0.001}
    assert best_of([]) is None and best_of([{**row, "removed": 0, "keep": 8}]) is None
    assert best_of([{**row, "keep": 6, "loss": 0.5}, row, {**row, "method": "b", "loss": 0.9}]) == Best(2, True)
    assert best_of([row, {**row, "seed": 1, **worse}, {**row, "keep": 6, "loss": 3.0}]) == Best(2, True), "one bad seed is enough"
    lost = [{**row, **worse}, {**row, **worse, "keep": 6, "loss": 2.0}, {**row, **worse, "keep": 6, "seed": 1, "loss": 1.5}]
    assert best_of(lost) == Best(2, False)
    equal = [row, {**row, "method": "b"}, {**row, "seed": 1}]
    assert {str(order[best_of(order).at]) for order in permutations(equal)} == {str(row)}, "equals do not depend on their order"  # pyright: ignore[reportOptionalMemberAccess]
    for seed in range(4):
        data = collect(make_run(tmp_path / f"run{seed}", seed=seed)).report["runs"][0]
        (best,) = [point for point in data["curves"]["points"] if point["id"] == data["curves"]["best"]["point"]]
        safe = data["curves"]["best"]["is_safe"]
        told = f"{8 - best['keep']} of them can go without" if safe else f"significantly worse, even {best['keep']} by"
        quoted = re.search(rf"by {best['method']}: loss (\S+) against", data["summary"][1])
        assert told in data["summary"][1] and quoted is not None and float(quoted[1]) == pytest.approx(best["loss"], rel=1e-3)
        assert safe == any(keep is not None for keep in data["curves"]["smallest_safe"].values())


def test_the_loss_of_a_model_is_by_its_metric_its_loss_or_both() -> None:
    row = {"loss p": 0.5, "loss difference": 0.1, "metric p": 0.01, "metric difference": -0.1, "higher_is_better": True}
    assert worse_by(row) == ["metric"] and worse_by({**row, "loss p": 0.01}) == ["metric", "loss"]
    assert worse_by({**row, "higher_is_better": False}) == worse_by({**row, "metric p": 0.5}) == []
    assert worse_by({"loss p": 0.01, "loss difference": 0.1}) == ["loss"] and worse_by({"loss p": 0.01, "loss difference": -0.1}) == []


def test_speed_is_told_with_its_doubts() -> None:
    from headcount.report._bench import judged
    from headcount.report.told import _faster, noise_of

    def row(name: str, batch: int, low: float, middle: float, high: float, speedup: float) -> dict[str, Any]:
        times = {"low": low, "seconds": middle, "high": high, "speedup": speedup, "rounds": 5}
        return {"of": "surgeon, 8 heads", "name": name, "batch": batch, "length": 64, **times}

    clear = judged([row("dense", 1, 0.9, 1.0, 1.1, 1.0), row("masked", 1, 0.9, 1.0, 1.1, 1.0), row("removed", 1, 0.45, 0.5, 0.55, 2.0)])
    doubtful = judged([row("dense", 8, 1.4, 3.1, 3.2, 1.0), row("masked", 8, 1.2, 1.3, 1.35, 2.4), row("removed", 8, 1.4, 1.5, 1.6, 2.1)])
    assert [each["is_apart"] for each in (*clear, *doubtful)] == [False, False, True, False, True, False]
    assert [each["is_noisy"] for each in (*clear, *doubtful)] == [False, False, False, True, False, False]
    assert [each["is_odd"] for each in (*clear, *doubtful)] == [False, False, False, False, True, False]
    told = _faster([*clear, *doubtful], {"threads": 1})
    assert "is 2.00 times as fast at batch 1, 2.10 at batch 8 (" in told and "; at batch 8 the quartiles overlap" in told
    assert not noise_of(clear)
    assert len(noise_of([*clear, *doubtful])) == 1 and "8 × 64" in noise_of(doubtful)[0]


def test_the_command_of_a_point_names_all_that_was_asked(tmp_path: Path) -> None:
    from headcount.runs.cells import Cell
    from headcount.runs.commands import command_of

    run = make_run(tmp_path / "run", text="a name; rm -rf /")
    told = {"method": "rank", "keep": 6, "seed": 3, "repair": False, "recover": 2.0, "floor": 1, "unit": "even"}
    told |= {"options": {"by": "fisher", "again": "true"}, "kinds": ["cross"], "limit": None}
    words = shlex.split(command_of(run.record(), "run", Cell(Spec("pruned", "x", {}), {"wish": told})))
    assert words[:3] == ["headcount", "prune", "a name; rm -rf /"]
    for pair in (
        ("--method", "rank"),
        ("--option", "again=true"),
        ("--keep", "6"),
        ("--kinds", "cross"),
        ("--seed", "3"),
        ("--recover", "2"),
    ):
        assert words[words.index(pair[0]) + 1] == pair[1]
    assert "--no-repair" in words and words[-2:] == ["--out", "runs/run"] and "by=fisher" in words, "fisher alone is another method"


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
        assert relation["holds"] == (relation["difference"] > 0 and relation["q"] < 0.05)
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
        r"by (\w+): loss \S+ against \S+ \(paired t (p [=<] \S+), n = 300\); accuracy \S+ against \S+ \(McNemar (p [=<] \S+)\)", sentence
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
    assert (quoted[2], quoted[3]) in {(told_p(made["loss"].p), told_p(made["metric"].p)) for made in changes}
    down = float(re.search(r"accuracy (\S+) against", sentence)[1]) < dense.value  # pyright: ignore[reportOptionalSubscript]
    loss, metric = (float(text.split()[-1]) for text in quoted.groups()[1:])
    assert not safe or (loss >= 0.05 and (metric >= 0.05 or not down))


def test_p_values_are_written_as_the_page_writes_them() -> None:
    told = {
        0.625: "0.63",
        0.6249: "0.63",
        0.125: "0.13",
        0.0625: "0.063",
        0.5: "0.5",
        1.0: "1",
        0.996: "1",
        0.00104: "0.001",
        0.04499: "0.045",
    }
    assert {p: told_p(p) for p in told} == {p: f"p = {text}" for p, text in told.items()}
    assert told_p(0.0) == told_p(0.00099) == "p < 0.001"


def test_a_model_that_lost_nothing_is_not_called_safe(tmp_path: Path) -> None:
    row = {"method": "a", "keep": 8, "removed": 0, "loss p": 1.0, "loss difference": 0.0, "loss": 1.0}
    worse = {**row, "keep": 4, "removed": 4, "loss p": 0.001, "loss difference": 1.0}
    assert smallest_safe([row]) == {"a": None} and smallest_safe([row, worse]) == {"a": None}
    assert smallest_safe([row, {**worse, "loss p": 0.5}]) == {"a": 4}
    run = make_run(tmp_path / "run", kinds=("evaluation",))
    with Run.lead(run.folder) as led:
        made = pack_pruned(run, wish("random", 8), [])
        led.present(led.commit(*made, made={}))
    data = collect(run).report["runs"][0]
    assert data["curves"]["smallest_safe"] == {"random": None} and data["summary"][1].startswith("Nothing was pruned")


def pack_pruned(run: Run, told: dict[str, Any], removed: list[str], **parts: Any) -> tuple[Spec, dict[str, Any], dict[str, Any]]:
    made = unpack_evaluation(run.results("evaluation")["dense"])
    content = {name: getattr(made, name) for name in ("metric", "higher_is_better", "value", "n_examples", "data", "loss")}
    content |= {"wish": told, "removed": removed, **MADE}
    return Spec("pruned", f"x{len(removed)} {told}", parts), content, {"losses": made.losses, "parts": made.parts}


def test_protected_heads_make_a_method_of_their_own(tmp_path: Path) -> None:
    free, spares = wish("random", 4), wish("random", 4, protected=["L0H1", "L1H3"])
    assert method_name(free) == "random" and method_name(spares) == "random sparing L0H1+L1H3"
    many = [method_name(wish("random", 4, protected=heads)) for heads in (heads_of()[:5], heads_of()[1:6])]
    assert many[0].startswith("random sparing 5 heads") and many[0] != many[1]
    run = make_run(tmp_path / "run", kinds=("evaluation",))
    with Run.lead(run.folder) as led:
        led.present(*(led.commit(*pack_pruned(run, told, heads_of()[4:]), made={}) for told in (free, spares)))
    curves = collect(run).report["runs"][0]["curves"]
    assert {point["method"] for point in curves["points"]} == set(curves["commands"]) == {"random", "random sparing L0H1+L1H3"}
    table = (run.folder / "curves.csv").read_text()
    assert "protected=L0H1+L1H3" in table and table.count("protected=") == 1


def test_floor_and_unit_make_a_method_of_their_own(tmp_path: Path) -> None:
    plain, floored, even = wish("random", 4), wish("random", 4, floor=1), wish("random", 4, unit="even")
    assert [method_name(told) for told in (plain, floored, even)] == ["random", "random with floor 1", "random with unit even"]
    assert method_name(wish("random", 4, floor=2, unit="even", ablation="mean")) == "random with floor 2 and unit even + mean"
    run = make_run(tmp_path / "run", kinds=("evaluation",))
    with Run.lead(run.folder) as led:
        led.present(*(led.commit(*pack_pruned(run, told, heads_of()[4:]), made={}) for told in (plain, floored, even)))
    curves = collect(run).report["runs"][0]["curves"]
    assert sorted(point["method"] for point in curves["points"]) == sorted(curves["smallest_safe"]) == sorted(curves["commands"])


def test_the_table_of_curves_tells_pruned_models_apart(tmp_path: Path) -> None:
    import pandas

    run = make_run(tmp_path / "run", kinds=("evaluation",))
    wishes = [
        wish("surgeon", 5),
        wish("surgeon", 0, limit=["parameters", 1234567]),
        wish("surgeon", 5, ablation="mean"),
        wish("surgeon", 5, floor=1, unit="even"),
    ]
    with Run.lead(run.folder) as led:
        led.present(*(led.commit(*pack_pruned(run, told, heads_of()[5:]), made={}) for told in wishes))
    for table in (pandas.read_csv(run.folder / "curves.csv", keep_default_na=False), pandas.read_parquet(run.folder / "curves.parquet")):
        assert table["keep"].tolist() == [5] * 4, "a model within a limit of parameters has heads too"
        found = {tuple(row) for row in table[["floor", "unit", "ablation", "limit"]].itertuples(index=False)}
        limited = (0, "kv_group", "zero", "parameters=1234567")
        assert found == {(0, "kv_group", "zero", ""), limited, (0, "kv_group", "mean", ""), (1, "even", "zero", "")}


def test_results_whose_cells_are_gone_are_counted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from headcount.cli import main

    run = make_run(tmp_path / "run", n=20)
    assert not any("missing" in text for text in collect(run).report["runs"][0]["warnings"])
    for path in sorted((run.folder / "cells" / "pruned").iterdir())[:2]:
        path.unlink()
    next((run.folder / "cells" / "roles").iterdir()).unlink()
    told = [text for text in collect(run).report["runs"][0]["warnings"] if "missing" in text]
    assert len(told) == 1 and told[0].startswith("3 results are listed") and "2 of kind pruned, 1 of kind roles" in told[0]
    assert main(["report", str(run.folder)]) == 0
    assert "2 of kind pruned, 1 of kind roles" in capsys.readouterr().err
    assert main(["report", str(run.folder), "--max-mb", "0.01"]) == 0
    assert "could not be made as small as the 0.01 MB" in capsys.readouterr().err


def test_the_q_of_a_relation_is_that_of_its_difference(tmp_path: Path) -> None:
    from scipy import stats

    from headcount.report._roles import roles_of
    from headcount.runs.schema import RolesRecord

    content = next(iter(make_run(tmp_path / "run").results("roles").values())).content
    rows = [
        {**row, "q": 0.9, "accuracy": 0.5 + 0.02 * i, "accuracy_low": 0.42 + 0.02 * i, "accuracy_high": 0.58 + 0.02 * i}
        for i, row in enumerate(row for row in content["rows"] if row["role"] == "syntax:nsubj")
    ]
    (relation,) = roles_of(RolesRecord.model_validate({**content, "rows": rows}), heads_of())["relations"]
    error = 0.08 / stats.t.ppf(0.975, 29)
    q = benjamini_hochberg(2 * stats.norm.sf(0.02 * np.arange(8) / error))
    assert relation["head"] == 7 and relation["q"] == pytest.approx(q[7], rel=1e-3) and relation["holds"] is True
    below = [{**row, "baseline": 0.99} for row in rows]
    assert roles_of(RolesRecord.model_validate({**content, "rows": below}), heads_of())["relations"][0]["holds"] is False
    sure = [{**row, "accuracy": 1.0, "accuracy_low": 1.0, "accuracy_high": 1.0} for row in rows]
    assert roles_of(RolesRecord.model_validate({**content, "rows": sure}), heads_of())["relations"][0]["q"] < 1e-6


def test_columns_of_a_score_say_what_they_are(tmp_path: Path) -> None:
    from dataclasses import replace

    scores = replace(all_scores(make_run(tmp_path / "run"))["ablation"], columns={"accuracy change": (0.1,) * 8, "examples": (3.0,) * 8})
    first, change, examples = _of("ablation", scores, heads_of())
    assert len({first["about"], change["about"], examples["about"]}) == 3
    assert change["name"] == "ablation: accuracy change" and "accuracy" in change["about"]


def test_columns_and_kinds_of_scores_are_as_the_run_tells_them(tmp_path: Path) -> None:
    from dataclasses import replace

    from headcount.runs.cells import Cell
    from headcount.runs.scores import pack_scores, unpack_scores

    told = all_scores(make_run(tmp_path / "run"))["gradient"]
    columns = {"WER change": (0.1,) * 8, "WER stderr": (0.1,) * 8, "examples": (3.0,) * 8}
    told = replace(told, method="mine", columns=columns, directions={"WER change": True}, describes=True)
    told = unpack_scores(Cell(Spec("scores", "mine", {}), *pack_scores(told)))
    first, change, examples = _of("mine", told, heads_of())
    assert first["kind"] == "description" and change["higher_is_keep"] is True and change["stderr"] is not None
    assert examples["higher_is_keep"] is True, "the page says 'the lower, the more the head is needed' of what is not"
    known = _of("confidence", replace(told, describes=False), heads_of())[0]
    assert known["kind"] == "importance", "what the run tells goes before what is known by name"


def test_directions_are_guessed_where_an_old_run_does_not_tell_them(tmp_path: Path) -> None:
    from dataclasses import replace

    old = all_scores(Run.open(Path(__file__).parents[1] / "frozen" / "run-v2"))["ablation"]
    assert old.describes is None and not old.directions
    first, change = _of("ablation", old, [str(head) for head in old.heads])
    assert first["kind"] == "importance" and change["name"] == "ablation: accuracy change" and change["higher_is_keep"] is False
    scores = replace(old, columns=dict.fromkeys(("accuracy change", "perplexity change"), old.values))
    for name, direction in (("ablation", True), ("all-but-one", False)):
        _, accuracy, perplexity = _of(name, replace(scores, higher_is_keep=direction), heads_of())
        assert (accuracy["higher_is_keep"], perplexity["higher_is_keep"]) == (not direction, direction)
    assert _of("entropy", old, heads_of())[0]["kind"] == "description"


def test_a_run_opens_by_its_name_and_says_which_it_is(tmp_path: Path) -> None:
    make_run(tmp_path / "run", n=20, kinds=("scores",))
    assert repr(Run.open(str(tmp_path / "run"))) == f"Run({str(tmp_path / 'run')!r})"
