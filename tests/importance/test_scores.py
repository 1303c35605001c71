"""Scores of whole models: what they equal, what they do not depend on, and what they leave behind."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from toys import KINDS, build, examples, padder, shared, task

import headcount as hc
from headcount.core.errors import DataError, NonFinite, OutOfMemory, PlanError, UnknownName
from headcount.data.evaluate import evaluate
from headcount.data.losses import ExampleLosses
from headcount.importance.rankings import rank_heads
from headcount.importance.score import score_all
from headcount.importance.settings import ScoreSettings
from headcount.models.tiny.float64 import Float64

INVARIANT = ("gradient", "gradient:token", "ablation", "lrp", "confidence", "entropy", "fluctuation", "output-norm")


def close(actual: Any, expected: Any, rtol: float = 1e-9, atol: float = 1e-12, note: str = "") -> None:
    np.testing.assert_allclose(actual, expected, rtol=rtol, atol=atol, err_msg=note)


# Views of scores.


def test_normalised_scores_have_norm_one_and_rank_alike() -> None:
    model = shared("t5")
    plain = hc.score(model, task("t5"), normalise="none")
    layer, complete = (hc.score(model, task("t5"), normalise=how) for how in ("layer", "global"))
    for block in plain.blocks().values():
        assert np.linalg.norm(np.asarray(layer.values)[block]) == pytest.approx(1)
        share = np.asarray(plain.values)[block]
        close(np.asarray(layer.values)[block], share / np.linalg.norm(share))
    assert np.linalg.norm(complete.values) == pytest.approx(1)
    assert complete.ranking() == plain.ranking()
    assert plain.normalise_by("none") is plain
    close(np.linalg.norm(layer.replicates(20)[:, layer.blocks()["enc.L0"]], axis=1), 1)
    close(complete.replicates(20), plain.normalise_by("global").replicates(20))
    with pytest.raises(UnknownName, match=r"no normalise of score 'row'\. Known: global, layer, none, published, standard"):
        hc.score(model, task("t5"), normalise="row")  # pyright: ignore[reportArgumentType]


def test_views_after_a_cut_keep_the_original_addresses() -> None:
    model = hc.cut(build("encoder"), hc.Plan.removing(["L0H1", "L1H0", "L1H5"]))
    scores = hc.score(model, task("encoder"), "entropy")
    names, grid = scores.grid()
    assert names == ["L0", "L1"]
    assert np.argwhere(np.isnan(grid)).tolist() == [[0, 1], [1, 0], [1, 5]]
    assert all(grid[head.layer, head.index] == scores[head] for head in scores.heads)
    assert scores.ranking() == sorted(scores.heads, key=lambda head: scores[head]), "less entropy means keep"
    table = scores.to_pandas()
    assert table["head"].tolist() == [str(head) for head in scores.heads]
    assert table.sort_values("rank")["head"].tolist() == [str(head) for head in scores.ranking()]
    assert table["score"].tolist() == list(scores.values) and table["stderr"].tolist() == list(scores.stderr)


def test_replicates_are_drawn_by_seed_around_the_scores() -> None:
    scores = hc.score(shared("encoder"), task("encoder", 40))
    sample = scores.replicates(2000, seed=3)
    assert sample.shape == (2000, len(scores.heads))
    assert np.array_equal(sample, scores.replicates(2000, seed=3)) and not np.array_equal(sample, scores.replicates(2000, seed=4))
    assert (np.abs(sample.mean(0) - scores.values) < np.asarray(scores.stderr) / 4).all()
    close(sample.std(0), scores.stderr, rtol=0.15)
    with pytest.raises(PlanError, match="magnitude has no samples"):
        hc.score(shared("encoder"), by="magnitude").replicates()


def test_a_score_of_weights_needs_no_data_and_one_of_data_does() -> None:
    scores = hc.score(shared("encoder"), by="magnitude")
    assert (scores.n_examples, scores.data, set(scores.stderr)) == (0, "", {0.0})
    with pytest.raises(DataError, match="gradient needs data"):
        hc.score(shared("encoder"))


def test_units_of_grouped_heads_are_judged_together() -> None:
    scores = hc.score(shared("decoder"), task("decoder", 30))
    assert {len(unit) for unit in scores.units} == {3} and len(scores.units) == 4
    for k in (1, 2, 3):
        rows = {row.head: row for row in rank_heads(scores, k=k)}
        assert all(len({rows[head].is_lowest for head in unit}) == 1 for unit in scores.units)
        assert sum(bool(rows[unit[0]].is_lowest) for unit in scores.units) <= k
    assert {row.is_lowest for row in rank_heads(scores, k=4)} == {True}
    for k in (0, 5):
        with pytest.raises(PlanError, match=f"k must be from 1 to 4.*got {k}"):
            rank_heads(scores, k=k)


# Invariances.


@pytest.mark.parametrize("kind", KINDS)
def test_scores_do_not_depend_on_padding_batches_or_order(kind: str) -> None:
    model, rows = shared(kind), examples(kind, 6)
    order = np.random.default_rng(1).permutation(6)
    with Float64():
        plain = score_all(model, task(kind, rows=rows), INVARIANT)
        others = {
            "padding": score_all(model, task(kind, rows=rows, longer=5), INVARIANT),
            "single": score_all(model, task(kind, rows=rows), INVARIANT, ScoreSettings(batch_size=1)),
            "order": score_all(model, task(kind, rows=[rows[i] for i in order]), INVARIANT, ScoreSettings(batch_size=3)),
            "batches": score_all(model, [padder(kind, 2)(rows[:4]), padder(kind)(rows[4:])], INVARIANT),
        }
    for name, found in others.items():
        for method, scores in found.items():
            close(scores.values, plain[method].values, 1e-7, 1e-10, f"{name}: {method}")
            close(scores.stderr, plain[method].stderr, 1e-7, 1e-10, f"{name}: {method}")
    assert others["single"]["gradient"].data == plain["gradient"].data != others["order"]["gradient"].data


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("rule", ["alpha-beta", "epsilon"])
def test_relevance_of_a_block_sums_to_one_and_tells_its_leakage(kind: str, rule: str) -> None:
    scores = hc.score(shared(kind), task(kind, 5), f"lrp:{rule}")
    for block in scores.blocks().values():
        assert sum(scores.values[position] for position in block) == pytest.approx(1)
    assert np.isfinite(scores.conditions["leakage"])
    assert min(scores.values) >= 0


# Gradients.


def gradients(model: nn.Module, rows: list[Any], kind: str) -> np.ndarray:
    """Each example's gradient by the gates, one example at a time."""
    actual = []
    for row in rows:
        batch = padder(kind)([row])
        gates = torch.ones(len(hc.HeadMap.of(model)), dtype=torch.float64, requires_grad=True)
        with hc.HeadGates(model, gates):
            loss = model(**batch).loss
        actual.append(torch.autograd.grad(loss, gates)[0])
    return torch.stack(actual).numpy()


