from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headcount.core.budget import Budget
from headcount.core.errors import HeadcountError, HeadNameError, PlanError
from headcount.core.heads import AttentionBlock, Head, Projection, Rows
from headcount.core.plan import Plan
from headcount.core.scores import Scores
from headcount.models.head_map import HeadMap


def block(layer: int, n_heads: int, n_kv: int, gone: tuple[int, ...] = (), gate_only: str = "", stack: str = "") -> AttentionBlock:
    heads = tuple(Head(stack, layer, i) for i in range(n_heads) if i not in gone)
    projection = Projection("q", "q", Rows(n_heads, 4), "head")
    return AttentionBlock(
        path=f"{stack}layers.{layer}", kind="encoder-self", stack=stack, layer=layer, heads=heads, n_original=n_heads, n_kv_heads=n_kv, head_dim=4,
        value_dim=4, q=projection, k=projection, v=projection, o=projection, layout="separate", gate_only=gate_only,
    )  # fmt: skip


def scored(blocks: list[AttentionBlock], values: list[float], **options: object) -> Scores:
    heads = HeadMap(tuple(blocks))
    return Scores(heads.heads, tuple(values), units=heads.units(), **options)  # type: ignore[arg-type]


MHA = HeadMap((block(0, 4, 4), block(1, 4, 4)))
GQA = HeadMap((block(0, 6, 2), block(1, 6, 2)))


def test_heads_are_named_by_layer_too() -> None:
    assert Plan.removing({1: [4, 2], 0: [1]}) == Plan.removing(["L0H1", "L1H2", "L1H4"])
    with pytest.raises(PlanError, match="L0H1 would be removed twice"):
        Plan.removing({0: [1, 1]})
    with pytest.raises(HeadNameError, match="layer and index of a head must be 0 or more"):
        Plan.removing({0: [-1]})


def test_removing_names_what_is_wrong() -> None:
    with pytest.raises(PlanError, match="L0H1 would be removed twice"):
        Plan.removing(["L0H1", "L0H1"])
    with pytest.raises(PlanError, match="L0H1 is protected"):
        Plan.removing(["L0H1"], protected=["L0H1"])


@pytest.mark.parametrize(
    ("heads", "removed", "text"),
    [
        (MHA, ["L0H4"], "no head L0H4. It has 8 heads: L0..L1 x 4"),
        (MHA, ["L2H0"], "no head L2H0"),
        (MHA, ["enc.L0H0"], "no head enc.L0H0"),
        (HeadMap((block(0, 4, 3, gone=(1,)),)), ["L0H1"], "L0H1 is already gone; block L0 has 3 of its 4 heads left"),
        (GQA, ["L0H0"], "block L0 would keep 3 query heads of KV group 1 but 2 of group 0"),
        (HeadMap((block(0, 4, 4, gate_only="norms span all heads"),)), ["L0H0"], "gated but not cut: norms span all heads"),
    ],
)
def test_check_refuses(heads: HeadMap, removed: list[str], text: str) -> None:
    with pytest.raises(PlanError, match=text):
        Plan.removing(removed).check(heads)


@pytest.mark.parametrize(
    "removed", [["L0H0", "L0H1", "L0H2"], ["L0H2", "L0H5"], [f"L0H{i}" for i in range(6)], ["L1H3", "L1H4", "L1H5", "L1H0"]]
)
def test_check_accepts_whole_groups_and_even_thinning(removed: list[str]) -> None:
    Plan.removing(removed).check(GQA)


@given(st.lists(st.floats(-1e6, 1e6), min_size=8, max_size=8), st.integers(1, 8))
def test_keep_top_keeps_exactly_and_the_best(values: list[float], keep: int) -> None:
    scores = scored(list(MHA.blocks), values)
    plan = Plan.keep_top(scores, keep)
    value = dict(zip(scores.heads, values, strict=True))
    stay = [head for head in scores.heads if head not in plan.removed]
    assert len(stay) == keep
    assert not plan.removed or min(value[h] for h in stay) >= max(value[h] for h in plan.removed)
    plan.check(MHA)


@given(st.lists(st.floats(-10, 10), min_size=12, max_size=12), st.integers(1, 4), st.sampled_from(["kv_group", "even"]))
def test_keep_top_under_kv_groups_can_be_cut(values: list[float], units: int, unit: str) -> None:
    keep = units * (3 if unit == "kv_group" else 2)
    plan = Plan.keep_top(scored(list(GQA.blocks), values), Budget(keep=keep, unit=unit))  # type: ignore[arg-type]
    assert len(plan.removed) == 12 - keep
    plan.check(GQA)


@given(st.lists(st.sampled_from([0.0, 1.0]), min_size=8, max_size=8), st.integers(1, 8), st.integers(0, 4))
def test_floors_and_protection_hold(values: list[float], keep: int, floor: int) -> None:
    protected = frozenset({Head("", 1, 3)})
    budget = Budget(keep=keep, floor=floor, protected=protected)
    scores = scored(list(MHA.blocks), values)
    if floor + max(floor, 1) > keep:
        with pytest.raises(PlanError, match="raise keep"):
            Plan.keep_top(scores, budget)
        return
    plan = Plan.keep_top(scores, budget)
    assert len(plan.removed) == 8 - keep
    for b in MHA.blocks:
        assert len(plan.kept_positions(b)) >= floor
    assert not protected.intersection(plan.removed)


