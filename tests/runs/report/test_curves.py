"""Pruned models in the data of the report: curves, times, the best one, and what is said of them."""

from __future__ import annotations

import re
import shlex
from dataclasses import replace
from itertools import permutations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from contract import check
from kit import MADE, heads_of, make_run, request

from headcount.core.budget import Budget
from headcount.core.evaluation import Evaluation, PairedDifference, compare_with, interval
from headcount.core.stats.metric_parts import ratio
from headcount.pruning.spec import PruneSpec
from headcount.runs.artifacts import ArtifactKey
from headcount.runs.layout import RUN
from headcount.runs.records import write_record
from headcount.runs.report.collect import collect_report
from headcount.runs.report.plain import format_p
from headcount.runs.results import Best, PrunedRow, find_best, smallest_safe, unpack_evaluation, unpack_pruned
from headcount.runs.store import Run


def test_curves_are_what_the_library_tells(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    curves = collect_report(run).report["runs"][0]["curves"]
    dense = unpack_evaluation(run.results("evaluation")["dense"])
    assert curves["metric"] == "accuracy" and curves["dense"]["n_examples"] == 300
    assert curves["dense"]["low"] < curves["dense"]["value"] < curves["dense"]["high"]
    artifacts = {
        (artifact.content["label"], artifact.content["arguments"]["keep"], artifact.content["spec"]["seed"]): artifact
        for artifact in run.results("pruned").values()
    }
    assert len(curves["points"]) == len(artifacts) == 8
    for point in curves["points"]:
        artifact = artifacts[point["method"], point["keep"], point["seed"]]
        change = compare_with(dense, unpack_pruned(artifact), ratio)["metric"]
        assert point["difference"] == pytest.approx(change.difference, rel=1e-4, abs=1e-6)
        assert (point["low"], point["high"]) == pytest.approx((change.low, change.high), rel=1e-4)
        assert point["p"] == pytest.approx(change.p, rel=1e-2) and point["test"] == "Tango"
        assert len(point["removed"]) == 8 - point["keep"] and point["is_random"] == (point["method"] == "random")
    assert curves["smallest_safe"]["random"] is None


def test_models_of_other_examples_are_left_out_and_named(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", data="one")
    make_run(tmp_path / "other", data="two")
    (tmp_path / "run" / "artifacts" / "pruned").rename(tmp_path / "away")
    (tmp_path / "other" / "artifacts" / "pruned").rename(tmp_path / "run" / "artifacts" / "pruned")
    data = collect_report(Run.open(run.folder)).report["runs"][0]
    assert data["curves"] is None
    assert any("other examples" in warning for warning in data["warnings"])


def test_what_an_earlier_command_left_is_no_part_of_the_curves(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", kinds=("evaluation",))
    with Run.lead(run.folder) as led:
        led.present(led.commit(*pack_pruned(run, request("random", 4), heads_of()[4:], calibration="now"), provenance={}))
        led.commit(*pack_pruned(run, request("random", 2), heads_of()[2:], calibration="before"), provenance={})
        led.commit(*pack_pruned(run, request("random", 6), heads_of()[6:], calibration="now"), provenance={})
    data = collect_report(Run.open(run.folder)).report["runs"][0]
    assert [point["keep"] for point in data["curves"]["points"]] == [4, 6]
    assert sum(warning.startswith("1 pruned model of an earlier state") and "is left out" in warning for warning in data["warnings"]) == 1


def test_what_is_left_out_is_counted_in_words() -> None:
    from headcount.runs.report.curves import _describe_left_out

    assert _describe_left_out(0, 0) == []
    assert _describe_left_out(1, 2) == [
        "1 pruned model of an earlier state of the run, made on other data, is left out.",
        "2 pruned models were evaluated on other examples than the dense model and are left out.",
    ]


@pytest.mark.parametrize("how", [{}, {"repair": True}, {"repair": False}, {"recover": 2.0}, {"floor": 1}])
def test_a_time_names_the_very_model_that_was_timed(how: dict[str, Any], tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", kinds=("evaluation",))
    times = {"batch": 8, "length": 64, "seconds": 0.2, "low": 0.1, "high": 0.3, "rounds": 5, "name": "removed", "speedup": 1.0}
    with Run.lead(run.folder) as led:
        for seed in range(3):
            spec = PruneSpec.of("random", 4, seed=seed, **how)
            _, content, arrays = pack_pruned(run, request("random", 4, seed, **how), heads_of()[4 - seed : 8 - seed])
            artifact = led.commit(ArtifactKey("pruned", spec.name, {"spec": spec.to_dict()}), content, arrays, provenance={})
            led.present(
                artifact, led.commit(ArtifactKey("bench", spec.name, {"of": artifact.key.digest}), {"rows": [times]}, provenance={})
            )
    data = collect_report(Run.open(run.folder)).report["runs"][0]
    points = {point["id"]: point for point in data["curves"]["points"]}
    assert len(points) == len(data["bench"]) == 3
    for row in data["bench"]:
        point = points[row["point"]]
        assert (row["method"], row["keep"], row["seed"]) == (point["method"], point["keep"], point["seed"])
        assert point["removed"] == list(range(4 - row["seed"], 8 - row["seed"])), row["of"]


def test_times_of_a_model_that_is_gone_name_none(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    for path in (run.folder / "artifacts" / "pruned").iterdir():
        path.unlink()
    record = run.record()  # a command that leads takes what is gone off the list
    left = {title: key for title, key in record.results.items() if not title.startswith("pruned/")}
    write_record(run.folder / RUN, record.model_copy(update={"results": left}))
    (report,) = collect_report(Run.open(run.folder)).with_all_maps()["runs"]
    assert {(row["point"], row["method"], row["keep"], row["seed"]) for row in report["bench"]} == {(None,) * 4}
    check(report, "RunData")


def test_the_best_model_is_decided_once(tmp_path: Path) -> None:
    row, worse = row_of(0.5, 0.1), {"changes": {"loss": PairedDifference(0.1, 0, 0, 0.001, "t")}}
    assert find_best([]) is None and find_best([replace(row, removed=0, keep=8)]) is None
    assert find_best([replace(row, keep=6, loss=0.5), row, replace(row, method="b", loss=0.9)]) == Best(2, True)
    assert find_best([row, replace(row, seed=1, **worse), replace(row, keep=6, loss=3.0)]) == Best(2, True), "one bad seed is enough"
    lost = [replace(row, **worse), replace(row, **worse, keep=6, loss=2.0), replace(row, **worse, keep=6, seed=1, loss=1.5)]
    assert find_best(lost) == Best(2, False)
    equal = [row, replace(row, method="b"), replace(row, seed=1)]
    assert {str(order[find_best(order).at]) for order in permutations(equal)} == {str(row)}, "equals do not depend on their order"  # pyright: ignore[reportOptionalMemberAccess]
    for seed in range(4):
        data = collect_report(make_run(tmp_path / f"run{seed}", seed=seed)).report["runs"][0]
        (best,) = [point for point in data["curves"]["points"] if point["id"] == data["curves"]["best"]["point"]]
        safe = data["curves"]["best"]["is_safe"]
        told = f"{8 - best['keep']} of them can be removed without" if safe else f"significantly worse, even {best['keep']} by"
        quoted = re.search(rf"by {best['method']}: loss (\S+) against", data["summary"][1])
        assert told in data["summary"][1] and quoted is not None and float(quoted[1]) == pytest.approx(best["loss"], rel=1e-3)
        assert safe == any(keep is not None for keep in data["curves"]["smallest_safe"].values())


def test_the_loss_of_a_model_is_by_its_metric_its_loss_or_both() -> None:
    assert row_of(0.5, 0.1, (0.01, -0.1)).worse_by() == ["metric"] and row_of(0.01, 0.1, (0.01, -0.1)).worse_by() == ["metric", "loss"]
    smaller = replace(row_of(0.5, 0.1, (0.01, -0.1)), higher_is_better=False)
    assert smaller.worse_by() == row_of(0.5, 0.1, (0.5, -0.1)).worse_by() == []
    assert row_of(0.01, 0.1).worse_by() == ["loss"] and row_of(0.01, -0.1).worse_by() == []


def row_of(p: float, difference: float, metric: tuple[float, float] | None = None) -> PrunedRow:
    """A row whose loss, and maybe metric, differ by so much with such a p-value."""
    changes = {"loss": PairedDifference(difference, 0, 0, p, "t")}
    changes |= {} if metric is None else {"metric": PairedDifference(metric[1], 0, 0, metric[0], "t")}
    return PrunedRow("a", 4, 4, 0, None, 1.0, None, True, changes, 900)


def test_speed_is_told_with_its_doubts() -> None:
    from headcount.runs.report.bench import judge_times
    from headcount.runs.report.sentences import noise_warnings, speed_sentence

    def row(name: str, batch: int, low: float, middle: float, high: float, speedup: float) -> dict[str, Any]:
        times = {"low": low, "seconds": middle, "high": high, "speedup": speedup, "rounds": 5}
        return {"of": "surgeon, 8 heads", "name": name, "batch": batch, "length": 64, **times}

    clear = judge_times(
        [row("dense", 1, 0.9, 1.0, 1.1, 1.0), row("masked", 1, 0.9, 1.0, 1.1, 1.0), row("removed", 1, 0.45, 0.5, 0.55, 2.0)]
    )
    doubtful = judge_times(
        [row("dense", 8, 1.4, 3.1, 3.2, 1.0), row("masked", 8, 1.2, 1.3, 1.35, 2.4), row("removed", 8, 1.4, 1.5, 1.6, 2.1)]
    )
    assert [each["is_apart"] for each in (*clear, *doubtful)] == [False, False, True, False, True, False]
    assert [each["is_noisy"] for each in (*clear, *doubtful)] == [False, False, False, True, False, False]
    assert [each["is_odd"] for each in (*clear, *doubtful)] == [False, False, False, False, True, False]
    told = speed_sentence([*clear, *doubtful], {"threads": 1})
    assert "is 2.00 times as fast at batch 1, 2.10 times as fast at batch 8 (" in told and "; at batch 8 the quartiles overlap" in told
    assert not noise_warnings(clear)
    assert len(noise_warnings([*clear, *doubtful])) == 1 and "8 × 64" in noise_warnings(doubtful)[0]


def test_the_command_of_a_point_names_all_that_was_asked(tmp_path: Path) -> None:
    from headcount.runs.artifacts import Artifact
    from headcount.runs.report.commands import prune_command

    run = make_run(tmp_path / "run", text="a name; rm -rf /")
    spec = PruneSpec.of("rank(by=fisher;again=true)", 6, seed=3, repair=False, recover=2.0, floor=1, unit="even", kinds=["cross"])
    content = {"spec": spec.to_dict(), "arguments": spec.arguments()}
    words = shlex.split(prune_command(run.record(), "run", Artifact(ArtifactKey("pruned", "x", {}), content)))
    assert words[:3] == ["headcount", "prune", "a name; rm -rf /"]
    for pair in (
        ("--method", "rank(by=fisher;again=true)"),
        ("--floor", "1"),
        ("--unit", "even"),
        ("--keep", "6"),
        ("--kinds", "cross"),
        ("--method-seed", "3"),
        ("--recover", "2"),
    ):
        assert words[words.index(pair[0]) + 1] == pair[1]
    assert "--no-repair" in words and words[-2:] == ["--out", "runs/run"]


def test_the_interval_of_a_metric_holds_the_truth_nineteen_times_in_twenty() -> None:
    rng, held = np.random.default_rng(0), 0
    for _ in range(200):
        parts = np.stack([(rng.random(150) < 0.8).astype(float), np.ones(150)], -1)
        low, high = interval(Evaluation("t", "report", 150, np.zeros(150), "accuracy", True, float(parts[:, 0].mean()), parts), ratio)
        assert low is not None and high is not None
        held += low <= 0.8 <= high
    assert 180 <= held <= 199


@pytest.mark.parametrize("seed", range(4))
def test_the_summary_quotes_the_test_that_decides(seed: int, tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", seed=seed)
    data = collect_report(run).report["runs"][0]
    dense, sentence = unpack_evaluation(run.results("evaluation")["dense"]), data["summary"][1]
    quoted = re.search(
        r"by (\w+): loss \S+ against \S+ \(paired t (p [=<] \S+), n = 300\); accuracy \S+ against \S+ \(Tango (p [=<] \S+)\)", sentence
    )
    assert quoted is not None, sentence
    safe = "without a significant loss" in sentence
    keep = 8 - int(sentence.split()[0]) if safe else int(re.search(r"even (\d+) by", sentence)[1])  # pyright: ignore[reportOptionalSubscript]
    wished = [
        artifact
        for artifact in run.results("pruned").values()
        if (artifact.content["label"], artifact.content["arguments"]["keep"]) == (quoted[1], keep)
    ]
    changes = [compare_with(dense, unpack_pruned(artifact), ratio) for artifact in wished]
    assert (quoted[2], quoted[3]) in {(format_p(made["loss"].p), format_p(made["metric"].p)) for made in changes}
    down = float(re.search(r"accuracy (\S+) against", sentence)[1]) < dense.value  # pyright: ignore[reportOptionalSubscript]
    loss, metric = (float(text.split()[-1]) for text in quoted.groups()[1:])
    assert not safe or (loss >= 0.05 and (metric >= 0.05 or not down))


def test_a_model_that_lost_nothing_is_not_called_safe(tmp_path: Path) -> None:
    row = replace(row_of(1.0, 0.0), keep=8, removed=0)
    assert smallest_safe([row]) == {"a": None} and smallest_safe([row, row_of(0.001, 1.0)]) == {"a": None}
    assert smallest_safe([row, row_of(0.5, 1.0)]) == {"a": 4}
    run = make_run(tmp_path / "run", kinds=("evaluation",))
    with Run.lead(run.folder) as led:
        made = pack_pruned(run, request("random", 8), [])
        led.present(led.commit(*made, provenance={}))
    data = collect_report(run).report["runs"][0]
    assert data["curves"]["smallest_safe"] == {"random": None} and data["summary"][1].startswith("Nothing was pruned")


def pack_pruned(run: Run, told: dict[str, Any], removed: list[str], **parts: Any) -> tuple[ArtifactKey, dict[str, Any], dict[str, Any]]:
    made = unpack_evaluation(run.results("evaluation")["dense"])
    content = {name: getattr(made, name) for name in ("metric", "higher_is_better", "value", "n_examples", "data", "loss")}
    content |= {**told, "removed": removed, **MADE}
    return ArtifactKey("pruned", f"x{len(removed)} {told}", parts), content, {"losses": made.losses, "parts": made.parts}


def test_protected_heads_make_a_method_of_their_own(tmp_path: Path) -> None:
    free, spares = request("random", 4), request("random", 4, protected=["L0H1", "L1H3"])
    assert free["label"] == "random" and spares["label"] == "random sparing L0H1+L1H3"
    many = [request("random", 4, protected=heads)["label"] for heads in (heads_of()[:5], heads_of()[1:6])]
    assert many[0].startswith("random sparing 5 heads") and many[0] != many[1]
    run = make_run(tmp_path / "run", kinds=("evaluation",))
    with Run.lead(run.folder) as led:
        led.present(*(led.commit(*pack_pruned(run, told, heads_of()[4:]), provenance={}) for told in (free, spares)))
    curves = collect_report(run).report["runs"][0]["curves"]
    assert {point["method"] for point in curves["points"]} == set(curves["commands"]) == {"random", "random sparing L0H1+L1H3"}
    table = (run.folder / "curves.csv").read_text()
    assert table.count(",L0H1+L1H3,") == 1


def test_floor_and_unit_make_a_method_of_their_own(tmp_path: Path) -> None:
    plain, floored, even = request("random", 4), request("random", 4, floor=1), request("random", 4, unit="even")
    assert [told["label"] for told in (plain, floored, even)] == ["random", "random with floor 1", "random with unit even"]
    assert request("random", 4, floor=2, unit="even", ablation="mean")["label"] == "random with floor 2 and unit even + mean"
    run = make_run(tmp_path / "run", kinds=("evaluation",))
    with Run.lead(run.folder) as led:
        led.present(*(led.commit(*pack_pruned(run, told, heads_of()[4:]), provenance={}) for told in (plain, floored, even)))
    curves = collect_report(run).report["runs"][0]["curves"]
    assert sorted(point["method"] for point in curves["points"]) == sorted(curves["smallest_safe"]) == sorted(curves["commands"])


def test_the_table_of_curves_tells_pruned_models_apart(tmp_path: Path) -> None:
    import pandas

    run = make_run(tmp_path / "run", kinds=("evaluation",))
    wishes = [
        request("surgeon", 5),
        request("surgeon", Budget(parameters=1234567)),
        request("surgeon", 5, ablation="mean"),
        request("surgeon", 5, floor=1, unit="even"),
    ]
    with Run.lead(run.folder) as led:
        led.present(*(led.commit(*pack_pruned(run, told, heads_of()[5:]), provenance={}) for told in wishes))
    for table in (pandas.read_csv(run.folder / "curves.csv", keep_default_na=False), pandas.read_parquet(run.folder / "curves.parquet")):
        assert table["keep"].tolist() == [5] * 4, "a model within a limit of parameters has heads too"
        found = {tuple(row) for row in table[["floor", "unit", "ablation", "limit"]].itertuples(index=False)}
        limited = (0, "kv_group", "zero", "parameters=1234567")
        assert found == {(0, "kv_group", "zero", ""), limited, (0, "kv_group", "mean", ""), (1, "even", "zero", "")}
