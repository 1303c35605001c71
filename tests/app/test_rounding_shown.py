"""The effect of rounding on `lrp:epsilon` reaches the table, the JSON and the csv file of a run."""

from __future__ import annotations

import json
from pathlib import Path

import pandas
import pytest

from headcount.app.main import main


def test_rounding_stands_beside_the_scores(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    words = ["score", "demo/decoder", "--task", "demo/stories", "--limit", "8", "--by", "lrp:epsilon", "--out", str(tmp_path / "run")]
    assert main(words) == 0
    table = capsys.readouterr().out
    assert main([*words, "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)["scores"]["lrp:epsilon"]["columns"]["rounding"]
    heading = next(line for line in table.splitlines() if "P(lowest)" in line)
    assert heading.split()[-1] == "rounding"
    assert pandas.read_csv(tmp_path / "run" / "scores.csv")["rounding"].tolist() == pytest.approx(shown)
    assert all(0 < value < 0.01 for value in shown)
