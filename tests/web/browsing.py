"""What tests in a browser share: the views of the page, and what a machine must have."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

VIEWS = ("overview", "pruning", "cost", "head", "attention", "roles", "studies", "papers", "compare", "data")
AXE = Path(__file__).parents[2] / "web" / "node_modules" / "axe-core" / "axe.min.js"


def need(thing: Any, why: str) -> Any:
    """What a test needs; a machine that tests every change has to have it."""
    if not thing:
        if os.environ.get("CI") == "true":
            pytest.fail(why)
        pytest.skip(why)
    return thing
