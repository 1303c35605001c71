"""`headcount score` and `headcount study`: what they print and write, and every bad input ends in one line and nothing written."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas
import pytest
import torch
from command_line import refused, result, run
from safetensors.torch import load_file, save_file
from toys import saved_classifier, saved_table, sentences

import headcount as hc
from headcount.core.registry import IMPORTANCES
from headcount.data.open_task import open_task
from headcount.importance.score import score_all
from headcount.importance.settings import ScoreSettings
from headcount.runs.scores import all_scores
from headcount.runs.store import Run
from headcount.workflows.score import judge_into

STORIES = ("demo/decoder", "--task", "demo/stories", "--limit", "16")


# What is printed and written.


def test_an_embedded_model_is_scored_offline(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    code, out, err = run(capsys, "score", *STORIES, "--by", "gradient,ablation,confidence", "--out", tmp_path / "run", "--all")
    assert code == 0, err
    heads = all_scores(Run.open(tmp_path / "run"))["gradient"].heads
    assert all(str(head) in out for head in heads)
    maps = re.findall(r"^(L\d+)  ([0-9](?: [0-9])*)$", out, flags=re.MULTILINE)
    assert len(maps) == 3 * len({head.layer for head in heads}), "three heat maps"
    assert {digit for _, row in maps for digit in row.split()} == set("0123456789")
    for words in (
        "gradient (divided by the ℓ2 norm of their layer): more means keep",
        "surely lowest",
        "95% interval",
        "costs at most",
        "alone",
        "no head is called safe: a verdict needs at least 450 examples; there are 16",
        "counting up to 2 nats per example",
        "perplexity change",
        "against ablation",
        "Spearman",
    ):
        assert words in out, words
    assert "task demo/stories: 16 calibration" in err and f"next: headcount study transfer {tmp_path / 'run'}" in err


@pytest.mark.parametrize("kind", ["csv", "tsv", "jsonl", "parquet"])
def test_files_of_every_kind_give_the_scores_of_python(capsys: pytest.CaptureFixture[str], model: Path, tmp_path: Path, kind: str) -> None:
    path = saved_table(tmp_path / f"data.{kind}")
    json_output = result(capsys, "score", model, "--train", path, "--by", "gradient,ablation:mean,magnitude", "--batch-size", 8)
    live = hc.load(model).eval()
    import transformers

    task = open_task(None, live, transformers.AutoTokenizer.from_pretrained(model), train=path)
    for name, scores in score_all(live, task, ["gradient", "ablation:mean", "magnitude"], ScoreSettings(batch_size=8)).items():
        score = json_output["scores"][name]
        assert [row["head"] for row in score["heads"]] == [str(head) for head in scores.heads]
        assert [row["value"] for row in score["heads"]] == list(scores.values)
        assert [row["stderr"] for row in score["heads"]] == list(scores.stderr)
        assert score["columns"] == {key: list(column) for key, column in scores.columns.items()}
        assert (score["n_examples"], score["data"], score["conditions"]) == (scores.n_examples, scores.data, dict(scores.conditions))
        assert sorted(row["rank"] for row in score["heads"]) == list(range(1, 13))
    assert json_output["scores"]["magnitude"]["verdicts"] is None and json_output["scores"]["gradient"]["verdicts"] is None
    ablation_mean = judge_into(None, live, task, ["ablation:mean"], ScoreSettings(batch_size=8))["ablation:mean"]
    assert [row["bound"] for row in json_output["scores"]["ablation:mean"]["verdicts"]["rows"]] == [row.bound for row in ablation_mean.rows]


def test_json_is_complete(capsys: pytest.CaptureFixture[str], model: Path, data: Path) -> None:
    words = ["--by", "gradient,ablation", "--stability", "--normalise", "layer", "--lowest", 3, "--limit", 20]
    json_output = result(capsys, "score", model, "--train", data, *words)
    assert json_output["model"] == str(model) and set(json_output["scores"]) == {"gradient", "ablation"}
    for scores in json_output["scores"].values():
        assert scores["normalise"] == "layer" and scores["n_examples"] == 20
        assert {"higher_is_keep", "data", "conditions", "columns", "stability"} < set(scores)
        assert all(row["low"] is None or row["low"] <= row["value"] <= row["high"] for row in scores["heads"])
        assert all(row["rank_low"] <= row["rank"] <= row["rank_high"] for row in scores["heads"])
        assert sum(row["is_lowest"] for row in scores["heads"]) <= 3
        assert [row["size"] for row in scores["stability"]] == [2, 5, 10, 20]
    verdicts = json_output["scores"]["ablation"]["verdicts"]
    assert verdicts["tolerance"] == {"size": 0.02, "unit": "nats"} and verdicts["clip"] == 2 and len(verdicts["rows"]) == 12
    assert json_output["scores"]["gradient"]["verdicts"] is None
    assert -1 <= json_output["agreement"]["gradient"]["spearman"]["value"] <= 1


@pytest.mark.parametrize("by", [name for name in IMPORTANCES.names() if name != "lrp"])
def test_one_example_is_scored_without_intervals(capsys: pytest.CaptureFixture[str], model: Path, data: Path, by: str) -> None:
    json_output = result(capsys, "score", model, "--train", data, "--by", f"{by},ablation", "--limit", 1, "--stability")
    assert {row["low"] for row in json_output["scores"][by]["heads"]} == {None}


def test_a_run_grows_by_methods(capsys: pytest.CaptureFixture[str], model: Path, data: Path, tmp_path: Path) -> None:
    out = tmp_path / "runs" / "one"
    for by in ("gradient", "fluctuation,gradient:signed", "magnitude"):
        assert run(capsys, "score", model, "--train", data, "--by", by, "--out", out)[0] == 0
    assert sorted(path.name for path in out.iterdir()) == [
        "artifacts",
        "heads.json",
        "lock",
        "log.txt",
        "run.json",
        "scores.csv",
        "scores.parquet",
        "tables.json",
    ]
    assert set(all_scores(Run.open(out))) == {"gradient", "fluctuation", "gradient:signed", "magnitude"}
    assert len(pandas.read_csv(out / "scores.csv")) == 4 * 12
    record = Run.open(out).record()
    assert record.command.endswith(f"--by magnitude --out {out}") and record.model.name == str(model)


def test_a_method_of_weights_needs_neither_task_nor_tokenizer(capsys: pytest.CaptureFixture[str], model: Path, tmp_path: Path) -> None:
    bare = Path(shutil.copytree(model, tmp_path / "bare", ignore=shutil.ignore_patterns("tokenizer*")))
    json_output = result(capsys, "score", bare, "--by", "magnitude,random", "--seed", 3)
    assert json_output["scores"]["random"]["n_examples"] == 0


# Studies.


def test_studies_run(capsys: pytest.CaptureFixture[str], model: Path, data: Path, tmp_path: Path) -> None:
    other = saved_table(tmp_path / "other.csv", 80)
    for name, path in (("a", data), ("b", other)):
        assert run(capsys, "score", model, "--train", path, "--by", "gradient,magnitude,fluctuation", "--out", tmp_path / name)[0] == 0
    json_output = result(capsys, "study", "transfer", tmp_path / "a", tmp_path / "b")
    pairs = {pair["method"]: pair for pair in json_output["pairs"]}
    assert set(pairs) == {"gradient", "fluctuation"}, "what examples do not move says nothing about other data"
    assert -1 <= pairs["gradient"]["pearson"]["low"] <= pairs["gradient"]["pearson"]["high"] <= 1
    assert not pairs["gradient"]["same_data"]
    assert run(capsys, "study", "transfer", tmp_path / "a", tmp_path / "b", "--by", "gradient")[0] == 0

    rows = result(capsys, "study", "by-type", model, "--train", data)["types"]
    assert [row["kind"] for row in rows] == ["encoder-self"] and rows[0]["share"] == pytest.approx(1)
    rows = result(capsys, "study", "all-but-one", model, "--train", data, "--how", "mean")["layers"]
    assert [row["block"] for row in rows] == ["L0", "L1", "everywhere"] and len(rows[2]["heads"]) == 2
    for study in ("by-type", "all-but-one"):
        code, out, err = run(capsys, "study", study, model, "--train", data)
        assert code == 0 and "accuracy" in out, err


def test_types_of_a_translator_stand_side_by_side(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["demo/translator", "--task", "demo/translation", "--limit", 2, "--by", "confidence", "--task-option", "max_new_tokens=2"]
    rows = result(capsys, "study", "by-type", *words)["types"]
    assert [row["kind"] for row in rows] == ["encoder-self", "decoder-self", "cross"]
    assert sum(row["share"] for row in rows) == pytest.approx(1)


# Every bad input: one line that names it, and no run.


def lines(path: Path, rows: list[str]) -> Path:
    path.write_text("".join(f"{row}\n" for row in rows))
    return path


def labelled(path: Path, labels: list[str]) -> Path:
    return lines(path, ["text,label", *(f"{text},{label}" for text, label in zip(sentences(len(labels)), labels, strict=True))])


def nan_weights(folder: Path) -> Path:
    tensors = load_file(folder / "model.safetensors")
    tensors["bert.encoder.layer.0.output.dense.weight"][0, 0] = float("nan")
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    return folder


HALF = ["yes", "no"] * 10
Bad = Callable[[Path, Path], tuple[list[Any], int, str]]
BAD: dict[str, Bad] = {
    "empty file": lambda tmp, _: (["--train", lines(tmp / "d.csv", [])], 1, r"d\.csv is empty"),
    "header alone": lambda tmp, _: (["--train", lines(tmp / "d.csv", ["text,label"])], 1, r"d\.csv is empty"),
    "no file": lambda tmp, _: (["--train", tmp / "d.csv"], 1, r"no file .*d\.csv"),
    "one label": lambda tmp, _: (
        ["--train", labelled(tmp / "d.csv", ["yes"] * 20)],
        1,
        r"all 20 examples taken from .*d\.csv have the label",
    ),
    "label out of range": lambda tmp, _: (["--train", labelled(tmp / "d.csv", ["0", "1", "7"] * 7)], 1, r"d\.csv, line \d+: label '7'"),
    "unknown label": lambda tmp, _: (["--train", labelled(tmp / "d.csv", [*HALF, "maybe"])], 1, r"d\.csv, line 22: label 'maybe'"),
    "long text": lambda tmp, _: (
        ["--train", lines(tmp / "d.csv", ["text,label", *(f"{t},yes" for t in sentences(9)), f"{' '.join(sentences(30))},no"])],
        1,
        r"d\.csv, line 11 has \d+ tokens, but at most 40 are allowed.*--max-length 40, --truncate",
    ),
    "wrong column": lambda tmp, _: (
        ["--train", labelled(tmp / "d.csv", HALF), "--text-column", "txt"],
        1,
        r"no column 'txt' for the text\. Did you mean 'text'",
    ),
    "unknown kind of file": lambda tmp, _: (["--train", lines(tmp / "d.xml", ["a"])], 1, r"d\.xml: unknown kind of file"),
    "unknown method": lambda tmp, data: (["--train", data, "--by", "gradeint"], 2, "Did you mean 'gradient'"),
    "unknown variant": lambda tmp, data: (["--train", data, "--by", "ablation:zeros"], 2, "Did you mean 'zero'"),
    "no method": lambda tmp, data: (["--train", data, "--by", ","], 2, "--by needs the name of a method"),
    "unknown task": lambda tmp, data: (["--train", data, "--task", "clasification"], 2, "Did you mean 'classification'"),
    "task of another head": lambda tmp, data: (["--train", data, "--task", "causal-lm"], 1, "needs a model with another head"),
    "unknown split": lambda tmp, data: (["--train", data, "--split", "test"], 2, "no split of score 'test'"),
    "unknown normalisation": lambda tmp, data: (["--train", data, "--normalise", "layers"], 2, "Did you mean 'layer'"),
    "too many lowest": lambda tmp, data: (["--train", data, "--lowest", "13"], 1, "k must be from 1 to 12.*got 13"),
    "no lowest": lambda tmp, data: (["--train", data, "--lowest", "0"], 2, "--lowest"),
    "adaptive gradient": lambda tmp, data: (["--train", data, "--adaptive", "2"], 1, "adaptive examines heads by ablation alone"),
    "adaptive all": lambda tmp, data: (
        ["--train", data, "--by", "ablation", "--adaptive", "12"],
        1,
        "adaptive must be from 1 to 11.*got 12",
    ),
    "batch size 0": lambda tmp, data: (["--train", data, "--batch-size", "0"], 2, "--batch-size is a number from 1 on, or auto; got 0"),
    "limit 0": lambda tmp, data: (["--train", data, "--limit", "0"], 2, "--limit"),
    "limit of words": lambda tmp, data: (["--train", data, "--limit", "many"], 2, "--limit.*many"),
    "level 2": lambda tmp, data: (["--train", data, "--level", "2"], 2, "--level"),
    "tolerance nan": lambda tmp, data: (
        ["--train", data, "--by", "ablation", "--tolerance", "nan"],
        2,
        "tolerance must be nats of loss, such as 0.02, or points",
    ),
    "no data": lambda tmp, _: ([], 1, "task 'classification' needs data: give train"),
    "option of another task": lambda tmp, data: (["--train", data, "--source-column", "x"], 1, "does not use source_column"),
    "task option without value": lambda tmp, data: (["--train", data, "--task-option", "metric"], 2, "takes NAME=VALUE"),
    "task option twice": lambda tmp, data: (
        ["--train", data, "--task-option", "metric=f1", "--task-option", "metric=matthews"],
        2,
        "--task-option names metric twice, with 'f1' and 'matthews'",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_told_in_a_line_and_nothing_is_written(
    capsys: pytest.CaptureFixture[str], model: Path, data: Path, tmp_path: Path, case: str
) -> None:
    words, code, message = BAD[case](tmp_path, data)
    messages = refused(capsys, code, "score", model, *words, "--out", tmp_path / "run")
    assert re.search(message, messages), messages
    assert not (tmp_path / "run").exists()


def test_missing_files_are_told_before_a_model_is_loaded(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert "no file" in refused(capsys, 1, "score", tmp_path / "no-model", "--train", tmp_path / "d.csv")
    assert "no file" in refused(capsys, 1, "roles", tmp_path / "no-model", "--text", tmp_path / "d.txt")


def test_an_unforeseen_error_names_the_file_and_line(
    capsys: pytest.CaptureFixture[str], model: Path, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> None:
        torch.ones(2).no_such_method()  # pyright: ignore[reportAttributeAccessIssue]

    monkeypatch.setattr("headcount.importance.methods.entropy.Entropy.of_block", fail)
    code, _, messages = run(capsys, "score", model, "--train", data, "--by", "entropy")
    assert code == 1 and re.search(
        r"unexpected AttributeError: .* \(test_score_cli\.py, line \d+\)\. Run it again with --verbose", messages
    ), messages


def test_texts_are_cut_off_when_told(capsys: pytest.CaptureFixture[str], model: Path, tmp_path: Path) -> None:
    words, _, _ = BAD["long text"](tmp_path, tmp_path)
    assert result(capsys, "score", model, *words, "--truncate")["scores"]["gradient"]["n_examples"] > 0


def test_bad_models_are_told_in_a_line(capsys: pytest.CaptureFixture[str], model: Path, data: Path, tmp_path: Path) -> None:
    copies = [Path(shutil.copytree(model, tmp_path / name)) for name in ("nan", "foreign", "bare", "damaged")]
    nan_weights(copies[0])
    small = hc.load(copies[1])
    small.resize_token_embeddings(50)
    small.save_pretrained(copies[1])
    (copies[2] / "tokenizer.json").unlink()
    (copies[2] / "tokenizer_config.json").unlink()
    (copies[3] / "tokenizer.json").write_text("{}")
    messages = [
        r"tensor 'bert.encoder.layer.0.output.dense.weight' holds NaN",
        r"the tokenizer knows \d+ tokens, but the model's vocabulary has 50: it belongs to another model",
        r"needs the model's tokenizer",
        r"damaged holds a tokenizer that cannot be read",
    ]
    for folder, message in zip(copies, messages, strict=True):
        told = refused(capsys, 1, "score", folder, "--train", data, "--out", tmp_path / "run")
        assert re.search(message, told), told
        assert not (tmp_path / "run").exists()


def test_tags_that_are_all_ignored_are_told(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    folder = saved_classifier(tmp_path / "tags", "AutoModelForTokenClassification", names={0: "X", 1: "Y"})
    rows = [{"tokens": text.split(), "tags": ["XY"[i % 2] for i in range(len(text.split()))]} for text in sentences(12)]
    assert result(capsys, "score", folder, "--train", lines(tmp_path / "good.jsonl", list(map(json.dumps, rows))))["scores"]
    rows[4] = {"tokens": [" "], "tags": ["X"]}
    path = lines(tmp_path / "bad.jsonl", list(map(json.dumps, rows)))
    message = refused(capsys, 1, "score", folder, "--train", path, "--out", tmp_path / "run")
    assert re.search(r"bad\.jsonl, line 5: no word of it got a token, so all labels would be ignored", message), message
    assert not (tmp_path / "run").exists()


def test_folders_in_the_way_are_told_before_the_work(capsys: pytest.CaptureFixture[str], model: Path, data: Path, tmp_path: Path) -> None:
    (tmp_path / "foreign").mkdir()
    (tmp_path / "foreign" / "thesis.txt").write_text("")
    assert run(capsys, "score", model, "--by", "random", "--out", tmp_path / "run")[0] == 0
    torch.manual_seed(0)
    other = saved_classifier(tmp_path / "other", seed=5)
    for words, message in (
        ([model, "--out", tmp_path / "foreign"], "is not empty and holds no run"),
        ([model, "--out", data], "is a file; name a folder"),
        ([other, "--out", tmp_path / "run"], "is a run of another model"),
    ):
        assert message in refused(capsys, 1, "score", *words, "--train", lines(tmp_path / "unread.csv", []))
    assert list(all_scores(Run.open(tmp_path / "run"))) == ["random"]


def test_bad_studies_are_told_in_a_line(capsys: pytest.CaptureFixture[str], model: Path, tmp_path: Path) -> None:
    assert run(capsys, "score", model, "--by", "random", "--out", tmp_path / "a")[0] == 0
    assert run(capsys, "score", model, "--by", "magnitude", "--out", tmp_path / "b")[0] == 0
    assert run(capsys, "score", "demo/decoder", "--by", "random", "--out", tmp_path / "c")[0] == 0
    for code, words, message in (
        (2, ["transfre"], "Did you mean 'transfer'"),
        (2, ["transfer"], "RUN"),
        (1, ["transfer", tmp_path / "a"], "two or more different run folders"),
        (1, ["transfer", tmp_path / "a", tmp_path / "a"], "two or more different run folders"),
        (1, ["transfer", tmp_path / "a", tmp_path / "b"], "no method in common"),
        (1, ["transfer", tmp_path / "a", tmp_path / "b", "--by", "random"], "has no scores by 'random'; it has magnitude"),
        (1, ["transfer", tmp_path / "a", tmp_path / "c"], "random has no samples"),
        (1, ["transfer", tmp_path / "a", model], "holds no run"),
        (2, ["by-type", model, "--by", "gradeint"], "Did you mean 'gradient'"),
        (1, ["all-but-one", model], "needs data"),
        (2, ["all-but-one", model, "--how", "zeros"], "Did you mean 'zero'"),
    ):
        assert message in refused(capsys, code, "study", *words)
