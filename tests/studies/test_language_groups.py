"""Languages: files, one language, training after pruning; families and corpus sizes on planted results; the change of weights by layer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from command_line import result as run_json
from toys import build

import headcount as hc
from headcount.core.errors import DataError, OptionError, StatisticsError
from headcount.core.figure import HeatMap, LineFigure
from headcount.core.stats.agreement import spearman
from headcount.core.stats.chance import rank_correlation_interval
from headcount.studies._language_parts import _corpus_size_trend_table
from headcount.studies._measure.language_groups import (
    LanguageGroup,
    contrast_language_families,
    correlate_losses_with_corpus_size,
    read_language_groups,
)
from headcount.studies._measure.weight_change import correlate_changes_with_depth, mean_change_by_part_and_layer
from headcount.studies._tuning import relative_weight_changes, weights_by_head

NAMES = [f"l{number}" for number in range(8)]
GROUPS = {name: LanguageGroup(name, "north" if number < 4 else "south", 10.0 ** (number + 1)) for number, name in enumerate(NAMES)}


def test_a_planted_family_and_size_are_found() -> None:
    lost = {"top": {name: 0.5 - 0.05 * number for number, name in enumerate(NAMES)}, "bottom": dict.fromkeys(NAMES, 0.25)}
    contrasts = {(row.without, row.family): row for row in contrast_language_families(lost, GROUPS)}
    north = contrasts["top", "north"]
    assert (
        (north.n_languages, north.n_others) == (4, 4) and north.difference == pytest.approx(0.2) and north.p is not None and north.p < 0.05
    )
    assert north.low is not None and north.high is not None and north.low < 0.2 < north.high
    assert contrasts["top", "south"].difference == pytest.approx(-0.2) and contrasts["bottom", "north"].p is None
    (trend,) = correlate_losses_with_corpus_size(lost, GROUPS)
    assert (trend.without, trend.correlation) == ("top", pytest.approx(-1)) and trend.p < 0.01 and -1 < trend.low < -0.99 < trend.high < 0
    few = {"top": {name: lost["top"][name] for name in NAMES[:3]}}
    assert not correlate_losses_with_corpus_size(few, GROUPS), "three languages have no rank correlation"
    lone = {**GROUPS, "l0": LanguageGroup("l0", "alone", None)}
    (alone,) = [row for row in contrast_language_families(lost, lone) if (row.without, row.family) == ("top", "alone")]
    assert alone.low is None and alone.p is None and alone.q is None, "one language has no interval"


def test_the_interval_of_a_trend_is_of_the_test_of_its_p() -> None:
    """Of sure losses of few languages, examples would give a narrow interval without 0; languages give one with it, and a large p."""
    lost = {"top": dict(zip(NAMES[:5], (0.3, 0.1, 0.4, 0.2, 0.15), strict=True))}
    (trend,) = correlate_losses_with_corpus_size(lost, GROUPS)
    assert trend.low < trend.correlation < 0 < trend.high and trend.p > 0.2
    table = _corpus_size_trend_table([trend])
    assert [column.name for column in table.columns] == [
        *("without", "languages", "rank correlation", "rank correlation low", "rank correlation high", "p", "q")
    ]
    assert table.records()[0]["p"] == trend.p


@pytest.mark.parametrize("n", [4, 5, 8, 20])
def test_the_interval_of_a_rank_correlation_covers_and_agrees_with_p(n: int) -> None:
    rng, share = np.random.default_rng(n), 0.5
    true = 6 / np.pi * np.arcsin(share / 2)
    hits = []
    for _ in range(500):
        x = rng.normal(size=n)
        rho = float(spearman(x, share * x + np.sqrt(1 - share**2) * rng.normal(size=n)))
        low, high, p = rank_correlation_interval(rho, n)
        assert -1 < low <= high < 1 and (low > 0 or high < 0) == (p < 0.05)
        hits.append(low <= true <= high)
    assert np.mean(hits) >= 0.95
    with pytest.raises(StatisticsError, match="takes 4"):
        rank_correlation_interval(0.5, 3)


def test_noise_has_no_trend() -> None:
    random = np.random.default_rng(3)
    p_values = []
    for _ in range(60):
        lost = {"top": dict(zip(NAMES, random.normal(0.3, 0.1, 8), strict=True))}
        p_values += [row.p for row in correlate_losses_with_corpus_size(lost, GROUPS)]
    assert np.mean(np.array(p_values) <= 0.05) <= 0.15


def test_groups_are_read_and_checked(tmp_path: Path) -> None:
    file = tmp_path / "groups.csv"
    file.write_text("language,family,size\nen,germanic,100\nde,germanic,\nfr,romance,5e1\n")
    assert read_language_groups(file, ["en", "de"]) == {
        "en": LanguageGroup("en", "germanic", 100.0),
        "de": LanguageGroup("de", "germanic", None),
    }
    with pytest.raises(DataError, match="has no row for nl"):
        read_language_groups(file, ["nl"])
    for text, message in (
        ("a,b\n1,2\n", "must have the columns"),
        ("language,size\nen,0\n", "above 0"),
        ("language,size\nen,1\nen,2\n", "two rows"),
    ):
        file.write_text(text)
        with pytest.raises(DataError, match=message):
            read_language_groups(file, ["en"])
    with pytest.raises(DataError, match="is no file"):
        read_language_groups(tmp_path / "none.csv", ["en"])


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The two embedded languages as files."""
    folder = tmp_path_factory.mktemp("languages")
    model: Any = hc.load("demo/entailment")
    paths = {}
    for name, task_name in (("english", "demo/entailment"), ("tavi", "demo/entailment-tavi")):
        task: Any = hc.open_task(task_name, model, limit=120)
        labels = [model.config.id2label[int(example["labels"])] for example in task.report]
        rows = [f"{text.text}\t{text.pair}\t{label}" for text, label in zip(task.texts.read("report"), labels, strict=True)]
        paths[name] = folder / f"{name}.tsv"
        paths[name].write_text("\n".join(["premise\thypothesis\tlabel", *rows]) + "\n")
    return paths


