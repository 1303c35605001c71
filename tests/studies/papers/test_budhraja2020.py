"""Budhraja et al. 2020: every item on an embedded model, its table and its figure against the artifacts that they are made of."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

import headcount as hc
from headcount.core.errors import OptionError
from headcount.core.figure import BarFigure, LineFigure
from headcount.pruning.spec import PruneSpec
from headcount.runs.store import Run
from headcount.studies._base import StudyContext
from headcount.studies._measure.strategies import build_strategy_requests
from headcount.studies._paper import PaperResult, PaperSubject, choose_items
from headcount.studies._run_paper import estimate_seconds, list_items, run_paper
from headcount.studies._run_study import PythonSources
from headcount.studies.papers.budhraja2020 import Budhraja2020
from headcount.studies.strategies import Strategies

ENTAILMENT, EXAMPLES, HEADS = "demo/entailment", 60, 32


@dataclass(frozen=True)
class Ran:
    """The results of a paper, and the pruned models of its run."""

    result: PaperResult
    pruned: list[dict[str, Any]]

    def table(self, item: str, name: str) -> list[dict[str, Any]]:
        return self.result.results[item].table(name).records()


def run_items(folder: Path, model: str, task: str, paper: Budhraja2020, only: tuple[str, ...] = ()) -> Ran:
    with Run.lead(folder) as run:
        context = StudyContext(PythonSources(task, None, None, 0, EXAMPLES, None), model=model, run=run, limit=EXAMPLES)
        items = choose_items(list_items(paper, context), only)
        assert estimate_seconds(items, context) > 0
        result = run_paper(paper, items, context)
        assert estimate_seconds(items, context) == 0 or result.failures, "what is finished costs nothing"
    return Ran(result, [dict(artifact.content) for artifact in Run.open(folder).results("pruned").values()])


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ran]:
    paper = Budhraja2020(quick=True, rate=1e-3, pretrained="demo/encoder", other_task="demo/entailment-tavi")
    yield run_items(tmp_path_factory.mktemp("budhraja2020") / "run", ENTAILMENT, ENTAILMENT, paper)


def check_line_figure(ran: Ran, item: str, name: str, table: str, key: str) -> None:
    """The lines of a figure are the rows of its table: the changes from the dense model by the share of heads removed."""
    figure, rows = ran.result.results[item].figure(name), ran.table(item, table)
    assert isinstance(figure, LineFigure) and figure.n == EXAMPLES and figure.references[0].y == 0
    for line in figure.lines:
        own = sorted((row for row in rows if row[key] == line.label), key=lambda row: row["removed"])
        assert line.x == tuple(row["removed"] for row in own) and line.y == tuple(row["against the dense model"] for row in own)
        assert line.low == tuple(row["against the dense model low"] for row in own)
        ends = [
            (low, value, high) for low, value, high in zip(line.low, line.y, line.high, strict=True) if low is not None and high is not None
        ]
        assert all(-1 <= low <= value <= high <= 1 for low, value, high in ends)


def check_strategies(ran: Ran, item: str, strategies: set[str]) -> list[dict[str, Any]]:
    rows = ran.table(item, "strategies")
    assert {row["strategy"] for row in rows} == strategies and all(row["heads"] == 16 and row["removed"] == 0.5 for row in rows)
    for row in rows:
        assert 0 <= row["accuracy"] <= 1 and row["seeds"] == 2 and row["steps"] == 10 and row["sd"] is None
        assert row["accuracy low"] is None, "two seeds give no interval over seeds"
        if row["strategy"] == "random":
            assert row["against random"] is None and row["q"] is None
        else:
            random = next(other for other in rows if other["strategy"] == "random")
            assert row["against random"] == pytest.approx(row["accuracy"] - random["accuracy"])
            assert row["p"] is None or row["p"] <= row["q"] <= 1, "fewer than 10 changed examples have no p-value"
    check_line_figure(ran, item, "strategies", "strategies", "strategy")
    return rows


def removed_by(ran: Ran, method: str) -> list[set[str]]:
    """The heads that the models of a method lose, of those that keep half of the heads and were trained."""
    specs = [(PruneSpec.from_dict(content["spec"]), content) for content in ran.pruned]
    chosen = [set(content["removed"]) for spec, content in specs if str(spec.method) == method and spec.recover == "10steps"]
    return [heads for heads in chosen if len(heads) == HEADS // 2]


def test_every_item_is_listed_with_what_it_lacks(ran: Ran) -> None:
    items = {item.id: item for item in ran.result.items}
    assert list(items) == [f"B{number}" for number in range(1, 11)]
    assert items["B4"].study is None and "one type of attention, encoder-self" in items["B4"].reason
    assert not ran.result.failures and "B6" in ran.result.results, "a head with a role exists, so that pruning by role runs"
    model: Any = hc.load(ENTAILMENT)
    task = hc.open_task(ENTAILMENT, model, limit=8)
    plain = {item.id: item for item in Budhraja2020().items(PaperSubject(hc.HeadMap.of(model), task, False))}
    assert plain["B2"].lacks == ("pretrained",) and plain["B9"].lacks == ("other_task",) and plain["B2"].study is plain["B9"].study is None
    encoder: Any = hc.load("demo/encoder")
    text = hc.open_task("demo/text", encoder, limit=8)
    assert "classify" in {item.id: item for item in Budhraja2020().items(PaperSubject(hc.HeadMap.of(encoder), text, False))}["B2"].reason


def test_b1_random_heads_of_every_type(ran: Ran) -> None:
    check_strategies(ran, "B1", {"random"})
    assert "random:type is random" in " ".join(ran.result.results["B1"].notes)
    heads = hc.HeadMap.of(hc.load("demo/translator"))
    specs = build_strategy_requests(Strategies(strategies=("random:type",), by_kind=True, keep=("50%",), seeds=2), heads, 3)
    assert {spec.kinds for spec in specs} == {(), ("encoder-self",), ("decoder-self",), ("cross",)} and {spec.seed for spec in specs} == {
        3,
        4,
    }
    dense = [spec for spec in specs if spec.limits.keep == len(heads)]
    assert len(dense) == 2 and len(specs) == 2 * 4 * 2 + 2, "two strategies, four groups, two seeds; and the dense model trained alike"


def test_b2_the_pretrained_model_is_pruned_then_trained(ran: Ran) -> None:
    (row,) = check_strategies(ran, "B2", {"random"})
    result = ran.result.results["B2"]
    assert result.measurements["model"] == "demo/encoder" and "after the same training" in result.notes[0]
    assert row["accuracy"] < 0.85, "ten steps do not train a new head"
    assert row["against the dense model"] == pytest.approx(row["accuracy"] - result.measurements["dense"]["value"])


def test_b3_layers_by_location(ran: Ran) -> None:
    check_strategies(ran, "B3", {"layers:top", "layers:middle", "layers:bottom", "random"})
    for method, layers in (("layers", "23"), ("layers:middle", "12"), ("layers:bottom", "01")):
        assert [{head[1] for head in heads} for heads in removed_by(ran, method)] == [set(layers)] * 2
    pairs = ran.table("B3", "pairs")
    assert len(pairs) == 3 and all(pair["difference low"] <= pair["difference"] <= pair["difference high"] for pair in pairs)
    rows = {row["strategy"]: row["accuracy"] for row in ran.table("B3", "strategies")}
    assert all(pair["difference"] == pytest.approx(rows[pair["strategy"]] - rows[pair["other strategy"]]) for pair in pairs)


def test_b4_layers_of_every_type(tmp_path: Path) -> None:
    paper, positions = Budhraja2020(quick=True), ("layers:top", "layers:middle", "layers:bottom", "random")
    with Run.lead(tmp_path / "run") as run:
        sources = PythonSources("demo/translation", None, None, 0, 6, None)
        context = StudyContext(sources, model="demo/translator", run=run, limit=6)
        (item,) = choose_items(list_items(paper, context), ("B4",))
        assert isinstance(item.study, Strategies) and item.study.by_kind and not item.reason
        assert item.study.recover == "10steps" and item.study.seeds == 2
        # The paper's strategies, hardly trained, by one seed: B1, B3 and B5 have two, and every one is as many models as there are rows.
        few = replace(item, study=replace(item.study, recover="1steps", train_batch=2, seeds=1))
        result = run_paper(paper, [few], context)
    assert not result.failures
    rows = result.results["B4"].table("strategies").records()
    kinds = {"all": (48, 96), "encoder-self": (16, 32), "decoder-self": (16, 32), "cross": (16, 32)}
    assert [(row["attention"], row["strategy"]) for row in rows] == [(kind, strategy) for kind in kinds for strategy in positions]
    random = {row["attention"]: row["BLEU"] for row in rows if row["strategy"] == "random"}
    for row in rows:
        assert row["heads"] == kinds[row["attention"]][0] and row["removed"] == 0.5 and (row["seeds"], row["steps"]) == (1, 1)
        assert (row["against random"] is None) == (row["strategy"] == "random") and 0 <= row["BLEU"] <= 100
        if row["against random"] is not None:
            assert row["against random"] == pytest.approx(row["BLEU"] - random[row["attention"]])
            assert row["p"] is None or row["p"] <= row["q"] <= 1
    for kind in kinds:
        figure = result.results["B4"].figure("strategies" if kind == "all" else f"strategies-{kind}")
        assert isinstance(figure, LineFigure) and [line.label for line in figure.lines] == list(positions) and figure.n == 6
        own = [row for row in rows if row["attention"] == kind]
        for part, column in (
            ("y", "against the dense model"),
            ("low", "against the dense model low"),
            ("high", "against the dense model high"),
        ):
            assert [getattr(line, part) for line in figure.lines] == [(row[column],) for row in own]
    for content in Run.open(tmp_path / "run").results("pruned").values():
        spec, removed = PruneSpec.from_dict(content.content["spec"]), content.content["removed"]
        if spec.kinds == ("cross",) and str(spec.method) == "layers":
            assert {head.partition("H")[0] for head in removed} == {"cross.L2", "cross.L3"}, "the top layers of this type alone"


def test_b5_consecutive_against_spread_layers(ran: Ran) -> None:
    check_strategies(ran, "B5", {"layers:consecutive", "layers:spread", "random"})
    for heads in removed_by(ran, "layers:consecutive"):
        first, second = sorted({int(head[1]) for head in heads})
        assert second == first + 1
    assert all(sorted({int(head[1]) for head in heads}) in ([0, 2], [1, 3]) for heads in removed_by(ran, "layers:spread"))


def test_b6_roles_pruned_and_spared(tmp_path: Path) -> None:
    ran = run_items(tmp_path / "run", "demo/encoder", "demo/text", Budhraja2020(quick=True, rate=1e-3), ("B6",))
    assert not ran.result.failures
    result, rows = ran.result.results["B6"], ran.table("B6", "rows")
    heads = {name: set(members) for name, members in result.measurements["heads"].items()}
    assert heads and set(heads) <= {"local", "positional", "block"} and all(0 < len(own) < HEADS for own in heads.values())
    assert len(heads) == 3 or any("is left out" in note for note in result.notes)
    assert {(row["role"], row["its heads go"]) for row in rows} == {("random", "")} | {
        (name, order) for name in heads for order in ("first", "last")
    }
    assert all(row["heads"] == 16 and row["perplexity"] > 1 for row in rows)
    figure = result.figure("roles")
    assert isinstance(figure, LineFigure) and {line.x for line in figure.lines} == {(16.0,)} and len(figure.lines) == 1 + 2 * len(heads)
    for line in figure.lines:
        role, _, order = ("random", "", "") if line.is_control else line.label.partition(": pruned ")
        (row,) = [row for row in rows if (row["role"], row["its heads go"]) == (role, order)]
        assert [line.y, line.low, line.high] == [(row[f"against the dense model{end}"],) for end in ("", " low", " high")]
    for content in ran.pruned:
        spec, removed_heads = PruneSpec.from_dict(content["spec"]), set(content["removed"])
        if spec.method.name == "role" and spec.method.order == "prune":  # pyright: ignore[reportAttributeAccessIssue]
            assert any(own <= removed_heads or removed_heads <= own for own in heads.values())


def test_b7_compensation_over_seeds(ran: Ran) -> None:
    result, changes, quality = ran.result.results["B7"], ran.table("B7", "changes"), ran.table("B7", "quality")
    of_all = {row["part"]: row for row in changes if row["layer"] == "all"}
    assert set(of_all) == {"q", "k", "v", "o", "importance"} and all(row["heads"] == 16 for row in of_all.values())
    assert all(row["difference"] == pytest.approx(row["after pruning"] - row["in the dense model"]) for row in changes)
    assert [row["model"] for row in quality] == ["dense", "dense, fine-tuned", "pruned", "pruned, fine-tuned"]
    assert [row["seeds"] for row in quality] == [1, 2, 2, 2] and all(0 <= row["accuracy"] <= 1 for row in quality)
    dense, tuned, _, recovered = quality
    assert recovered["against the dense model"] == pytest.approx(recovered["accuracy"] - dense["accuracy"])
    assert recovered["against the dense model, fine-tuned"] == pytest.approx(recovered["accuracy"] - tuned["accuracy"])
    assert ("did not come back" in result.sentence) == (recovered["p"] is not None and recovered["p"] <= 0.05)
    for name, parts in (("weights", ("q", "k", "v", "o")), ("importance", ("importance",))):
        figure = result.figure(name)
        assert isinstance(figure, LineFigure) and tuple(line.label for line in figure.lines) == parts and figure.n == 16
        for line in figure.lines:
            assert line.y == tuple(row["difference"] for row in changes if row["part"] == line.label and row["layer"] != "all")


def test_b8_importance_random_and_complement(ran: Ran) -> None:
    item = next(item for item in ran.result.items if item.id == "B8")
    assert item.published is not None and [row[2] for row in item.published.rows] == [0.845, 0.78, 0.741]
    rows = {(row["choice"], row["stage"]): row for row in ran.table("B8", "choices")}
    assert set(rows) == {(a, b) for a in ("importance", "random", "complement") for b in ("as it is", "repaired", "recovered")}
    assert all(row["heads"] == 16 and 0 <= row["accuracy"] <= 1 for row in rows.values())
    for (choice, stage), row in rows.items():
        assert (row["against random"] is None) == (choice == "random") and (row["steps"] is None) == (stage != "recovered")
        if choice != "random":
            assert row["against random"] == pytest.approx(row["accuracy"] - rows["random", stage]["accuracy"])
    removed = set(ran.result.results["B8"].measurements["removed"]["16"])
    by_plan = [PruneSpec.from_dict(content["spec"]).method for content in ran.pruned], [set(content["removed"]) for content in ran.pruned]
    plans = [(method, removed_heads) for method, removed_heads in zip(*by_plan, strict=True) if method.name == "plan"]
    complements = [removed_heads for method, removed_heads in plans if method.complement]  # pyright: ignore[reportAttributeAccessIssue]
    assert complements and all(not complement & removed and len(complement) == 16 for complement in complements)
    assert rows["importance", "as it is"]["accuracy"] > rows["complement", "as it is"]["accuracy"], "the important heads carry the task"
    figure = ran.result.results["B8"].figure("choices-16")
    assert isinstance(figure, BarFigure) and figure.categories == ("as it is", "repaired", "recovered")
    for bars in figure.bars:
        assert bars.values == tuple(rows[bars.label, stage]["against the dense model"] for stage in figure.categories)


def test_b9_heads_of_another_task(ran: Ran) -> None:
    rows = {row["choice"]: row for row in ran.table("B9", "transfer")}
    assert set(rows) == {"chosen on demo/entailment-tavi", "chosen on this task", "random"}
    own, chosen_on_demo_entailment_tavi = rows["chosen on this task"], rows["chosen on demo/entailment-tavi"]
    assert (
        own["removed as by this task"] == 16
        and own["by chance"] == 8
        and 8 < chosen_on_demo_entailment_tavi["removed as by this task"] <= 16
    )
    assert chosen_on_demo_entailment_tavi["against this task's choice"] == pytest.approx(
        chosen_on_demo_entailment_tavi["accuracy"] - own["accuracy"]
    )
    tests = ran.table("B9", "tests")
    assert [test["against"] for test in tests] == ["own task", "random"] and all(test["p"] <= test["q"] for test in tests)
    assert tests[1]["difference"] == pytest.approx(chosen_on_demo_entailment_tavi["accuracy"] - rows["random"]["accuracy"])
    removed = ran.result.results["B9"].measurements["removed"]["16"]
    assert len(set(removed["other task"]) & set(removed["own task"])) == chosen_on_demo_entailment_tavi["removed as by this task"]
    figure = ran.result.results["B9"].figure("transfer")
    assert isinstance(figure, BarFigure) and {bars.label: bars.values[0] for bars in figure.bars} == {
        name: row["against the dense model"] for name, row in rows.items()
    }


def test_b10_three_interventions(ran: Ran) -> None:
    rows = ran.table("B10", "interventions")
    assert {(row["intervention"], row["heads"]) for row in rows} == {(a, b) for a in ("zero", "mean", "uniform") for b in (24, 16, 8)}
    zero = {row["heads"]: row["accuracy"] for row in rows if row["intervention"] == "zero"}
    for row in rows:
        assert (row["against zero"] is None) == (row["intervention"] == "zero") and row["seeds"] == 2
        if row["against zero"] is not None:
            assert row["against zero"] == pytest.approx(row["accuracy"] - zero[row["heads"]])
    check_line_figure(ran, "B10", "interventions", "interventions", "intervention")
    random = next(row for row in ran.table("B8", "choices") if (row["choice"], row["stage"]) == ("random", "as it is"))
    assert zero[16] == pytest.approx(random["accuracy"]), "a cut equals its gate"


def test_wrong_requests_are_refused() -> None:
    with pytest.raises(OptionError, match="name the roles"):
        hc.study("role-pruning", ENTAILMENT, ENTAILMENT, out="unused")
    with pytest.raises(hc.HeadcountError, match="no intervention 'nothing'"):
        hc.study("interventions(interventions=nothing)", ENTAILMENT, ENTAILMENT)
    with pytest.raises(OptionError, match="strategies are pruners"):
        build_strategy_requests(Strategies(strategies=("l0",)), hc.HeadMap.of(hc.load(ENTAILMENT)), 0)
    with pytest.raises(OptionError, match="new_head reads the classes"):
        hc.study("layers", hc.load(ENTAILMENT), ENTAILMENT, new_head=True)
