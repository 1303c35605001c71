"""Two real processes: gates under DDP, the training of a cut model with an empty block, and scores that are those of one process to the bit."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from forks import run_in_forks
from scoring import bits
from torchrun import run_in_two_processes
from toys import saved_classifier, saved_table

from headcount.app.main import main
from headcount.runs.store import Run

SCORING = Path(__file__).parents[1] / "support" / "scoring.py"
METHODS = ("gradient", "gradient:running", "ablation", "ablation:mean", "confidence", "fluctuation", "magnitude")
WORK = """
import torch, torch.distributed as dist
torch.set_num_threads(1)
import headcount as hc
from headcount.models.dummy_inputs.text import probe_inputs
from headcount.models.gates import floating_point_outputs
from headcount.testing.laws import emptying_plan
from headcount.models.tiny.build import tiny_model

dist.init_process_group("gloo")
model = tiny_model("bert", auto="AutoModelForSequenceClassification")
small = hc.cut(model, emptying_plan(hc.HeadMap.of(model).blocks[0])).train()
wrapped = torch.nn.parallel.DistributedDataParallel(small)
optimiser = torch.optim.SGD(wrapped.parameters(), 1e-2)
batch = probe_inputs(small, seed=dist.get_rank())
start = torch.cat([p.detach().flatten().clone() for p in small.parameters()])
for _ in range(3):
    optimiser.zero_grad()
    floating_point_outputs(wrapped(**batch))[0].square().sum().backward()
    optimiser.step()
weights = torch.cat([p.detach().flatten() for p in small.parameters()])
both = [torch.empty_like(weights) for _ in range(2)]
dist.all_gather(both, weights)
assert torch.equal(*both), "the processes drifted apart"
assert not torch.equal(start, weights), "nothing was trained"
gates = torch.full((len(hc.HeadMap.of(wrapped)),), 0.5, dtype=torch.float64, requires_grad=True)
with hc.HeadGates(wrapped, gates):
    floating_point_outputs(wrapped(**batch))[0].square().sum().backward()
assert bool((gates.grad != 0).all()), "a gate has no gradient"
dist.destroy_process_group()
"""


def test_two_processes(tmp_path: Path) -> None:
    script = tmp_path / "work.py"
    script.write_text(WORK)
    outputs = run_in_forks(script)
    assert outputs.returncode == 0, outputs.stderr[-2000:]


def test_scores_of_two_processes_are_those_of_one_to_the_bit(tmp_path: Path) -> None:
    """Also: a bad example of one process is an error of both, and a defect in one ends both."""
    outputs = run_in_two_processes(SCORING, "scores", tmp_path / "found", *METHODS)
    alone, both = bits(*METHODS), [json.loads((tmp_path / f"found.{rank}").read_text()) for rank in (0, 1)]
    assert alone["gradient"]["n"] == 300
    for actual in both:
        assert "example 150: label 17 is none of the model's 3" in actual.pop("error")
        assert actual.keys() == alone.keys() == {*METHODS, "lrp", "raced", "evaluation"}
        for name, result in alone.items():
            assert actual[name] == result, name
    assert outputs.returncode != 0
    assert "ZeroDivisionError: a defect of the task" in outputs.stderr


def test_one_process_speaks_and_writes_for_all(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model, data = saved_classifier(tmp_path / "model"), saved_table(tmp_path / "data.csv")
    common = ["score", str(model), "--train", str(data), "--by"]
    good = [*common, "gradient,magnitude", "--out"]
    bad = [*common, "ablation", "--adaptive", "99", "--out", str(tmp_path / "none")]
    lines = [[*good, str(tmp_path / "two")], ["score", str(model), "--by", "magnitude,random", "--out", str(tmp_path / "two")], bad]
    (tmp_path / "lines.json").write_text(json.dumps(lines))
    outputs = run_in_two_processes(SCORING, "commands", tmp_path / "lines.json", tmp_path / "codes")
    assert outputs.returncode == 0, outputs.stderr[-2000:]
    assert [json.loads((tmp_path / f"codes.{rank}").read_text()) for rank in (0, 1)] == [[0, 0, 1]] * 2
    assert main([*good, str(tmp_path / "one")]) == 0
    assert outputs.stdout.startswith(capsys.readouterr().out)
    for note in ("task classification", "kept in ", "next: headcount study transfer"):
        assert outputs.stderr.count(note) == 2, outputs.stderr
    first, second = (Run.open(tmp_path / run) for run in ("one", "two"))
    assert first.results("scores")["gradient"].content == second.results("scores")["gradient"].content
    assert set(second.results("scores")) == {"gradient", "magnitude", "random"}
    assert "error: adaptive must be from 1 to 11, fewer than the 12 units of the model; got 99" in outputs.stderr
    assert not (tmp_path / "none").exists()
