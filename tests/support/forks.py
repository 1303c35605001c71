"""Runs a script in forks of this process, which has imported torch already, with the variables that torchrun sets."""

from __future__ import annotations

import os
import runpy
import signal
import socket
import subprocess
import sys
import time
import traceback
import warnings
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO

from accelerate.state import AcceleratorState

SUPPORT = str(Path(__file__).parent)
LIMIT = 300.0
"""Seconds after which processes are killed."""


def run_in_forks(script: object, *arguments: object, processes: int = 2) -> subprocess.CompletedProcess[str]:
    """Runs a script in so many processes, which find each other as under torchrun if they are several; it can import the modules of this folder.

    When one of them fails, the others are killed, as torchrun does, and the exit code is that of the first.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    words = [str(script), *map(str, arguments)]
    with TemporaryFile("w+") as out, TemporaryFile("w+") as err:
        children = [_start(words, _variables(rank, processes, port) if processes > 1 else {}, out, err) for rank in range(processes)]
        code = _wait(children)
        out.seek(0), err.seek(0)
        return subprocess.CompletedProcess(words, code, out.read(), err.read())


def _variables(rank: int, processes: int, port: int) -> dict[str, str]:
    ranks = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": processes, "LOCAL_WORLD_SIZE": processes, "MASTER_PORT": port}
    return {"MASTER_ADDR": "127.0.0.1", **{name: str(value) for name, value in ranks.items()}}


def _wait(children: list[int]) -> int:
    """Waits for all processes; kills them when one fails or time is over. The first exit code that is not 0."""
    running, code, end = list(children), 0, time.monotonic() + LIMIT
    while running:
        for child in running[:]:
            ended, status = os.waitpid(child, os.WNOHANG)
            if ended:
                running.remove(child)
                code = code or os.waitstatus_to_exitcode(status)
        if running and (code or time.monotonic() > end):
            code = code or 1
            for child in running:
                os.kill(child, signal.SIGKILL)
        time.sleep(0.005)
    return code


def _start(words: list[str], variables: dict[str, str], out: IO[str], err: IO[str]) -> int:
    """Starts one process and returns its number."""
    child = os.fork()
    if child:
        return child
    code = 1
    try:
        os.dup2(out.fileno(), 1)
        os.dup2(err.fileno(), 2)
        sys.stdout, sys.stderr = os.fdopen(1, "w", buffering=1), os.fdopen(2, "w", buffering=1)
        os.environ.update(variables)
        AcceleratorState._reset_state(reset_partial_state=True)  # which says that this process is the only one
        sys.argv, sys.path = words, [SUPPORT, *sys.path]
        warnings.resetwarnings()
        runpy.run_path(words[0], run_name="__main__")
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
