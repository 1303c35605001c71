"""A small version of `make coverage`: verdicts err within their limits, and have power."""

from __future__ import annotations

import interval_coverage as coverage
import pytest


def test_betting_errs_within_its_limit() -> None:
    rows = list(coverage.betting_rows((64, 1024), 300))
    assert len(rows) == 12
    assert not [row for row in rows if not row.holds]


def test_tango_errs_within_its_limit_by_enumeration() -> None:
    rows = list(coverage.tango_rows((64, 256, 1024), (0.0125, 0.05, 0.3)))
    assert max(row.rate for row in rows) <= 0.07
    assert max(row.rate for row in rows) > 0.03  # the margin is reached: the simulation could have said no


@pytest.mark.parametrize("classifier", coverage.CLASSIFIERS[4:6], ids=lambda each: each.describe())
def test_the_bootstrap_errs_within_its_limit(classifier: coverage.Classifier) -> None:
    rows = list(coverage.bootstrap_rows((1024,), 60, [classifier]))
    assert rows and all(row.holds for row in rows)


def test_what_does_no_harm_is_certified() -> None:
    assert all(row.holds for row in coverage.power_rows(400))


def test_intervals_cover_where_they_are_shown() -> None:
    rows = list(coverage.interval_rows((64, 256), 400))
    assert len(rows) >= 6
    assert all(row.holds for row in rows)


def test_single_heads_are_judged_within_the_limit_and_harmless_ones_are_found() -> None:
    rows = list(coverage.head_rows((256, 1024), 6))
    assert [row.table for row in rows] == ["verdicts", "verdicts", "power"]
    assert all(row.holds for row in rows)


def test_sets_of_ranks_hold_for_all_heads_together() -> None:
    rows = list(coverage.rank_rows((64,), 60, number=8))
    assert len(rows) == 8 and all(row.holds for row in rows)


def test_a_rate_beyond_its_limit_is_seen() -> None:
    assert not coverage.Row("verdicts", "x", "y", 64, 2000, 0.09, "≤ 0.05").holds
    assert not coverage.Row("power", "x", "y", 64, 2000, 0.5, "≥ 0.7").holds
