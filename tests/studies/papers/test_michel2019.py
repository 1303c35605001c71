"""Michel et al. 2019: every item on an embedded classifier, and those of kinds of attention on the embedded translator."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import headcount as hc
from headcount.core.figure import BarFigure, HeatMap, Histogram, LineFigure, ScatterFigure
from headcount.core.study_result import Table
from headcount.runs.results import unpack_evaluation
from headcount.runs.store import Run
from headcount.studies._base import StudyContext
from headcount.studies._labels import shorten_labels
from headcount.studies._measure.dynamics import choose_steps_to_save
from headcount.studies._paper import PaperResult, choose_items
from headcount.studies._run_paper import list_items, run_paper
from headcount.studies._run_study import PythonSources
from headcount.studies.papers.michel2019 import Michel2019

ENTAILMENT, TAVI = "demo/entailment", "demo/entailment-tavi"
LIMIT = 80
SHARES = (0.25, 0.5, 0.75)


def run_items(paper: Michel2019, model: str, task: str, folder: Path, limit: int, only: tuple[str, ...] = ()) -> PaperResult:
    with Run.lead(folder) as run:
        context = StudyContext(PythonSources(task, None, None, 0, limit, None), model=model, run=run, limit=limit)
        return run_paper(paper, choose_items(list_items(paper, context), only), context)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("michel2019") / "run"


@pytest.fixture(scope="module")
def paper(folder: Path) -> PaperResult:
    return run_items(Michel2019(quick=True, other_task=(TAVI,)), ENTAILMENT, ENTAILMENT, folder, LIMIT)


@pytest.fixture(scope="module")
def translation(tmp_path_factory: pytest.TempPathFactory) -> PaperResult:
    folder = tmp_path_factory.mktemp("michel2019") / "translator"
    return run_items(Michel2019(quick=True), "demo/translator", "demo/translation", folder, 8, ("M3", "M12"))


def column(table: Table, name: str) -> list[Any]:
    return [record[name] for record in table.records()]


def test_every_item_runs_or_says_why(paper: PaperResult) -> None:
    assert [item.id for item in paper.items] == [f"M{number}" for number in range(1, 17)] and not paper.failures
    missing = {item.id: item.reason for item in paper.items if item.study is None}
    assert set(missing) == {"M3", "M12"} and all("one kind of attention" in reason for reason in missing.values())
    assert set(paper.results) == {item.id for item in paper.items} - set(missing)


def test_items_that_lack_another_task_say_so(folder: Path, paper: PaperResult) -> None:
    with Run.lead(folder) as run:
        context = StudyContext(PythonSources(ENTAILMENT, None, None, 0, LIMIT, None), model=ENTAILMENT, run=run, limit=LIMIT)
        lacking = {item.id: item.lacks for item in list_items(Michel2019(quick=True), context) if item.lacks}
        of_another_model = Michel2019(quick=True, other_task=(f"demo/entailment-english={ENTAILMENT}",))
        only_m6 = [item.id for item in list_items(of_another_model, context) if item.lacks]
    assert lacking == {"M6": ("other_task",), "M9": ("other_task",)} and only_m6 == ["M6"]


def test_m1_histogram(paper: PaperResult) -> None:
    figure = paper.results["M1"].figure("histogram")
    assert isinstance(figure, Histogram) and figure.n == LIMIT
    scores = column(paper.results["M1"].table("heads"), "accuracy")
    assert sum(sum(group.counts) for group in figure.groups) == len(scores) == 32
    assert figure.edges[0] <= min(scores) and max(scores) <= figure.edges[-1] + 1e-9


def test_m2_change_of_each_head(paper: PaperResult, folder: Path) -> None:
    table = paper.results["M2"].table("heads")
    assert table.is_printed and not paper.results["M1"].table("heads").is_printed, "M1 shows the histogram, M2 the table"
    formatted = table.format()
    assert {"change (accuracy)", "p", "q", "test"} <= set(formatted.headings)
    assert all("…" in row[formatted.headings.index("change (accuracy)")] for row in formatted.rows), "printed with intervals"
    evaluations = {artifact.key.name: artifact for artifact in Run.open(folder).artifacts("evaluation")}
    dense = unpack_evaluation(evaluations[f"{ENTAILMENT}: dense"])
    for record in table.records():
        removed = unpack_evaluation(evaluations[f"{ENTAILMENT}: without {record['head']}, zero"])
        assert record["change"] == pytest.approx(removed.score - dense.score) and record["test"] == "Tango"
        assert record["change low"] <= record["change"] <= record["change high"] and record["p"] <= record["q"] <= 1
        assert record["rise of the loss"] == pytest.approx(float(np.mean(removed.losses - dense.losses)))
    significant = {record["head"] for record in table.records() if record["q"] <= 0.05}
    figure = paper.results["M2"].figure("map")
    assert isinstance(figure, HeatMap)
    marked = {
        f"{layer}H{head}"
        for layer, marks in zip(figure.rows, figure.marks, strict=True)
        for head, mark in zip(figure.columns, marks, strict=True)
        if mark
    }
    assert marked == significant


def test_m4_m5_m16_best_head_of_every_layer(paper: PaperResult) -> None:
    for item in ("M4", "M5", "M16"):
        *layers, everywhere = paper.results[item].table("layers").records()
        assert [row["layer"] for row in layers] == ["L0", "L1", "L2", "L3"] and everywhere["layer"] == "everywhere"
        assert everywhere["head left"] == ", ".join(str(row["head left"]) for row in layers)
        for row in (*layers, everywhere):
            for change in ("change when chosen", "change on report"):
                assert row[f"{change} low"] <= row[change] <= row[f"{change} high"]
        assert everywhere["change on report"] <= min(row["change on report"] for row in layers)
        figure = paper.results[item].figure("metric")
        assert isinstance(figure, BarFigure) and [bars.label for bars in figure.bars] == ["where it was chosen", "on the report split"]
        assert list(figure.bars[1].values) == [row["change on report"] for row in (*layers, everywhere)]
    assert (
        "when one head is left (q ≤ 0.05)" in paper.results["M4"].sentence and "on the report split than on" in paper.results["M5"].sentence
    )
    change = f"{everywhere['change on report']:+.3g} ({everywhere['change on report low']:+.3g} …"
    assert "One head in every layer" in paper.results["M16"].sentence and change in paper.results["M16"].sentence
    assert [table.name for table in paper.results["M16"].tables] == ["layers"]
    kinds = paper.results["M4"].table("kinds")
    assert column(kinds, "encoder-self") == [row["change on report"] for row in layers]


def test_m6_correlation_between_tasks(paper: PaperResult) -> None:
    result = paper.results["M6"]
    assert column(result.table("correlations"), "change of") == ["metric", "loss"]
    for record, figure in zip(result.table("correlations").records(), result.figures, strict=True):
        assert isinstance(figure, ScatterFigure)
        (points,) = figure.groups
        assert len(points.x) == 32 and record["Pearson low"] <= record["Pearson"] <= record["Pearson high"]
        assert record["Pearson"] == pytest.approx(float(np.corrcoef(points.x, points.y)[0, 1])), "the interval is that of this correlation"
        assert f"{record['Pearson']:.2f}" in figure.note
    changes = {(row["task"], row["head"]): row["change of the metric"] for row in result.table("heads").records()}
    own = {row["head"]: row["change"] for row in paper.results["M2"].table("heads").records()}
    assert {head: value for (task, head), value in changes.items() if task == ENTAILMENT} == pytest.approx(own)


def test_m7_importance_is_divided_by_the_norm_of_the_layer(paper: PaperResult) -> None:
    result = paper.results["M7"]
    figure = result.figure("gradient")
    assert isinstance(figure, HeatMap) and "divided by the ℓ2 norm of their layer" in figure.title
    for values in figure.values:
        assert sum((value or 0) ** 2 for value in values) == pytest.approx(1)
    assert [table.name for table in result.tables] == ["scores"] and "the gradient importance" in result.sentence
    ranks = column(result.table("scores"), "rank")
    assert sorted(ranks) == list(range(1, 33))


def check_curve(figure: LineFigure, table: Table, methods: int) -> None:
    assert len({line.label for line in figure.lines}) == methods
    for line in figure.lines:
        assert line.x == pytest.approx(SHARES)
        assert all(low - 1e-9 <= high for low, high in zip(line.low, line.high, strict=True))
    assert len(table.rows) == 9


def test_m8_pruning_curve(paper: PaperResult) -> None:
    result = paper.results["M8"]
    figure, table = result.figure("curve"), result.table("curve")
    assert isinstance(figure, LineFigure)
    check_curve(figure, table, 3)
    assert sum(line.is_control for line in figure.lines) == 1 and column(table, "heads") == [24, 16, 8] * 3
    for record in table.records():
        is_random = str(record["method"]).startswith("random")
        assert record["seeds"] == (3 if is_random else 1) and (record["against random"] is None) == is_random
        assert (record["mean over seeds low"] is None) != is_random, "an interval over seeds needs three of them"
        assert record["accuracy"] == pytest.approx(figure.references[0].y + record["against the dense model"])
    (item,) = [item for item in paper.items if item.id == "M8"]
    assert item.published is not None and item.published.rows[1] == (14, 144, 0.837, 0.837) and len(item.published.rows) == 10


def test_m9_several_tasks(paper: PaperResult) -> None:
    result = paper.results["M9"]
    absolute, relative = result.figure("curve"), result.figure("relative")
    assert isinstance(absolute, LineFigure) and isinstance(relative, LineFigure)
    assert sum(line.is_control for line in absolute.lines) == len(absolute.lines) / 2 == 2, "random heads of every task"
    dense = {reference.label.removeprefix("dense model, "): reference.y for reference in absolute.references}
    assert set(dense) == {ENTAILMENT, TAVI}
    chance = {row["task"]: row["share"]["chance"] for row in result.measurements["rows"]}
    for line, share in zip(absolute.lines, relative.lines, strict=True):
        task = line.label.partition(",")[0]
        above = dense[task] - chance[task]
        assert share.y == pytest.approx([(value - chance[task]) / above for value in line.y if value is not None])
    assert set(column(result.table("curve"), "task")) == {ENTAILMENT, TAVI}


def test_m10_once_against_again(paper: PaperResult) -> None:
    result = paper.results["M10"]
    pairs, rows = result.table("pairs").records(), result.table("curve").records()
    figure, difference = result.figure("curve"), result.figure("difference")
    assert isinstance(figure, LineFigure) and isinstance(difference, LineFigure) and [pair["heads"] for pair in pairs] == [24, 16, 8]
    check_curve(figure, result.table("curve"), 3)
    assert sum("again=true" in line.label for line in figure.lines) == sum(line.is_control for line in figure.lines) == 1
    values = {(row["method"], row["heads"]): row["accuracy"] for row in rows}
    labels = shorten_labels(str(row["method"]) for row in rows).by_method
    for line, changes in zip(figure.lines, difference.lines, strict=True):
        own = [row for row in rows if labels[str(row["method"])] == line.label]
        assert (line.y, line.low) == (tuple(row["accuracy"] for row in own), tuple(row["accuracy low"] for row in own))
        assert changes.y == tuple(row["against the dense model"] for row in own)
    for pair in pairs:
        assert ("again=true" in str(pair["method"])) != ("again=true" in str(pair["other method"]))
        first, second = (values[pair[name], pair["heads"]] for name in ("method", "other method"))
        assert (
            pair["difference"] == pytest.approx(first - second) and pair["difference low"] <= pair["difference"] <= pair["difference high"]
        )
        assert pair["p"] <= pair["q"] <= 1


def test_m11_speed(paper: PaperResult) -> None:
    table = paper.results["M11"].table("speed")
    assert column(table, "heads") == [16, 16] and column(table, "batch") == [1, 4] and set(column(table, "rounds")) == {15}
    small = hc.cut(hc.load(ENTAILMENT), hc.Plan.removing([f"L{layer}H{head}" for layer in range(4) for head in range(4)]))
    for record in table.records():
        assert record["parameters"] == sum(parameter.numel() for parameter in small.parameters()), "all heads are alike in size"
        assert 0 < record["speed-up low"] <= record["speed-up"] <= record["speed-up high"]
    figure = paper.results["M11"].figure("batches")
    assert isinstance(figure, LineFigure) and [name for _, name in figure.x.ticks] == ["1", "4"] and figure.n == 15


def test_m13_training_dynamics(paper: PaperResult) -> None:
    result = paper.results["M13"]
    steps = choose_steps_to_save(60)
    assert steps == sorted(steps) and steps[1] - steps[0] < steps[-1] - steps[-2], "dense at the start"
    rows = {row["checkpoint"]: row for row in result.table("checkpoints").records()}
    chance = result.measurements["checkpoints"][0]["chance"]
    undefined = [label for label in rows if any(note.startswith(f"{label}: no share is defined") for note in result.notes)]
    assert list(rows) == [f"step {step}" for step in steps] and {label for label in rows if rows[label]["accuracy"] <= chance} <= set(
        undefined
    )
    figures = {figure.name: figure for figure in result.figures}
    assert ("curves" in figures) == (len(undefined) < len(rows)), "a figure without any value is not drawn"
    if figure := figures.get("curves"):
        assert isinstance(figure, LineFigure) and [line.label for line in figure.lines] == [
            label for label in rows if label not in undefined
        ]
        assert all(line.x == pytest.approx(SHARES) and line.start == (0, 1) for line in figure.lines)
    assert rows[f"step {steps[0]}"]["25%"] is None, "nothing is learnt after one step"


def test_m14_parameters_of_a_head(paper: PaperResult) -> None:
    table, dense = paper.results["M14"].table("parameters"), hc.load(ENTAILMENT)
    before = sum(parameter.numel() for parameter in dense.parameters())
    after = sum(parameter.numel() for parameter in hc.cut(dense, hc.Plan.removing(["L2H1"])).parameters())
    assert column(table, "parameters of a head") == [before - after] * 4 and column(table, "heads") == [8] * 4
    assert column(table, "share of the model") == pytest.approx([8 * (before - after) / before] * 4)
    result = paper.results["M14"]
    assert f"A head has {before - after} parameters" in result.sentence and "gradient" not in result.sentence
    figure = result.figure("parameters")
    assert isinstance(figure, BarFigure) and figure.categories == ("L0", "L1", "L2", "L3")
    assert list(figure.bars[0].values) == column(table, "parameters of a head") and len(result.figures) == len(result.tables) == 1


def test_m15_entropy_and_distances(paper: PaperResult) -> None:
    result = paper.results["M15"]
    scores = result.table("scores").records()
    assert all(row["score"] >= 0 for row in scores) and {row["importance"] for row in scores} == {"entropy", "distance"}
    pairs = result.table("distances").records()
    assert len(pairs) == 32 * 31 / 2 and all(0 <= row["distance"] <= 1 for row in pairs)
    figure = result.figure("distances of encoder-self")
    assert isinstance(figure, HeatMap) and "parameters" not in [table.name for table in result.tables]
    assert "entropy of the attention" in result.sentence and "within a layer" in result.sentence
    within = [row["distance"] for row in pairs if str(row["head"]).startswith("L0") and str(row["other head"]).startswith("L0")]
    assert figure.values[0][0] == pytest.approx(np.mean(within)) and figure.values[0][1] == pytest.approx(figure.values[1][0])


def test_a_finished_item_is_read_from_the_run(paper: PaperResult, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headcount.studies._run_paper.StudyResult.from_dict", lambda content: content["study"])
    monkeypatch.setattr("headcount.studies.single_heads.SingleHeads.measure", lambda *_: pytest.fail("measured again"))
    assert run_items(Michel2019(quick=True), ENTAILMENT, ENTAILMENT, folder, LIMIT, ("M1",)).results["M1"] == "single-heads(show=histogram)"


def test_m3_layers_by_kind_of_attention(translation: PaperResult) -> None:
    assert not translation.failures
    table = translation.results["M3"].table("kinds")
    assert column(table, "layer") == [0, 1, 2, 3]
    rows = {row["layer"]: row for row in translation.results["M3"].table("layers").records()}
    for record in table.records():
        for stack, kind in (("enc", "encoder-self"), ("dec", "decoder-self"), ("cross", "cross")):
            row = rows[f"{stack}.L{record['layer']}"]
            assert record[kind] == row["change on report"] and record[f"q {kind}"] == row["q of the change"]
            assert record[f"{kind} low"] is None or record[f"{kind} low"] <= record[kind] <= record[f"{kind} high"]
    assert min(record["cross"] for record in table.records()) == table.records()[3]["cross"], (
        "the last layer of cross-attention needs its heads"
    )


def test_m12_curve_of_every_kind(translation: PaperResult) -> None:
    result = translation.results["M12"]
    figure, kinds = result.figure("curve"), ("encoder-self", "decoder-self", "cross")
    assert isinstance(figure, LineFigure) and all(line.x == pytest.approx((0.5, 0.75)) for line in figure.lines), "shares of the kind"
    for kind in kinds:
        own = [line for line in figure.lines if f" of {kind}" in line.label]
        assert [line.is_control for line in own] == [False, True], "the ranking of every kind beside random heads of that kind"
    assert len(figure.lines) == 6
    for record in result.table("curve").records():
        counts = {kind: record[f"{kind} heads"] for kind in kinds}
        pruned = [kind for kind in counts if f" of {kind}" in str(record["method"])]
        assert pruned and counts[pruned[0]] == record["heads"] and all(counts[kind] == 32 for kind in counts if kind not in pruned)
    values = {(str(row["method"]), row["removed"]): row["BLEU"] for row in result.table("curve").records()}
    labels = shorten_labels(method for method, _ in values).by_method
    for line in figure.lines:
        (method,) = (method for method, label in labels.items() if label == line.label)
        assert list(line.y) == [values[method, share] for share in line.x]
