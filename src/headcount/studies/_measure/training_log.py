"""The log of a training of gates."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import log10
from typing import TYPE_CHECKING

from headcount.core.errors import OptionError
from headcount.pruning.recipe import Recipe
from headcount.pruning.spec import PruneSpec
from headcount.studies._base import StudyContext
from headcount.studies._grid import make_pruning, run_grid
from headcount.studies._results import describe_study_run

if TYPE_CHECKING:
    from headcount.studies.training_log import TrainingLog

NUMBERS = {"loss": "loss", "tau": "log10 tau", "open expected": "expected open heads", "open": "open heads"}
"""The numbers of a log entry that are shown, and their names."""


@dataclass(frozen=True, slots=True)
class LoggedStep:
    """One entry of the log: the gate of every head in that step, and numbers by name."""

    step: int
    gates: tuple[float, ...]
    numbers: Mapping[str, float]


def build_request(study: TrainingLog, context: StudyContext) -> PruneSpec:
    """Returns the request of the pruned model of a study."""
    recipe = Recipe(steps=study.steps, rate=study.rate, train_batch=study.train_batch)
    request = PruneSpec.of(study.method, repair=False, recipe=recipe, seed=context.seed, keep=study.keep)
    if not request.method.info.trains:
        raise OptionError(f"{study.method} trains no gates; name dsp or l0")
    return request


def read_log(study: TrainingLog, context: StudyContext) -> list[LoggedStep]:
    """Trains the gates of a study, unless the run holds them, and returns the entries of its log that have gates."""
    describe_study_run(context, context.loaded, {"study": study.name, "method": study.method})
    grid = run_grid(context, make_pruning(context), [build_request(study, context)])
    log = []
    for entry in grid.points[0].artifacts[0].content["history"]:
        if entry.get("gates"):
            numbers = {NUMBERS[name]: log10(entry[name]) if name == "tau" else float(entry[name]) for name in NUMBERS if name in entry}
            log.append(LoggedStep(int(entry["step"]), tuple(map(float, entry["gates"])), numbers))
    if not log:
        raise OptionError(f"{study.method} logs no gates; name dsp or l0")
    return log
