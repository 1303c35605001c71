"""Means over seeds of metrics that are not linear in their parts: the mean that is shown, its difference and its interval are of one quantity."""

from __future__ import annotations

from dataclasses import replace
from statistics import mean
from typing import Any

import numpy as np
import pytest

import headcount as hc
from headcount.core.evaluation import Evaluation
from headcount.core.stats.significance import paired_bootstrap
from headcount.data.metrics import ACCURACY, F1, PERPLEXITY, Metric, bleu
from headcount.data.share_above_chance import lost_share_of_first_minus_second, share_above_chance_left
from headcount.studies._gated import measure_paired_change
from headcount.workflows.grid import average_evaluations, evaluation_minus_baseline

N = 120
WORDS = ["the", "a", "cat", "dog", "sees", "finds", "small", "large", "old", "young"]


def task_of(metric: Metric) -> hc.Task:
    data: Any = [{}]
    return hc.Task("made", data, data, data, lambda rows: {}, metric=metric)


def evaluate(metric: Metric, parts: np.ndarray) -> Evaluation:
    value = float(metric.total(parts.sum(0)))
    return Evaluation(
        "made", "report", len(parts), np.zeros(len(parts)), metric.name, metric.higher_is_better, value, parts.astype(float), "data"
    )


def confusions(true: np.ndarray, guess: np.ndarray) -> np.ndarray:
    return np.eye(4)[2 * true + guess]


def f1_models() -> tuple[hc.Task, Evaluation, list[Evaluation]]:
    """A dense model with few errors, and three seeds of which one never names the rare class."""
    random = np.random.default_rng(0)
    true = (random.random(N) < 0.2).astype(int)
    shares = (0.05, 0.15, 0.3)
    seeds = [np.where(random.random(N) < share, 1 - true, true) for share in shares]
    seeds[2] = np.zeros(N, int)
    dense = evaluate(F1, confusions(true, np.where(random.random(N) < 0.03, 1 - true, true)))
    return task_of(F1), dense, [evaluate(F1, confusions(true, guess)) for guess in seeds]


def bleu_models() -> tuple[hc.Task, Evaluation, list[Evaluation]]:
    """Texts of 12 words of which each seed changes another share; the last seed also writes texts that are too short."""
    pytest.importorskip("sacrebleu")
    random = np.random.default_rng(1)
    metric, references = None, [random.choice(WORDS, 12).tolist() for _ in range(N)]

    def write(share: float, length: int) -> list[str]:
        return [" ".join(word if random.random() > share else random.choice(WORDS) for word in words[:length]) for words in references]

    texts = {"dense": write(0.05, 12), "0": write(0.2, 12), "1": write(0.5, 12), "2": write(0.2, 6)}
    joined = [" ".join(words) for words in references]
    evaluations = {}
    for name, generated in texts.items():
        metric = bleu(lambda model, batch, generated=generated: (generated, joined))
        evaluations[name] = evaluate(metric, metric.parts(None, None, None).numpy())  # pyright: ignore[reportArgumentType]
    assert metric is not None
    return task_of(metric), evaluations["dense"], [evaluations[name] for name in "012"]


@pytest.mark.parametrize("models", [f1_models, bleu_models])
def test_mean_difference_and_interval_are_of_one_quantity(models: Any) -> None:
    task, dense, seeds = models()
    average = average_evaluations(seeds, task)
    shown = mean(evaluation.score for evaluation in seeds)
    pooled = float(task.metric.total(np.mean([evaluation.parts for evaluation in seeds], axis=0).sum(0)))
    assert abs(pooled - shown) > 0.01, "the metric of the pool is another number"
    change = evaluation_minus_baseline(dense, average, task)
    assert average.value == pytest.approx(shown) and change.by == "paired bootstrap"
    assert change.difference == pytest.approx(shown - dense.score) and change.low < change.difference < change.high < 0
    back = evaluation_minus_baseline(average, dense, task)
    assert (back.difference, back.low, back.high, back.p) == pytest.approx((-change.difference, -change.high, -change.low, change.p))
    drop = measure_paired_change(dense, average, task).score
    assert drop.interval == pytest.approx((change.difference, change.low, change.high))
    share = share_above_chance_left(dense, average, task, 0.0).lost_low_high
    assert share[0] == pytest.approx(1 - shown / dense.score) and share[1] is not None and share[1] < share[0] < share[2]
    gap = lost_share_of_first_minus_second((dense, average), (dense, seeds[0]), task, (0.0, 0.0))
    assert gap.difference == pytest.approx((seeds[0].score - shown) / dense.score) and gap.low < gap.difference < gap.high


def test_two_means_over_other_numbers_of_seeds() -> None:
    task, _, seeds = f1_models()
    two, three = average_evaluations(seeds[:2], task), average_evaluations(seeds, task)
    change = evaluation_minus_baseline(two, three, task)
    assert change.difference == pytest.approx(three.score - two.score) and change.low < change.difference < change.high


def test_equal_models_differ_by_exactly_nothing() -> None:
    task, dense, seeds = f1_models()
    average = average_evaluations(seeds, task)
    same = evaluation_minus_baseline(average, average_evaluations(list(reversed(seeds)), task), task)
    assert same.difference == pytest.approx(0, abs=1e-15)
    agreeing = average_evaluations([dense, replace(dense)], task)
    assert evaluation_minus_baseline(dense, agreeing, task).difference == 0 and agreeing.parts is not None and agreeing.parts.ndim == 2


def test_metrics_that_are_linear_are_as_before() -> None:
    random = np.random.default_rng(2)
    hits = (random.random((4, N)) < [[0.9], [0.7], [0.6], [0.8]]).astype(float)
    dense, *seeds = [evaluate(ACCURACY, np.stack([hit, np.ones(N)], axis=1)) for hit in hits]
    task = task_of(ACCURACY)
    average = average_evaluations(seeds, task)
    change = evaluation_minus_baseline(dense, average, task)
    pooled = paired_bootstrap(dense.parts, np.mean([seed.parts for seed in seeds], axis=0), ACCURACY.total, seed=0)  # pyright: ignore[reportArgumentType, reportCallIssue]
    assert (change.difference, change.low, change.high) == pytest.approx(pooled.interval)
    assert evaluation_minus_baseline(dense, seeds[0], task).by == "Tango"


def test_perplexity_is_averaged_over_seeds() -> None:
    random = np.random.default_rng(3)
    models = [evaluate(PERPLEXITY, np.stack([random.gamma(2, scale, N), np.ones(N)], axis=1)) for scale in (0.5, 0.6, 1.5)]
    task = task_of(PERPLEXITY)
    average = average_evaluations(models[1:], task)
    assert evaluation_minus_baseline(models[0], average, task).difference == pytest.approx(
        mean((models[1].score, models[2].score)) - models[0].score
    )
