"""The interval of a score stays within the range of its metric; the difference keeps the interval of its test."""

from __future__ import annotations

import math

import numpy as np
import pytest

from headcount.core.evaluation import Evaluation, PairedDifference
from headcount.core.figure import LineFigure
from headcount.core.metric_range import dense_score_plus_change_interval, range_of_metric
from headcount.core.stats.seed_scores import SeedScores
from headcount.data.metrics import ACCURACY, F1, MATTHEWS, PEARSON, PERPLEXITY, TOKEN_ACCURACY
from headcount.studies.pruning_curve import _difference_from_dense_figure, _score_by_share_removed_figure
from headcount.workflows.grid import MethodRow

CHANGE = PairedDifference(-0.01, -0.05, 0.03, 0.5, "Tango's score method")


def evaluation(metric: str, value: float) -> Evaluation:
    return Evaluation("", "report", 100, np.full(100, 0.1), metric, value=value)


@pytest.mark.parametrize(
    ("metric", "dense", "expected"),
    [
        ("accuracy", 0.99, (0.94, 1.0)),
        ("accuracy", 0.02, (0.0, 0.05)),
        ("Matthews correlation", 0.5, (0.45, 0.53)),
        ("perplexity", 1.01, (1.0, 1.04)),
        ("BLEU", 99.99, (99.94, 100.0)),
        ("", 0.1, (0.05, 0.13)),
    ],
)
def test_an_interval_ends_where_the_metric_does(metric: str, dense: float, expected: tuple[float, float]) -> None:
    assert dense_score_plus_change_interval(evaluation(metric, dense), CHANGE) == pytest.approx(expected)


def test_an_interval_over_seeds_ends_there_too() -> None:
    scores = SeedScores.from_value_of_each_seed((0.8, 0.99, 0.98), "accuracy")
    assert scores.high == 1 and scores.low is not None and 0.5 < scores.low < scores.mean
    plain = SeedScores.from_value_of_each_seed((0.8, 0.99, 0.98), "")
    assert plain.low == scores.low and plain.high is not None and plain.high > 1


def test_every_metric_with_a_name_has_a_range() -> None:
    metrics = (ACCURACY, F1, MATTHEWS, PEARSON, PERPLEXITY, TOKEN_ACCURACY)
    assert all(math.isfinite(range_of_metric(name)[0]) for name in (*(metric.name for metric in metrics), "BLEU", "chrF"))
    assert range_of_metric("one's own") == (-math.inf, math.inf)


def test_the_curve_shows_scores_in_range_and_the_difference_shows_what_is_tested() -> None:
    row = MethodRow(
        method="gradient",
        n_kept=16,
        share_removed=0.5,
        n_seeds=1,
        steps=None,
        mean=0.98,
        interval=(None, None),
        deviation=None,
        change=CHANGE,
        joint=CHANGE,
        against_random=None,
        kept_by_kind={},
        band=dense_score_plus_change_interval(evaluation("accuracy", 0.99), CHANGE),
        dense=0.99,
    )
    curve, difference = (
        _score_by_share_removed_figure([row], "accuracy", n_examples=100),
        _difference_from_dense_figure([row], "accuracy", n_examples=100),
    )
    assert isinstance(curve, LineFigure) and curve.lines[0].high == (1.0,) and curve.references[0].y == 0.99
    line = difference.lines[0]
    assert (line.y, line.low, line.high) == ((-0.01,), (-0.05,), (0.03,)) and difference.references[0].y == 0
