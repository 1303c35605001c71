"""Plans that must be refused: heads that are not there, groups that would be split, budgets that cannot be met, plans of other models."""

from __future__ import annotations

import json
from typing import Any

from bad_kit import Call, Kit, case, line

import headcount as hc
from headcount.models.head_map import HeadMap


def _cut(kit: Kit, *heads: Any) -> Call:
    return lambda: hc.cut(kit.stock.bert, hc.Plan.removing(heads))


def _file(kit: Kit, content: Any) -> Call:
    """Cutting by a plan file."""
    path = kit.file("plan.json", content if isinstance(content, str | bytes) else json.dumps(content))
    return line("cut", kit.stock.plain(), "--plan", path, "--out", kit.place / "out")


def _plan(kit: Kit, **fields: Any) -> Call:
    return _file(kit, {"schema_version": 1, "removed": ["L0H1"]} | fields)


def _keep(kit: Kit, budget: Any) -> Call:
    heads = HeadMap.of(kit.stock.bert)
    scores = hc.Scores(heads.heads, tuple(float(i) for i in range(len(heads))), units=heads.units())
    return lambda: hc.Plan.keep_top(scores, budget)


@case("plans", "this model has no head L0H99", "It has 12 heads: L0..L1 x 6")
def head_out_of_range(kit: Kit) -> Call:
    return _cut(kit, "L0H99")


@case("plans", "this model has no head L44H0", "It has 12 heads: L0..L1 x 6")
def layer_out_of_range(kit: Kit) -> Call:
    return _cut(kit, "L44H0")


@case("plans", "L0H-1' is no head address", "Write L<layer>H<head>, zero-based, such as L3H7, or cross.L3H7")
def head_below_zero(kit: Kit) -> Call:
    return _cut(kit, "L0H-1")


@case("plans", "L0H1 would be removed twice", "name every head once")
def head_twice(kit: Kit) -> Call:
    return _cut(kit, "L0H1", "L0H1")


@case("plans", "True is no head address", "Write L<layer>H<head>, zero-based, such as L3H7, or cross.L3H7")
def truth_value(kit: Kit) -> Call:
    return _cut(kit, True)


@case("plans", "0.5 is no head address", "Write L<layer>H<head>, zero-based, such as L3H7, or cross.L3H7")
def decimal_number(kit: Kit) -> Call:
    return _cut(kit, 0.5)


@case("plans", "(0, 1) is no head address", "Write L<layer>H<head>, zero-based, such as L3H7, or cross.L3H7")
def pair_of_numbers(kit: Kit) -> Call:
    return _cut(kit, (0, 1))


@case("plans", "0' is no head address", "Write L<layer>H<head>, zero-based, such as L3H7, or cross.L3H7")
def layers_to_heads_as_transformers_4_had_them(kit: Kit) -> Call:
    return _cut(kit, *{"0": [1]})


@case("plans", "this model has no head cross.L0H1", "It has 12 heads: L0..L1 x 6")
def stack_of_another_kind(kit: Kit) -> Call:
    return _cut(kit, "cross.L0H1")


@case("plans", "L0H١' is no head address", "Write L<layer>H<head>, zero-based, such as L3H7, or cross.L3H7")
def digits_of_another_script(kit: Kit) -> Call:
    return _cut(kit, "L0H١")


@case("plans", "L0H1 is already gone", "block L0 has 5 of its 6 heads left")
def head_that_is_gone(kit: Kit) -> Call:
    return line("cut", kit.stock.cut(), "--heads", "L0H1", "--out", kit.place / "out")


@case("plans", "block L0 would keep 3 query heads of KV group 1 but 2 of group 0", "Prune by KV group, or evaluate this plan with gates")
def split_group(kit: Kit) -> Call:
    return lambda: hc.cut(kit.stock.llama, hc.Plan.removing(["L0H0"]))


@case("plans", "L0H1 is protected and cannot be removed", "take it out of one of the two lists")
def protected_head(kit: Kit) -> Call:
    return lambda: hc.Plan.removing(["L0H1"], protected=["L0H1"])


@case("plans", "option plan of cut must be a Plan; got ['L0H1']", "make it by headcount.Plan.removing")
def no_plan_at_all(kit: Kit) -> Call:
    return lambda: hc.cut(kit.stock.bert, ["L0H1"])  # type: ignore[arg-type]


@case("plans", "a whole number of heads from 1 to 12", "got 13")
def more_than_all(kit: Kit) -> Call:
    return _keep(kit, 13)


@case("plans", "a whole number of heads from 1 on", "got 0")
def none_kept(kit: Kit) -> Call:
    return _keep(kit, 0)


@case("plans", "a whole number of heads from 1 on", "got -3")
def fewer_than_none_kept(kit: Kit) -> Call:
    return _keep(kit, -3)


@case("plans", "a whole number of heads from 1 on", "got 3.0")
def decimal_budget(kit: Kit) -> Call:
    return _keep(kit, 3.0)


