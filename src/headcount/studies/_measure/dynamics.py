"""The pruning curve of every checkpoint of a training."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING

from headcount.core.errors import ArtifactError
from headcount.core.evaluation import Evaluation
from headcount.core.files import is_file, is_folder
from headcount.core.normalisation import Scaling
from headcount.core.plan import Plan
from headcount.core.scores import SCALED, Scores
from headcount.core.stats.significance import single_interval_level
from headcount.data.evaluate import fingerprint_of_examples
from headcount.data.share_above_chance import (
    Share,
    ShareBound,
    bound_share_above_chance_left,
    score_of_best_constant_answer,
    share_above_chance_left,
)
from headcount.data.task import Task, task_key
from headcount.importance.base import Importance
from headcount.importance.settings import ScoreSettings
from headcount.models.provenance import model_key, rounding_provenance
from headcount.models.state import copy_model
from headcount.pruning.recipe import Recipe
from headcount.pruning.repair.repair import refit
from headcount.pruning.training.fine_tune import fine_tune, reset_weights
from headcount.pruning.training.trainer import list_finished_checkpoints as checkpoint_folders
from headcount.runs.artifacts import ArtifactKey, safe_name
from headcount.studies._base import LoadedModel, StudyContext
from headcount.studies._gated import PairedChange, allow_other_model, evaluate_without, list_kept_counts, measure_paired_change
from headcount.studies._results import describe_study_run
from headcount.surgery.save import save
from headcount.surgery.source import local_folder
from headcount.workflows.score import score_into

if TYPE_CHECKING:
    from headcount.studies.dynamics import Dynamics

KIND, MODELS, WORK = "tuned", "models", "work"
SAVED = (0.02, 0.05, 0.1, 0.2, 0.4, 0.7, 1.0)
"""The shares of all steps after which a training is saved."""
SCORED = 512
"""Examples of the calibration split that rank the heads of a checkpoint."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A model folder of a training, the step at which it was saved, if known, and its label in tables."""

    name: str
    step: int | None
    label: str = ""


def resolve_checkpoints(names_or_folder: Sequence[str]) -> list[Checkpoint]:
    """Returns the named checkpoints, or those in the one named folder, by step; without known steps, in the order of their names.

    Raises:
        ArtifactError: there are fewer than two.
    """
    folder, names = Path(names_or_folder[0]), list(names_or_folder)
    if len(names) == 1 and not is_file(folder / "config.json"):
        if not is_folder(folder):
            raise ArtifactError(f"{folder} is no folder; name a folder of checkpoints, or several model folders")
        names = [str(path) for path in checkpoint_folders(folder) if (path / "config.json").is_file()]
        if len(names) < 2:
            raise ArtifactError(
                f"{folder} holds {len(names)} checkpoints (folders checkpoint-N with a model), and a training takes two or more; "
                "train with save_strategy='epoch', or name several model folders"
            )
    if len(names) < 2:
        raise ArtifactError(f"{folder} is one model; name a folder of checkpoints, or several model folders")
    named_checkpoints = [
        Checkpoint(name, training_step_of_checkpoint(Path(name)), label)
        for name, label in zip(names, shorten_to_distinct_paths(names), strict=True)
    ]
    if any(checkpoint.step is None for checkpoint in named_checkpoints):
        return named_checkpoints
    return sorted(named_checkpoints, key=lambda checkpoint: checkpoint.step or 0)


def shorten_to_distinct_paths(paths: Sequence[str]) -> list[str]:
    """Returns the last part of every path if these differ, else as many of the last parts as tell all of them apart.

    Raises:
        ArtifactError: two names are the same path.
    """
    parts = [Path(name).absolute().parts for name in paths]
    repeated = next((name for name, path in zip(paths, parts, strict=True) if parts.count(path) > 1), None)
    if repeated is not None:
        raise ArtifactError(f"{repeated} is named twice; name every checkpoint once")
    number = next(n for n in range(1, max(map(len, parts)) + 1) if len({path[-n:] for path in parts}) == len(parts))
    return [str(Path(*path[-number:])) for path in parts]


