"""A small classifier and a table for it, on disk, for tests of the command line."""

from __future__ import annotations

from pathlib import Path

import pytest
from toys import saved_classifier, saved_table


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a classifier."""
    return saved_classifier(tmp_path_factory.mktemp("models") / "bert")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A table of texts and labels."""
    return saved_table(tmp_path_factory.mktemp("data") / "data.csv")
