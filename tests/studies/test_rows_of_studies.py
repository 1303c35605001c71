"""Rows of studies where something is missing: a p-value, a seed, half of the heads, the parts of a metric."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from drawn import rng
from toys import shared, task

import headcount as hc
from headcount.core.certificate import certify_task
from headcount.core.errors import DataError
from headcount.core.evaluation import Evaluation, PairedDifference, score_interval
from headcount.core.heads import Head
from headcount.core.stats.means import MeanDifference
from headcount.core.stats.metric_parts import f1
from headcount.data.metrics import F1
from headcount.data.task import Task
from headcount.runs.results import certify_pruned
from headcount.studies import by_type, dynamics, single_heads
from headcount.studies._measure.all_but_one import LayerRow, _correct_metric_p_values
from headcount.studies._measure.by_type import compare_attention_types
from headcount.studies._measure.interventions import _average_seeds_to_point
from headcount.studies._measure.penalty_sweep import _count_kept_by_seed
from headcount.studies._measure.single_heads import HeadRow
from headcount.studies._measure.task_transfer import measure_head_changes
from headcount.studies._rows import describe_undecided
from headcount.workflows import grid
from headcount.workflows.grid import Grid, GridPoint, evaluation_minus_baseline, summarise_methods

RISE = MeanDifference(0.1, None, None, None)


def head_row(index: int, difference: float, q: float | None) -> HeadRow:
    change = PairedDifference(difference, None, None, q, "Hall's t")
    return HeadRow(head=f"L0H{index}", block="L0", kind="encoder-self", layer=0, index=index, score=1.0, rise=RISE, change=change, q=q)


def test_a_head_that_was_not_tested_is_not_marked() -> None:
    rows, dense = [head_row(0, 0.1, None), head_row(1, 0.1, 0.01), head_row(2, 0.1, 0.5)], Evaluation("t", "report", 4, np.ones(4))
    (figure,) = single_heads._change_heat_maps(rows, dense, "loss")
    assert figure.marks == ((False, True, False),)


def test_a_fall_of_the_loss_is_for_the_better() -> None:
    rows, dense = [head_row(0, -0.1, 0.01), head_row(1, 0.1, 0.01), head_row(2, -0.2, 0.01)], Evaluation("t", "report", 4, np.ones(4))
    assert "3 of 3 heads change it (q ≤ 0.05)" in (text := single_heads._summary_sentence(rows, dense, "loss"))
    assert text.endswith("2 of these for the better.")
    assert single_heads._summary_sentence(rows, replace(dense, metric="accuracy", value=0.5), "accuracy").endswith(
        "1 of these for the better."
    )


def test_one_change_without_a_p_value_leaves_the_others_corrected() -> None:
    changes = [PairedDifference(0.1, None, None, p, "paired bootstrap") for p in (0.01, None, 0.04)]
    rows = [LayerRow("L0", "encoder-self", 0, (), 0.1, None, RISE, 0.5, change, 100, None) for change in changes]
    assert [row.metric_q for row in _correct_metric_p_values(rows)] == [0.02, None, 0.04]


def test_heads_of_every_seed_stand_in_the_order_of_seeds() -> None:
    block: Any = SimpleNamespace(heads=(Head("", 0, 0), Head("", 0, 1)))
    point: Any = SimpleNamespace(seeds=(4, 6), survivors=(frozenset(block.heads), frozenset(block.heads[:1])))
    assert _count_kept_by_seed([block], point, range(3, 7)) == (0, 2, 0, 1)


def test_a_head_without_parts_of_the_metric_is_an_error() -> None:
    parts = np.eye(4)[rng(0).integers(0, 4, 60)]
    dense = Evaluation("t", "report", 60, np.ones(60), "F1", True, float(f1(parts.sum(0))), parts)
    changes = {Head("", 0, 0): dense, Head("", 0, 1): replace(dense, parts=None)}
    of_task = Task("t", [{}], [{}], [{}], lambda rows: {}, metric=F1)
    with pytest.raises(DataError, match="t without L0H1 was not measured by F1"):
        measure_head_changes(of_task, dense, changes)


def test_a_type_with_one_head_has_no_lower_half() -> None:
    model = hc.prune(shared("encoder"), task("encoder", 24), "random", 1, repair=False).model
    scores = hc.score(model, task("encoder", 24), "gradient", normalise="none")
    (row,) = compare_attention_types(model, task("encoder", 24), hc.HeadMap.of(model), scores)
    assert row.n_heads == 1 and row.without_half is None and row.metric_without_half is None
    assert row.without_all.difference != 0
    assert None in by_type._table_of_attention_types([row], "gradient", "accuracy").rows[0]


def test_heads_that_go_for_a_share_of_the_score_are_certified_or_said_to_be_observed() -> None:
    summary: Any = SimpleNamespace(certified=0.2, removable=0.5, checkpoint=SimpleNamespace(label="step 3"))
    sentence = dynamics._summary_sentence([summary], 0.9)
    assert "certified for each checkpoint at 95 %: 20% at step 3. By what was observed, without a bound: 50% at step 3." in sentence


def test_what_is_not_shown_is_undecided() -> None:
    assert [describe_undecided(*counts) for counts in ((3, 3), (2, 3), (1, 4), (0, 1), (0, 5))] == [
        "",
        "; the other one is undecided",
        "; the other 3 are undecided",
        "; it is undecided",
        "; all 5 are undecided",
    ]
    rows, dense = [head_row(0, 0.1, None), head_row(1, 0.1, 0.01), head_row(2, 0.1, 0.5)], Evaluation("t", "report", 4, np.ones(4))
    assert single_heads._summary_sentence(rows, dense, "loss").endswith("0 of these for the better; the other 2 are undecided.")


def classifiers() -> tuple[Task, Evaluation, Evaluation]:
    """A task of F1, whose intervals are resampled, and two models on it."""
    true = rng(0).integers(0, 2, 300)
    dense, other = (
        Evaluation("t", "report", 300, np.ones(300), "F1", True, float(f1(parts.sum(0))), parts)
        for parts in (np.eye(4)[true * 2 + np.where(rng(seed).random(300) < 0.2, 1 - true, true)] for seed in (1, 2))
    )
    return Task("t", [{}], [{}], [{}], lambda rows: {}, metric=F1), dense, other


def test_points_and_rows_of_a_grid_are_resampled_with_the_seed_of_the_request(monkeypatch: pytest.MonkeyPatch) -> None:
    of_task, dense, other = classifiers()
    monkeypatch.setattr(grid, "unpack_pruned_evaluation", lambda artifact: other)
    monkeypatch.setattr(grid, "method_label", lambda artifact: "gradient")
    monkeypatch.setattr(grid, "steps_of_shortest_stage", lambda artifact: None)
    artifact: Any = SimpleNamespace(content={"removed": [], "spec": {"seed": 0, "method": {"name": "gradient"}}})
    lows = []
    for seed in (0, 5):
        pruning: Any = SimpleNamespace(task=of_task, seed=seed, heads=hc.HeadMap.of(shared("encoder")))
        points = Grid.from_artifacts(pruning, dense, [artifact])
        (row,) = summarise_methods(points, seed=seed)
        assert row.joint == row.change == points.points[0].change == evaluation_minus_baseline(dense, other, of_task, seed=seed)
        lows.append(row.joint.low)
    assert lows[0] != lows[1]


def test_certificates_and_intervals_of_runs_are_resampled_with_the_seed_of_the_request() -> None:
    _, dense, other = classifiers()
    bounds = [certify_pruned(dense, other, F1.total, seed=seed).quality.bound for seed in (0, 5)]
    assert bounds == [certify_task(dense, other, F1.total, seed=seed).quality.bound for seed in (0, 5)] and bounds[0] != bounds[1]
    assert certify_pruned(dense, other, F1.total).quality.bound == bounds[0]
    assert score_interval(dense, F1.total) == score_interval(dense, F1.total, seed=0) != score_interval(dense, F1.total, seed=5)


def test_means_of_a_type_are_resampled_with_the_seed_of_the_study() -> None:
    of_task, model = task("encoder", 24), shared("encoder")
    scores = hc.score(model, of_task, "gradient", normalise="none")
    rows = [compare_attention_types(model, of_task, hc.HeadMap.of(model), scores, seed=seed)[0] for seed in (0, 5)]
    assert rows[0].mean == rows[1].mean and (rows[0].low, rows[0].high) != (rows[1].low, rows[1].high)


def test_the_change_of_a_point_is_resampled_with_the_seed_of_the_study() -> None:
    of_task, dense, other = classifiers()
    points: list[GridPoint] = []
    for seed in (0, 5):
        context: Any = SimpleNamespace(task=of_task, seed=seed)
        points.append(_average_seeds_to_point(context, "zero", 1, (seed,), [other], (frozenset(),), dense, 1))
        assert points[-1].change == evaluation_minus_baseline(dense, other, of_task, seed=seed)
    assert points[0].change.low != points[1].change.low