def training_step_of_checkpoint(folder: Path) -> int | None:
    """Returns the step of a checkpoint as the Trainer noted it, or from the end of the folder's name; None if neither has it."""
    state = folder / "trainer_state.json"
    if state.is_file():
        try:
            return int(json.loads(state.read_text(encoding="utf-8"))["global_step"])
        except (ValueError, KeyError, TypeError) as error:
            raise ArtifactError(f"{state} does not tell the step of its checkpoint: {error}") from error
    number = folder.name.rpartition("-")[2]
    return int(number) if number.isdecimal() else None


@dataclass(frozen=True, slots=True)
class CheckpointRow:
    """A checkpoint with `keep` of its heads: loss and metric, their change from the dense checkpoint, and the share of its score that remains.

    The intervals of changes and shares hold for all sizes of the checkpoint together; `bound` says of this size what share remains at least.
    """

    checkpoint: Checkpoint
    keep: int
    removed: float
    loss: float
    value: float | None
    drop: PairedChange
    share: Share
    bound: ShareBound

    def to_dict(self) -> dict[str, object]:
        """Returns the row as plain data."""
        names = {"step": self.checkpoint.step, "checkpoint": self.checkpoint.label, "keep": self.keep, "removed": self.removed}
        scores = {"loss": self.loss, "value": self.value}
        bound = {"remaining at least": self.bound.at_least, "certified": self.bound.is_certified, "undecided because": self.bound.reason}
        return {**names, **scores, **self.drop.to_dict(), **self.share.to_dict(), **bound, "p": self.drop.score.p}


@dataclass(frozen=True, slots=True)
class CheckpointSummary:
    """A dense checkpoint, and the largest share of its heads that can go while `hold` of its score remains.

    Attributes:
        certified: The largest share of the heads for which that is certified: sizes are tested from large to small, each at 95 %, up to the first
            that fails.
        tested: The shares of the heads that were tested, in order.
        removable: The same by what was observed alone, without a bound. It and `certified` are None where the share of the score is not defined;
            `reason` says why.
    """

    checkpoint: Checkpoint
    dense: Evaluation
    chance: float | None
    hold: float
    certified: float | None
    tested: tuple[float, ...]
    removable: float | None
    reason: str

    def to_dict(self) -> dict[str, object]:
        """Returns the summary as plain data."""
        dense = self.dense
        score = {"loss": dense.loss, "metric": dense.metric, "value": dense.value, "chance": self.chance, "n_examples": dense.n_examples}
        ends = {
            "hold": self.hold,
            "certified": self.certified,
            "tested": list(self.tested),
            "removable": self.removable,
            "reason": self.reason,
        }
        return {"checkpoint": self.checkpoint.name, "step": self.checkpoint.step, **score, **ends}


def summarise_curve(checkpoint: Checkpoint, dense: Evaluation, rows: Sequence[CheckpointRow], share_to_hold: float) -> CheckpointSummary:
    """Returns the summary of the pruning curve of a checkpoint."""
    share, ordered = rows[0].share, sorted(rows, key=lambda row: row.removed)
    if share.remaining is None:
        return CheckpointSummary(checkpoint, dense, share.chance, share_to_hold, None, (), None, share.reason)
    observed = list(takewhile(lambda row: (row.share.remaining_low_high[0] or 0.0) >= share_to_hold, ordered))
    passed = list(takewhile(lambda row: row.bound.is_certified, ordered))
    certified, removable = (held[-1].removed if held else 0.0 for held in (passed, observed))
    tested = tuple(row.removed for row in ordered[: len(passed) + 1])
    return CheckpointSummary(checkpoint, dense, share.chance, share_to_hold, certified, tested, removable, share.reason)


