"""The knapsack over blocks: the least loss within a limit, never more than it, against brute force."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headcount.core.budget import Budget
from headcount.core.errors import OptionError, PlanError
from headcount.pruning.allocate import Curve, count_removed_units_by_block


def curve(losses: list[float], cost: int) -> Curve:
    total = [0.0]
    for loss in losses:
        total.append(total[-1] + loss)
    return Curve([()] * len(losses), total, [float(cost * (len(losses) - number)) for number in range(len(losses) + 1)])


CURVES = st.lists(
    st.tuples(st.lists(st.integers(0, 9).map(float), min_size=1, max_size=4).map(sorted), st.integers(1, 5)), min_size=1, max_size=4
)


@settings(max_examples=150, deadline=None)
@given(CURVES, st.integers(1, 40))
def test_the_best_choice_within_the_limit_is_found(drawn: list[tuple[list[float], int]], limit: int) -> None:
    curves = [curve(losses, cost) for losses, cost in drawn]
    best = None
    for numbers in product(*(range(len(one.costs)) for one in curves)):
        spent = sum(one.costs[number] for one, number in zip(curves, numbers, strict=True))
        lost = sum(one.losses[number] for one, number in zip(curves, numbers, strict=True))
        if spent <= limit and (best is None or lost < best):
            best = lost
    assert best is not None  # removing everything costs nothing
    removed_units_by_block = count_removed_units_by_block(curves, float(limit))
    assert sum(one.costs[number] for one, number in zip(curves, removed_units_by_block, strict=True)) <= limit
    # costs are rounded up to 1/4096 of the limit, so that a choice that fills it to the brim may be missed by a grain
    assert sum(one.losses[number] for one, number in zip(curves, removed_units_by_block, strict=True)) <= _nearly(
        curves, limit * (1 - len(curves) / 4096)
    )


def _nearly(curves: list[Curve], limit: float) -> float:
    return min(
        sum(one.losses[number] for one, number in zip(curves, numbers, strict=True))
        for numbers in product(*(range(len(one.costs)) for one in curves))
        if sum(one.costs[number] for one, number in zip(curves, numbers, strict=True)) <= limit
    )


def test_what_cannot_be_met_is_told() -> None:
    stiff = Curve([()], [0.0, 1.0], [9.0, 5.0])
    with pytest.raises(PlanError, match="raise the limit"):
        count_removed_units_by_block([stiff, stiff], 8.0)


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"parameters": 5, "kv_bytes": 5}, "exactly one of keep, fraction"),
        ({"parameters": 5, "keep": 3}, "exactly one of keep, fraction"),
    ],
)
def test_a_budget_limits_one_thing(wrong: dict, told: str) -> None:
    with pytest.raises(PlanError, match=told):
        _ = Budget(**wrong).limit


def test_a_latency_is_above_0() -> None:
    with pytest.raises(OptionError, match="latency of a budget must be a float or none above 0; got 0"):
        Budget(latency=0.0)


def test_a_limit_is_no_number_of_heads() -> None:
    with pytest.raises(PlanError, match="no number of heads"):
        Budget(kv_bytes=100).heads(12)
