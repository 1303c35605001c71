"""Li et al. 2021: every item on an embedded classifier."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

import headcount as hc
from headcount.core.figure import HeatMap, LineFigure
from headcount.core.heads import Head
from headcount.core.study_result import StudyResult
from headcount.runs.store import Run
from headcount.studies._base import StudyContext
from headcount.studies._labels import shorten_labels
from headcount.studies._paper import PaperResult, PaperSubject, choose_items
from headcount.studies._run_paper import list_items, run_paper
from headcount.studies._run_study import PythonSources
from headcount.studies.papers.li2021 import Li2021
from headcount.studies.pruning_curve import PruningCurve

TASK, LIMIT, SIZES = "demo/entailment", 60, [16, 8]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("li2021") / "run"


@pytest.fixture(scope="module")
def paper(folder: Path) -> PaperResult:
    with Run.lead(folder) as run:
        context = StudyContext(PythonSources(TASK, None, None, 0, LIMIT, None), model=TASK, run=run, limit=LIMIT)
        return run_paper(Li2021(quick=True), list_items(Li2021(quick=True), context), context)


def check_curve(result: StudyResult, methods: int, metric: str = "accuracy") -> list[dict[str, Any]]:
    """The lines of both figures are the rows of the table: scores, and differences from the dense model, by the share of heads removed."""
    rows = result.table("curve").records()
    curve, difference = result.figure("curve"), result.figure("difference")
    assert isinstance(curve, LineFigure) and isinstance(difference, LineFigure) and len({str(row["method"]) for row in rows}) == methods
    labels = shorten_labels(str(row["method"]) for row in rows).by_method
    for figure, (name, *ends) in (
        (curve, (metric, f"{metric} low", f"{metric} high")),
        (difference, ("against the dense model", "against the dense model low", "against the dense model high")),
    ):
        assert len(figure.lines) == methods and sum(line.is_control for line in figure.lines) == 1
        for line in figure.lines:
            own = sorted((row for row in rows if labels[str(row["method"])] == line.label), key=lambda row: row["removed"])
            assert line.x == pytest.approx((0.5, 0.75)) and line.y == tuple(row[name] for row in own)
            assert (line.low, line.high) == tuple(tuple(row[end] for row in own) for end in ends)
            shown = [row for row in own if row[ends[0]] is not None]  # fewer than 10 changed examples have no interval
            assert all(row[ends[0]] <= row[name] + 1e-9 and row[name] <= row[ends[1]] + 1e-9 for row in shown)
    for row in rows:
        assert row[metric] == pytest.approx(curve.references[0].y + row["against the dense model"], abs=1e-9)
        if row["against random"] is not None:
            assert (row["q"] is None) == (row["against random low"] is None), "an interval and its p-value come from one test"
            assert row["q"] is None or row["against random low"] <= row["against random"] <= row["against random high"]
    return rows


def test_every_item_runs_or_says_why(paper: PaperResult) -> None:
    assert not paper.failures
    assert {item.id: item.reason for item in paper.items if item.study is None} == {"L7": "the model has no cross-attention: see L6"}


@pytest.mark.parametrize(
    ("item", "method", "seeds"),
    [("L1", "dsp(", 2), ("L2", "dsp:pipelined", 2), ("L3", "dsp:straight", 2), ("L4", "l0", 2), ("L5", "gradient", 1)],
)
def test_l1_to_l5_one_method_against_random_heads(paper: PaperResult, item: str, method: str, seeds: int) -> None:
    rows = [row for row in check_curve(paper.results[item], 2) if str(row["method"]).startswith(method)]
    assert [row["heads"] for row in rows] == SIZES and {row["seeds"] for row in rows} == {seeds}
    for row in rows:
        assert row["against random low"] <= row["against random"] <= row["against random high"]
        trains = item != "L5"
        assert row["steps"] == (20 if trains else None) and ("only 20 steps" in str(row["method"])) == trains, "too few steps are said"
        assert ("recover 20steps" in str(row["method"])) == (item == "L2"), "the final fine-tune of pipelined is named"
        assert row["sd"] is None and row["mean over seeds low"] is None, "nothing is given over fewer than three seeds"


def test_l6_all_methods(paper: PaperResult) -> None:
    result = paper.results["L6"]
    figure = result.figure("curve")
    assert isinstance(figure, LineFigure) and len(figure.lines) == 6 and sum(line.is_control for line in figure.lines) == 1
    assert all(line.x == pytest.approx((0.5, 0.75)) for line in figure.lines)
    check_curve(result, 6)
    (published,) = [item.published for item in paper.items if item.id == "L6"]
    assert published is not None and "about 90 %" in str(published.rows) and "joint DSP ≥ L0 gates ≫ pipelined DSP" in str(published.rows)
    pairs = result.table("pairs").records()
    assert len(pairs) == 2 * 10 and all(
        row["difference low"] is None or row["difference low"] <= row["difference"] <= row["difference high"] for row in pairs
    )
    alone = {(row["method"], row["heads"]): row["accuracy"] for row in paper.results["L1"].table("curve").records()}
    together = {(row["method"], row["heads"]): row["accuracy"] for row in result.table("curve").records()}
    assert alone.items() <= together.items(), "items share their models"


def test_l10_speed_and_size(paper: PaperResult) -> None:
    rows = paper.results["L10"].table("speed").records()
    assert {row["heads"] for row in rows} == set(SIZES) and all(row["rounds"] == 15 for row in rows)
    sizes = {row["heads"]: row["size"] for row in rows}
    assert 1 > sizes[16] > sizes[8] and (1 - sizes[8]) == pytest.approx(1.5 * (1 - sizes[16])), "24 heads hold half as much again as 16"
    figure = paper.results["L10"].figure("sizes")
    assert isinstance(figure, LineFigure) and [line.label for line in figure.lines] == ["batch 1", "batch 4"]


def test_l11_survivors_by_layer(paper: PaperResult) -> None:
    result = paper.results["L11"]
    for row in result.table("kinds").records():
        assert row["encoder-self low"] == row["encoder-self"] == row["encoder-self high"] == row["heads"] == 32 - row["removed"]
    for row in result.table("layers").records():
        counts = [number for name, number in row.items() if name.startswith("encoder-self")]
        assert len(counts) == 4 and sum(counts) == pytest.approx(row["heads"]) and row["heads"] + row["removed"] == 32
    assert all(isinstance(figure, HeatMap) for figure in result.figures), "of one kind of attention there is no figure by kind"
    for row in result.table("survivors").records():
        assert len({Head.parse(head) for head in str(row["survivors"]).split()}) == row["heads"], "exactly K heads stay for every seed"
    figure = next(figure for figure in result.figures if figure.name.startswith("layers by dsp"))
    assert isinstance(figure, HeatMap) and figure.columns == ("16", "8")
    totals = [sum(values[number] or 0 for values in figure.values) for number in range(2)]
    assert totals == pytest.approx(SIZES)


def test_l12_gates_and_temperature(paper: PaperResult) -> None:
    result = paper.results["L12"]
    log = result.table("log").records()
    assert [row["step"] for row in log] == list(range(1, 21))
    temperatures = [row["log10 tau"] for row in log]
    assert temperatures[0] == pytest.approx(0) and temperatures[-1] == pytest.approx(-8)
    assert all(later <= earlier + 1e-9 for earlier, later in pairwise(temperatures))
    assert all(row["sum of gates"] == pytest.approx(8, abs=1e-3) for row in log), "every step draws K heads"
    figure = result.figure("gates")
    assert isinstance(figure, HeatMap) and len(figure.rows) == 32 and len(figure.columns) == 20
    assert {values[-1] for values in figure.values} == {0.0, 1.0}, "gates are hard at the end"


def test_l13_published_schedule(paper: PaperResult) -> None:
    result = paper.results["L13"]
    rows = check_curve(result, 3)
    published = [row for row in rows if "tau=1000" in str(row["method"])]
    assert [row["heads"] for row in published] == SIZES and all("rate=0.5" in str(row["method"]) for row in published)
    joint = {row["heads"]: row["accuracy"] for row in rows if row not in published and not str(row["method"]).startswith("random")}
    for pair, row in zip(result.table("pairs").records(), published, strict=True):
        assert pair["heads"] == row["heads"] and pair["method"] == row["method"] and (pair["p"] is None or pair["p"] <= pair["q"] <= 1)
        assert pair["difference"] == pytest.approx(joint[row["heads"]] - row["accuracy"]) or pair["difference"] == pytest.approx(
            row["accuracy"] - joint[row["heads"]]
        )


def test_exactly_k_stands_beside_what_a_penalty_leaves(paper: PaperResult) -> None:
    result = paper.results["L8"]
    counts = {row["λ"]: row["heads left"] for row in result.table("penalties").records()}
    figure = result.figure("heads")
    assert isinstance(figure, LineFigure) and list(figure.lines[0].y) == list(counts.values())
    exact = result.table("exact").records()
    assert exact and all(row["heads"] == counts[row["λ"]] and "dsp" in str(row["method"]) for row in exact)
    chart = result.figure("exact")
    assert isinstance(chart, LineFigure)
    for line, name in zip(chart.lines, ("accuracy", "accuracy of λ"), strict=True):
        by_size = sorted(exact, key=lambda row: row["heads"])
        ends = [tuple(row[f"{name}{end}"] for row in by_size) for end in ("", " low", " high")]
        assert [line.y, line.low, line.high] == ends and all(low <= y <= high for y, low, high in zip(*ends, strict=True))


def test_l9_every_option_of_the_schedule_beside_the_default(paper: PaperResult) -> None:
    rows = check_curve(paper.results["L9"], 6)
    methods = dict.fromkeys(str(row["method"]) for row in rows if not str(row["method"]).startswith("random"))
    changed = [
        [name for name in ("tau", "tau_end", "cool", "rate") if f"({name}=" in method or f";{name}=" in method] for method in methods
    ]
    assert changed == [[], ["tau"], ["tau_end"], ["cool"], ["rate"]], "the default, then one option changed at a time, the rate too"
    default = [row["accuracy"] for row in rows if row["method"] == next(iter(methods))]
    assert default == [row["accuracy"] for row in paper.results["L1"].table("curve").records()[:2]], "the default is the model of L1"
    complete = {item.id: item.study for item in Li2021().items(PaperSubject(hc.HeadMap.of(hc.load(TASK)), paper_task(), False))}["L9"]
    assert (
        isinstance(complete, PruningCurve) and complete.methods[0] == "dsp" and {"dsp(rate=0.01)", "dsp(rate=1)"} <= set(complete.methods)
    )


def paper_task() -> Any:
    return hc.open_task(TASK, hc.load(TASK), limit=8)


def test_l7_translation(tmp_path: Path) -> None:
    chosen = Li2021(quick=True, steps=3)
    with Run.lead(tmp_path / "run") as run:
        context = StudyContext(PythonSources("demo/translation", None, None, 0, 8, None), model="demo/translator", run=run, limit=8)
        items = choose_items(list_items(chosen, context), ("L6", "L7"))
        result = run_paper(chosen, items, context)
    assert not result.failures and list(result.results) == ["L7"] and "the model translates" in items[0].reason
    rows = result.results["L7"].table("curve").records()
    assert {row["heads"] for row in rows} == {48, 24} and len({row["method"] for row in rows}) == 6
    kinds = ("encoder-self", "decoder-self", "cross")
    assert all(sum(row[f"{kind} heads"] for kind in kinds) == row["heads"] and 0 <= row["BLEU"] <= 100 for row in rows)
    curve = result.results["L7"].figure("curve")
    assert isinstance(curve, LineFigure) and curve.n == 8 and curve.y.label == "BLEU" and sum(line.is_control for line in curve.lines) == 1
    labels = shorten_labels(str(row["method"]) for row in rows).by_method
    for line in curve.lines:
        own = [row for row in rows if labels[str(row["method"])] == line.label]
        assert line.y == tuple(row["BLEU"] for row in own) and line.x == pytest.approx((0.5, 0.75))
    for row in rows:
        assert row["BLEU"] == pytest.approx(curve.references[0].y + row["against the dense model"]), (
            "means over seeds and differences agree"
        )
        assert row["seeds"] == (1 if str(row["method"]).startswith("gradient") else 2)
    pairs = result.results["L7"].table("pairs").records()
    values = {(row["method"], row["heads"]): row["BLEU"] for row in rows}
    assert len(pairs) == 2 * 10
    for pair in pairs:
        gap = values[pair["other method"], pair["heads"]] - values[pair["method"], pair["heads"]]
        assert abs(pair["difference"]) == pytest.approx(abs(gap))