@dataclass(frozen=True, slots=True)
class CheckpointCurves:
    """The pruning curves of all checkpoints: the importance that ranked the heads and its normalisation, a summary each, and all rows."""

    by: str
    normalise: Scaling
    checkpoints: list[CheckpointSummary]
    rows: list[CheckpointRow]

    @property
    def normalisation_in_words(self) -> str:
        """How the scores that ranked the heads were normalised, in words."""
        return SCALED[self.normalise]


def measure_checkpoints(study: Dynamics, context: StudyContext) -> CheckpointCurves:
    """Returns the share of its own score above chance that every checkpoint keeps at every number of heads."""
    importance = Importance.parse(study.by)
    by, normalise = str(importance), importance.info.normalise
    checkpoints = train_checkpoints(study, context) if study.train_steps is not None else list_study_checkpoints(study, context)
    describes_model = study.train_steps is not None or context.required_run.has_records_of_model(
        context.model_name
    )  # as in the run of a paper
    rows: list[CheckpointRow] = []
    summaries: list[CheckpointSummary] = []
    keeps: list[int] = []
    for number, checkpoint in enumerate(checkpoints, 1):
        loaded = context.sources.load_model(checkpoint.name)
        if not keeps:
            keeps = list_kept_counts(study.keep, loaded.heads, [share / 10 for share in range(9, 0, -1)])
            unscored = Scores(loaded.heads.heads, (0.0,) * len(loaded.heads), units=loaded.heads.units())
            for keep in keeps:
                Plan.keep_top(unscored, keep)  # raises PlanError for a number of heads that no plan can keep, before any work
            config = {"study": study.name, "keep": keeps, "by": by, "repair": study.repair, "limit": context.limit}
            describe_study_run(context, context.loaded if describes_model else loaded, config)
        with_tokenizer = loaded if study.tokenizer is None else replace(loaded, folder=local_folder(study.tokenizer))
        if study.train_steps is not None and study.tokenizer is None:
            with_tokenizer = replace(loaded, folder=context.loaded.folder)
        task = context.sources.open_task(with_tokenizer)
        with context.progress(f"checkpoint {number} of {len(checkpoints)}"):
            dense, curve = measure_checkpoint_curve(context, loaded, task, checkpoint, keeps, study)
        rows += curve
        summaries.append(summarise_curve(checkpoint, dense, curve, study.hold))
    return CheckpointCurves(by, normalise, summaries, rows)


def list_study_checkpoints(study: Dynamics, context: StudyContext) -> list[Checkpoint]:
    """Returns the checkpoints that a study names.

    Those in a folder of them come first and the model last; a model with further ones comes first.

    Raises:
        ArtifactError: there are fewer than two, a folder of them holds none, or they have different heads.
    """
    expanded: list[str] = []
    for name in study.checkpoints:
        holds_checkpoints = is_folder(Path(name)) and not (Path(name) / "config.json").is_file()
        folders = (
            [str(path) for path in checkpoint_folders(Path(name)) if (path / "config.json").is_file()] if holds_checkpoints else [name]
        )
        if not folders:
            raise ArtifactError(f"{name} holds no checkpoints (folders checkpoint-N with a model); train with save_strategy='epoch'")
        expanded += folders
    model = [context.model_name] if context.model_name else []
    checkpoints = resolve_checkpoints([*model, *expanded] if expanded == list(study.checkpoints) else [*expanded, *model])
    first, *further = ((checkpoint.name, context.sources.read_heads(checkpoint.name)) for checkpoint in checkpoints)
    for name, heads in further:
        if heads.heads != first[1].heads:
            raise ArtifactError(
                f"{name} has other heads than {first[0]} ({len(heads)} and {len(first[1])}); name checkpoints of one training"
            )
    return checkpoints


def choose_steps_to_save(n_steps: int) -> list[int]:
    """Returns the steps at which a training of so many steps is saved, dense at the start."""
    return sorted({max(1, round(share * n_steps)) for share in SAVED})


