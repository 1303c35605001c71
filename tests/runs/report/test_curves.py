"""Pruned models in the data of the report: curves, times, the best one, and what is said of them."""

from __future__ import annotations

import shlex
from dataclasses import replace
from itertools import permutations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from contract import check
from kit import MADE, heads_of, make_run, request

from headcount.app.console.words import prune_command
from headcount.core.budget import Budget
from headcount.core.certificate import Certificate, certify_task
from headcount.core.certificate_file import write_certificate
from headcount.core.evaluation import Evaluation, score_interval
from headcount.core.margin import Margin
from headcount.core.stats.metric_parts import ratio
from headcount.core.survivors import SurvivingHeads
from headcount.pruning.spec import PruneSpec
from headcount.runs.artifacts import ArtifactKey
from headcount.runs.layout import RUN
from headcount.runs.records import write_record
from headcount.runs.report.collect import collect_report
from headcount.runs.results import (
    ChosenModel,
    PrunedModelRow,
    SelectionRecord,
    choose_model,
    choose_row_index_by_kept_count,
    unpack_evaluation,
    unpack_pruned_evaluation,
)
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
        task = certify_task(dense, unpack_pruned_evaluation(artifact), ratio)
        assert point["difference"] == pytest.approx(-task.quality.loss, rel=1e-4, abs=1e-6)
        assert (point["low"], point["high"]) == pytest.approx((-task.quality.bound, -task.quality.at_least), rel=1e-4)
        assert point["bound"] == pytest.approx(task.quality.bound, rel=1e-4) and point["procedure"] == "Tango" and point["verdict"] is None
        assert point["bound_text"].startswith("at most ") and point["right_to_wrong"] == len(task.right_to_wrong or ())
        assert len(point["removed"]) == 8 - point["keep"] and point["is_random"] == (point["method"] == "random")
    assert curves["margin"] == "" and curves["sizes"] == [] and curves["chosen"]["point"] in curves["by_size"]


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
        led.register_results(led.commit(*pack_pruned(run, request("random", 4), heads_of()[4:], calibration="now"), provenance={}))
        led.commit(*pack_pruned(run, request("random", 2), heads_of()[2:], calibration="before"), provenance={})
        led.commit(*pack_pruned(run, request("random", 6), heads_of()[6:], calibration="now"), provenance={})
    data = collect_report(Run.open(run.folder)).report["runs"][0]
    assert [point["keep"] for point in data["curves"]["points"]] == [4, 6]
    assert sum(warning.startswith("1 pruned model of an earlier state") and "is left out" in warning for warning in data["warnings"]) == 1


