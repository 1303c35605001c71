"""Verification of the files of a run or of a saved model, for `headcount check`. Imports torch, so the command imports it in its body."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from headcount.core.files import Problem, read_json
from headcount.models.archs import cut_record as record
from headcount.pruning.training.trainer import checkpoints, damage_of
from headcount.runs.check import RunCheck
from headcount.surgery.manifest import NAME, problems_of_folder


def verify_run(folder: Path) -> tuple[list[Problem], int]:
    """Returns the problems of a run folder and the number of files that were read."""
    check = RunCheck(folder, problems_of_folder)
    return [*check.problems(), *_verify_training(folder)], check.checked


def _verify_training(folder: Path) -> Iterator[Problem]:
    """Yields the problems of the checkpoints of unfinished trainings."""
    trainings = sorted({path.parent for path in (folder / "work").rglob("checkpoint-*")})
    for path in (checkpoint for training in trainings for checkpoint in checkpoints(training)):
        if (damage := damage_of(path)) is not None:
            text = f"{path} is damaged ({damage}); the training command moves it away and resumes from an earlier one"
            yield Problem("damaged", str(path.relative_to(folder)), text)


def verify_model(folder: Path) -> tuple[list[Problem], int]:
    """Returns the problems of a model that headcount saved and its number of files; none for other models, which have no hashes."""
    if not (folder / NAME).exists():
        config = read_json(folder / "config.json") if (folder / "config.json").is_file() else {}
        if not (isinstance(config, dict) and config.get(record.KEY)):
            return [], 0
    return list(problems_of_folder(folder)), sum(path.is_file() for path in folder.iterdir())