def train_checkpoints(study: Dynamics, context: StudyContext) -> list[Checkpoint]:
    """Trains a copy of the model of a study, its weights drawn anew unless it starts from the model, and returns its checkpoints.

    The run keeps them; a training that was stopped goes on.
    """
    assert study.train_steps is not None
    run, loaded, task = context.required_run, context.loaded, context.task
    recipe = Recipe(steps=study.train_steps, rate=study.rate, train_batch=study.train_batch)
    data = fingerprint_of_examples(task, "calibration")
    request = {"recipe": recipe.to_dict(), "start": study.start, "seed": context.seed}
    key = ArtifactKey(KIND, f"training of {loaded.name}", {**model_key(loaded.model), **task_key(task), "data": data, **request})
    steps = choose_steps_to_save(study.train_steps)
    folders = {step: run.folder / MODELS / f"{safe_name(loaded.name)}-step-{step}.{key.digest[:8]}" for step in steps}
    if run.find(key) is None or any(run.problem_of_saved_model(folder.name) is not None for folder in folders.values()):
        describe_study_run(context, loaded, {"study": study.name, "train_steps": study.train_steps})
        model = copy_model(loaded.model)
        if study.start == "scratch":
            reset_weights(model, context.seed)

        def save_checkpoint_if_due(step: int) -> None:
            if step in folders:
                save(copy_model(model).eval(), folders[step], command=context.command, tokenizer=loaded.folder, overwrite=True)

        work = run.folder / WORK / key.digest[:24]
        with context.progress(f"training {loaded.name}") as advance:
            fine_tune(model, task, recipe, seed=context.seed, folder=work, after_step=save_checkpoint_if_due, progress=advance)
        for folder in folders.values():
            run.register_saved_model(folder)
        run.commit(key, {"folders": [folder.name for folder in folders.values()], "steps": steps}, provenance=rounding_provenance())
        shutil.rmtree(work, ignore_errors=True)
    return [Checkpoint(str(folder), step, f"step {step}") for step, folder in folders.items()]


def measure_checkpoint_curve(
    context: StudyContext,
    loaded: LoadedModel,
    task: Task,
    checkpoint: Checkpoint,
    kept_counts: Sequence[int],
    study: Dynamics,
) -> tuple[Evaluation, list[CheckpointRow]]:
    """Returns the dense checkpoint on the report split, and a row for each number of heads: the share that remains of its score above chance."""
    run, model, seed, limit, batch_size = context.run, loaded.model, context.seed, context.limit, context.batch_size
    allow_other_model(run, model)
    settings = ScoreSettings(seed=seed, limit=min(SCORED, limit or SCORED), batch_size=batch_size)
    (scores,) = score_into(run, model, task, [str(Importance.parse(study.by))], settings).values()
    dense = evaluate_without(run, f"{checkpoint.label}: dense", model, task, (), limit=limit, batch_size=batch_size)
    chance = score_of_best_constant_answer(model, task, limit)
    rows, level = [], single_interval_level(len(kept_counts))
    for n_kept in kept_counts:
        plan = Plan.keep_top(scores, n_kept)
        pruned_model = refit(model, plan, task).model if study.repair else model
        name = f"{checkpoint.label}: {n_kept} heads by {scores.label}{', repaired' if study.repair else ''}"
        pruned = evaluate_without(run, name, pruned_model, task, plan.removed, limit=limit, batch_size=batch_size)
        drop = measure_paired_change(dense, pruned, task, seed=seed, level=level)
        share = share_above_chance_left(dense, pruned, task, chance, seed=seed, level=level)
        bound = bound_share_above_chance_left(share, dense, pruned, task, study.hold, seed=seed)
        rows.append(CheckpointRow(checkpoint, n_kept, len(plan.removed) / len(scores.heads), pruned.loss, pruned.value, drop, share, bound))
    return dense, rows
