"""Budhraja et al. 2021: every item on the two embedded languages, two files of each, its table and its figure."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

import headcount as hc
from headcount.core.errors import OptionError
from headcount.core.figure import BarFigure, HeatMap, LineFigure, ScatterFigure
from headcount.core.study_result import StudyResult
from headcount.runs.store import Run
from headcount.studies._base import StudyContext
from headcount.studies._paper import PaperResult, PaperSubject
from headcount.studies._run_paper import list_items, run_paper
from headcount.studies._run_study import PythonSources
from headcount.studies.languages import Languages
from headcount.studies.papers.budhraja2021 import Budhraja2021

ENTAILMENT, TAVI, ENGLISH = "demo/entailment", "demo/entailment-tavi", "demo/entailment-english"
NAMES = ("en-a", "en-b", "tavi-a", "tavi-b")
LIMIT, SIZES = 36, (1000, 300, 20, 10)


def write_languages(folder: Path) -> dict[str, Path]:
    """Writes two files of each embedded language."""
    model: Any = hc.load(ENTAILMENT)
    files = {}
    for language, name in (("en", ENTAILMENT), ("tavi", TAVI)):
        task: Any = hc.open_task(name, model, limit=300)
        labels = [model.config.id2label[int(example["labels"])] for example in task.report]
        rows = [f"{text.text}\t{text.pair}\t{label}" for text, label in zip(task.texts.read("report"), labels, strict=True)]
        for part, own in (("a", rows[:150]), ("b", rows[150:])):
            files[f"{language}-{part}"] = folder / f"{language}-{part}.tsv"
            files[f"{language}-{part}"].write_text("\n".join(["premise\thypothesis\tlabel", *own]) + "\n")
    return files


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PaperResult]:
    folder = tmp_path_factory.mktemp("budhraja2021")
    files = write_languages(folder)
    groups = folder / "groups.csv"
    rows = [f"{name},{name.partition('-')[0]},{size}" for name, size in zip(NAMES, SIZES, strict=True)]
    groups.write_text("\n".join(["language,family,size", *rows]) + "\n")
    language = tuple(f"{name}={files[name]}" for name in NAMES)
    paper = Budhraja2021(
        quick=True, rate=1e-3, language=language, against=ENGLISH, other_task=(ENTAILMENT,), groups=str(groups), tuned=ENGLISH
    )
    loaded = PythonSources(None, None, None, 0, LIMIT, None).load_model(ENTAILMENT)
    tokenizer = PythonSources(None, None, None, 0, LIMIT, None).find_processor(loaded)
    task = hc.open_task("nli", loaded.model, tokenizer, train=files["en-a"], limit=LIMIT)
    with Run.lead(folder / "run") as run:
        context = StudyContext(PythonSources(task, None, None, 0, LIMIT, None), model=ENTAILMENT, run=run, limit=LIMIT)
        yield run_paper(paper, list_items(paper, context), context)


def records(result: StudyResult, table: str) -> list[dict[str, Any]]:
    return result.table(table).records()


def check_bars(figure: object, rows: list[dict[str, Any]], *names: str) -> None:
    """The bars of a figure are columns of the rows of its table, with their intervals."""
    assert isinstance(figure, BarFigure)
    for bars, name in zip(figure.bars, names, strict=True):
        for values, column in ((bars.values, name), (bars.low, f"{name} low"), (bars.high, f"{name} high")):
            assert list(values) == [row[column] for row in rows]


def test_items_say_what_they_lack(ran: PaperResult) -> None:
    assert [item.id for item in ran.items] == [f"X{number}" for number in range(1, 8)] and not ran.failures
    model = hc.load(ENTAILMENT)
    items = Budhraja2021().items(PaperSubject(hc.HeadMap.of(model), hc.open_task(ENTAILMENT, model, limit=8), False))
    assert [item.lacks for item in items] == [
        ("against",),
        ("language",),
        ("language",),
        ("language", "groups"),
        ("language", "groups"),
        ("tuned",),
        ("language",),
    ]
    sentences = [result.sentence for result in ran.results.values()]
    assert len(set(sentences)) == len(sentences), "every item has a sentence of its own"


def test_x1_relative_drop_against_a_monolingual_model_task_by_task(ran: PaperResult) -> None:
    result = ran.results["X1"]
    rows, gaps = records(result, "tasks"), records(result, "against")
    assert [row["task"] for row in rows] == ["en-a", ENTAILMENT], "one row for each task"
    for row in rows:
        assert (row["model"], row["other model"]) == (ENTAILMENT, ENGLISH) and "16 of 32 heads by random" in row["without"]
        assert row["difference"] == pytest.approx(row["lost"] - row["lost by the other"]) and row["p"] <= row["q"] <= 1
        for name in ("lost", "lost by the other", "difference"):
            assert row[f"{name} low"] <= row[name] <= row[f"{name} high"]
        (gap,) = [gap for gap in gaps if (gap["language"], gap["without"]) == (row["task"], row["without"])]
        assert (gap["one"], gap["other"], gap["q"]) == pytest.approx((row["lost"], row["lost by the other"], row["q"]))
    figure = result.figure("tasks")
    check_bars(figure, rows, "lost", "lost by the other")
    assert (
        isinstance(figure, BarFigure)
        and figure.categories == ("en-a", ENTAILMENT)
        and [b.label for b in figure.bars] == [ENTAILMENT, ENGLISH]
    )
    assert f"on {ENTAILMENT} {ENTAILMENT} loses" in result.sentence and f"{rows[1]['difference']:+.1%}" in result.sentence
    assert [table.name for table in result.tables] == ["tasks", "against"] and any(
        note.startswith(f"{ENGLISH}, {ENTAILMENT}:") for note in result.notes
    )


def test_x2_every_language(ran: PaperResult) -> None:
    result = ran.results["X2"]
    lost = {row["without"]: row for row in records(result, "lost")}
    (without,) = [name for name in lost if "heads by random" in name]
    figure = result.figure("languages")
    assert isinstance(figure, BarFigure) and figure.categories == NAMES and figure.n == LIMIT
    (bars,) = figure.bars
    assert bars.label == f"without {without}" and list(bars.values) == [lost[without][name] for name in NAMES]
    assert list(bars.low) == [lost[without][f"{name} low"] for name in NAMES]
    between = records(result, "between languages")
    assert {row["language"] for row in between} == set(NAMES[1:]) and len(between) == 3 * len(lost)
    assert all(f"{name} loses" in result.sentence for name in NAMES)


def test_x3_languages_by_blocks_of_layers(ran: PaperResult) -> None:
    result = ran.results["X3"]
    figure, table = result.figure("lost"), records(result, "lost")
    assert isinstance(figure, HeatMap) and figure.columns == NAMES and {"bottom (L0)", "top (L3)", "L1"} <= set(figure.rows)
    assert (
        figure.rows == tuple(row["without"].removesuffix(" by random without repair") for row in table) and "without repair" in figure.note
    )
    changed = {(row["language"], row["without"]): row["q"] <= 0.05 for row in result.measurements["rows"]}
    for number, name in enumerate(figure.columns):
        assert [row[number] for row in figure.values] == [row[name] for row in table]
        assert all(row[f"{name} low"] <= row[name] <= row[f"{name} high"] for row in table)
        assert [row[number] for row in figure.marks] == [changed[name, row["without"]] for row in table]
    layers = [row for row in result.measurements["rows"] if row["kind"] != "heads"]
    worst = max(layers, key=lambda row: row["lost"])
    assert f"{worst['language']} without {worst['without']} loses {worst['lost']:.1%}" in result.sentence


def test_x4_families(ran: PaperResult) -> None:
    result = ran.results["X4"]
    rows = records(result, "families")
    lost = {(row["language"], row["without"]): row["lost"] for row in result.measurements["rows"]}
    for row in rows:
        own, others = (
            [lost[name, row["without"]] for name in NAMES if name.startswith(row["family"]) == is_own] for is_own in (True, False)
        )
        assert row["lost"] == pytest.approx(np.mean(own)) and row["difference"] == pytest.approx(np.mean(own) - np.mean(others))
        if row["p"] is not None:
            assert row["difference low"] < row["difference"] < row["difference high"] and row["p"] <= row["q"]
            assert row["p"] == pytest.approx(stats.ttest_ind(own, others, equal_var=False).pvalue)
    (english,) = [row for row in rows if row["family"] == "en" and "heads by random" in row["without"]]
    contrast = f"en {english['difference']:+.1%} ({english['difference low']:+.1%} … {english['difference high']:+.1%})"
    assert contrast in result.sentence and english["without"] in result.sentence
    figure = result.figure("families")
    assert isinstance(figure, BarFigure) and [bars.label for bars in figure.bars] == ["en", "tavi"]
    for bars in figure.bars:
        own = {row["without"]: row for row in rows if row["family"] == bars.label}
        assert bars.values == tuple(own[name]["difference"] for name in figure.categories)
        assert bars.low == tuple(own[name]["difference low"] for name in figure.categories)


def test_x5_sizes(ran: PaperResult) -> None:
    result = ran.results["X5"]
    rows, languages = records(result, "sizes"), records(result, "language sizes")
    assert [(row["language"], row["size"]) for row in languages] == list(zip(NAMES, SIZES, strict=True))
    (row,) = [row for row in rows if "heads by random" in row["without"]]
    expected = stats.spearmanr([language["lost"] for language in languages], SIZES).statistic
    assert row["languages"] == 4 and row["rank correlation"] == pytest.approx(expected)
    low, high = row["rank correlation low"], row["rank correlation high"]
    assert row["p"] <= row["q"] <= 1 and low <= expected <= high and (low > 0 or high < 0) == (row["p"] < 0.05)
    assert f"is {expected:+.2f} ({low:+.2f} … {high:+.2f}) (p = " in result.sentence
    figure = result.figure("sizes")
    assert isinstance(figure, ScatterFigure) and f"{expected:+.2f}" in figure.note
    points = {name: point for group in figure.groups for name, *point in zip(group.names, group.x, group.y, strict=True)}
    assert points == {language["language"]: [language["log10 size"], language["lost"]] for language in languages}


def test_x6_change_of_weights(ran: PaperResult) -> None:
    table, figure = records(ran.results["X6"], "layers"), ran.results["X6"].figure("layers")
    assert [row["part"] for row in table] == [part for part in "qkvo" for _ in range(4)] and isinstance(figure, LineFigure)
    assert all(row["relative change low"] <= row["relative change"] <= row["relative change high"] for row in table)
    for line in figure.lines:
        own = [row for row in table if row["part"] == line.label]
        for values, end in ((line.y, ""), (line.low, " low"), (line.high, " high")):
            assert list(values) == [row[f"relative change{end}"] for row in own]
    trends = records(ran.results["X6"], "trends")
    assert [row["part"] for row in trends] == list("qkvo") and all(
        -1 <= row["rank correlation"] <= 1 and 0 < row["p"] <= 1 for row in trends
    )


def test_x7_pruned_then_trained_on_the_first_language(ran: PaperResult) -> None:
    result = ran.results["X7"]
    measured, rows = result.measurements["rows"], records(result, "trained")
    assert {row["kind"] for row in measured} == {"heads"}, "no layers of models that were not fine-tuned"
    assert [row["language"] for row in rows] == list(NAMES) and all("recover 8steps" in row["without"] for row in rows)
    untrained = {row["language"]: row for row in ran.results["X2"].measurements["rows"] if row["kind"] == "heads"}
    for row in rows:
        assert row["dense before the fine-tuning"] == untrained[row["language"]]["dense"]
        assert row["change"] == pytest.approx(row["pruned, fine-tuned"] - row["dense, fine-tuned"])
        assert row["change low"] is None or row["change low"] <= row["change"] <= row["change high"]
        before, after = f"{row['dense before the fine-tuning']:.4g} before", f"{row['dense, fine-tuned']:.4g} after the fine-tuning"
        assert any(row["language"] in note and before in note and after in note for note in result.notes), "both dense scores are noted"
    assert any(row["dense, fine-tuned"] != row["dense before the fine-tuning"] for row in rows)
    check_bars(result.figure("trained"), rows, "lost")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"other_tasks": (TAVI,)}, "goes with against"),
        ({"show": "models"}, "name the other one with against"),
        ({"show": "families"}, "needs the languages' groups"),
        ({"show": "trained"}, "say how long with recover"),
        ({"show": "layers", "recover": "4steps"}, "leave recover out"),
    ],
)
def test_questions_without_their_input_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        Languages(tasks=(ENTAILMENT,), **options)


def test_a_further_task_names_no_model_or_two(tmp_path: Path) -> None:
    study = Languages(tasks=(ENTAILMENT,), against=ENGLISH, other_tasks=(f"{ENGLISH}={TAVI}",), keep=("50%",))
    with pytest.raises(OptionError, match="TASK or MODEL=OTHER=TASK"):
        hc.study(study, ENTAILMENT, ENTAILMENT, limit=8, out=tmp_path / "run", progress=False)
