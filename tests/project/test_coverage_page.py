"""The command `make coverage`: it goes on after a stop, and its page has the rows that are stored."""

from __future__ import annotations

from pathlib import Path

import measure_coverage as coverage
import pytest
from interval_coverage import Experiment, Rate


def test_measuring_goes_on_after_a_stop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    measured: list[int] = []

    def experiment(n: int) -> Experiment:
        return Experiment("power", "x", "y", n, 0, "≥ 0.5", lambda: measured.append(n) or Rate(1.0))

    page = tmp_path / "page.md"
    page.write_text(f"before {coverage.START}{coverage.END} after")
    monkeypatch.setattr(coverage, "ROWS", tmp_path / "rows.json")
    monkeypatch.setattr(coverage, "PAGE", page)
    monkeypatch.setattr(coverage, "plan", lambda draws: [experiment(1), experiment(2)])
    monkeypatch.setattr("sys.argv", ["coverage"])
    coverage.write_rows([experiment(2).run()])
    assert coverage.main() == 0
    assert measured == [2, 1]
    assert "| x | y | 1 | exact | 100% | 1.000 | ≥ 0.5 |" in page.read_text()
    monkeypatch.setattr("sys.argv", ["coverage", "--again", "x"])
    assert coverage.main() == 0 and measured == [2, 1, 1, 2]


def test_the_stored_rows_are_all_there_and_keep_their_limits_and_the_page_has_them() -> None:
    rows = coverage.read_rows()
    assert [row.key for row in rows] == [experiment.key for experiment in coverage.plan(2000)]
    assert not [row.describe() for row in rows if not row.holds]
    assert coverage.format_tables(rows) in coverage.PAGE.read_text(encoding="utf-8")