def test_a_file_for_every_language_with_groups(files: dict[str, Path], tmp_path: Path) -> None:
    groups = tmp_path / "groups.csv"
    groups.write_text("language,family,size\nenglish,one,10\ntavi,two,1\n")
    named = "+".join(f"{name}={path}" for name, path in files.items())
    study = f"languages(languages={named};groups={groups};method=magnitude;keep=50%)"
    result = hc.study(study, "demo/entailment", "nli", out=tmp_path / "run", progress=False)
    columns = [column.name for column in result.table("lost").columns]
    assert {"english", "tavi"} <= set(columns), "languages, not the model that is the same in all columns"
    families = result.table("families").records()
    assert {row["family"] for row in families} == {"one", "two"} and all(row["p"] is None for row in families)
    by_language = {row["language"]: row for row in result.measurements["rows"] if row["without"] == "L3"}
    (rows,) = [row for row in families if (row["without"], row["family"]) == ("L3", "one")]
    assert rows["difference"] == pytest.approx(by_language["english"]["lost"] - by_language["tavi"]["lost"])
    figure = result.figure("lost")
    n_report = by_language["english"]["n_examples"]
    assert n_report < 60 and by_language["tavi"]["n_examples"] == 120, "nothing is chosen on the second language, so all its rows are read"
    assert isinstance(figure, HeatMap) and figure.columns == (f"english, n = {n_report}", "tavi, n = 120") and "L3" in figure.rows
    assert [column.unit for column in result.table("lost").columns if column.name == "tavi"] == ["n = 120"]
    assert [row["examples"] for row in result.table("languages").records()] == [n_report, 120]
    assert {row["language"]: row["family"] for row in result.table("languages").records()} == {"english": "one", "tavi": "two"}
    table = result.table("lost").records()
    assert [row[0] for row in figure.values] == [row["english"] for row in table]


