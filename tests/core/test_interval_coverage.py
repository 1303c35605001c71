"""A small version of `make coverage`: verdicts err within their limits, and have power; the stored rows are those of the page."""

from __future__ import annotations

from collections.abc import Iterable

import interval_coverage as coverage
import numpy as np
import pytest

from headcount.core.certificate import bound_of_metric
from headcount.core.margin import Margin
from headcount.core.stats import betting, quality_loss
from headcount.core.stats.metric_parts import find_metric_of_sums


def run(experiments: Iterable[coverage.Experiment]) -> list[coverage.Row]:
    return [experiment.run() for experiment in experiments]


def kept(rows: list[coverage.Row]) -> bool:
    assert rows
    return not [row.describe() for row in rows if not row.holds]


def test_betting_errs_within_its_limit() -> None:
    rows = run(coverage.betting_experiments((64, 1024), 300))
    assert len(rows) == 14 and kept(rows)


def test_a_bound_that_is_too_narrow_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(coverage, "ALPHA", 0.2)
    assert not kept(run(coverage.betting_experiments((1024,), 300)))


def test_harm_that_is_cut_off_too_early_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rare harm that counts for less than it is looks safe."""
    monkeypatch.setattr(betting, "_clip_to_columns", lambda values, clip: np.minimum(values, 0.25).reshape(len(values), -1))
    assert not kept(run(coverage.betting_experiments((1024,), 300)))


def test_losses_and_perplexities_are_certified_within_the_limit_whatever_the_order_of_the_file() -> None:
    assert kept(run(coverage.certificate_experiments((256,), 60)))


def test_tango_errs_within_its_limit_by_enumeration() -> None:
    rows = run(coverage.tango_experiments((64, 256, 1024), (0.01, 0.05)))
    assert kept(rows)
    assert max(row.rate for row in rows) > 0.05  # the margin is reached: the enumeration could have said no


def test_the_fewest_gains_that_tango_certifies_are_those_of_a_full_search() -> None:
    n, share, margin = 64, 0.2, 0.05
    rate = 0.0
    for number in range(n + 1):
        for gains in range(number + 1):
            if coverage.PairedCounts(n, number - gains, gains).p_value_of_at_most(-margin) <= coverage.ALPHA:
                lost = (share + margin) / 2 / share
                ways = coverage.special.binom(n, number) * coverage.special.binom(number, gains)
                rate += ways * share**number * (1 - share) ** (n - number) * lost ** (number - gains) * (1 - lost) ** gains
    assert coverage.tango_error(n, margin, share) == pytest.approx(rate, abs=1e-9)


RARE = coverage.RARE[0]


def test_the_bootstrap_errs_within_its_limit() -> None:
    assert kept(run(coverage.pair_experiments([RARE, coverage.NEARLY_EQUAL[1]], (1024,), 200)))
    assert kept(run(coverage.pair_experiments([coverage.Documents(), coverage.Documents(is_whole=False)], (256, 1024), 100)))


def test_without_unseen_changes_the_bootstrap_errs_more_often(monkeypatch: pytest.MonkeyPatch) -> None:
    """A loss that a dozen examples carry, or a few documents, was certified too often."""
    (row,) = run(coverage.pair_experiments([RARE], (1024,), 600))
    monkeypatch.setattr(quality_loss, "UNSEEN", 0)
    monkeypatch.setattr(quality_loss, "UNSEEN_OF_FEW", 0)
    (without,) = run(coverage.pair_experiments([RARE], (1024,), 600))
    assert row.holds and without.rate > row.rate + 0.01
    assert not kept(run(coverage.pair_experiments([coverage.Documents()], (256,), 200)))


def test_unseen_changes_raise_the_upper_bound_alone() -> None:
    dense, small = coverage.Documents().draw(np.random.default_rng(0), 512)
    total = find_metric_of_sums("accuracy")
    assert total is not None
    bound = bound_of_metric(dense, small, total, Margin.parse("5pt"))
    quiet = bound_of_metric(dense, dense, total, Margin.parse("5pt"))
    assert bound.at_least < bound.loss < bound.bound
    assert quiet.at_least == quiet.loss == 0
    assert quiet.bound > 3 / 64  # three of 64 documents


def test_what_does_no_harm_is_certified() -> None:
    assert kept(run(coverage.power_experiments(400)))


def test_intervals_cover_where_they_are_shown() -> None:
    rows = run(coverage.mean_experiments((64, 256), 400))
    assert len(rows) == 10 and kept(rows)
    assert {row.n for row in rows if row.shown > 0.9} == {256}
    assert kept(run(coverage.metric_experiments((64, 256), 100)))
    assert kept(run(coverage.few_experiments(300)))


def test_intervals_of_real_scores_cover() -> None:
    assert kept(run(coverage.real_experiments((256,), 60, coverage.SCORED[1:2])))


def test_correlations_and_curves_hold() -> None:
    assert kept(run(coverage.correlation_experiments((64,), 60)))
    assert kept(run(coverage.curve_experiments((256,), 100)))


def test_single_heads_are_judged_within_the_limit_and_harmless_ones_are_found() -> None:
    rows = run(list(coverage.head_experiments((1024,), 6))[:2])
    assert [row.table for row in rows] == ["verdicts", "power"]
    assert kept(rows)


def test_sets_of_ranks_hold_for_all_heads_together() -> None:
    rows = run(coverage.rank_experiments((64,), 60, number=8))
    assert len(rows) == 8 and kept(rows)


def test_a_rate_beyond_its_limit_is_seen() -> None:
    assert not coverage.Row("verdicts", "x", "y", 64, 2000, 0.09, "≤ 0.05").holds
    assert not coverage.Row("power", "x", "y", 64, 2000, 0.5, "≥ 0.7").holds
    assert coverage.Row("intervals", "x", "y", 64, 2000, 0.0, "≥ 0.93", shown=0.0).holds
