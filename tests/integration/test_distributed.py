"""Two real processes: gates under DDP, and the training of a cut model with an empty block."""

from __future__ import annotations

import subprocess
import sys

WORK = """
import torch, torch.distributed as dist
torch.set_num_threads(1)
import headcount as hc
from headcount.archs.inputs import probe_inputs
from headcount.gates import output_tensors
from headcount.testing.laws import emptying
from headcount.testing.shrink import tiny_model

dist.init_process_group("gloo")
model = tiny_model("bert", auto="AutoModelForSequenceClassification")
small = hc.cut(model, emptying(hc.HeadMap.of(model).blocks[0])).train()
wrapped = torch.nn.parallel.DistributedDataParallel(small)
optimiser = torch.optim.SGD(wrapped.parameters(), 1e-2)
batch = probe_inputs(small, seed=dist.get_rank())
start = torch.cat([p.detach().flatten().clone() for p in small.parameters()])
for _ in range(3):
    optimiser.zero_grad()
    output_tensors(wrapped(**batch))[0].square().sum().backward()
    optimiser.step()
weights = torch.cat([p.detach().flatten() for p in small.parameters()])
both = [torch.empty_like(weights) for _ in range(2)]
dist.all_gather(both, weights)
assert torch.equal(*both), "the processes drifted apart"
assert not torch.equal(start, weights), "nothing was trained"
gates = torch.full((len(hc.HeadMap.of(wrapped)),), 0.5, dtype=torch.float64, requires_grad=True)
with hc.HeadGates(wrapped, gates):
    output_tensors(wrapped(**batch))[0].square().sum().backward()
assert bool((gates.grad != 0).all()), "a gate has no gradient"
dist.destroy_process_group()
"""


def test_two_processes(tmp_path) -> None:
    script = tmp_path / "work.py"
    script.write_text(WORK)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(script)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]
