"""Pruners that train nothing: planted truth, exact counts, limits of the budget, steps and stops, and errors before any work."""

from __future__ import annotations

import copy
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from toys import build, configured, examples, own_labels, shared, task, unbiased_encoder, zero

import headcount as hc
from headcount.core.errors import HeadcountError, PlanError
from headcount.core.heads import hashed_tie_ranks
from headcount.data.evaluate import evaluate
from headcount.data.metrics import PERPLEXITY
from headcount.data.share_above_chance import score_of_best_constant_answer
from headcount.pruning.base import Choice, PruneContext, Pruner
from headcount.pruning.methods import rank as rank_file
from headcount.pruning.methods.fisher import exchange_removed_units, gate_gradients_of_examples
from headcount.pruning.scope import GroupLimits, _distribute_kept_heads

INFORMED = ("rank", "rank by=ablation", "surgeon", "surgeon rounds=1 rivals=no", "surgeon rounds=4 rivals=no", "fisher")
UNINFORMED = ("random", "random:type", "layers:top", "layers:middle", "layers:bottom", "layers:consecutive", "layers:spread")
N = 64


def chosen(model: nn.Module, method: str, keep: int | hc.Budget, data: Any = None, *, seed: int = 0) -> Choice:
    """What a method, given as `name option=value …`, chooses."""
    name, *given = method.split()
    pruner = Pruner.parse(f"{name}({';'.join(given)})")
    budget = keep if isinstance(keep, hc.Budget) else hc.Budget(keep=keep)
    return pruner.choose(PruneContext(model, hc.HeadMap.of(model), data, budget, seed))


def kept(model: nn.Module, choice: Choice) -> set[str]:
    return {str(head) for head in hc.HeadMap.of(model) if head not in choice.plan.removed}


def planted(kind: str, matter: set[str]) -> nn.Module:
    model = build(kind)
    for head in hc.HeadMap.of(model):
        if str(head) not in matter:
            zero(model, head)
    return model


def like_dense(model: nn.Module) -> hc.Task:
    """A task whose loss is how far the model is from what it was: any change costs something."""
    duplicate = copy.deepcopy(model)

    def loss(output: Any, batch: Any) -> torch.Tensor:
        with torch.no_grad():
            was = duplicate(**batch).logits
        return nn.functional.kl_div(output.logits.log_softmax(-1), was.log_softmax(-1), reduction="none", log_target=True).sum(-1)

    return task("encoder", N, loss=loss)


@pytest.mark.parametrize("method", INFORMED)
@pytest.mark.parametrize(
    ("kind", "matter"),
    [
        ("encoder", {"L0H2", "L1H0", "L1H5"}),
        ("decoder", {"L0H3", "L0H4", "L0H5", "L1H0", "L1H1", "L1H2"}),
        ("marian", {"enc.L0H1", "cross.L1H3"}),
    ],
)
def test_the_heads_that_matter_are_found(kind: str, matter: set[str], method: str) -> None:
    if "ablation" in method and kind != "encoder":
        pytest.skip("without a head the loss of made-up labels can be smaller")
    model = planted(kind, matter)
    assert kept(model, chosen(model, method, len(matter), like_dense(model) if "ablation" in method else task(kind, N))) == matter


