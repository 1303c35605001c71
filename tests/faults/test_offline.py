"""The network gate: with it the loopback is there and nothing else is."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

TOOL = Path(__file__).parents[2] / "tools" / "offline.py"
PROBE = """
import errno, os, socket
assert os.environ["HEADCOUNT_NETWORK_IS_CUT"] == "1"
server = socket.create_server(("127.0.0.1", 0))
with socket.create_connection(server.getsockname()):
    pass
try:
    socket.create_connection(("192.0.2.1", 80), timeout=5)
except OSError as error:
    print(errno.errorcode[error.errno])
"""


def run(*words: str, path: str | None = None) -> subprocess.CompletedProcess[str]:
    environment = os.environ if path is None else {**os.environ, "PATH": path}
    return subprocess.run([sys.executable, str(TOOL), *words], capture_output=True, text=True, check=False, env=environment)


def test_the_loopback_is_there_and_nothing_else() -> None:
    outcome = run(sys.executable, "-c", PROBE)
    if "cannot be cut off here" in outcome.stderr:
        pytest.skip(outcome.stderr.strip())
    assert (outcome.returncode, outcome.stdout.strip()) == (0, "ENETUNREACH"), outcome.stderr


def test_the_exit_code_is_the_commands() -> None:
    assert run("--if-possible", sys.executable, "-c", "raise SystemExit(7)").returncode == 7


def test_without_unshare_it_says_so(tmp_path: Path) -> None:
    outcome = run(sys.executable, "-c", "", path=str(tmp_path))
    assert (outcome.returncode, outcome.stderr.strip()) == (1, "the network cannot be cut off here: there is no unshare (util-linux)")
    outcome = run("--if-possible", sys.executable, "-c", "print(1)", path=str(tmp_path))
    assert (outcome.returncode, outcome.stdout.strip()) == (0, "1")
    assert "cannot be cut off here" in outcome.stderr


@pytest.mark.skipif("HEADCOUNT_NETWORK_IS_CUT" not in os.environ, reason="for `make test-offline`")
def test_the_whole_suite_runs_without_a_network() -> None:
    assert [name for _, name in socket.if_nameindex()] == ["lo"]
