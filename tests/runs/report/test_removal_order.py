"""The page removes the heads that headcount removes: it gets the order in which heads and KV groups go, ties included."""

from __future__ import annotations

from dataclasses import replace

import pytest

from headcount.core.budget import Budget
from headcount.core.heads import Head
from headcount.core.plan import Plan
from headcount.core.scores import Scores
from headcount.runs.report.scores import _score_columns, head_index_groups_in_removal_order, head_indices_in_removal_order

HEADS = tuple(Head("", layer, index) for layer in range(4) for index in range(6))
NAMES = [str(head) for head in HEADS]
TIED = Scores(HEADS, tuple(float(place % 3 == 0) for place in range(24)), "ablation", seed=5)
GROUPS = tuple(HEADS[start : start + 2] for start in range(0, 24, 2))


def names(heads: list[int]) -> set[str]:
    return {NAMES[place] for place in heads}


@pytest.mark.parametrize("higher_is_keep", [True, False])
def test_at_every_k_the_first_to_go_are_those_that_a_plan_removes(higher_is_keep: bool) -> None:
    scores = replace(TIED, higher_is_keep=higher_is_keep)
    order = head_indices_in_removal_order(scores, NAMES)
    assert sorted(order) == list(range(24))
    for keep in range(1, 25):
        assert names(order[: 24 - keep]) == set(map(str, Plan.keep_top(scores, keep).removed))
    assert head_indices_in_removal_order(replace(scores, seed=6), NAMES) != order


def test_whole_groups_go_as_a_plan_removes_them() -> None:
    scores = replace(TIED, units=GROUPS)
    groups = head_index_groups_in_removal_order(scores, NAMES)
    assert groups is not None and sorted(position for group in groups for position in group) == list(range(24))
    for keep in range(2, 25, 2):
        removed_heads = [position for group in groups[: (24 - keep) // 2] for position in group]
        assert names(removed_heads) == set(map(str, Plan.keep_top(scores, Budget(keep=keep)).removed))


def test_orders_are_places_in_the_runs_own_heads() -> None:
    backwards = NAMES[::-1]
    assert [backwards[position] for position in head_indices_in_removal_order(TIED, backwards)] == [
        NAMES[position] for position in head_indices_in_removal_order(TIED, NAMES)
    ]
    fewer = Scores(HEADS[::2], TIED.values[::2], units=tuple(zip(HEADS[:12:2], HEADS[12::2], strict=True)))
    assert set(head_indices_in_removal_order(fewer, NAMES)[12:]) == set(range(1, 24, 2)), "heads without a score go last"
    assert head_index_groups_in_removal_order(fewer, NAMES) is None
    assert head_index_groups_in_removal_order(TIED, NAMES) is None, "every head goes by itself"


def test_only_importances_have_an_order() -> None:
    scores = replace(TIED, columns={"accuracy change": TIED.values})
    first, change = _score_columns("ablation", scores, NAMES)
    assert first["removal_order"] == head_indices_in_removal_order(TIED, NAMES) and change["removal_order"] is None
    described = _score_columns("entropy", replace(TIED, describes=True, units=GROUPS), NAMES)[0]
    assert described["removal_order"] is None and described["group_removal_order"] is None