def test_direction_counts() -> None:
    low = scored(list(MHA.blocks), [float(i) for i in range(8)], higher_is_keep=False)
    assert Plan.keep_top(low, 1).removed == MHA.heads[1:]
    assert low.ranking()[0] == MHA.heads[0]


@pytest.mark.parametrize(
    ("budget", "text"),
    [
        (Budget(keep=4), "4 heads are no whole number of units of 3 heads .* nearest are 3 and 6"),
        (Budget(keep=13), "from 1 to 12"),
        (Budget(), "exactly one of keep and fraction"),
        (Budget(keep=3, floor=1), "need 6 heads, more than the 3"),
        (Budget(keep=6, floor=7), "floor of 7 heads cannot be met"),
        (Budget(keep=6, protected=frozenset({Head("", 9, 9)})), "protected head L9H9 has no score"),
    ],
)
def test_budgets_that_cannot_be_met(budget: Budget, text: str) -> None:
    with pytest.raises(PlanError, match=text):
        Plan.keep_top(scored(list(GQA.blocks), [0.0] * 12), budget)


def test_a_floor_that_cannot_be_met_names_the_stack_too() -> None:
    with pytest.raises(PlanError, match=r"a floor of 3 heads cannot be met: block cross\.L0 has only 2; lower it"):
        Plan.keep_top(scored([block(0, 4, 4, stack="dec"), block(0, 2, 2, stack="cross")], [0.0] * 6), Budget(keep=6, floor=3))


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ({"keep": 0}, "keep must be a whole number of heads from 1 on"),
        ({"keep": True}, "keep must be a whole number"),
        ({"keep": 1.0}, "a float above 0 and below 1"),
        ({"keep": "8"}, "or '25%'; got '8'"),
        ({"keep": "120%"}, "above 0% and up to 100%"),
        ({"keep": 3, "fraction": 0.5}, "exactly one of keep, fraction, .*; got keep=3 and fraction=0.5"),
        ({"keep": 3, "latency": 0.1}, "exactly one of keep"),
        ({"fraction": 0.0}, "above 0"),
        ({"fraction": 1.5}, "at most 1"),
        ({"fraction": float("nan")}, "above 0"),
        ({"parameters": 0}, "option parameters of a budget must be an int or none of at least 1; got 0"),
        ({"parameters": 1000.5}, "option parameters of a budget must be an int or none of at least 1; got 1000.5"),
        ({"kv_bytes": float("inf")}, "option kv_bytes of a budget must be an int .*; got inf"),
        ({"latency": 0}, "option latency of a budget must be a float or none above 0; got 0"),
        ({"latency": float("inf")}, "option latency of a budget must be a float .*; got inf"),
        ({"keep": 6, "floor": -1}, "option floor of a budget must be an int of at least 0; got -1"),
        ({"keep": 6, "floor": 0.5}, "option floor of a budget must be an int of at least 0; got 0.5"),
        ({"keep": 6, "unit": "heads"}, "no unit of a budget 'heads'"),
        ({"keep": 6, "protected": ["first"]}, "first"),
    ],
)
def test_wrong_budgets_are_refused_when_they_are_made(values: dict[str, Any], text: str) -> None:
    with pytest.raises(HeadcountError, match=text):
        Budget(**values)


def test_equal_budgets_are_equal() -> None:
    assert Budget(keep=0.25) == Budget(keep="25%") == Budget(fraction=0.25) and Budget(keep=0.25).heads(12) == 3
    assert Budget(keep=8, protected=["L0H1"]) == Budget(keep=8, protected=frozenset({Head("", 0, 1)}))  # type: ignore[arg-type]
    budget = Budget(keep=8, floor=1, protected=frozenset({Head("", 0, 1)}), unit="even")
    assert Budget.from_dict(budget.to_dict()) == budget and budget.resized("50%").fraction == 0.5


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
def test_scores_that_are_no_numbers_are_refused(bad: float) -> None:
    with pytest.raises(PlanError, match="L0H2 is not a finite number"):
        Scores(MHA.heads, (0.0, 0.0, bad, 0.0, 0.0, 0.0, 0.0, 0.0))


def test_scores_of_another_length_are_refused() -> None:
    with pytest.raises(PlanError, match="7 values for 8 heads"):
        Scores(MHA.heads, (0.0,) * 7)
    with pytest.raises(PlanError, match="exactly once"):
        Scores(MHA.heads, (0.0,) * 8, units=((MHA.heads[0],),))


def test_even_units_of_heads_that_share_nothing_are_single_heads() -> None:
    heads = tuple(Head("", layer, index) for layer in range(2) for index in range(3))
    scores = Scores(heads, (5.0, 1.0, 3.0, 4.0, 2.0, 6.0))
    assert Plan.keep_top(scores, Budget(keep=4, unit="even")) == Plan.keep_top(scores, 4)