def token_gradients(model: nn.Module, rows: list[Any], kind: str) -> np.ndarray:
    """The same with a gate at every token, absolute values summed over tokens."""
    heads, actual = hc.HeadMap.of(model), []
    for row in rows:
        kept: dict[str, Tensor] = {}
        hooks = [
            model.get_submodule(block.o.path).register_forward_pre_hook(
                lambda _, args, kept=kept, path=block.path: kept.update({path: args[0]})
            )
            for block in heads.blocks
        ]
        loss = model(**padder(kind)([row])).loss
        slopes = dict(zip(kept, torch.autograd.grad(loss, list(kept.values())), strict=True))
        parts = [(slopes[b.path] * kept[b.path]).unflatten(-1, (b.n_heads, b.value_dim)).sum(-1).abs()[0].sum(0) for b in heads.blocks]
        actual.append(torch.cat(parts).detach())
        for hook in hooks:
            hook.remove()
    return torch.stack(actual).numpy()


@pytest.mark.parametrize("kind", KINDS)
def test_variants_of_gradient_importance_are_what_they_say(kind: str) -> None:
    model, rows = build(kind), examples(kind, 70)
    names = ["gradient", "gradient:signed", "gradient:batch", "gradient:running", "gradient:token", "fisher"]
    with Float64():
        actual = score_all(model, task(kind, rows=rows), names, ScoreSettings(normalise="none"))
        single = gradients(model, rows, kind)
        tokens = token_gradients(model, rows, kind)
    batches = [single[start : start + 32] for start in (0, 32, 64)]
    sums = np.cumsum([batch.sum(0) for batch in batches], 0)
    expected = {
        "gradient": np.abs(single).mean(0),
        "gradient:signed": single.mean(0),
        "gradient:batch": sum(len(batch) * np.abs(batch.mean(0)) for batch in batches) / 70,
        "gradient:running": np.abs(sums).sum(0) / (32 + 64 + 70),
        "gradient:token": tokens.mean(0),
        "fisher": (single**2).mean(0),
    }
    for name, values in expected.items():
        close(actual[name].values, values, 1e-7, 1e-12, name)
    close(actual["gradient"].stderr, np.abs(single).std(0, ddof=1) / np.sqrt(70), 1e-7)
    close(actual["gradient:signed"].stderr, single.std(0, ddof=1) / np.sqrt(70), 1e-7)
    assert actual["gradient"].n_examples == 70