@case("plans", "fraction of a budget must be a float or none above 0 and of at most 1", "got 1.5")
def fraction_above_one(kit: Kit) -> Call:
    return lambda: hc.Budget(fraction=1.5)


@case("plans", "fraction of a budget must be a float or none above 0 and of at most 1", "got nan")
def fraction_that_is_no_number(kit: Kit) -> Call:
    return lambda: hc.Budget(fraction=float("nan"))


@case("plans", "a floor of 7 heads cannot be met", "lower it")
def floor_above_the_heads(kit: Kit) -> Call:
    return _keep(kit, hc.Budget(keep=4, floor=7))


@case("plans", "a floor of 3 heads per block and 0 protected heads need 6", "raise keep, or lower the floor")
def floor_above_the_budget(kit: Kit) -> Call:
    return _keep(kit, hc.Budget(keep=4, floor=3))


@case("plans", "protected head L9H9 has no score", "Take it out of the protected ones")
def protected_head_of_nobody(kit: Kit) -> Call:
    return _keep(kit, hc.Budget(keep=4, protected=frozenset({"L9H9"})))  # type: ignore[arg-type]


@case("plans", "4 heads are no whole number of units of 3 heads that share keys", "the nearest are 3 and 6")
def part_of_a_group_kept(kit: Kit) -> Call:
    heads = HeadMap.of(kit.stock.llama)
    scores = hc.Scores(heads.heads, tuple(float(i) for i in range(len(heads))), units=heads.units())
    return lambda: hc.Plan.keep_top(scores, 4)


@case("plans", "is no file", "name a plan that Plan.write made, or list heads")
def plan_file_that_is_missing(kit: Kit) -> Call:
    return lambda: hc.Plan.read(kit.place / "plan.json")


@case("plans", "schema version 2; this headcount reads 1", "Install the version that wrote it")
def plan_file_of_a_later_version(kit: Kit) -> Call:
    return _plan(kit, schema_version=2)


@case("plans", "lacks 'removed", "a plan has removed, schema_version, and may have headcount,")
def plan_file_without_heads(kit: Kit) -> Call:
    return _file(kit, {"schema_version": 1})


@case("plans", "nothing would be removed from 12 heads", "name heads, or keep fewer")
def plan_file_that_removes_nothing(kit: Kit) -> Call:
    return _plan(kit, removed=[])


@case("plans", "has the unknown field 'remove", "a plan has removed, schema_version, and may have headcount,")
def plan_file_with_an_unknown_field(kit: Kit) -> Call:
    return _plan(kit, remove=["L0H2"])


@case("plans", "[0, 1] is no head address", "Write L<layer>H<head>, zero-based, such as L3H7, or cross.L3H7")
def plan_file_with_numbers(kit: Kit) -> Call:
    return _plan(kit, removed=[[0, 1]])


@case("plans", 'removed must be a list of addresses such as ["L0H3"]', "got {'0': [1, 2]}")
def plan_file_with_a_map(kit: Kit) -> Call:
    return _plan(kit, removed={"0": [1, 2]})


@case("plans", "L0H1 would be removed twice", "name every head once")
def plan_file_with_a_head_twice(kit: Kit) -> Call:
    return _plan(kit, removed=["L0H1", "L0H01"])


@case("plans", "removed' comes twice", "restore or rewrite it")
def plan_file_with_a_field_twice(kit: Kit) -> Call:
    return _file(kit, '{"schema_version": 1, "removed": ["L0H1"], "removed": ["L0H2"]}')


@case("plans", 'write {"schema_version": 1, "removed": ["L0H3"]}', "got ['L0H1']")
def plan_file_that_is_a_list(kit: Kit) -> Call:
    return _file(kit, ["L0H1"])


@case("plans", "plan.json is no valid JSON", "restore or rewrite it")
def plan_file_of_brackets(kit: Kit) -> Call:
    return _file(kit, "[" * 1_000_000)


@case("plans", "the plan is for a model of type 'gpt2', this one is 'bert", "use a plan of this model")
def plan_of_another_type_of_model(kit: Kit) -> Call:
    return _plan(kit, model={"model_type": "gpt2", "blocks": {"L0": 6, "L1": 6}})


@case("plans", "the plan is for a model with 12 heads in block L0, this one has", "use a plan of this model")
def plan_of_another_shape(kit: Kit) -> Call:
    return _plan(kit, model={"model_type": "bert", "blocks": {"L0": 12, "L1": 12}})


@case("plans", "other weights (000000000000", "take 'weights' and 'seal' out of the file")
def plan_of_other_weights(kit: Kit) -> Call:
    return _plan(kit, model={"model_type": "bert", "blocks": {"L0": 6, "L1": 6}, "weights": "0" * 64})


@case("plans", "model must be", "'six'")
def plan_of_a_model_of_text(kit: Kit) -> Call:
    return _plan(kit, model={"model_type": "bert", "blocks": {"L0": "six"}})
