"""Runs a script in several processes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path


def run_in_two_processes(script: object, *arguments: object) -> subprocess.CompletedProcess[str]:
    """Runs a script in two processes under torchrun; it can import the modules of this folder."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(script), *map(str, arguments)]
    path = os.pathsep.join(filter(None, [str(Path(__file__).parent), os.environ.get("PYTHONPATH")]))
    environment = {**os.environ, "PYTHONPATH": path}
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=300, env=environment)