@pytest.mark.parametrize("kind", KINDS)
def test_scoring_leaves_the_model_as_it_was(kind: str) -> None:
    model = build(kind).train()
    frozen = [name for name, _ in model.named_parameters()][::3]
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name not in frozen)
    next(iter(model.modules())).eval()
    modes = [module.training for module in model.modules()]
    weights = {name: value.clone() for name, value in model.state_dict().items()}
    names = ["gradient", "ablation", "ablation:mean", "confidence", "lrp", "fluctuation", "kv-group"]
    plain = score_all(model, task(kind, 5), names)
    again = score_all(model, task(kind, 5), names, ScoreSettings(checkpointing=True))
    for name in names:
        close(again[name].values, plain[name].values, 1e-12, 1e-14, name)
    assert all(parameter.grad is None for parameter in model.parameters())
    assert [name for name, parameter in model.named_parameters() if not parameter.requires_grad] == frozen
    assert [module.training for module in model.modules()] == modes
    assert all(torch.equal(value, weights[name]) for name, value in model.state_dict().items())
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())
    assert not any("forward" in vars(module) for module in model.modules())


# Memory.


def narrow(model: nn.Module, monkeypatch: pytest.MonkeyPatch, rows: int, error: type[Exception]) -> None:
    """Lets memory run out on batches of more than `rows` examples."""
    forward = model.forward

    @functools.wraps(forward)
    def short_of_memory(*args: Any, **kwargs: Any) -> Any:
        if len(kwargs["input_ids"]) > rows:
            raise error("DefaultCPUAllocator: can't allocate memory")
        return forward(*args, **kwargs)

    monkeypatch.setattr(model, "forward", short_of_memory)


@pytest.mark.parametrize(("start", "end", "error"), [(None, 2, RuntimeError), (12, 3, MemoryError), (2, 2, RuntimeError)])
def test_batches_shrink_when_memory_runs_out(monkeypatch: pytest.MonkeyPatch, start: int | None, end: int, error: type[Exception]) -> None:
    model, data = build("encoder"), task("encoder", 140)
    names = ["gradient", "confidence", "fluctuation"]
    expected = score_all(model, data, names, ScoreSettings(batch_size=end))
    narrow(model, monkeypatch, 3, error)
    for name, scores in score_all(model, data, names, ScoreSettings(batch_size=start)).items():
        assert scores.values == expected[name].values and scores.stderr == expected[name].stderr, name
        assert scores.data == expected[name].data
        assert scores.conditions["batch_size"] == end
    assert np.array_equal(evaluate(model, data, batch_size=start).losses, evaluate(model, data, batch_size=end).losses)


@pytest.mark.parametrize("rows", [1, 3, 5])
@pytest.mark.parametrize("by", ["ablation", "ablation:mean", "all-but-one"])
def test_ablations_survive_a_lack_of_memory(monkeypatch: pytest.MonkeyPatch, by: str, rows: int) -> None:
    model, data = build("encoder"), task("encoder", 20)
    expected = hc.score(model, data, by)
    narrow(model, monkeypatch, rows, RuntimeError)
    close(hc.score(model, data, by).values, expected.values, 1e-5, 1e-7)


