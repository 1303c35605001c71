"""What is said of the sizes and speeds of pruned models."""

from __future__ import annotations

import pytest

from headcount.runs.report.plain import format_speed
from headcount.studies._measure.speed import SpeedRow
from headcount.studies.speed import _summary_sentence
from headcount.surgery.card import _format_cost_table

COST = {"heads": 4, "parameters": 10, "bytes": 40, "flops": 99, "tokens": 18, "kv_bytes_per_token": 0}


@pytest.mark.parametrize(
    ("ratio", "words"),
    [(1.27, "1.27 times as fast"), (0.79, "1.27 times as slow"), (1.0, "as fast"), (0.999, "as fast"), (0.5, "2.00 times as slow")],
)
def test_a_slower_model_is_called_slow(ratio: float, words: str) -> None:
    assert format_speed(ratio) == words


@pytest.mark.parametrize(
    ("ratio", "low", "high", "words"),
    [(1.25, 1.0, 1.5, "runs 1.25 times as fast (1.00 … 1.50) at"), (0.8, 0.5, 1.25, "runs 1.25 times as slow (0.80 … 2.00) at")],
)
def test_the_study_of_speed_calls_a_slower_model_slow(ratio: float, low: float, high: float, words: str) -> None:
    row = SpeedRow(8, 0.5, 100, 0.9, 1, 8, 0.1, 0.1 / ratio, ratio, low, high, 0.5, 15, "cpu")
    assert words in _summary_sentence([row])


def test_operations_are_counted_for_a_number_of_tokens() -> None:
    assert "| FLOPs of a pass over 18 tokens | 99 | 99 |" in _format_cost_table({"before": COST, "after": COST})


def test_the_figure_of_times_names_every_model_and_size() -> None:
    figure = pytest.importorskip("matplotlib.figure")
    from headcount.runs.report.figures import draw_cost

    rows = [
        {"of": of, "batch": batch, "length": 64, "name": name, "seconds": 0.1, "low": 0.09, "high": 0.12}
        for of in ("surgeon, 8 heads", "random, 16 heads")
        for batch in (1, 8, 32)
        for name in ("dense", "masked", "removed")
    ]
    sample = figure.Figure(layout="constrained")
    draw_cost(sample, rows, {"system": "Linux", "threads": 2})
    panels = [panel for panel in sample.axes if panel.get_visible()]
    assert [panel.get_title() for panel in panels] == [f"batch {batch}, length 64" for batch in (1, 8, 32)]
    assert [label.get_text() for label in panels[0].get_yticklabels()] == ["surgeon, 8 heads", "random, 16 heads"]
    assert all(len(panel.patches) == 6 for panel in panels)
