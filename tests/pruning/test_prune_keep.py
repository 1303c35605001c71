"""How much `prune` keeps: a number of heads, a share of them, or a Budget, all alike; what could mean two things is refused."""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np
import pytest
from toys import build

import headcount as hc
from headcount.core.errors import OptionError, PlanError


def heads_left(keep: Any, **how: Any) -> int:
    model = build("encoder")
    pruned = hc.prune(model, None, "random", keep, repair=False, **how)
    assert len(pruned.plan.removed) == len(hc.HeadMap.of(model)) - len(hc.HeadMap.of(pruned.model))
    return len(hc.HeadMap.of(pruned.model))


def test_a_whole_number_is_heads_and_a_float_a_share() -> None:
    total = len(hc.HeadMap.of(build("encoder")))
    assert heads_left(total // 2) == total // 2
    assert heads_left(np.int64(total - 1)) == total - 1
    assert heads_left(0.25) == heads_left(hc.Budget(keep=0.25)) == heads_left("25%") == round(total / 4)
    assert heads_left(1) == 1


@pytest.mark.parametrize("keep", [1.0, 0.0, -0.5, 1.5, 0, -1, 10_000, float("nan"), "8"])
def test_other_numbers_are_refused_before_any_work(keep: Any) -> None:
    with pytest.raises(
        PlanError, match=r"keep must be a whole number of heads from 1 (on|to \d+), or a share of them, a float above 0 and below 1"
    ):
        heads_left(keep)


def test_a_truth_value_is_no_number_of_heads() -> None:
    with pytest.raises(OptionError, match="option keep of prune must be an int, float, text, Budget or none; got True"):
        heads_left(True)


def test_the_signature_says_so() -> None:
    assert inspect.signature(hc.prune).parameters["keep"].annotation == "int | float | str | Budget | None"