def test_a_single_example_that_does_not_fit_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    model = build("encoder")
    narrow(model, monkeypatch, 0, RuntimeError)
    with pytest.raises(OutOfMemory, match=r"single example \(one of 0 to 11\).*Shorten the examples"):
        hc.score(model, task("encoder"))


def test_other_failures_of_a_model_are_not_taken_for_a_lack_of_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    model = build("encoder")
    monkeypatch.setattr(model, "forward", lambda **_: (_ for _ in ()).throw(RuntimeError("shapes differ")))
    with pytest.raises(RuntimeError, match="shapes differ"):
        hc.score(model, task("encoder"))


# What is no number.


def test_a_weight_that_is_no_number_is_named() -> None:
    model = build("encoder")
    with torch.no_grad():
        model.get_parameter("bert.encoder.layer.1.output.dense.weight")[0, 3] = float("nan")
    for by in ("gradient", "magnitude"):
        with pytest.raises(NonFinite, match=r"'bert.encoder.layer.1.output.dense.weight' holds 1 of \d+ values"):
            hc.score(model, task("encoder"), by)


def poisoned(number: int) -> hc.Task:
    """A task whose example `number` has no finite loss; lengths are uneven, so that batches mix the order."""
    rows = examples("encoder", 150)
    rows[number] = {**rows[number], "labels": 2, "input_ids": [*rows[number]["input_ids"], 101]}

    def loss(output: Any, batch: Any) -> Tensor:
        return cross_entropy(output.logits, batch["labels"], reduction="none") / (batch["input_ids"] != 101).all(-1)

    return task("encoder", rows=rows, loss=loss)


def test_an_evaluation_looks_for_heads_once(monkeypatch: pytest.MonkeyPatch) -> None:
    model, of, observed_values = shared("encoder"), hc.HeadMap.of, []
    monkeypatch.setattr(hc.HeadMap, "of", lambda given: (observed_values.append(given), of(given))[1])
    evaluate(model, task("encoder", 12), batch_size=2)
    assert len(observed_values) == 1


@pytest.mark.parametrize("number", [3, 141])
def test_a_loss_that_is_no_number_is_named_by_its_example(number: int) -> None:
    model = shared("encoder")
    for by in ("gradient", "fisher"):
        with pytest.raises(NonFinite, match=rf"the loss of example {number} is inf"):
            hc.score(model, poisoned(number), by, batch_size=4)
    with pytest.raises(NonFinite, match=rf"the loss of example {number} is inf"):
        evaluate(model, poisoned(number), split="calibration")
    with pytest.raises(NonFinite, match=rf"example {number}\b"):
        hc.score(model, poisoned(number), "ablation", batch_size=4)


@pytest.mark.parametrize("number", [3, 141])
def test_a_score_that_is_no_number_is_named_by_example_and_head(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    from headcount.importance.methods.confidence import Confidence

    plain = Confidence.of_block

    def broken(method: Confidence, observed: Any) -> tuple[Tensor, Tensor]:
        values, weights = plain(method, observed)
        if observed.block.name == "L1" and observed.special_keys is not None and bool(observed.special_keys.any()):
            values[observed.special_keys.any(-1), 4] = float("inf")
        return values, weights

    monkeypatch.setattr(Confidence, "of_block", broken)
    data = task("encoder", rows=list(poisoned(number).calibration), special_ids=frozenset({101}))
    with pytest.raises(NonFinite, match=rf"confidence of L1H4 is no finite number on example {number}\b"):
        hc.score(shared("encoder"), data, "confidence", batch_size=4)


def test_losses_of_an_evaluation_are_in_the_order_of_the_examples() -> None:
    model, rows = shared("encoder"), examples("encoder", 9)
    losses = ExampleLosses(model)
    with torch.no_grad():
        alone = [float(losses(model(**padder("encoder")([row])), padder("encoder")([row]))) for row in rows]
    for data in (task("encoder", rows=rows), padder("encoder")(rows), [padder("encoder")(rows[:5]), padder("encoder")(rows[5:])]):
        for size in (None, 1, 4):
            close(evaluate(model, data, split="calibration", batch_size=size).losses, alone, 1e-5)
