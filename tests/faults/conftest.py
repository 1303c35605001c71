"""Faults on purpose: a small run on a RAM disk is crashed, starved, killed and corrupted, and must always end in the same bytes.

Everything here runs a few times in `make test`, and as often as docs/faults.md says in `make test-faults` (the marker `faults`).
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

FIGURES = Path(__file__).parents[2] / "build" / "faults"


@pytest.fixture
def shm() -> Iterator[Path]:
    """A folder in memory, where the system has one."""
    memory = Path("/dev/shm")
    folder = Path(tempfile.mkdtemp(prefix="headcount-", dir=memory if os.access(memory, os.W_OK) else None))
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def figure() -> Callable[..., None]:
    """Keeps a row of the table in docs/faults.md."""

    def keep(name: str, **values: Any) -> None:
        FIGURES.mkdir(parents=True, exist_ok=True)
        (FIGURES / f"{name}.json").write_text(json.dumps(values))

    return keep