def test_the_first_language_is_held_out_from_the_data_for_training(
    files: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its file stands in for --eval; without --eval it is divided in three."""
    header, *rows = files["english"].read_text().splitlines()
    parts = {"train": rows[:40], "held": rows[40:]}
    for name, lines in parts.items():
        (tmp_path / f"{name}.tsv").write_text("\n".join([header, *lines]) + "\n")
    words = ("study", "languages", "demo/entailment", "--languages", f"english={tmp_path / 'held.tsv'}")
    words = (
        *words,
        "--languages",
        f"tavi={files['tavi']}",
        "--task",
        "nli",
        "--train",
        tmp_path / "train.tsv",
        "--method",
        "magnitude",
        "--keep",
        "50%",
    )
    held_out = run_json(capsys, *words, "--eval", files["tavi"], "--out", tmp_path / "held-out")
    divided = run_json(capsys, *words, "--out", tmp_path / "divided")
    n_examples = [{row["language"]: row["n_examples"] for row in actual["rows"]} for actual in (held_out, divided)]
    assert n_examples[0]["english"] == pytest.approx(40, abs=15) and n_examples[1]["english"] == pytest.approx(20, abs=10)
    assert n_examples[0]["tavi"] == n_examples[1]["tavi"] == 120


def test_prune_then_train_on_one_language_and_read_all(tmp_path: Path) -> None:
    study = "languages(tasks=demo/entailment+demo/entailment-tavi;method=random;keep=50%;seeds=2;recover=4steps;rate=0.001;train_batch=8)"
    result = hc.study(study, "demo/encoder", out=tmp_path / "run", limit=40, progress=False)
    rows = result.measurements["rows"]
    assert {row["language"] for row in rows} == {"demo/entailment", "demo/entailment-tavi"} and {row["kind"] for row in rows} == {"heads"}
    assert all(0 <= row["value"] <= 1 and 0 <= row["dense"] <= 1 for row in rows)
    alone = hc.study(
        "languages(tasks=demo/entailment;method=magnitude;keep=50%)", "demo/entailment", out=tmp_path / "one", limit=40, progress=False
    )
    assert [table.name for table in alone.tables] == ["lost", "languages"] and "between" not in alone.sentence
    for text in ("languages", "languages(tasks=demo/entailment;languages=en=x.tsv)"):
        with pytest.raises(OptionError, match="either tasks, or languages"):
            hc.study(text, "demo/entailment", out=tmp_path / "none")


def test_the_change_of_weights_by_layer(tmp_path: Path) -> None:
    live = build("encoder")
    before = weights_by_head(live, hc.HeadMap.of(live))
    block = hc.HeadMap.of(live).blocks[1]
    with torch.no_grad():
        live.get_submodule(block.v.path).weight.mul_(1.5)
    changes = relative_weight_changes(before, weights_by_head(live, hc.HeadMap.of(live)))
    values = {part: np.array([parts[part] for parts in changes.values()]) for part in ("q", "v")}
    rows = {(row.part, row.layer): row for row in mean_change_by_part_and_layer(list(changes), values)}
    assert rows["v", "L1"].mean == pytest.approx(0.5) and rows["v", "L0"].mean == rows["q", "L1"].mean == 0
    (trend,) = correlate_changes_with_depth(list(changes), values)
    assert trend.part == "v" and trend.correlation > 0.9 and trend.p < 0.05
    result = hc.study("weight-change:demo/entailment-english", "demo/entailment", progress=False)
    table, figure = result.table("layers").records(), result.figure("layers")
    assert len(table) == 4 * 4 and isinstance(figure, LineFigure) and figure.n == 32
    assert figure.lines[0].y == tuple(row["relative change"] for row in table if row["part"] == "q")
    with pytest.raises(hc.HeadcountError, match="have different heads"):
        hc.study("weight-change:demo/translator", "demo/entailment", progress=False)
