"""Voita et al. 2019: every item on an embedded classifier with a text, and those of kinds of attention on the embedded translator."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import headcount as hc
from headcount.core.definition import Definition
from headcount.core.errors import OptionError
from headcount.core.figure import BarFigure, HeatMap, LineFigure, ScatterFigure
from headcount.core.heads import Head
from headcount.core.study_result import StudyResult
from headcount.data.embedded.rare_words import draw_rare_sentences
from headcount.data.embedded.sentences import draw_sentences
from headcount.pruning.recipe import Recipe
from headcount.pruning.spec import PruneSpec
from headcount.runs.results import unpack_evaluation, unpack_pruned_evaluation
from headcount.runs.store import Run
from headcount.studies._base import LoadedModel, StudyContext
from headcount.studies._grid import make_pruning, run_grid
from headcount.studies._paper import PaperResult, PaperSubject, choose_items
from headcount.studies._results import describe_study_run
from headcount.studies._run_paper import list_items, run_paper
from headcount.studies._run_study import PythonSources
from headcount.studies.papers.voita2019 import Voita2019Paper
from headcount.surgery.source import local_folder
from headcount.workflows.roles import read_roles

ENTAILMENT, TAVI, MODEL = "demo/entailment", "demo/entailment-tavi", "demo/entailment-english"
KINDS = ("encoder-self", "decoder-self", "cross")
LIMIT, N_HEADS = 80, 32


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("voita2019") / "run"


@pytest.fixture(scope="module")
def paper(folder: Path) -> PaperResult:
    chosen = Voita2019Paper(quick=True, other_task=(TAVI,), frequent=20)
    sources = PythonSources(ENTAILMENT, None, draw_sentences("english", LIMIT, seed=0), 0, LIMIT, None)
    with Run.lead(folder) as run:
        context = StudyContext(sources, model=MODEL, run=run, limit=LIMIT)
        return run_paper(chosen, list_items(chosen, context), context)


@pytest.fixture(scope="module")
def translation(tmp_path_factory: pytest.TempPathFactory) -> PaperResult:
    chosen = Voita2019Paper(quick=True)
    with Run.lead(tmp_path_factory.mktemp("voita2019") / "translator") as run:
        context = StudyContext(PythonSources("demo/translation", None, None, 0, 20, None), model="demo/translator", run=run, limit=20)
        return run_paper(chosen, choose_items(list_items(chosen, context), ("V9", "V11", "V13")), context)


@pytest.fixture(scope="module")
def rare(tmp_path_factory: pytest.TempPathFactory) -> PaperResult:
    """Items on rare words, on the text and the model that show them."""
    name, n_sentences = "demo/rare-words", 160
    sources = PythonSources(name, None, draw_rare_sentences(n_sentences), 0, n_sentences, None)
    with Run.lead(tmp_path_factory.mktemp("voita2019") / "rare") as run:
        context = StudyContext(sources, model=name, run=run, limit=n_sentences)
        chosen = Voita2019Paper(quick=True, frequent=60)
        return run_paper(chosen, choose_items(list_items(chosen, context), ("V6", "V7", "V10")), context)


def records(result: StudyResult, table: str) -> list[dict[str, Any]]:
    return result.table(table).records()


def cells(figure: HeatMap) -> dict[tuple[str, str], float | None]:
    return {
        (row, column): value
        for row, values in zip(figure.rows, figure.values, strict=True)
        for column, value in zip(figure.columns, values, strict=True)
    }


def pruned_artifacts(folder: Path) -> list[Any]:
    """The pruned models of the task of the paper, without those of its further task."""
    return [artifact for artifact in Run.open(folder).artifacts("pruned") if artifact.key.inputs["task"] == ENTAILMENT]


def test_every_item_runs_or_says_why(paper: PaperResult) -> None:
    assert not paper.failures
    missing = {item.id: item.reason for item in paper.items if item.study is None}
    assert set(missing) == {"V11", "V13"} and all("one kind of attention" in reason for reason in missing.values())
    assert set(paper.results) == {item.id for item in paper.items} - set(missing)


def test_items_name_the_inputs_that_they_lack() -> None:
    context = StudyContext(PythonSources("demo/stories", None, None, 0, 20, None), model="demo/decoder")
    items = {item.id: item for item in Voita2019Paper().items(PaperSubject(context.loaded.heads, context.task, has_text=False))}
    assert {name for name, item in items.items() if item.lacks} == {"V3", "V4", "V5", "V6", "V7", "V10", "V15", "V16"}
    assert items["V15"].lacks == ("other_task",) and items["V4"].lacks == ("text",)
    assert "no encoder" in items["V8"].reason and "no encoder" in items["V9"].reason and items["V12"].study is not None


@pytest.mark.parametrize(("item", "method"), [("V1", "confidence"), ("V2", "lrp")])
def test_v1_v2_head_maps(paper: PaperResult, item: str, method: str) -> None:
    figure = paper.results[item].figure(method)
    rows = records(paper.results[item], "scores")
    assert isinstance(figure, HeatMap) and figure.n == 64 and len(rows) == N_HEADS
    assert cells(figure) == {(str(row["layer"]), str(Head.parse(row["head"]).index)): row["score"] for row in rows}
    assert all(0 < row["score"] < 1 for row in rows)
    assert method in paper.results[item].sentence and len(paper.results[item].tables) == 1
    if method == "lrp":
        assert "alpha-beta rule" in figure.title and "alpha-beta rule" in paper.results[item].sentence, "the default variant is named too"
        assert {row["importance"] for row in rows} == {"lrp by the alpha-beta rule"}
        assert all(sum(value or 0 for value in values) == pytest.approx(1) for values in figure.values), "shares of a layer"


def test_v3_roles_against_importance_and_confidence(paper: PaperResult) -> None:
    result = paper.results["V3"]
    figure, rows = result.figure("heads"), records(result, "rows")
    assert isinstance(figure, ScatterFigure) and sum(len(group.x) for group in figure.groups) == N_HEADS
    scores = {row["head"]: (row["confidence"], row["lrp"]) for row in records(result, "heads")}
    for group in figure.groups:
        assert [scores[name] for name in group.names] == list(zip(group.x, group.y, strict=True))
    assert {row["score"] for row in rows} == {"lrp", "confidence"} and all(row["q"] <= 1 for row in rows)
    assert all(row["difference low"] is None for row in rows if row["heads"] == 1), "no interval for one head"
    assert {row["family"] for row in records(result, "heads")} <= {"positional", "syntactic", "rare words", "several", "no role"}
    with_role = sum(bool(row["roles"]) for row in records(result, "heads"))
    assert [row["heads"] for row in rows if row["role"] == "any role"] == [with_role] * 2
    (item,) = [item for item in paper.items if item.id == "V3"]
    assert item.study is not None and item.study.to_dict()["sentences"] == 120 and item.study.to_dict()["examples"] == 64


def test_v4_rule_of_the_strongest_key(paper: PaperResult, folder: Path) -> None:
    result, table = paper.results["V4"], read_roles(Run.open(folder)).relabel("voita2019")
    rows = {(row["head"], row["role"]): row for row in records(result, "heads")}
    by_pair = {(str(row.head), row.role): row for row in table if (str(row.head), row.role) in rows}
    assert {key: row.by_argmax for key, row in by_pair.items()} == {key: row["has the role"] for key, row in rows.items()}
    for key, row in by_pair.items():
        is_positional = row.role.startswith("offset")
        needed = max(0.9, row.chance + 0.1) if is_positional else max(row.baseline, row.chance) + 0.1
        assert rows[key]["accuracy needed"] == needed and rows[key]["has the role"] <= (row.accuracy >= needed)
    assert sum(row.role.startswith("offset") for row in by_pair.values()) >= N_HEADS
    roles, named = records(result, "roles"), result.table("roles")
    assert not [column.name for column in named.columns if "bias" in column.name or "τ" in column.name], (
        "nothing that the rule does not read"
    )
    assert named.is_printed and {"positional", "syntactic"} <= {row["family"] for row in roles}
    assert "rare words" in {row["family"] for row in roles} or any("Not tested: rare" in note for note in result.notes)
    best_of_role = {best.role: best for best in table.best_heads}
    assert any(row["role"] in best_of_role for row in roles)
    for row in roles:
        assert row["heads that reach the threshold"] >= row["heads with the role"]
        if row["role"] not in best_of_role:
            assert row["most accurate head"] is row["its strongest keys"] is row["threshold"] is None, "too few sentences in one half"
            continue
        best = best_of_role[row["role"]]
        assert (row["most accurate head"], row["its strongest keys"]) == (str(best.head), best.accuracy), (
            "of the half that did not choose it"
        )
        assert (row["its strongest keys low"], row["its strongest keys high"]) == (best.accuracy_low, best.accuracy_high)
        assert (row["sentences"], row["of the best offset"]) == (best.n_sentences, best.baseline)
        needed = max(0.9, best.chance + 0.1) if row["family"] == "positional" else max(best.baseline, best.chance) + 0.1
        assert row["threshold"] == needed
    shown = [row for row in roles if row["role"] in best_of_role]
    shares, counts = result.figure("strongest keys"), result.figure("labels")
    assert isinstance(shares, BarFigure) and isinstance(counts, BarFigure)
    assert [list(bars.values) for bars in shares.bars] == [[row[name] for row in shown] for name in ("its strongest keys", "threshold")]
    counted = [row for row in roles if row["heads with the role"] or row["heads that reach the threshold"]]
    assert counts.categories == tuple(row["role"] for row in counted)
    assert list(counts.bars[1].values) == [row["heads with the role"] for row in counted] and "τ" not in counts.bars[0].label
    assert "against 90%" in result.sentence and "bias" not in result.sentence


def test_v7_role_map(paper: PaperResult) -> None:
    result = paper.results["V7"]
    rows, figure = records(result, "map"), result.figure("map")
    assert isinstance(figure, HeatMap) and len(rows) == N_HEADS
    assert cells(figure) == {(row["layer"], str(Head.parse(row["head"]).index)): row["number of families"] for row in rows}
    marked = result.figure("map-syntactic")
    assert isinstance(marked, HeatMap) and (marked.value.label, marked.value.is_share) == ("share of tokens", True), (
        "the definition reads no bias"
    )
    assert cells(marked) == {(row["layer"], str(Head.parse(row["head"]).index)): row["strongest keys, syntactic"] for row in rows}
    assert sum(map(sum, marked.marks)) == sum("syntactic" in row["families"] for row in rows) > 0


def test_v8_heads_left_by_penalty(paper: PaperResult, folder: Path) -> None:
    result = paper.results["V8"]
    rows, figure = records(result, "penalties"), result.figure("heads")
    assert [row["λ"] for row in rows] == [0.001, 0.01, 0.1]
    heads_left = [row["heads left"] for row in rows]
    assert heads_left[0] > heads_left[-1] and heads_left == sorted(heads_left, reverse=True), "a larger λ leaves fewer heads"
    by_penalty = {artifact.content["spec"]["method"].get("penalty"): artifact for artifact in pruned_artifacts(folder)}
    for row in rows:
        artifact = by_penalty[row["λ"]]
        assert artifact.content["spec"]["budget"] is None, "λ alone decides how many heads stay"
        assert row["heads left"] == N_HEADS - len(artifact.content["removed"])
        assert row["accuracy"] == unpack_pruned_evaluation(artifact).score
        assert row["against the dense model low"] <= row["against the dense model"] <= row["against the dense model high"]
    assert isinstance(figure, LineFigure) and list(figure.lines[0].y) == heads_left and figure.references[0].y == N_HEADS
    assert [name for _, name in figure.x.ticks] == ["0.001", "0.01", "0.1"]
    scores = result.figure("metric")
    assert isinstance(scores, LineFigure) and sorted(scores.lines[0].x) == sorted(heads_left)


def test_v9_encoder_heads(paper: PaperResult, translation: PaperResult) -> None:
    for result in (paper.results["V9"], translation.results["V9"]):
        rows, figure = records(result, "curve"), result.figure("curve")
        assert [row["heads"] for row in rows] == [16, 8, 16, 8] and isinstance(figure, LineFigure) and len(figure.lines) == 2
        assert sum(line.is_control for line in figure.lines) == 1 and all(line.x == (0.5, 0.75) for line in figure.lines)
        assert all(row["against random"] is not None for row in rows[:2])
    assert all(row["decoder-self heads"] == row["cross heads"] == N_HEADS for row in rows), "only the encoder loses heads"
    assert "frozen=decoder" in str(rows[0]["method"])


def test_v10_roles_measured_again(paper: PaperResult, folder: Path) -> None:
    result = paper.results["V10"]
    dense, *levels = records(result, "families")
    groups = ("positional", "syntactic", "rare words", "several families", "no role")
    for row in (dense, *levels):
        assert sum(row[group] for group in groups) == row["heads"]
    assert dense["syntactic"] > 0 and [row["heads"] for row in levels] == [16, 8, 16, 8]
    for row in records(result, "changes"):
        assert row["removed"] + row["kept"] + row["lost"] == row["in the dense model"]
        assert row["kept"] + row["gained"] == row["in the pruned model"]
    syntactic = [row["in the pruned model"] for row in records(result, "changes") if row["family"] == "syntactic"]
    assert syntactic == [row["syntactic"] + row["several families"] for row in levels]
    figure = result.figures[0]
    assert isinstance(figure, BarFigure) and figure.is_stacked and figure.categories == ("32", "16", "8")
    assert [bars.values for bars in figure.bars] == [tuple(row[group] for row in (dense, *levels[:2])) for group in groups]


def test_v10_roles_are_those_of_the_pruned_model(paper: PaperResult, folder: Path) -> None:
    (chosen,) = [
        artifact
        for artifact in pruned_artifacts(folder)
        if artifact.key.name.startswith("l0 without") and len(artifact.content["removed"]) == 24
    ]
    model = hc.load(next(path for path in (folder / "models").iterdir() if path.name.endswith(chosen.key.digest[:8])))
    text, definition = draw_sentences("english", LIMIT, seed=0), Definition.parse("voita2019(frequent=20)")
    tokenizer = PythonSources(ENTAILMENT, None, None, 0, LIMIT, None)
    loaded = tokenizer.load_model(MODEL)
    table = hc.roles(model, text, tokenizer=tokenizer.find_processor(loaded), only=definition.roles_of_families, definition=definition)
    rows = [row for row in records(paper.results["V10"], "heads") if row["heads"] == 8 and str(row["method"]).startswith("l0")]
    assert {row["head"]: row["roles"] for row in rows} == {str(head): ", ".join(roles) for head, roles in table.labels().items()}


def test_v11_heads_of_every_kind(translation: PaperResult) -> None:
    rows = records(translation.results["V11"], "curve")
    assert [row["heads"] for row in rows] == [48, 24, 48, 24]
    assert all(sum(row[f"{kind} heads"] for kind in KINDS) == row["heads"] for row in rows)
    figure = translation.results["V11"].figure("curve")
    assert isinstance(figure, LineFigure) and figure.references[0].y == pytest.approx(rows[0]["BLEU"] - rows[0]["against the dense model"])
    (item,) = [item for item in translation.items if item.id == "V11"]
    assert item.published is not None and item.published.rows[1] == (14, 31, 30, 29.62)


def test_v12_the_same_heads_from_scratch(paper: PaperResult, folder: Path) -> None:
    rows, (pair,) = records(paper.results["V12"], "models"), records(paper.results["V12"], "pairs")
    pruned, control = rows
    assert [row["heads"] for row in rows] == [16, 16] and control["model"] == pair["control"] == "the same heads from scratch"
    assert pair["pruned minus control"] == pytest.approx(pruned["accuracy"] - control["accuracy"]) and pair["test"] == "Tango"
    assert 0 < pair["pruned minus control low"] <= pair["pruned minus control high"], "20 steps teach nothing"
    (scratch,) = [artifact for artifact in pruned_artifacts(folder) if artifact.content["spec"]["scratch"] is not None]
    (chosen,) = [
        artifact
        for artifact in pruned_artifacts(folder)
        if {**artifact.content["spec"], "scratch": scratch.content["spec"]["scratch"]} == scratch.content["spec"]
        and artifact.content["spec"]["scratch"] is None
    ]
    assert scratch.content["removed"] == chosen.content["removed"] and control["steps"] == scratch.content["steps"]["scratch"] == 20
    figure = paper.results["V12"].figure("controls")
    assert isinstance(figure, LineFigure) and [line.y for line in figure.lines] == [(pruned["accuracy"],), (control["accuracy"],)]


def test_v13_survivors_by_kind(translation: PaperResult) -> None:
    result = translation.results["V13"]
    rows, figure = records(result, "kinds"), result.figures[0]
    assert all(sum(row[kind] for kind in KINDS) == row["heads"] == 96 - row["removed"] for row in rows)
    assert isinstance(figure, LineFigure) and [line.label for line in figure.lines] == list(KINDS) and figure.lines[0].x == (48, 72)
    assert [line.y for line in figure.lines] == [tuple(row[kind] for row in rows[:2]) for kind in KINDS]
    curve = records(translation.results["V11"], "curve")
    assert [[row[kind] for kind in KINDS] for row in rows] == [[row[f"{kind} heads"] for kind in KINDS] for row in curve]


def test_v14_survivors_by_layer(paper: PaperResult) -> None:
    rows = records(paper.results["V14"], "layers")
    assert all(sum(row[f"encoder-self {layer}"] for layer in range(4)) == row["heads"] for row in rows)
    figure = next(figure for figure in paper.results["V14"].figures if isinstance(figure, HeatMap))
    assert figure.columns == ("16", "8") and figure.values[0] == tuple(row["encoder-self 0"] for row in rows[:2])


def test_v15_several_tasks_in_one_figure(paper: PaperResult) -> None:
    result = paper.results["V15"]
    figure = result.figure("curve")
    assert isinstance(figure, LineFigure)
    assert [(line.label.partition(",")[0], line.is_control) for line in figure.lines] == [
        (task, is_control) for task in (ENTAILMENT, TAVI) for is_control in (False, True)
    ]
    own = [row for row in records(result, "curve") if row["task"] == ENTAILMENT]
    assert [row["accuracy"] for row in own] == [row["accuracy"] for row in records(paper.results["V9"], "curve")]


def test_v16_attention_maps(paper: PaperResult) -> None:
    result = paper.results["V16"]
    heads = records(result, "heads")
    assert [row["family"] for row in heads] == ["positional", "syntactic", "rare words"] and heads[1]["has the role"]
    assert all(row["accuracy"] > row["of a random key"] for row in heads)
    for row in heads:
        figure = result.figure(row["family"].replace(" ", "-"))
        assert isinstance(figure, HeatMap) and figure.rows == figure.columns and row["head"] in figure.title
        assert all(sum(value or 0 for value in values) == pytest.approx(1, abs=1e-4) for values in figure.values)
        assert any(any(marks) for marks in figure.marks), "the sentence can show the role"
        assert "".join(figure.rows[1:-1]) == row["sentence"].replace(" ", "")
    weights = [row["attention"] for row in records(result, "attention") if row["family"] == "positional"]
    positional = result.figure("positional")
    assert isinstance(positional, HeatMap) and weights == [value for values in positional.values for value in values]


def test_v17_gates_from_scratch(paper: PaperResult, folder: Path) -> None:
    rows, (pair,) = records(paper.results["V17"], "models"), records(paper.results["V17"], "pairs")
    assert rows[0]["accuracy"] == records(paper.results["V12"], "models")[0]["accuracy"], "the pruned model is the same"
    assert rows[1]["model"] == pair["control"] == "gates from scratch" and rows[1]["heads"] == 16
    (artifact,) = [entry for entry in pruned_artifacts(folder) if entry.content["spec"]["method"].get("weights") == "scratch"]
    assert rows[1]["accuracy"] == unpack_pruned_evaluation(artifact).score and artifact.content["spec"]["recipe"]["rate"] == 5e-4
    (dense,) = [
        entry for entry in Run.open(folder).artifacts("evaluation") if entry.key.name == "dense" and entry.key.inputs["task"] == ENTAILMENT
    ]
    assert rows[1]["against the dense model"] == pytest.approx(rows[1]["accuracy"] - unpack_evaluation(dense).score)


def test_a_penalty_that_closes_all_gates_is_listed_with_no_heads(tmp_path: Path) -> None:
    study = "penalty-sweep(penalties=0.001+100;seeds=1;steps=10;gate_rate=3;train_batch=8)"
    result = hc.study(study, MODEL, ENTAILMENT, limit=16, out=tmp_path, progress=False)
    first, last = records(result, "penalties")
    assert first["accuracy"] is not None and last["heads left"] == 0 and last["accuracy"] is None and "no model" in result.sentence


def test_weights_from_scratch_exclude_frozen_weights() -> None:
    with pytest.raises(OptionError, match="weights=scratch"):
        PruneSpec.of("l0(weights=scratch;frozen=all)", 4)


def test_a_control_records_the_same_whether_its_heads_were_chosen_before_or_not(tmp_path: Path) -> None:
    loaded, sources = hc.load(MODEL), PythonSources(ENTAILMENT, None, None, 0, 16, None)
    recipe = Recipe(steps=4, train_batch=8)
    alone = PruneSpec.of("l0", 8, repair=False, recipe=recipe)
    control = replace(alone, scratch="2steps")
    contents = []
    for name, specs in (("first", [control]), ("second", [alone, control])):
        with Run.lead(tmp_path / name) as run:
            context = StudyContext(sources, model=LoadedModel(MODEL, loaded, local_folder(MODEL)), run=run, limit=16)
            describe_study_run(context, context.loaded, {})
            contents.append(run_grid(context, make_pruning(context), specs).points[-1].artifacts[0])
    assert contents[0].content == contents[1].content and (contents[0].arrays["losses"] == contents[1].arrays["losses"]).all()


def test_v5_best_head_of_every_relation(paper: PaperResult) -> None:
    result = paper.results["V5"]
    rows, figure = records(result, "rows"), result.figure("relations")
    assert isinstance(figure, BarFigure) and len({(row["relation"], row["direction"]) for row in rows}) == len(rows) > 0
    for row in rows:
        assert 0 <= row["accuracy low"] <= row["accuracy"] <= row["accuracy high"] <= 1 and row["tokens"] > 0
        assert row["difference"] == pytest.approx(row["accuracy"] - row["its accuracy"]) and row["p"] <= row["q"] <= 1
        assert Head.parse(row["best head"]).layer < 4
    assert {row["direction"] for row in rows} == {"dependent → governor", "governor → dependent"}
    assert list(figure.bars[0].values) == [row["accuracy"] for row in rows] and list(figure.bars[0].low) == [
        row["accuracy low"] for row in rows
    ]
    assert list(figure.bars[1].values) == [row["its accuracy"] for row in rows]
    assert paper.items[4].published is not None and len(paper.items[4].published.rows) == 8


def test_v6_rare_words(paper: PaperResult) -> None:
    result = paper.results["V6"]
    best, ranks = {row["tokens"]: row for row in records(result, "best")}, records(result, "ranks")
    shares = {row["head"]: [value for name, value in row.items() if name.startswith("rank ")] for row in ranks}
    assert set(best) == {"rarest", "two rarest"} and len(shares) == N_HEADS + 1 and "random key" in shares
    assert all(sum(of_head) == pytest.approx(1) for of_head in shares.values())
    for row in best.values():
        assert row["share of queries low"] <= row["share of queries"] <= row["share of queries high"] and 0 < row["of a random key"] < 1
    assert best["two rarest"]["share of queries"] >= best["rarest"]["share of queries"]
    by_rank, by_head = result.figure("ranks"), result.figure("heads")
    assert isinstance(by_rank, BarFigure) and isinstance(by_head, HeatMap)
    assert list(by_rank.bars[0].values) == shares[best["rarest"]["best head"]] and list(by_rank.bars[-1].values) == shares["random key"]
    assert cells(by_head) == {
        (name.rpartition("H")[0], str(Head.parse(name).index)): of_head[0] for name, of_head in shares.items() if name != "random key"
    }
    assert "rarest token" in result.sentence and best["rarest"]["best head"] in result.sentence


def test_v6_a_head_attends_to_the_rarest_word(rare: PaperResult) -> None:
    rows = {row["tokens"]: row for row in records(rare.results["V6"], "best")}
    rarest = rows["rarest"]
    assert rarest["share of queries low"] > 3 * rarest["of a random key"] and rarest["p"] < 1e-6
    assert rarest["share of queries"] > rarest["of the best offset"] + 0.1, "the rule of the paper"
    assert rows["two rarest"]["share of queries"] >= rarest["share of queries"] - 0.05
    figure = rare.results["V6"].figure("ranks")
    assert isinstance(figure, BarFigure) and figure.bars[0].values[0] > 3 * figure.bars[1].values[0]


def test_v7_v10_count_rare_words_with_the_number_of_frequent_tokens(rare: PaperResult) -> None:
    families = rare.results["V7"].measurements["families"]
    assert rare.results["V7"].measurements["definition"] == "voita2019(frequent=60)"
    (head,) = {row["best head"] for row in records(rare.results["V6"], "best")}
    assert head in families["rare words"] and families["positional"], "the previous word and the rarest one"
    changes = [row for row in records(rare.results["V10"], "changes") if row["family"] == "rare words"]
    assert changes and all(row["in the dense model"] == len(families["rare words"]) for row in changes)
    default = Voita2019Paper(definition="pande2021", frequent=60)
    assert "frequent" not in str(default._role_definition), "another definition stays as it is"
