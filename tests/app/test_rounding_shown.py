"""The effect of rounding on `lrp:epsilon` reaches the table, the JSON and the csv file of a run."""

from __future__ import annotations

import json
from pathlib import Path

import pandas
import pytest

from headcount.app.main import main
from headcount.core.scores import Scores


def test_rounding_stands_beside_the_scores(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    words = ["score", "demo/decoder", "--task", "demo/stories", "--limit", "8", "--by", "lrp:epsilon", "--out", str(tmp_path / "run")]
    assert main(words) == 0
    table = capsys.readouterr().out
    assert main([*words, "--json"]) == 0
    rounding = json.loads(capsys.readouterr().out)["scores"]["lrp:epsilon"]["columns"]["rounding"]
    heading = next(line for line in table.splitlines() if "surely lowest" in line)
    assert heading.split()[-1] == "rounding"
    assert pandas.read_csv(tmp_path / "run" / "scores.csv")["rounding"].tolist() == pytest.approx(rounding)
    assert all(0 < value < 0.01 for value in rounding)


@pytest.mark.parametrize("words", [("prune", "--method", "lrp:epsilon"), ("compare", "--methods", "lrp:epsilon")], ids=["prune", "compare"])
def test_a_choice_by_scores_within_rounding_says_so(
    words: tuple[str, ...], model: Path, data: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`score` gave this note, and what was pruned by the same scores did not; a finished run gives it again."""
    monkeypatch.setattr(Scores, "heads_within_rounding", lambda self: self.heads[:2] if "lrp" in self.method else ())
    command = [words[0], str(model), "--train", str(data), *words[1:], "--keep", "50%", "--no-repair", "--limit", "12"]
    for _ in range(2):
        assert main([*command, "--out", str(tmp_path / "run")]) == 0
        assert capsys.readouterr().err.count("rounding alone moves the score of L0H0, L0H1 by more than its standard error") == 1
        monkeypatch.undo()
