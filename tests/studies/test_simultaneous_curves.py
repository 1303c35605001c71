"""The intervals of a pruning curve hold for all its sizes together: each is wider than it is where its size is the only one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import headcount as hc
from headcount.core.evaluation import Evaluation
from headcount.core.stats.significance import single_interval_level
from headcount.data.metrics import ACCURACY
from headcount.data.share_above_chance import share_above_chance_left
from headcount.data.task import Task
from headcount.studies._base import Study
from headcount.studies.dynamics import Dynamics
from headcount.studies.from_scratch import FromScratch
from headcount.studies.interventions import Interventions
from headcount.studies.penalty_sweep import PenaltySweep
from headcount.studies.plan_transfer import PlanTransfer
from headcount.studies.role_pruning import RolePruning
from headcount.studies.strategies import Strategies
from headcount.workflows.grid import curve_point_minus_dense, evaluation_minus_baseline

ONE, TWO = ("50%",), ("50%", "25%")
TASK = Task("toy", [{}], [{}], [{}], lambda rows: {"labels": torch.tensor([0])}, metric=ACCURACY)


def classifier(right: np.ndarray) -> Evaluation:
    parts = np.stack([right, np.ones(len(right))], 1).astype(float)
    return Evaluation("toy", "report", len(right), 1.0 - right, "accuracy", True, float(right.mean()), parts, "")


def draw_curve(rng: np.random.Generator, n: int, lost: np.ndarray) -> tuple[Evaluation, list[Evaluation]]:
    """A dense model that gets nine of ten right, and models that each turn a share of these wrong by themselves."""
    right = rng.random(n) < 0.9
    return classifier(right), [classifier(right & (rng.random(n) >= share / 0.9)) for share in lost]


def test_a_point_of_a_curve_has_a_wider_interval_and_the_same_p() -> None:
    dense, (pruned,) = draw_curve(np.random.default_rng(0), 400, np.array([0.05]))
    alone, point = evaluation_minus_baseline(dense, pruned, TASK), curve_point_minus_dense(dense, pruned, TASK, n_sizes=9)
    assert point == evaluation_minus_baseline(dense, pruned, TASK, level=single_interval_level(9)) and single_interval_level(9) > 0.99
    assert alone.low is not None and alone.high is not None and point.low is not None and point.high is not None
    assert point.low < alone.low < alone.difference < alone.high < point.high and point.p == alone.p
    assert curve_point_minus_dense(dense, pruned, TASK, n_sizes=1) == alone
    shares = [share_above_chance_left(dense, pruned, TASK, 0.5, level=level).remaining for level in (0.95, single_interval_level(9))]
    assert shares[0] is not None and shares[1] is not None and shares[1].low < shares[0].low < shares[0].high < shares[1].high


def test_all_points_of_a_curve_hold_together() -> None:
    """Of intervals that each hold by themselves, all of a curve hold together much more rarely than in 95 % of the cases."""
    rng, lost = np.random.default_rng(1), np.linspace(0.02, 0.18, 9)
    held = {1: 0, 9: 0}
    for _ in range(200):
        dense, pruned = draw_curve(rng, 300, lost)
        for n_sizes in held:
            changes = [curve_point_minus_dense(dense, each, TASK, n_sizes=n_sizes) for each in pruned]
            ends = np.array([(change.low, change.high) for change in changes], float)
            held[n_sizes] += bool(((ends[:, 0] <= -lost) & (-lost <= ends[:, 1])).all())
    assert held[9] / 200 >= 0.92 and held[1] / 200 < 0.85


WITH_ROLES = ("demo/encoder", "demo/text")
CURVES: dict[str, tuple[Study, Study, str, tuple[str, ...]]] = {
    "interventions": (
        Interventions(interventions=("zero",), keep=ONE, seeds=1),
        Interventions(interventions=("zero",), keep=TWO, seeds=1),
        "change",
        ("n_kept",),
    ),
    "strategies": (
        Strategies(strategies=("layers:top",), keep=ONE, seeds=1, recover=None),
        Strategies(strategies=("layers:top",), keep=TWO, seeds=1, recover=None),
        "change",
        ("strategy", "n_kept"),
    ),
    "plan-transfer": (
        PlanTransfer("demo/entailment-tavi", method="magnitude", keep=ONE, seeds=1),
        PlanTransfer("demo/entailment-tavi", method="magnitude", keep=TWO, seeds=1),
        "change",
        ("choice", "n_kept"),
    ),
    "from-scratch": (
        FromScratch("magnitude", keep=ONE, seeds=1, scratch="1steps", train_batch=4),
        FromScratch("magnitude", keep=TWO, seeds=1, scratch="1steps", train_batch=4),
        "change",
        ("model", "n_kept"),
    ),
    "penalty-sweep": (
        PenaltySweep((0.001,), exact="magnitude", seeds=1, steps=2, train_batch=4),
        PenaltySweep((0.001, 0.002), exact="magnitude", seeds=1, steps=2, train_batch=4),
        "change",
        ("penalty",),
    ),
    "role-pruning": (
        RolePruning(role=("offset",), keep=ONE, seeds=1),
        RolePruning(role=("offset",), keep=TWO, seeds=1),
        "against dense",
        ("role", "heads", "keep"),
    ),
}


@pytest.mark.parametrize("name", CURVES)
def test_the_intervals_of_a_study_hold_for_all_its_sizes(name: str, tmp_path: Path) -> None:
    """The same point, of a curve of one size and of one of two."""
    one, two, change, identity = CURVES[name]
    names = WITH_ROLES if name == "role-pruning" else ("demo/entailment", "demo/entailment")
    alone, together = (measure(study, tmp_path / "run", *names) for study in (one, two))
    rows = {tuple(row[part] for part in identity): row for row in together["rows"]}
    assert alone["rows"] and len(rows) == 2 * len(alone["rows"])
    for row in alone["rows"]:
        difference, low, high = interval(row, change)
        curve_difference, curve_low, curve_high = interval(rows[tuple(row[part] for part in identity)], change)
        assert difference == curve_difference and curve_low < low <= difference <= high < curve_high


def measure(study: Study, folder: Path, model: str = "demo/entailment", task: str = "demo/entailment") -> Any:
    result = hc.study(study, model, task, out=folder, limit=80)
    said = " ".join([table.title for table in result.tables] + [figure.title for figure in result.figures])
    assert "together" in said
    return result.measurements


def interval(row: Any, name: str) -> tuple[float, float, float]:
    if isinstance(row.get(name), dict):
        return row[name]["difference"], row[name]["low"], row[name]["high"]
    separator = "_" if f"{name}_low" in row else " "
    difference = row[name] if name in row else row[f"{name}{separator}difference"]
    return difference, row[f"{name}{separator}low"], row[f"{name}{separator}high"]


def test_the_shares_of_a_checkpoint_hold_for_all_its_sizes(tmp_path: Path) -> None:
    one, two = (
        measure(Dynamics(("demo/entailment-english",), by="magnitude", keep=keep), tmp_path / name)
        for name, keep in (("one", ("25%",)), ("two", ("50%", "25%")))
    )
    row, curve_row = one["rows"][0], two["rows"][1]
    assert (row["step"], row["keep"], row["remaining"]) == (curve_row["step"], curve_row["keep"], curve_row["remaining"])
    assert curve_row["remaining low"] < row["remaining low"] <= row["remaining high"] < curve_row["remaining high"]
    assert row["remaining at least"] == curve_row["remaining at least"], "a bound is of its size by itself"