def test_what_is_left_out_is_counted_in_words() -> None:
    from headcount.runs.report.curves import _notes_on_left_out_models

    assert _notes_on_left_out_models(0, 0) == []
    assert _notes_on_left_out_models(1, 2) == [
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
            led.register_results(
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
    by_title = {title: key for title, key in record.results.items() if not title.startswith("pruned/")}
    write_record(run.folder / RUN, record.model_copy(update={"results": by_title}))
    (report,) = collect_report(Run.open(run.folder)).with_all_maps()["runs"]
    assert {(row["point"], row["method"], row["keep"], row["seed"]) for row in report["bench"]} == {(None,) * 4}
    check(report, "RunData")


def row_of(
    keep: int, selection: float, *, right_to_wrong: int = 0, method: str = "a", seed: int = 0, margin: str | None = None
) -> PrunedModelRow:
    """A row of 16 heads with an accuracy on the selection split, and on the report split so many of 500 answers that went wrong."""
    right, fallen = np.ones((500, 2)), np.ones((500, 2))
    fallen[:right_to_wrong, 0] = 0
    dense, small = (
        Evaluation("t", "report", 500, 1 - parts[:, 0], "accuracy", True, float(parts[:, 0].mean()), parts, "d")
        for parts in (right, fallen)
    )
    certificate = certify_task(dense, small, ratio, None if margin is None else Margin.parse(margin))
    surviving_heads = SurvivingHeads(heads=tuple(map(str, range(keep))))
    on_selection = SelectionRecord(loss=1 - selection, value=selection, n_examples=100, data="s")
    return PrunedModelRow(
        method, keep, 16 - keep, seed, None, 1.0, small.value, True, certificate, 900, survivors=surviving_heads, selection=on_selection
    )


def test_the_selection_split_chooses_and_the_report_split_does_not() -> None:
    rows = [
        row_of(8, 0.9, right_to_wrong=400),
        row_of(8, 0.8, method="b"),
        row_of(8, 0.9, right_to_wrong=300, seed=1),
        row_of(4, 0.7),
        row_of(4, 0.75, right_to_wrong=500, method="b"),
        replace(row_of(16, 1.0), removed=0),
    ]
    assert choose_row_index_by_kept_count(rows) == {8: 0, 4: 4}
    assert choose_model(rows, has_margin=False) == ChosenModel(0), "the best on the selection split"
    equal = [row_of(8, 0.9), row_of(4, 0.9)]
    assert choose_model(equal, has_margin=False) == ChosenModel(1), "of equals the one with the fewest heads"
    assert choose_model([], has_margin=True) is None and choose_model(rows[-1:], has_margin=False) is None
    assert choose_model([replace(rows[0], selection=None)], has_margin=False) is None
    for order in permutations(range(3)):
        assert rows[order[choose_row_index_by_kept_count([rows[at] for at in order])[8]]] == rows[0], "equals do not depend on their order"


def test_sizes_are_tested_in_order_up_to_the_first_that_fails() -> None:
    lost = {12: 0, 10: 3, 8: 40, 4: 0}
    rows = [row_of(keep, 0.5, right_to_wrong=n, margin="3pt") for keep, n in lost.items()]
    chosen = choose_model(rows, has_margin=True)
    assert chosen is not None and chosen.is_certified and chosen.position == 1
    assert [(test.n_kept, test.certificate.verdict) for test in chosen.tests] == [(12, "certified"), (10, "certified"), (8, "worse")], (
        "not 4"
    )
    failed = choose_model([row_of(12, 0.5, right_to_wrong=14, margin="3pt"), rows[3]], has_margin=True)
    assert failed is not None and not failed.is_certified and failed.position == 0 and len(failed.tests) == 1


@pytest.mark.parametrize("margin", [None, "60pt", "1pt"])
def test_the_summary_speaks_of_the_chosen_model_and_its_bound(margin: str | None, tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    write_record(run.folder / RUN, run.record().model_copy(update={"config": {**run.record().config, "margin": margin}}))
    data = collect_report(Run.open(run.folder)).report["runs"][0]
    check(data, "RunData")
    curves, sentence = data["curves"], data["summary"][1]
    (point,) = [point for point in curves["points"] if point["id"] == curves["chosen"]["point"]]
    assert (
        f"with {point['keep']} of 8 heads it is {point['bound_text']} (95 %, one-sided, n = 300), by {point['method']}" in sentence.lower()
    )
    begins = {None: "With ", "60pt": "Certified within 60pt: ", "1pt": "No size is certified within 1pt: "}
    assert sentence.startswith(begins[margin])
    if margin is None:
        assert "the best on the selection split; the smallest margin that certifies it is" in sentence and point["verdict"] is None
    else:
        assert [size["keep"] for size in curves["sizes"]] == ([4, 2] if margin == "60pt" else [4])
        assert point["verdict"] == ("certified" if margin == "60pt" else "undecided") and point["margin"] == margin


def test_a_certificate_beside_a_kept_model_gives_its_point_a_verdict(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    artifact = next(iter(run.results("pruned").values()))
    folder = run.folder / "models" / f"a.model.{artifact.key.digest[:8]}"
    folder.mkdir(parents=True)
    (folder / "heads.json").write_text('{"seal": "x"}')
    task = certify_task(
        unpack_evaluation(run.results("evaluation")["dense"]), unpack_pruned_evaluation(artifact), ratio, Margin.parse("90pt")
    )
    write_certificate(folder / "certificate.json", Certificate("s", "d", "90pt", (task,)))
    with Run.lead(run.folder) as leading:
        leading.register_saved_model(folder)
    points = collect_report(Run.open(run.folder)).report["runs"][0]["curves"]["points"]
    assert {(point["id"], point["margin"]) for point in points if point["verdict"] == "certified"} == {(artifact.key.digest[:12], "90pt")}


def test_speed_is_told_with_its_doubts() -> None:
    from headcount.runs.report.bench import flag_times
    from headcount.runs.report.sentences import noise_warnings, speed_sentence

    def row(name: str, batch: int, low: float, middle: float, high: float, speedup: float) -> dict[str, Any]:
        ends = {"speedup_low": 0.8 * speedup, "speedup_high": speedup * 1.2} if batch == 1 or name == "masked" else {}
        times = {"low": low, "seconds": middle, "high": high, "speedup": speedup, "rounds": 15, **ends}
        return {"of": "surgeon, 8 heads", "name": name, "batch": batch, "length": 64, **times}

    clear = flag_times([row("dense", 1, 0.9, 1.0, 1.1, 1.0), row("masked", 1, 0.9, 1.0, 1.1, 1.0), row("removed", 1, 0.45, 0.5, 0.55, 2.0)])
    doubtful = flag_times(
        [row("dense", 8, 1.4, 3.1, 3.2, 1.0), row("masked", 8, 1.2, 1.3, 1.35, 2.4), row("removed", 8, 1.4, 1.5, 1.6, 2.1)]
    )
    assert [each["is_apart"] for each in (*clear, *doubtful)] == [False, False, True, False, True, False]
    assert [each["is_noisy"] for each in (*clear, *doubtful)] == [False, False, False, True, False, False]
    assert [each["is_odd"] for each in (*clear, *doubtful)] == [False, False, False, False, True, False]
    messages = speed_sentence([*clear, *doubtful], {"threads": 1})
    assert "is 2.00 times as fast (1.60 … 2.40) at batch 1, 2.10 times as fast at batch 8 (" in messages
    assert "; at batch 8 it is not shown to differ" in messages
    assert not noise_warnings(clear)
    assert len(noise_warnings([*clear, *doubtful])) == 1 and "8 × 64" in noise_warnings(doubtful)[0]


def test_the_command_of_a_point_names_all_that_was_asked(tmp_path: Path) -> None:
    from headcount.app.console.words import prune_command
    from headcount.runs.artifacts import Artifact

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
        low, high = score_interval(Evaluation("t", "report", 150, np.zeros(150), "accuracy", True, float(parts[:, 0].mean()), parts), ratio)
        assert low is not None and high is not None
        held += low <= 0.8 <= high
    assert 180 <= held <= 199


def test_a_model_that_lost_nothing_is_no_candidate(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", kinds=("evaluation",))
    with Run.lead(run.folder) as led:
        pruned = pack_pruned(run, request("random", 8), [])
        led.register_results(led.commit(*pruned, provenance={}))
    data = collect_report(run).report["runs"][0]
    assert data["curves"]["chosen"] is None and data["curves"]["by_size"] == [] and data["summary"][1].startswith("Nothing was pruned")


def test_models_without_results_on_the_selection_split_are_no_candidates_and_named(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", kinds=("evaluation",))
    with Run.lead(run.folder) as led:
        led.register_results(led.commit(*pack_pruned(run, request("random", 4), heads_of()[4:]), provenance={}))
    data = collect_report(run).report["runs"][0]
    assert data["curves"]["chosen"] is None and data["summary"][1].startswith("The pruned models were not evaluated on the selection split")
    assert sum("made by an earlier version" in warning for warning in data["warnings"]) == 1


def pack_pruned(run: Run, messages: dict[str, Any], removed: list[str], **parts: Any) -> tuple[ArtifactKey, dict[str, Any], dict[str, Any]]:
    evaluation = unpack_evaluation(run.results("evaluation")["dense"])
    content = {name: getattr(evaluation, name) for name in ("metric", "higher_is_better", "value", "n_examples", "data", "loss")}
    content |= {**messages, "removed": removed, **MADE}
    return ArtifactKey("pruned", f"x{len(removed)} {messages}", parts), content, {"losses": evaluation.losses, "parts": evaluation.parts}


def test_protected_heads_make_a_method_of_their_own(tmp_path: Path) -> None:
    free, spares = request("random", 4), request("random", 4, protected=["L0H1", "L1H3"])
    assert free["label"] == "random" and spares["label"] == "random sparing L0H1+L1H3"
    many = [request("random", 4, protected=heads)["label"] for heads in (heads_of()[:5], heads_of()[1:6])]
    assert many[0].startswith("random sparing 5 heads") and many[0] != many[1]
    run = make_run(tmp_path / "run", kinds=("evaluation",))
    with Run.lead(run.folder) as led:
        led.register_results(*(led.commit(*pack_pruned(run, messages, heads_of()[4:]), provenance={}) for messages in (free, spares)))
    curves = collect_report(run, prune_command=prune_command).report["runs"][0]["curves"]
    assert {point["method"] for point in curves["points"]} == set(curves["commands"]) == {"random", "random sparing L0H1+L1H3"}
    table = (run.folder / "curves.csv").read_text()
    assert table.count(",L0H1+L1H3,") == 1


def test_floor_and_unit_make_a_method_of_their_own(tmp_path: Path) -> None:
    plain, floored, even = request("random", 4), request("random", 4, floor=1), request("random", 4, unit="even")
    assert [messages["label"] for messages in (plain, floored, even)] == ["random", "random with floor 1", "random with unit even"]
    assert request("random", 4, floor=2, unit="even", ablation="mean")["label"] == "random with floor 2 and unit even + mean"
    run = make_run(tmp_path / "run", kinds=("evaluation",))
    with Run.lead(run.folder) as led:
        led.register_results(
            *(led.commit(*pack_pruned(run, messages, heads_of()[4:]), provenance={}) for messages in (plain, floored, even))
        )
    curves = collect_report(run, prune_command=prune_command).report["runs"][0]["curves"]
    assert sorted(point["method"] for point in curves["points"]) == sorted(curves["commands"])


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
        led.register_results(*(led.commit(*pack_pruned(run, wishe, heads_of()[5:]), provenance={}) for wishe in wishes))
    for table in (pandas.read_csv(run.folder / "curves.csv", keep_default_na=False), pandas.read_parquet(run.folder / "curves.parquet")):
        assert table["keep"].tolist() == [5] * 4, "a model within a limit of parameters has heads too"
        tuples = {tuple(row) for row in table[["floor", "unit", "ablation", "limit"]].itertuples(index=False)}
        limited = (0, "kv_group", "zero", "parameters=1234567")
        assert tuples == {(0, "kv_group", "zero", ""), limited, (0, "kv_group", "mean", ""), (1, "even", "zero", "")}
