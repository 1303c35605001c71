"""A file in place of another task: its data for the task of the caller, in Python and on the command line."""

from __future__ import annotations

import csv
from pathlib import Path
from random import Random

import pytest
from command_line import result
from transformers import AutoTokenizer

import headcount as hc
from headcount.core.figure import ScatterFigure
from headcount.data.embedded import english
from headcount.data.embedded.entailment import draw_pair
from headcount.surgery.source import local_folder


def write_pairs(path: Path, seed: int) -> Path:
    random = Random(seed)
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(("premise", "hypothesis", "label"))
        for _ in range(60):
            pair = draw_pair(random)
            writer.writerow((english.say_clause(pair.premise), english.say_clause(pair.hypothesis), pair.label))
    return path


def test_a_file_stands_for_another_task(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    own, pairs = write_pairs(tmp_path / "own.csv", 1), write_pairs(tmp_path / "other.csv", 2)
    words = ("study", "task-transfer", "demo/entailment", pairs, "--task", "nli", "--train", own, "--limit", 12)
    printed = result(capsys, *words)
    model, tokenizer = hc.load("demo/entailment"), AutoTokenizer.from_pretrained(local_folder("demo/entailment"))
    task = hc.open_task("nli", model, tokenizer, train=own, limit=12)
    measured = hc.study(f"task-transfer(other_tasks={pairs})", "demo/entailment", task, limit=12)
    rows = measured.measurements["rows"]
    assert {row["other"] for row in rows} == {str(pairs)} and printed["rows"] == rows
    figure = measured.figures[0]
    assert isinstance(figure, ScatterFigure) and figure.n_unit.startswith("heads, on 12 and ")
