"""The log of a training of gates."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from headcount.core.errors import OptionError
from headcount.core.training_log import LoggedTraining
from headcount.pruning.base import Pruner
from headcount.pruning.recipe import Recipe
from headcount.pruning.spec import PruneSpec
from headcount.runs.training_log import read_training
from headcount.studies._base import Effort, StudyContext
from headcount.studies._grid import estimate_grid_effort, make_pruning, run_grid
from headcount.studies._results import describe_study_run

if TYPE_CHECKING:
    from headcount.studies.training_log import TrainingLog


def build_request(study: TrainingLog, context: StudyContext) -> PruneSpec:
    """Returns the request of the pruned model of a study."""
    recipe = Recipe(steps=study.steps, rate=study.rate, train_batch=study.train_batch)
    pruner = Pruner.parse(study.method)
    if not pruner.info.trains:
        raise OptionError(f"{study.method} trains no gates; name dsp or l0")
    return PruneSpec.of(pruner, None if pruner.sizing_option_text else study.keep, repair=False, recipe=recipe, seed=context.seed)


def estimate_effort(study: TrainingLog, context: StudyContext) -> Effort:
    """Returns the training, and the evaluations of both models."""
    return estimate_grid_effort(context, [build_request(study, context)])


def train_and_read_log(study: TrainingLog, context: StudyContext) -> LoggedTraining:
    """Trains the gates of a study, unless the run holds them, and returns the entries of its log that have gates."""
    describe_study_run(context, context.loaded, {"study": study.name, "method": study.method})
    grid = run_grid(context, make_pruning(context), [build_request(study, context)])
    training = read_training(grid.points[0].artifacts[0], len(grid.heads))
    steps = tuple(step for step in training.steps if step.gates)
    if not steps:
        raise OptionError(f"{study.method} logs no gates; name dsp or l0")
    return replace(training, steps=steps)
