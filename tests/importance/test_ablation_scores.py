"""Ablations are evaluations under gates; the race that stops early finds the same heads."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from toys import build, examples, padder, shared, task, zero

import headcount as hc
from headcount.core.errors import OptionError, PlanError
from headcount.core.evaluation import Evaluation
from headcount.core.stats.samples import Samples
from headcount.data.evaluate import evaluate
from headcount.data.metrics import ACCURACY, PERPLEXITY
from headcount.importance.race import Race
from headcount.models.observe import mean_outputs
from headcount.models.tiny.float64 import Float64

KINDS = ("encoder", "decoder", "marian")
HOW = ("zero", "mean", "uniform")
N = 7


@cache
def means(kind: str) -> dict[str, Tensor]:
    with Float64():
        return mean_outputs(shared(kind), [padder(kind)([row]) for row in examples(kind, N)])


def gated(kind: str, values: Tensor, how: Any) -> Evaluation:
    with hc.HeadGates(shared(kind), values, how=how, means=means(kind) if how == "mean" else None):
        return evaluate(shared(kind), task(kind, N), split="calibration")


def check(kind: str, scores: hc.Scores, values: list[Tensor], how: str) -> None:
    """Compares values, standard errors and the column of the metric with evaluations under these gates."""
    dense = evaluate(shared(kind), task(kind, N), split="calibration")
    for position, gates in enumerate(values):
        ablated = gated(kind, gates, how)
        rise = ablated.losses - dense.losses
        note = f"{scores.heads[position]} {how}"
        np.testing.assert_allclose(scores.values[position], rise.mean(), rtol=1e-8, atol=1e-10, err_msg=note)
        np.testing.assert_allclose(scores.stderr[position], rise.std(ddof=1) / np.sqrt(N), rtol=1e-7, atol=1e-10, err_msg=note)
        change = scores.columns[f"{dense.metric} change"][position]
        assert ablated.value is not None and dense.value is not None
        assert change == pytest.approx(ablated.value - dense.value, abs=1e-12), note


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("kind", KINDS)
def test_ablation_equals_evaluation_under_a_mask(kind: str, how: str) -> None:
    with Float64():
        scores = hc.score(shared(kind), task(kind, N), f"ablation:{how}")
        check(kind, scores, list(1 - torch.eye(len(scores.heads), dtype=torch.float64)), how)
    assert max(map(abs, scores.values)) > 1e-3


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("kind", KINDS)
def test_all_but_one_equals_evaluation_with_the_rest_of_the_block_gone(kind: str, how: str) -> None:
    heads = hc.HeadMap.of(shared(kind))
    values = [torch.tensor([float(o == h or heads.block_of(o) != heads.block_of(h)) for o in heads]).double() for h in heads]
    with Float64():
        scores = hc.score(shared(kind), task(kind, N), f"all-but-one:{how}")
        check(kind, scores, values, how)
    assert not scores.higher_is_keep


def test_masks_by_name_are_the_same_gates() -> None:
    """Through the front door, `hc.mask`, with batches of its own for the mean."""
    model, data = shared("decoder"), task("decoder", N)
    for how, more in (("zero", {}), ("uniform", {}), ("mean", {"data": [padder("decoder")(examples("decoder", N))]})):
        scores = hc.score(model, data, f"ablation:{how}")
        with hc.mask(model, "L1H4", how=how, **more):  # pyright: ignore[reportArgumentType]
            ablated = evaluate(model, data, split="calibration")
        rise = (ablated.losses - evaluate(model, data, split="calibration").losses).mean()
        assert scores["L1H4"] == pytest.approx(rise, rel=1e-5, abs=1e-7)


def test_a_metric_that_does_not_add_up_is_taken_over_all_examples() -> None:
    model, data = shared("decoder"), task("decoder", 20, metric=PERPLEXITY)
    scores = hc.score(model, data, "ablation")
    dense = evaluate(model, data, split="calibration")
    with hc.mask(model, "L0H2"):
        ablated = evaluate(model, data, split="calibration")
    assert ablated.value is not None and dense.value is not None and dense.parts is not None
    assert dense.value == pytest.approx(np.exp(dense.parts[:, 0].sum() / dense.parts[:, 1].sum()))
    position = scores.heads.index(hc.Head.parse("L0H2"))
    assert scores.columns["perplexity change"][position] == pytest.approx(ablated.value - dense.value, rel=1e-5)
    assert scores.columns["perplexity stderr"][position] > 0


# The race.


def planted(kind: str, names: list[str], number: int) -> tuple[nn.Module, hc.Task]:
    """A model in which some heads do nothing, and the task of giving what it gives: whatever else goes, the loss rises from zero."""
    model = build(kind)
    for name in names:
        zero(model, hc.Head.parse(name))

    def loss(output: Any, batch: Any) -> Tensor:
        return (output.logits - batch["wanted"]).square().mean(-1)

    rows = []
    for row in examples("encoder", number):
        with torch.no_grad():
            rows.append({"input_ids": row["input_ids"], "labels": row["labels"], "wanted": model(**padder(kind)([row])).logits[0]})
    return model, task(kind, rows=rows, loss=loss, metric=None)


DEAD = ["L0H2", "L1H0", "L1H3", "L1H5"]


def test_the_race_finds_heads_that_do_nothing_and_stops() -> None:
    model, data = planted("encoder", DEAD, 400)
    short = hc.score(model, data, "ablation", adaptive=4, limit=90)
    assert set(short.conditions["lowest"]) == set(DEAD) and short.conditions["open"] == []
    assert short.conditions["undecided"] == 0 and {str(head) for head in short.ranking()[-4:]} == set(DEAD)
    assert hc.score(model, data, "ablation", adaptive=4, limit=1).conditions["undecided"] == 12
    full = hc.score(model, data, "ablation")
    raced = hc.score(model, data, "ablation", adaptive=4)
    assert {str(head) for head in raced.ranking()[-4:]} == {str(head) for head in full.ranking()[-4:]} == set(DEAD)
    assert sum(raced.columns["examples"]) < 0.7 * len(full.heads) * full.n_examples
    assert raced.conditions["undecided"] == 0 and raced.conditions["adaptive"] == 4 and raced.conditions["confidence"] == 0.95
    assert raced.n_examples < full.n_examples
    for number in set(raced.columns["examples"]):
        part = hc.score(model, data, "ablation", limit=int(number))
        for head, n_read in zip(raced.heads, raced.columns["examples"], strict=True):
            if n_read == number:
                assert raced[head] == pytest.approx(part[head], rel=1e-6, abs=1e-9)


def test_what_stays_close_is_examined_to_the_end_and_told() -> None:
    model, data = planted("encoder", [], 200)
    full, raced = hc.score(model, data, "ablation"), hc.score(model, data, "ablation", adaptive=6)
    open_heads = [head for head, n_read in zip(raced.heads, raced.columns["examples"], strict=True) if n_read == raced.n_examples]
    assert len(open_heads) >= raced.conditions["undecided"]
    for head in open_heads:
        if raced.n_examples == full.n_examples:
            assert raced[head] == pytest.approx(full[head], rel=1e-6)
    lowest = set(full.ranking()[-6:])
    decided = [head for head in raced.heads if head not in open_heads]
    assert {head for head in decided if head in raced.ranking()[-6:]} <= lowest


@pytest.mark.parametrize(
    ("k", "error", "message"),
    [
        (0, OptionError, "option adaptive of score must be an int or none of at least 1; got 0"),
        (12, PlanError, "adaptive must be from 1 to 11, fewer than the 12 units of the model; got 12"),
        (13, PlanError, "adaptive must be from 1 to 11, fewer than the 12 units of the model; got 13"),
    ],
)
def test_a_number_that_cannot_be_looked_for_is_refused(k: int, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        hc.score(shared("encoder"), task("encoder"), "ablation", adaptive=k)


def test_groups_race_as_one() -> None:
    scores = hc.score(shared("decoder"), task("decoder", 200), "ablation", adaptive=1)
    for unit in scores.units:
        assert len({scores.columns["examples"][scores.heads.index(head)] for head in unit}) == 1
    with pytest.raises(PlanError, match="adaptive must be from 1 to 3, fewer than the 4 units of the model; got 4"):
        hc.score(shared("decoder"), task("decoder"), "ablation", adaptive=4)


@pytest.mark.parametrize("by", ["gradient", "magnitude", "all-but-one"])
def test_only_ablation_can_race(by: str) -> None:
    with pytest.raises(PlanError, match="adaptive examines heads by ablation alone"):
        hc.score(shared("encoder"), task("encoder"), by, adaptive=2)


def test_a_race_is_right_as_often_as_it_says() -> None:
    """Twelve units with means apart by little and by much: over many races, those with a wrong decision are rare."""
    truth, wrong, decided = np.array([0.0, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.6, 0.8, 1.0, 1.2, 1.5]), 0, 0
    for seed in range(200):
        rises = np.random.default_rng(seed).normal(truth, 0.5, size=(256, 12))
        race = Race(tuple((i,) for i in range(12)), 3)
        for number in range(32, 257, 32):
            race.decide_from_loss_rises(Samples.of(rises[:number], np.ones((number, 12))))
        settled = ~race.open
        wrong += bool((race.lowest != (np.arange(12) < 3))[settled].any())
        decided += int(settled.sum())
    assert wrong <= 0.05 * 200 and decided > 4 * 200


@pytest.mark.parametrize("higher_is_better", [True, False])
def test_the_change_of_a_metric_has_its_own_direction(higher_is_better: bool) -> None:
    """Without a head that matters an error rate rises and an accuracy falls; with that head alone it is the other way round."""
    metric = replace(ACCURACY, name="WER", higher_is_better=higher_is_better)
    for by, more_loss_is_keep in (("ablation", True), ("all-but-one", False)):
        scores = hc.score(shared("encoder"), task("encoder", N, metric=metric), by=by)
        assert scores.higher_is_keep == more_loss_is_keep
        assert scores.directions == {"WER change": more_loss_is_keep != higher_is_better} and scores.describes is False
    assert hc.score(shared("encoder"), task("encoder", N), by="entropy").describes is True
