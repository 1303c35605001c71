"""The names of files in a run folder, and how a folder is recognised and prepared as one."""

from __future__ import annotations

from pathlib import Path

from headcount.core.errors import ArtifactError
from headcount.core.files import check_writable, is_file, is_folder, make_folder
from headcount.runs.artifacts import SUFFIX, safe_name
from headcount.runs.lock import LOCK

RUN, HEADS, LOG, ARTIFACTS, QUARANTINE, MODELS = "run.json", "heads.json", "log.txt", "artifacts", "quarantine", "models"
RESULT_KINDS = ("scores", "damage", "roles", "profiles", "evaluation", "pruned")
"""Kinds of artifacts that are results of the run's model."""


def is_run(folder: Path) -> bool:
    """Whether a folder holds a run, or one that is being started."""
    return is_file(folder / RUN) or is_file(folder / LOCK) or is_folder(folder / ARTIFACTS)


def create_run_folder_if_missing(folder: Path) -> bool:
    """Creates the folder of a run if it does not exist; returns whether it is new."""
    try:
        is_new = not folder.exists()
        if not is_run(folder):
            _check_new_run_folder(folder)
    except OSError as error:
        raise ArtifactError(f"{folder} cannot hold a run: {error}") from error
    make_folder(folder)
    return is_new


def _check_new_run_folder(folder: Path) -> None:
    if folder.exists() and not folder.is_dir():
        raise ArtifactError(f"{folder} is a file; name a folder for the run")
    check_writable(folder)
    if folder.exists() and any(folder.iterdir()):
        raise ArtifactError(f"{folder} is not empty and holds no run; name another folder")


def artifact_path_of_title(title: str, digest: str) -> Path:
    """Returns the path of the artifact that run.json lists under the title `kind/name`."""
    kind, _, name = title.partition("/")
    return Path(ARTIFACTS) / safe_name(kind) / f"{safe_name(name)}.{digest[:24]}{SUFFIX}"
