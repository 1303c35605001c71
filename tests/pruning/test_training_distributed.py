"""Two real processes: gates that learn under DDP, and over weights that FSDP shards, are those of one process with the whole batch."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from forks import run_in_forks

WORK = """
import json, os, sys, warnings
from pathlib import Path
sys.path.insert(0, sys.argv[1])
warnings.simplefilter("ignore")
import torch
torch.set_num_threads(1)
import headcount as hc
from toys import build, task
from headcount.core.budget import Budget
from headcount.pruning.base import PruneContext
from headcount.pruning.methods import dsp, l0
from headcount.pruning.training.gates import GateCallback
from headcount.pruning.recipe import Recipe
from headcount.pruning.training.fine_tune import fine_tune
from headcount.pruning.training.trainer import list_finished_checkpoints

found = {}
for name in ("l0", "dsp", "frozen"):
    model = build("encoder")
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    if name == "frozen":
        model.requires_grad_(False)
    data = task("encoder", 32)
    context = PruneContext(model, hc.HeadMap.of(model), data, Budget(keep=4))
    gating = l0.HardConcrete(context, l0.L0(settle=0.0), 4) if name == "l0" else dsp.SubsetGates(context, dsp.DSP(init="none", settle=0.0), 4)
    gates = GateCallback(model, gating)
    more = {} if len(sys.argv) < 5 else json.loads(sys.argv[4])
    folder = Path(sys.argv[2]) / name
    recipe = Recipe(train_batch=8, epochs=2, save_every=4, training_arguments=more)
    made = fine_tune(model, data, recipe, gates=gates, folder=folder if not more else None)
    kept = [path.name for path in list_finished_checkpoints(folder)]
    values = next(iter(gating.parameters.values())).detach().tolist()
    weights = [float(p.detach().double().sum()) for p in model.parameters()]
    processes = torch.distributed.get_world_size() if torch.distributed.is_initialized() else 1
    found[name] = {"steps": made.steps, "gates": values, "weights": weights, "kept": kept, "processes": processes}
Path(f"{sys.argv[3]}.{os.environ.get('RANK', '0')}").write_text(json.dumps(found))
if torch.distributed.is_initialized():
    torch.distributed.destroy_process_group()
"""


SHARDED = """
import json, os, sys
from pathlib import Path
from types import SimpleNamespace
sys.path.insert(0, sys.argv[1])
import torch
import torch.distributed as dist
torch.set_num_threads(1)
import headcount as hc
from toys import build, task
from headcount.core.budget import Budget
from headcount.pruning.methods import dsp
from headcount.pruning.base import PruneContext
from headcount.pruning.training.gates import GateCallback
from headcount.pruning.recipe import Recipe

rank, number = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
model, data = build("encoder"), task("encoder", 32)
for module in model.modules():
    if isinstance(module, torch.nn.Dropout):
        module.p = 0.0
context = PruneContext(model, hc.HeadMap.of(model), data, Budget(keep=4))
gating = dsp.SubsetGates(context, dsp.DSP(init="none", settle=0.0), 4)
gates = GateCallback(model, gating)
if number > 1:
    from torch.distributed.fsdp import fully_shard
    dist.init_process_group("gloo")
    mesh = dist.init_device_mesh("cpu", (number,))
    for layer in model.bert.encoder.layer:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
optimiser = torch.optim.SGD(model.parameters(), 0.1)
where = SimpleNamespace(device=torch.device("cpu"))
model.train()
gates._put_on_model()
for step in range(8):
    now = SimpleNamespace(global_step=step, max_steps=8)
    gates.on_step_begin(where, now, now)
    mine = [data.calibration[8 * (step % 4) + place] for place in range(8) if place % number == rank]
    model(**data.collate(mine)).loss.backward()
    gates.on_pre_optimizer_step(where, now, now)
    optimiser.step()
    optimiser.zero_grad()
whole = [p.full_tensor() if number > 1 else p for p in model.parameters()]
found = {"gates": next(iter(gating.parameters.values())).detach().tolist(), "weights": [float(p.detach().double().sum()) for p in whole]}
found["sharded"] = number > 1 and all(p.to_local().numel() <= -(-p.shape[0] // number) * max(1, p.numel() // p.shape[0]) for p in model.parameters())
Path(f"{sys.argv[3]}.{rank}").write_text(json.dumps(found))
if number > 1:
    dist.destroy_process_group()
"""


def launched(tmp_path: Path, processes: int, *words: str, work: str = WORK) -> list[dict[str, Any]]:
    """What each of so many processes found."""
    script, path = tmp_path / "work.py", tmp_path / f"of {processes}"
    script.write_text(work)
    path.mkdir()
    arguments = (Path(__file__).parents[1] / "support", path / "folder", path / "found", *words)
    outcome = run_in_forks(script, *arguments, processes=processes)
    assert outcome.returncode == 0, outcome.stderr[-3000:]
    return [json.loads((path / f"found.{rank}").read_text()) for rank in range(processes)]


def test_two_processes_learn_what_one_does(tmp_path: Path) -> None:
    (alone,) = launched(tmp_path, 1)
    one, two = launched(tmp_path, 2)
    for name, expected in alone.items():
        assert (expected["processes"], one[name]["processes"], two[name]["processes"]) == (1, 2, 2)
        assert one[name]["gates"] == two[name]["gates"], "the processes have the same gates to the bit"
        assert one[name]["weights"] == two[name]["weights"]
        assert one[name]["steps"] == expected["steps"] == 8 and one[name]["kept"] == expected["kept"] == ["checkpoint-4", "checkpoint-8"]
        assert one[name]["gates"] == pytest.approx(expected["gates"], rel=1e-5, abs=1e-7), name
        assert one[name]["weights"] == pytest.approx(expected["weights"], rel=1e-5, abs=1e-5), name


def test_gates_learn_the_same_over_sharded_weights(tmp_path: Path) -> None:
    (alone,) = launched(tmp_path, 1, work=SHARDED)
    one, two = launched(tmp_path, 2, work=SHARDED)
    assert one["sharded"] and two["sharded"], "no process holds all weights"
    assert one["gates"] == two["gates"] and one["weights"] == two["weights"]
    assert one["gates"] == pytest.approx(alone["gates"], rel=1e-4, abs=1e-6)
    assert one["weights"] == pytest.approx(alone["weights"], rel=1e-4, abs=1e-4)
