"""Ten thousand artifacts: what it costs to commit, to open and to take up a run; and a run under torchrun of which one process dies."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import grid
import numpy as np
import pytest

from headcount.runs.artifacts import ArtifactKey
from headcount.runs.store import Run

RESUMING = """
import json, sys, time
from pathlib import Path
import numpy as np
from headcount.runs.store import Run
from headcount.runs.artifacts import ArtifactKey
folder, number = Path(sys.argv[1]), int(sys.argv[2])
def peak():  # of this program alone: ru_maxrss would be that of the process which started it
    return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmHWM")) / 1024
base, computed, start = peak(), 0, time.monotonic()
def compute():
    global computed
    computed += 1
    return {"value": 1.0}, {"values": np.arange(12.0)}
with Run.lead(folder) as run:
    for place in range(number):
        run.find_or_compute(ArtifactKey("synthetic", f"artifact {place}", {"place": place}), compute, provenance={})
resumed = time.monotonic() - start
start = time.monotonic()
opened = len(Run(folder).artifacts("synthetic"))
print(json.dumps({"resumed": resumed, "opened": time.monotonic() - start, "artifacts": opened, "computed": computed, "torch": "torch" in sys.modules,
                  "memory": peak() - base}))
"""


def commit(folder: Path, number: int) -> float:
    """Commits small artifacts; seconds for each."""
    with Run.lead(folder) as run:
        start = time.monotonic()
        for index in range(number):
            run.commit(
                ArtifactKey("synthetic", f"artifact {index}", {"place": index}), {"value": 1.0}, {"values": np.arange(12.0)}, provenance={}
            )
        return (time.monotonic() - start) / number


def resume(folder: Path, number: int) -> dict[str, float]:
    """Opens and takes up a run of so many artifacts, of which one is missing, in a fresh process."""
    next(folder.glob("artifacts/synthetic/artifact.7.*")).unlink()
    outcome = subprocess.run(
        [sys.executable, "-c", RESUMING, str(folder), str(number)], capture_output=True, text=True, check=False, timeout=300
    )
    assert outcome.returncode == 0, outcome.stderr
    content = json.loads(outcome.stdout)
    assert (content["computed"], content["artifacts"], content["torch"]) == (1, number, False)
    return content


def test_a_thousand_artifacts(shm: Path) -> None:
    commit(shm / "run", 1000)
    resumed = resume(shm / "run", 1000)
    assert resumed["resumed"] < 20 and resumed["memory"] < 100, resumed


@pytest.mark.faults
def test_ten_thousand_artifacts(shm: Path, tmp_path: Path, figure: Callable[..., None]) -> None:
    in_memory = commit(shm / "run", 10_000)
    resumed = resume(shm / "run", 10_000)
    on_disk = commit(tmp_path / "run", 500)
    assert resumed["resumed"] < 120 and resumed["memory"] < 256, resumed
    figure(
        "artifacts",
        artifacts=10_000,
        commit_memory=in_memory,
        commit_disk=on_disk,
        **{k: resumed[k] for k in ("resumed", "opened", "memory")},
    )


LAUNCHED = """
import os, signal, sys
sys.path[:0] = sys.argv[1:3]
import torch; torch.set_num_threads(1)
from pathlib import Path
import grid
from contextlib import nullcontext
from headcount.data import stream
from headcount.runs.store import Run
from headcount.importance.settings import ScoreSettings
from headcount.workflows.score import score_into
from headcount.runs.describe import describe_run
from headcount.models.provenance import model_record
import headcount as hc
from toys import shared
rank, place = int(os.environ["RANK"]), int(sys.argv[4])
with grid.small_chunks():
    measure, seen = stream._measure_within_memory, 0
    def counted(*given):
        global seen
        seen += 1
        if rank == 1 and seen == place:
            os.kill(os.getpid(), signal.SIGKILL)
        return measure(*given)
    stream._measure_within_memory = counted
    model, data = shared("encoder"), grid.data(96)
    with Run.lead(Path(sys.argv[3])) if rank == 0 else nullcontext() as run:
        if run is not None:
            run.stage_records(describe_run(model_record(model, "toy"), command=grid.COMMAND, seed=3), hc.HeadMap.of(model))
        score_into(run, model, data, grid.METHODS, ScoreSettings(seed=3))
    Path(f"{sys.argv[3]}.{rank}").write_text(str(seen))
"""


@pytest.mark.faults
def test_a_process_of_torchrun_dies_and_the_run_goes_on(shm: Path, figure: Callable[..., None]) -> None:
    script, here = shm / "work.py", Path(__file__).parent
    script.write_text(LAUNCHED)

    def launch(folder: Path, position: int, number: int = 2) -> subprocess.CompletedProcess[str]:
        torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(number), str(script)]
        words = [*torchrun, str(here), str(here.parent / "support"), str(folder), str(position)]
        return subprocess.run(words, capture_output=True, text=True, check=False, timeout=300, env={**os.environ, "OMP_NUM_THREADS": "1"})

    died = launch(shm / "run", 5)
    assert died.returncode != 0 and f"Signal {signal.SIGKILL.value}" in died.stderr, died.stderr[-2000:]
    count = len(grid.finished(shm / "run")["chunk"])
    assert count >= 8, count
    again = launch(shm / "run", 0)
    assert again.returncode == 0, again.stderr[-2000:]
    computed = sum(int((shm / f"run.{rank}").read_text()) for rank in (0, 1))
    assert computed == 16 - count
    alone = launch(shm / "alone", 0, 1)
    assert alone.returncode == 0, alone.stderr[-2000:]
    assert grid.digest(shm / "run") == grid.digest(shm / "alone") and grid.is_clean(shm / "run")
    figure("torchrun", deaths=1, kept=count)
