"""Numbers that are not finite stop their artifact, say where, and are never written; a lack of memory changes nothing in a run."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grid
import numpy as np
import pandas
import pytest
import torch
from toys import build, shared, task

import headcount as hc
from headcount.core.errors import NonFinite
from headcount.importance.methods.confidence import Confidence
from headcount.importance.methods.gradient import Gradient
from headcount.importance.settings import ScoreSettings
from headcount.models.provenance import model_record
from headcount.runs.artifacts import Artifact
from headcount.runs.describe import describe_run
from headcount.runs.scores import all_scores
from headcount.runs.store import Run
from headcount.workflows.evaluate import evaluate_into
from headcount.workflows.score import score_into


@pytest.fixture(autouse=True)
def _blocks() -> Iterator[None]:
    with grid.small_chunks():
        yield


def described(run: Run, model: Any) -> Run:
    run.stage_records(describe_run(model_record(model, "toy"), command=grid.COMMAND, seed=0), hc.HeadMap.of(model))
    return run


def no_nan_is_written(folder: Path) -> None:
    def refuse(text: str) -> None:
        raise AssertionError(f"{text} was written")

    for path in folder.rglob("*.artifact"):
        artifact = Artifact.unpack(path.read_bytes(), path)
        json.loads(path.read_bytes().partition(b"\n")[0], parse_constant=refuse)
        assert all(np.isfinite(array).all() for array in artifact.arrays.values()), path
    for path in folder.glob("*.json"):
        json.loads(path.read_text(), parse_constant=refuse)
    for path in folder.glob("*.csv"):
        assert not {"nan", "inf", "-inf"} & set(path.read_text().lower().replace("\n", ",").split(",")), path
    for path in folder.glob("*.parquet"):
        assert np.isfinite(pandas.read_parquet(path).select_dtypes("number").to_numpy()).all()


BAD = (float("nan"), float("inf"), -float("inf"))


@pytest.mark.parametrize("bad", BAD)
@pytest.mark.parametrize("head", [0, 7])
def test_a_score_that_is_not_finite_fails_alone(shm: Path, monkeypatch: pytest.MonkeyPatch, bad: float, head: int) -> None:
    """On one example and head, in a later block: the others are kept, the blocks before too, and the same command goes on when it is mended."""
    real = Confidence.of_block
    victim = grid.data().calibration[14]["input_ids"]
    block, position = divmod(head, 6)

    def spoiled(method: Confidence, observed: Any) -> Any:
        made = real(method, observed)
        values = made[0] if isinstance(made, tuple) else made
        if observed.block.layer == block and spoiled.batch is not None:
            rows = [row for row, ids in enumerate(spoiled.batch) if ids[: len(victim)] == victim and not any(ids[len(victim) :])]
            values[rows, position] = bad
        return made

    spoiled.batch = None  # type: ignore[attr-defined]
    model = build("encoder")
    forward = model.forward

    def remembered(*args: Any, **inputs: Any) -> Any:
        spoiled.batch = inputs["input_ids"].tolist()  # type: ignore[attr-defined]
        return forward(*args, **inputs)

    monkeypatch.setattr(model, "forward", remembered)
    monkeypatch.setattr(Confidence, "of_block", spoiled)
    name = str(hc.HeadMap.of(model)[head])
    with Run.lead(shm / "run") as run:
        described(run, model)
        with pytest.raises(NonFinite, match=rf"confidence of {name} is no finite number on example 14"):
            score_into(run, model, grid.data(), ["gradient", "confidence", "magnitude"])
        assert set(all_scores(run)) == {"gradient", "magnitude"}
    assert f"failed (non-finite): confidence: confidence of {name}" in (shm / "run" / "log.txt").read_text()
    no_nan_is_written(shm / "run")
    assert set(pandas.read_csv(shm / "run" / "scores.csv")["method"]) == {"gradient", "magnitude"}
    monkeypatch.setattr(Confidence, "of_block", real)
    with Run.lead(shm / "run") as run:
        score_into(run, model, grid.data(), ["gradient", "confidence", "magnitude"])
    with Run.lead(shm / "whole") as run:
        described(run, model)
        score_into(run, model, grid.data(), ["gradient", "confidence", "magnitude"])
    assert grid.digest(shm / "run") == grid.digest(shm / "whole") and grid.is_clean(shm / "run")


@pytest.mark.parametrize("bad", BAD)
def test_a_weight_that_is_not_finite_is_told_before_anything_is_computed(shm: Path, bad: float) -> None:
    model = build("encoder")
    with torch.no_grad():
        model.bert.encoder.layer[1].attention.self.query.weight[3, 4] = bad  # type: ignore[union-attr, index]
    with Run.lead(shm / "run") as run:
        described(run, model)
        with pytest.raises(NonFinite, match=r"weight 'bert.encoder.layer.1.attention.self.query.weight' holds 1 of"):
            score_into(run, model, grid.data(), grid.METHODS)
    assert not list((shm / "run").rglob("*.artifact"))
    no_nan_is_written(shm / "run")


@pytest.mark.parametrize("layer", [0, 1])
def test_an_activation_that_is_not_finite_stops_the_pass_and_keeps_the_blocks_before(shm: Path, layer: int) -> None:
    model, seen = build("encoder"), 0

    def spoil(_module: Any, _inputs: Any, output: torch.Tensor) -> torch.Tensor:
        nonlocal seen
        seen += 1
        return output if seen <= 2 else output.index_fill(0, torch.tensor([1]), float("nan"))

    hook = model.bert.encoder.layer[layer].attention.output.dense.register_forward_hook(spoil)  # type: ignore[union-attr, index]
    with Run.lead(shm / "run") as run:
        described(run, model)
        with pytest.raises(NonFinite, match=rf"example 1[2-7] .*first in L{layer}"):
            score_into(run, model, grid.data(), grid.METHODS, ScoreSettings(seed=3))
    assert grid.finished(shm / "run")["chunk"] == {"confidence+gradient 0", "confidence+gradient 6"}
    assert "failed (non-finite)" in (shm / "run" / "log.txt").read_text()
    no_nan_is_written(shm / "run")
    hook.remove()
    with Run.lead(shm / "run") as run:
        grid.work(run)
    with Run.lead(shm / "whole") as run:
        grid.work(run)
    assert grid.digest(shm / "run") == grid.digest(shm / "whole")


@pytest.mark.parametrize("method", ["gradient", "evaluation"])
@pytest.mark.parametrize("bad", BAD)
def test_a_loss_that_is_not_finite_names_the_example(shm: Path, bad: float, method: str) -> None:
    def loss(output: Any, batch: Any) -> torch.Tensor:
        losses = torch.nn.functional.cross_entropy(output.logits, batch["labels"], reduction="none")
        odd = (batch["input_ids"] == 101).any(-1)
        return torch.where(odd, torch.full_like(losses, bad), losses)

    rows = [dict(row) for row in grid.data().calibration]
    rows[9] = {"input_ids": [101], "labels": 1}
    model, data = build("encoder"), task("encoder", rows=rows, loss=loss)
    with Run.lead(shm / "run") as run:
        described(run, model)
        with pytest.raises(NonFinite, match=r"the loss of example 9 is"):
            if method == "gradient":
                score_into(run, model, data, ["gradient"])
            else:
                evaluate_into(run, "whole", model, data)
    assert len(list((shm / "run").rglob("*.artifact"))) == 1, "the block before"
    no_nan_is_written(shm / "run")


def test_a_lack_of_memory_in_a_run_that_is_stopped(shm: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The batch size that it fell to is kept with the blocks, so that the run ends in the same bytes."""
    model = build("encoder")
    forward, real = model.forward, Gradient.of_block

    def narrow(*args: Any, **inputs: Any) -> Any:
        if inputs["input_ids"].shape[0] > 2:
            raise RuntimeError("DefaultCPUAllocator: can't allocate memory")
        return forward(*args, **inputs)

    monkeypatch.setattr(model, "forward", narrow)

    def leading(folder: Path, stop: int | None = None) -> Callable[[], None]:
        def run() -> None:
            with Run.lead(folder) as made:
                described(made, model)
                score_into(made, model, grid.data(), ["gradient"])
                evaluate_into(made, "whole", model, grid.data())

        return run

    leading(shm / "whole")()
    assert real is Gradient.of_block and all_scores(Run.open(shm / "whole"))["gradient"].conditions["batch_size"] == 1
    for position in (40, 50, 60, 90):
        died = grid.start(leading(shm / f"run{position}"), grid.at(position, grid.crash)).wait()
        assert died.code == -9
        grid.finish(shm / f"run{position}", leading(shm / f"run{position}"))
        assert grid.digest(shm / f"run{position}") == grid.digest(shm / "whole"), position
    score = hc.score(shared("encoder"), grid.data(), "gradient", batch_size=1)
    np.testing.assert_allclose(score.values, all_scores(Run.open(shm / "whole"))["gradient"].values, rtol=1e-12)
