"""What data can show before anything is measured, and in which words."""

from __future__ import annotations

import numpy as np
import pytest

from headcount.core.errors import StatisticsError
from headcount.core.stats.power import smallest_certifiable_loss_of_accuracy, smallest_certifiable_rise_of_loss
from headcount.core.stats.quality_loss import BettingLoss, TangoLoss
from headcount.runs.report.certificates import describe_power


def test_the_margin_is_the_bound_of_such_an_outcome() -> None:
    dense, small = np.ones(500), np.ones(500)
    dense[:5], small[5:10] = 0, 0
    assert smallest_certifiable_loss_of_accuracy(500) == pytest.approx(TangoLoss(dense, small).one_sided_bounds()[1])
    assert 0.011 < smallest_certifiable_loss_of_accuracy(500) < 0.0125
    assert smallest_certifiable_loss_of_accuracy(2000) < smallest_certifiable_loss_of_accuracy(500) / 1.8
    assert smallest_certifiable_rise_of_loss(300, 2.0) == pytest.approx(BettingLoss(np.zeros(300), 2.0).one_sided_bounds()[1])
    with pytest.raises(StatisticsError, match="2 examples"):
        smallest_certifiable_loss_of_accuracy(1)


def test_it_is_told_by_the_metric() -> None:
    accuracy = "with 500 examples a margin of 1.2 points can be certified if one prediction in fifty changes and the model is no worse"
    assert describe_power(500, "accuracy") == accuracy
    assert describe_power(100, "BLEU") == "with 100 examples the bound of BLEU is found by resampling, and a verdict needs 256"
    assert describe_power(400, "F1").endswith("by resampling")
    assert "nats per example can be certified if no example is damaged" in describe_power(400, "")
    assert "% of the perplexity can be certified" in describe_power(400, "perplexity")
