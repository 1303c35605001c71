"""The example packages, built as wheels and installed into a folder, as `pip install` does without a network."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

PLUGINS = Path(__file__).parents[1] / "plugins"
KINDS = ("importance", "role", "pruner")
Run = Callable[..., subprocess.CompletedProcess[str]]


def install_wheel(source: Path, site: Path, scratch: Path) -> None:
    """Builds a wheel of a package by the backend that its pyproject.toml names, and installs it into a folder."""
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet"]
    offline = ["--no-deps", "--no-index"]
    copied = shutil.copytree(source, scratch / "source" / source.name)
    wheels = scratch / "wheels" / source.name
    subprocess.run([*pip, "wheel", *offline, "--no-build-isolation", "--wheel-dir", wheels, copied], check=True)
    (wheel,) = wheels.glob("*.whl")
    subprocess.run([*pip, "install", *offline, "--no-compile", "--target", site, wheel], check=True)


def run_with(site: Path) -> Run:
    """A function that runs Python in a process of its own which finds the packages of a folder."""
    paths = [str(site), *filter(None, [os.environ.get("PYTHONPATH", "")])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([sys.executable, *words], check=False, capture_output=True, text=True, env=environment)

    return run