@pytest.mark.parametrize("method", ["surgeon rivals=no rounds=1", "surgeon rivals=no rounds=3"])
def test_one_of_two_equal_heads_goes_for_nothing(method: str) -> None:
    """Both matter to the gradient; but what one gives the other can give too, once it is refitted."""
    model: Any = build("encoder")
    attention = model.bert.encoder.layer[1].attention
    with torch.no_grad():
        for part in (attention.self.query, attention.self.key, attention.self.value):
            part.weight[8:16], part.bias[8:16] = part.weight[0:8], part.bias[0:8]
        attention.output.dense.weight[:, 0:16] *= 3
    data, total = own_labels(model, N), len(hc.HeadMap.of(model))
    choice = chosen(model, method, total - 1, data)
    assert {str(head) for head in choice.plan.removed} <= {"L1H0", "L1H1"}
    assert next(entry["rise"] for entry in choice.history if "rise" in entry) < 1e-6
    assert kept(model, chosen(model, "rank", total - 1, data)) >= {"L1H0", "L1H1"}
    smaller = hc.cut(hc.repair(model, choice.plan, data), choice.plan)
    batch = data.collate(list(data.calibration))
    with torch.no_grad():
        torch.testing.assert_close(smaller(**batch).logits, model(**batch).logits, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("method", [*INFORMED, *UNINFORMED])
@pytest.mark.parametrize("kind", ["encoder", "decoder", "t5"])
def test_the_budget_is_met_with_floors_and_protected_heads(kind: str, method: str) -> None:
    model = shared(kind)
    heads = hc.HeadMap.of(model)
    unit = len(heads.units()[0])
    guarded = heads.units()[-1][0]
    data = task(kind, N)
    for keep, floor in ((len(heads), 0), (len(heads.blocks) * unit * 2, unit), (unit, 0)):
        protected = frozenset([guarded])
        choice = chosen(model, method, hc.Budget(keep=keep, floor=floor, protected=protected), data)
        remaining = kept(model, choice)
        assert len(remaining) == keep and str(guarded) in remaining
        choice.plan.check(heads)
        if floor:
            assert all(len(choice.plan.kept_positions(block)) >= floor for block in heads.blocks)


@pytest.mark.parametrize("method", ["rank", "surgeon rounds=2", "random", "layers:top"])
def test_query_heads_of_a_group_go_evenly_where_asked(method: str) -> None:
    model = shared("decoder")
    choice = chosen(model, method, hc.Budget(keep=8, unit="even"), task("decoder", N))
    assert len(kept(model, choice)) == 8
    choice.plan.check(hc.HeadMap.of(model))


def test_ties_fall_by_a_hash_of_the_address() -> None:
    model = planted("encoder", set())
    heads = list(hc.HeadMap.of(model))
    for method in ("rank", "surgeon rivals=no rounds=1", "fisher"):
        assert len(kept(model, chosen(model, method, 5, task("encoder", N)))) == 5
    first = sorted(zip(hashed_tie_ranks(heads), map(str, heads), strict=True))[:5]
    assert kept(model, chosen(model, "rank", 5, task("encoder", N))) == {name for _, name in first}


def test_random_hits_the_number_and_follows_the_seed() -> None:
    model = shared("marian")
    plans = [chosen(model, "random", 7, seed=seed).plan for seed in (0, 0, 1, 2)]
    assert plans[0] == plans[1] and len(set(plans)) == 3
    heads = hc.HeadMap.of(model)
    plan = chosen(model, "random:type", len(heads) // 2, seed=3).plan
    kinds = {block.kind for block in heads.blocks}
    for kind in kinds:
        blocks = [block for block in heads.blocks if block.kind == kind]
        assert sum(len(plan.kept_positions(b)) for b in blocks) * 2 == sum(b.n_heads for b in blocks)


def test_shares_sum_up() -> None:
    random = np.random.default_rng(0)
    for _ in range(200):
        groups = [GroupLimits(int(random.integers(1, 9))) for _ in range(random.integers(1, 6))]
        total = sum(group.n_heads for group in groups)
        number = int(random.integers(0, total + 1))
        shares = _distribute_kept_heads(groups, number)
        assert sum(shares) == number
        assert all(abs(s - number * group.n_heads / total) < 1 and s <= group.n_heads for s, group in zip(shares, groups, strict=True))
    assert _distribute_kept_heads([GroupLimits(8, 2), GroupLimits(8, 2)], 6) == [4, 2]
    assert _distribute_kept_heads([GroupLimits(6, 1, min_heads=3), GroupLimits(6), GroupLimits(6)], 3) == [3, 0, 0]
    with pytest.raises(PlanError, match="cannot be shared out"):
        _distribute_kept_heads([GroupLimits(8, 4), GroupLimits(8, 4)], 6)


@pytest.mark.parametrize("variant", ["top", "bottom", "middle", "spread", "consecutive"])
def test_layers_go_as_they_say(variant: str) -> None:
    from headcount.models.tiny.build import tiny_model

    model = tiny_model("bert", num_hidden_layers=6)
    heads = hc.HeadMap.of(model)
    width = heads.blocks[0].n_heads
    right = {
        "top": lambda layers: layers == [4, 5],
        "bottom": lambda layers: layers == [0, 1],
        "middle": lambda layers: layers == [2, 3],
        "spread": lambda layers: layers[1] - layers[0] == 3,
        "consecutive": lambda layers: layers[1] - layers[0] == 1,
    }
    positions = set()
    for seed in range(20):
        for going in (2 * width, 2 * width - 1):
            plan = chosen(model, f"layers:{variant}", len(heads) - going, seed=seed).plan
            layers = sorted({head.layer for head in plan.removed})
            assert len(layers) == 2 and right[variant](layers), (variant, seed, layers)
            positions.add(layers[0])
        assert len({head.layer for head in chosen(model, f"layers:{variant}", len(heads) - 1, seed=seed).plan.removed}) == 1
    assert positions == {"spread": {0, 1, 2}, "consecutive": {0, 1, 2, 3, 4}}.get(variant, positions)


@pytest.mark.parametrize("scope", ["layer", "type"])
@pytest.mark.parametrize("kind", ["encoder", "t5", "decoder"])
def test_scopes_take_the_same_share(kind: str, scope: str) -> None:
    model = shared(kind)
    heads = hc.HeadMap.of(model)
    units = len(heads.blocks) * len(heads.units()[0])
    plan = chosen(model, f"rank scope={scope}", units, task(kind, N)).plan
    plan.check(heads)
    assert sum(len(plan.kept_positions(b)) for b in heads.blocks) == units
    if scope == "layer":
        assert {len(plan.kept_positions(b)) for b in heads.blocks} == {len(heads.units()[0])}


def test_steps_leave_as_many_as_they_say_and_bring_nothing_back(monkeypatch: pytest.MonkeyPatch) -> None:
    model, data = shared("encoder"), task("encoder", N)
    total = len(hc.HeadMap.of(model))
    plans: list[hc.Plan] = []
    within = rank_file.keep_top_by_scope

    def spy(*args: Any) -> hc.Plan:
        plans.append(within(*args))
        return plans[-1]

    monkeypatch.setattr(rank_file, "keep_top_by_scope", spy)
    choice = chosen(model, "rank again=yes step=0.25", 2, data)
    step = round(total * 0.25)
    expected = [*range(total - step, 2, -step), 2]
    assert [entry["heads"] for entry in choice.history] == expected == [total - len(plan.removed) for plan in plans]
    assert all(set(one.removed) < set(other.removed) for one, other in pairwise(plans))
    assert choice.plan == plans[-1]


def test_steps_of_kv_units_are_whole() -> None:
    model = shared("decoder")
    total, unit = len(hc.HeadMap.of(model)), len(hc.HeadMap.of(model).units()[0])
    choice = chosen(model, "rank again=yes step=0.1", unit, task("decoder", N))
    assert [entry["heads"] for entry in choice.history] == list(range(total - unit, 0, -unit))


def own_tokens(model: nn.Module) -> hc.Task:
    """Texts whose next tokens are what the model itself says, where it says enough to be above chance; a perplexity."""
    rows = examples("decoder", N)
    with torch.no_grad():
        logits = model(**task("decoder", N).collate(rows)).logits
    for row, scores in zip(rows, logits, strict=True):
        length = len(row["input_ids"])
        row["labels"] = [-100, *scores[: length - 1].argmax(-1).tolist()]
    return task("decoder", rows=rows, metric=PERPLEXITY)


@pytest.mark.parametrize("metric", ["accuracy", "perplexity"])
@pytest.mark.parametrize("again", ["yes", "no"])
def test_the_stop_rule_keeps_the_last_plan_that_holds(metric: str, again: str) -> None:
    model = unbiased_encoder(N) if metric == "accuracy" else build("decoder")
    if metric == "perplexity":
        model.get_output_embeddings().weight.data *= 40  # sure of what it says, so that its perplexity is near 1
    data, share = (own_labels(model, N), 0.9) if metric == "accuracy" else (own_tokens(model), 0.8)
    unit = len(hc.HeadMap.of(model).units()[0])
    choice = chosen(model, f"rank again={again} step=0.1 stop={share}", unit, data)
    evaluation, chance = evaluate(model, data, split="selection"), score_of_best_constant_answer(model, data, split="selection")
    assert chance is not None and evaluation.value is not None

    def holds(entry: dict[str, Any]) -> bool:
        if metric == "accuracy":
            return entry["value"] - chance >= share * (evaluation.value - chance)
        return np.log(chance / entry["value"]) >= share * np.log(chance / evaluation.value)

    held = [holds(entry) for entry in choice.history]
    assert all(held[:-1])
    last = [entry["heads"] for entry, one in zip(choice.history, held, strict=True) if one]
    assert len(kept(model, choice)) == (last[-1] if last else len(hc.HeadMap.of(model)))
    assert held[-1] == (len(kept(model, choice)) == unit)


def one_label(model: nn.Module) -> hc.Task:
    """Examples that a constant answer gets right as often as the model: all labels are what it says of the first one."""
    rows = own_labels(model, N).calibration
    return task("encoder", rows=[{**row, "labels": rows[0]["labels"]} for row in rows])


AT_CHANCE: dict[str, tuple[Callable[[nn.Module], Any], str]] = {
    "accuracy": (one_label, "is not better than chance"),
    "perplexity": (lambda _: task("decoder", N, metric=PERPLEXITY), "is not better than chance"),
    "no metric": (lambda _: task("encoder", N, metric=None), "chance is not known"),
    "no task": (lambda _: [task("encoder", N).collate(examples("encoder", N))], "stop needs a Task with a metric"),
}


@pytest.mark.parametrize("name", AT_CHANCE)
def test_at_chance_there_is_no_share_to_keep(name: str) -> None:
    """A model that knows nothing keeps all of its score whatever goes: nearly all of its heads went without a word."""
    make_data, reason = AT_CHANCE[name]
    model = shared("decoder" if name == "perplexity" else "encoder")
    with pytest.raises(PlanError, match=rf"{reason}.*[Nn]ame how many heads stay \(keep\)"):
        chosen(model, "rank step=0.1 stop=0.9", 2, make_data(model))


def test_fisher_exchanges_until_the_form_is_least() -> None:
    random = np.random.default_rng(1)
    for _ in range(20):
        felt = torch.tensor(random.normal(size=(30, 5)))
        fisher = felt.T @ felt
        actual = exchange_removed_units(fisher, [0, 1], [0, 1, 2, 3, 4])
        value = float(fisher[actual][:, actual].sum())
        for out in actual:
            for back in set(range(5)) - set(actual):
                tried = [back if position == out else position for position in actual]
                assert float(fisher[tried][:, tried].sum()) >= value - 1e-9
    assert exchange_removed_units(fisher, [], [0, 1]) == []


def test_gate_gradients_are_those_of_single_examples() -> None:
    model, data = build("encoder"), task("encoder", 9)
    model.train()
    work = PruneContext(model, hc.HeadMap.of(model), data, hc.Budget(keep=3))
    actual = gate_gradients_of_examples(work, 9)
    assert model.training and all(p.requires_grad for p in model.parameters())
    model.eval()
    for number, example in enumerate(data.calibration):
        gates = torch.ones(len(work.heads), dtype=torch.float64, requires_grad=True)
        with hc.HeadGates(model, gates):
            (own,) = torch.autograd.grad(model(**data.collate([example])).loss, gates)
        torch.testing.assert_close(actual[number], own, rtol=1e-4, atol=1e-6)


def test_heads_of_a_role_go_first_or_last() -> None:
    from transformers import AutoTokenizer

    from headcount.data.open_task import open_task
    from headcount.surgery.load import load
    from headcount.surgery.source import local_folder

    folder = local_folder("demo/encoder")
    model = load(folder).eval()
    data = open_task("demo/text(size=120)", model, AutoTokenizer.from_pretrained(folder))
    options = f"roles=offset:-1,offset:+1 limit=100 tokenizer={folder}"
    pruned = chosen(model, f"role:prune {options}", 16, data)
    having = set(pruned.history[0]["heads with the role"])
    assert having
    texts = {str(head) for head in pruned.plan.removed}
    assert texts >= having or having >= texts
    spared = chosen(model, f"role:spare {options}", max(16, len(having)), data)
    assert kept(model, spared) >= having
    with pytest.raises(HeadcountError, match="role"):
        chosen(model, f"role:prune roles=ofset:-1 tokenizer={folder}", 16, data)


BAD = [
    ("gradeint", 3, {}, "Did you mean 'gradient'"),
    ("layers:tpo", 3, {}, "Did you mean 'top'"),
    ("rank", 0, {}, "from 1 on"),
    ("rank", 99, {}, "from 1 to"),
    ("rank", 3, {"bye": "x"}, "Did you mean 'by'"),
    ("rank", 3, {"by": "gradeint"}, "Did you mean 'gradient'"),
    ("rank", 3, {"scope": "layers"}, "Did you mean 'layer'"),
    ("rank", 3, {"step": "much"}, "must be a float"),
    ("rank", 3, {"step": 0}, "option step of rank must be a float above 0 and of at most 1; got 0.0"),
    ("rank", 3, {"stop": 1.5}, "option stop of rank must be a float of at least 0 and of at most 1; got 1.5"),
    ("rank", 3, {"again": "perhaps"}, "true or false"),
    ("rank", 3, {"limit": 0}, "limit"),
    ("surgeon", 3, {"rounds": 0}, "rounds"),
    ("surgeon", 3, {"rounds": "two"}, "must be an int of at least 1; got 'two'"),
    ("surgeon", 3, {"limit": -1}, "limit"),
    ("fisher", 3, {"tune": "what"}, "true or false"),
    ("fisher", 3, {"limit": 0}, "limit"),
    ("random", 3, {"seed": 3}, "seed"),
    ("surgeon", hc.Budget(keep=1, floor=1), {}, "floor of 1"),
    ("random", hc.Budget(keep=3, protected=frozenset(["L9H9"])), {}, "L9H9"),
]  # fmt: skip


@pytest.mark.parametrize(("method", "keep", "options", "says"), BAD, ids=lambda value: str(value)[:24])
def test_wrong_requests_fail_before_any_work(method: str, keep: Any, options: dict[str, Any], says: str) -> None:
    model = build("encoder")
    ran: list[int] = []
    model.register_forward_pre_hook(lambda *_: ran.append(1))
    with pytest.raises(HeadcountError, match=says):
        hc.prune(model, task("encoder", N), configured(method, **options), keep)
    assert not ran


def test_a_broken_unit_names_the_nearest() -> None:
    for method in ("rank", "surgeon", "random", "fisher"):
        with pytest.raises(PlanError, match="nearest are"):
            hc.prune(shared("decoder"), task("decoder", N), method, 4)


@pytest.mark.parametrize("method", ["rank", "surgeon", "fisher", "random", "layers"])
@pytest.mark.parametrize("kind", ["encoder", "decoder", "t5", "marian"])
def test_the_whole_way_gives_a_cut_model(kind: str, method: str) -> None:
    model = build(kind)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    heads = hc.HeadMap.of(model)
    keep = len(heads.units()[0]) * 3
    pruned = hc.prune(model, task(kind, N), method, keep)
    assert len(hc.HeadMap.of(pruned.model)) == keep
    assert all(torch.equal(value, model.state_dict()[name]) for name, value in before.items())
    again = hc.prune(model, task(kind, N), method, keep)
    assert all(torch.equal(value, again.model.state_dict()[name]) for name, value in pruned.model.state_dict().items())


def test_a_repair_that_harms_is_dropped_and_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """A refit that spoils the model takes it further from the dense one on the selection split: the weights stay as they were."""
    from headcount.pruning import prune as _prune
    from headcount.pruning.repair.repair import Repaired, refit

    def spoilt(model: nn.Module, plan: hc.Plan, data: Any) -> Repaired:
        repaired = refit(model, plan, data)
        with torch.no_grad():
            for block in hc.HeadMap.of(repaired.model).blocks:
                repaired.model.get_submodule(block.o.path).weight.mul_(-5)
        return repaired

    model = build("encoder")
    data = like_dense(model)
    plain = hc.prune(model, data, "random", 6, repair=False)
    good = hc.prune(model, data, "random", 6)
    assert (
        good.history[-1]["kept"] == (good.history[-1]["kl_to_dense"] <= good.history[-1]["kl_to_dense without"])
        and bool(good.repaired) == good.history[-1]["kept"]
    )
    assert not plain.history and not plain.repaired
    monkeypatch.setattr(_prune, "refit", spoilt)
    bad = hc.prune(model, data, "random", 6)
    assert (
        bad.history[-1]["stage"] == "repair"
        and not bad.history[-1]["kept"]
        and bad.history[-1]["kl_to_dense"] > bad.history[-1]["kl_to_dense without"]
    )
    assert not bad.repaired
    assert all(torch.equal(value, plain.model.state_dict()[name]) for name, value in bad.model.state_dict().items())


def test_data_without_labels_are_judged_too() -> None:
    model = build("encoder")
    batches = [{k: v for k, v in task("encoder").collate(examples("encoder", 24, seed)).items() if k != "labels"} for seed in range(6)]
    pruned = hc.prune(model, batches, "random", 6)
    messages = pruned.history[-1]
    assert messages["kept"] == (messages["kl_to_dense"] <= messages["kl_to_dense without"]) == bool(pruned.repaired)


@pytest.mark.parametrize("kind", ["encoder", "decoder", "marian"])
def test_the_departure_is_the_divergence_of_predictions(kind: str) -> None:
    """By hand, over the tokens that have labels, example by example; zero for the model itself."""
    from headcount.pruning.kl_to_dense import KLToDense, kl_to_dense

    model, data = shared(kind), task(kind, 12)
    plan = hc.Plan.removing(hc.HeadMap.of(model).units()[0])
    small = hc.cut(model, plan)
    batch = data.collate([data.selection[index] for index in range(8)])
    with torch.no_grad():
        complete, less = (made(**batch) for made in (model, small))
        assert torch.equal(KLToDense(model)(complete, batch), torch.zeros(8, dtype=torch.float64))
        k_l_to_dense = KLToDense(model)(less, batch)
    p, q = (torch.distributions.Categorical(logits=made.logits.double()) for made in (complete, less))
    each = torch.distributions.kl_divergence(p, q)
    if kind != "encoder":
        each, labels = (each[:, :-1], batch["labels"][:, 1:]) if kind == "decoder" else (each, batch["labels"])
        each = torch.stack([row[mask].mean() for row, mask in zip(each, labels != -100, strict=True)])
    assert torch.allclose(k_l_to_dense, each, atol=1e-12) and float(k_l_to_dense.min()) > 0
    work = PruneContext(model, hc.HeadMap.of(model), data, hc.Budget(keep=2))
    assert kl_to_dense(work, model, hc.Plan.removing([])) == 0.0
