"""The share of a score above chance: defined by the best constant answer, and not defined at it."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from headcount.core.certificate import bound_of_metric
from headcount.core.evaluation import Evaluation
from headcount.core.margin import Margin
from headcount.data.metrics import ACCURACY, F1, MATTHEWS, PERPLEXITY
from headcount.data.share_above_chance import bound_share_above_chance_left, lost_share_of_first_minus_second, share_above_chance_left
from headcount.data.task import Task
from headcount.studies._gated import measure_paired_change
from headcount.studies._measure.dynamics import Checkpoint, CheckpointRow, summarise_curve
from headcount.studies._measure.languages import ModelLanguageRemoval, StudiedModel, subtract_share_lost_by_second_model

N = 200


def evaluation(metric: Any, parts: np.ndarray) -> Evaluation:
    value = float(metric.total(parts.sum(0)))
    return Evaluation("toy", "report", len(parts), np.ones(len(parts)), metric.name, metric.higher_is_better, value, parts, "")


def right(number: int) -> Evaluation:
    """A classifier that gets so many of N right."""
    return evaluation(ACCURACY, np.stack([np.arange(N) % N < number, np.ones(N)], 1).astype(float))


def toy(metric: Any) -> Task:
    return Task("toy", [{}], [{}], [{}], lambda rows: {"labels": torch.tensor([row["labels"] for row in rows])}, metric=metric)


def test_the_share_is_of_what_is_above_chance() -> None:
    share = share_above_chance_left(right(180), right(120), toy(ACCURACY), 0.3)
    assert share.remaining is not None and share.remaining.difference == pytest.approx((0.6 - 0.3) / (0.9 - 0.3))
    assert share.remaining.low < 0.5 < share.remaining.high and share.remaining.p < 0.01
    complete = share_above_chance_left(right(180), right(180), toy(ACCURACY), 0.3)
    assert complete.remaining is not None and (complete.remaining.difference, complete.remaining.low, complete.remaining.p) == (1, 1, 1)


@pytest.mark.parametrize("number", [0, 60, 64])
def test_at_chance_no_share_is_defined(number: int) -> None:
    """A model that answers as a constant would has nothing to lose: not 100 % kept, and no heads that can go."""
    share = share_above_chance_left(right(number), right(number), toy(ACCURACY), 0.3)
    assert share.remaining is None and share.reason.endswith("than chance, 0.3") == (number <= 60)
    checkpoint, drop = Checkpoint("a", 1), measure_paired_change(right(number), right(number), toy(ACCURACY))
    bound = bound_share_above_chance_left(share, right(number), right(number), toy(ACCURACY), 0.9)
    summary = summarise_curve(checkpoint, right(number), [CheckpointRow(checkpoint, 1, 0.9, 1.0, None, drop, share, bound)], 0.9)
    assert summary.removable is summary.certified is bound.at_least is None and bound.reason == share.reason and not summary.tested


def summarise(dense: Evaluation, models: list[Evaluation], task: Task, chance: float, hold: float) -> Any:
    checkpoint, rows = Checkpoint("a", 1), []
    for number, pruned in enumerate(models, 1):
        share, drop = share_above_chance_left(dense, pruned, task, chance), measure_paired_change(dense, pruned, task)
        bound = bound_share_above_chance_left(share, dense, pruned, task, hold)
        rows.append(CheckpointRow(checkpoint, 9 - number, number / 10, 1.0, None, drop, share, bound))
    return summarise_curve(checkpoint, dense, rows[::-1], hold), rows


def test_heads_go_by_bounds_from_large_to_small_up_to_the_first_that_fails() -> None:
    """The third model would be certified by itself; the second, whose observed share is held, is not, and ends the tests."""
    summary, rows = summarise(right(180), [right(180), right(170), right(180)], toy(ACCURACY), 0.3, 0.9)
    assert [row.bound.is_certified for row in rows] == [True, False, True]
    assert rows[1].share.remaining is not None and rows[1].share.remaining.difference > 0.9 > rows[1].bound.at_least
    assert (summary.certified, summary.removable, summary.tested) == (0.1, 0.3, (0.1, 0.2))
    none, _ = summarise(right(180), [right(100)], toy(ACCURACY), 0.3, 0.9)
    assert (none.certified, none.removable, none.tested) == (0.0, 0.0, (0.1,))


def test_the_bound_of_a_share_is_that_of_a_certificate() -> None:
    share = share_above_chance_left(right(180), right(176), toy(ACCURACY), 0.3)
    bound = bound_share_above_chance_left(share, right(180), right(176), toy(ACCURACY), 0.9)
    certificate = bound_of_metric(right(180), right(176), ACCURACY.total)
    assert bound.at_least == pytest.approx(1 - certificate.bound / (0.9 - 0.3)) and bound.at_least < 1 - 0.02 / 0.6
    certified = bound_of_metric(right(180), right(176), ACCURACY.total, Margin.parse(f"{100 * (1 - bound.at_least) * 0.6 + 0.01:.4f}pt"))
    assert certified.verdict == "certified"


def test_a_resampled_metric_of_few_examples_certifies_no_share() -> None:
    true = np.arange(N) % 2
    dense, pruned = (evaluation(F1, np.eye(4)[true * 2 + np.where(np.arange(N) < wrong, 1 - true, true)]) for wrong in (10, 12))
    share = share_above_chance_left(dense, pruned, toy(F1), 0.5)
    bound = bound_share_above_chance_left(share, dense, pruned, toy(F1), 0.5)
    assert share.remaining is not None and bound.at_least is not None and 0.5 < bound.at_least < share.remaining.difference
    assert not bound.is_certified and "200 examples are too few" in bound.reason


def test_a_loss_beyond_the_clip_certifies_no_share() -> None:
    nats = 0.1 * np.sin(np.arange(N))
    dense, worse = (evaluation(PERPLEXITY, np.stack([level + nats, np.ones(N)], 1)) for level in (1.0, 9.0))
    share = share_above_chance_left(dense, worse, toy(PERPLEXITY), float(np.exp(9.5)))
    bound = bound_share_above_chance_left(share, dense, worse, toy(PERPLEXITY), 0.9)
    assert share.remaining is not None and share.remaining.difference < 0.1 and not bound.is_certified and "0.5 nats" in bound.reason


@pytest.mark.parametrize(("number", "chance"), [(1, 0.5), (3, 2 / 3), (10, 0.9), (9, 1e-9)])
def test_few_examples_that_all_are_right_prove_no_score_above_chance(number: int, chance: float) -> None:
    """Resamples of examples that all are right are all right: 100 % kept (100 % … 100 %) of three examples."""
    perfect = evaluation(ACCURACY, np.ones((number, 2)))
    share = share_above_chance_left(perfect, perfect, toy(ACCURACY), chance)
    assert share.remaining is None and "not surely better than chance" in share.reason
    nats = evaluation(PERPLEXITY, np.ones((number, 2)))
    if number < 10:
        assert share_above_chance_left(nats, nats, toy(PERPLEXITY), 50.0).remaining is None


def test_a_score_of_zero_is_undefined_where_chance_is_zero() -> None:
    confusion = np.zeros((N, 4))
    confusion[:, 0] = 1  # class 0 is true and predicted, always: no correlation
    nothing = evaluation(MATTHEWS, confusion)
    assert nothing.value == 0 and share_above_chance_left(nothing, nothing, toy(MATTHEWS), 0.0).remaining is None


def test_perplexities_compare_in_nats() -> None:
    def surprise(nats: float) -> Evaluation:
        return evaluation(PERPLEXITY, np.stack([nats + 0.1 * np.sin(np.arange(N)), np.ones(N)], 1))

    share = share_above_chance_left(surprise(2.0), surprise(3.0), toy(PERPLEXITY), float(np.exp(4.0)))
    assert share.remaining is not None and share.remaining.difference == pytest.approx(0.5, abs=0.01)
    assert share_above_chance_left(surprise(4.1), surprise(4.1), toy(PERPLEXITY), float(np.exp(4.0))).remaining is None


def test_an_unknown_chance_is_said() -> None:
    share = share_above_chance_left(right(180), right(120), toy(ACCURACY), None)
    assert (
        share.remaining is None
        and share.to_dict() == {**dict.fromkeys(("chance", "remaining", "remaining low", "remaining high")), "reason": share.reason}
        and "not known" in share.reason
    )


def test_two_models_lose_shares_of_their_own() -> None:
    gap = lost_share_of_first_minus_second((right(180), right(120)), (right(120), right(90)), toy(ACCURACY), (0.3, 0.3))
    assert gap.difference == pytest.approx(0.3 / 0.6 - 0.15 / 0.3)


def test_each_model_has_its_own_chance() -> None:
    gap = lost_share_of_first_minus_second((right(180), right(120)), (right(160), right(130)), toy(ACCURACY), (0.3, 0.5))
    assert gap.difference == pytest.approx(0.3 / 0.6 - 0.15 / 0.3)
    evaluations = {("a", "en", "L0"): (right(180), right(120)), ("b", "en", "L0"): (right(160), right(130))}
    first, second = (
        StudiedModel(name, SimpleNamespace(model=None), {"en": replace(toy(ACCURACY), report=[{"labels": label} for label in labels])}, ())  # pyright: ignore[reportArgumentType]
        for name, labels in (("a", [0] * 3 + [1] * 2 + [2] * 2 + [3] * 3), ("b", [0] * 5 + [1] * 5))
    )
    (row,) = subtract_share_lost_by_second_model({ModelLanguageRemoval(*key): pair for key, pair in evaluations.items()}, first, second)
    assert (row.lost, row.lost_by_other) == pytest.approx((0.3 / 0.6, 0.15 / 0.3))
    assert row.difference == pytest.approx(row.lost - row.lost_by_other)


def test_chance_is_the_best_constant_answer() -> None:
    labels = np.array([0, 0, 0, 1, 1, 2])
    assert ACCURACY.chance is not None and F1.chance is not None and PERPLEXITY.chance is not None
    assert ACCURACY.chance(labels) == 0.5
    assert PERPLEXITY.chance(np.arange(7)) == pytest.approx(7)
    binary = np.stack([np.zeros(6), labels != 1, np.zeros(6), labels == 1], 1).astype(float)
    assert F1.chance(labels) == pytest.approx(float(F1.total(binary.sum(0))))
