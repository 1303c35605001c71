from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headcount.core.errors import ArtifactError
from headcount.core.options import option
from headcount.core.plan import Plan
from headcount.core.scores import SCALED, Scores
from headcount.core.study_result import Column, StudyResult, Table, interval_columns
from headcount.importance.settings import ScoreSettings
from headcount.studies._base import LoadedModel, Study, StudyContext, StudyInfo
from headcount.studies._results import keep_rows

if TYPE_CHECKING:
    from headcount.core.evaluation import Evaluation
    from headcount.data.task import Task
    from headcount.models.head_map import HeadMap

SCORED = 512
"""Examples of the calibration split that rank the heads of a checkpoint."""


@dataclass(frozen=True)
class Dynamics(Study):
    """When in training do heads become superfluous? The pruning curve of every checkpoint of a training, as shares of its score above chance.

    Michel et al. 2019 (section 6): in the first epochs every removed head costs; later some can be removed for nothing. Each checkpoint ranks its own
    heads on the calibration split and loses the lowest by gates, without repair by default; the share that remains has a paired bootstrap interval.
    Chance is the score of the best constant answer; a checkpoint that is not above it has no share to lose, and a note says so.
    MODEL is a folder of checkpoints, or the first of several.
    """

    checkpoints: tuple[str, ...] = option((), "Further checkpoints; none if the model names a folder of them")
    _: KW_ONLY
    by: str = option("gradient", "The importance that ranks the heads of each checkpoint")
    keep: tuple[int | float | str, ...] = option((), "How many heads stay: numbers or shares; by default 90%, 80%, …, 10%")
    repair: bool = option(False, "Refit output projections in closed form at every level")
    hold: float = option(0.9, "The share of the score that counts as kept in the summary", minimum=0, maximum=1)
    tokenizer: str | None = option(None, "The model whose tokenizer is used, if checkpoints have none")
    info = StudyInfo(paper="Michel et al. 2019, section 6", needs=frozenset({"model", "task", "run"}))

    def measure(self, context: StudyContext) -> StudyResult:
        """Returns the share of its own score above chance that every checkpoint keeps at every number of heads."""
        from headcount.importance.base import Importance
        from headcount.studies._gated import count_levels

        importance = Importance.parse(self.by)
        by, scaling = str(importance), importance.info.normalise
        checkpoints = find_checkpoints([*filter(None, [context.model_name]), *self.checkpoints])
        _check_heads(context, checkpoints)
        rows: list[dict[str, Any]] = []
        summary: list[dict[str, Any]] = []
        keeps: list[int] = []
        for number, checkpoint in enumerate(checkpoints, 1):
            loaded = context.sources.load_model(checkpoint.name)
            if not keeps:
                keeps = count_levels(self.keep, loaded.heads, [share / 10 for share in range(9, 0, -1)])
                _check_levels(loaded.heads, keeps)
                config = {"study": self.name, "keep": keeps, "by": by, "repair": self.repair, "limit": context.limit}
                context.describe_run(loaded, config)
            task = context.sources.open_task(self._with_tokenizer(loaded))
            with context.progress(f"checkpoint {number} of {len(checkpoints)}"):
                dense, curve = measure_curve(context, loaded, task, checkpoint.label, keeps, by=by, repair=self.repair)
            rows += [{"step": checkpoint.step, **row} for row in curve]
            summary.append(_summarise(checkpoint, dense, curve, self.hold))
        ranking = {"by": by, "normalise": scaling}
        task_name = context.sources.task_name
        names = [checkpoint.name for checkpoint in checkpoints]
        request = {"checkpoints": names, "keep": keeps, **ranking, "repair": self.repair, "task": task_name}
        keep_rows(context.required_run, self.name, {**request, "limit": context.limit, "seed": context.seed}, rows)
        labels = [checkpoint.label for checkpoint in checkpoints]
        return StudyResult(
            study=str(self),
            tables=(_table(labels, rows, summary, self.hold),),
            sentence=_verdict(labels, summary, self.hold),
            notes=(*_notes(labels, summary), f"Heads are ranked by {by}, scores {SCALED[scaling]}."),
            measurements={**ranking, "task": task_name or None, "repair": self.repair, "checkpoints": summary, "rows": rows},
        )

    def _with_tokenizer(self, loaded: LoadedModel) -> LoadedModel:
        """Returns the model with the folder that its tokenizer is read from."""
        from headcount.surgery.source import local_folder

        return loaded if self.tokenizer is None else replace(loaded, folder=local_folder(self.tokenizer))


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A model folder of a training, the step at which it was saved, if known, and its label in tables."""

    name: str
    step: int | None
    label: str = ""


def find_checkpoints(names: Sequence[str]) -> list[Checkpoint]:
    """Returns the named checkpoints, or those in the one named folder, by step; without known steps, in the order of their names.

    Raises:
        ArtifactError: there are fewer than two.
    """
    from headcount.pruning.training.trainer import checkpoints

    folder = Path(names[0])
    if len(names) == 1 and not (folder / "config.json").is_file():
        if not folder.is_dir():
            raise ArtifactError(f"{folder} is no folder; name a folder of checkpoints, or several model folders")
        names = [str(path) for path in checkpoints(folder) if (path / "config.json").is_file()]
        if len(names) < 2:
            raise ArtifactError(
                f"{folder} holds {len(names)} checkpoints (folders checkpoint-N with a model), and a training takes two or more; "
                "train with save_strategy='epoch', or name several model folders"
            )
    if len(names) < 2:
        raise ArtifactError(f"{folder} is one model; name a folder of checkpoints, or several model folders")
    found_checkpoints = [Checkpoint(name, read_step(Path(name)), label) for name, label in zip(names, shorten_names(names), strict=True)]
    if any(checkpoint.step is None for checkpoint in found_checkpoints):
        return found_checkpoints
    return sorted(found_checkpoints, key=lambda checkpoint: checkpoint.step or 0)


def shorten_names(names: Sequence[str]) -> list[str]:
    """Returns the last part of every path if these differ, else as many of the last parts as tell all of them apart.

    Raises:
        ArtifactError: two names are the same path.
    """
    parts = [Path(name).absolute().parts for name in names]
    repeated = next((name for name, path in zip(names, parts, strict=True) if parts.count(path) > 1), None)
    if repeated is not None:
        raise ArtifactError(f"{repeated} is named twice; name every checkpoint once")
    number = next(n for n in range(1, max(map(len, parts)) + 1) if len({path[-n:] for path in parts}) == len(parts))
    return [str(Path(*path[-number:])) for path in parts]


def read_step(folder: Path) -> int | None:
    """Returns the step of a checkpoint as the Trainer noted it, or from the end of the folder's name; None if neither has it."""
    state = folder / "trainer_state.json"
    if state.is_file():
        try:
            return int(json.loads(state.read_text(encoding="utf-8"))["global_step"])
        except (ValueError, KeyError, TypeError) as error:
            raise ArtifactError(f"{state} does not tell the step of its checkpoint: {error}") from error
    number = folder.name.rpartition("-")[2]
    return int(number) if number.isdecimal() else None


def measure_curve(
    context: StudyContext, loaded: LoadedModel, task: Task, label: str, keeps: Sequence[int], *, by: str, repair: bool = False
) -> tuple[Evaluation, list[dict[str, Any]]]:
    """Returns the dense checkpoint on the report split, and a row for each number of heads: the share that remains of its score above chance.

    `why` of a row says why the share is not defined, if it is not.
    """
    from headcount.pruning.repair.repair import refit
    from headcount.studies import _gated as gated
    from headcount.workflows.score import score_into

    run, model, seed, limit, batch_size = context.run, loaded.model, context.seed, context.limit, context.batch_size
    gated.admit_model(run, model)
    settings = ScoreSettings(seed=seed, limit=min(SCORED, limit or SCORED), batch_size=batch_size)
    (scores,) = score_into(run, model, task, [by], settings).values()
    dense = gated.evaluate_without(run, f"{label}: dense", model, task, (), limit=limit, batch_size=batch_size)
    chance = gated.chance_of(model, task, limit)
    rows = []
    for keep in keeps:
        plan = Plan.keep_top(scores, keep)
        pruned_model = refit(model, plan, task).model if repair else model
        name = f"{label}: {keep} heads by {scores.label}{', repaired' if repair else ''}"
        pruned = gated.evaluate_without(run, name, pruned_model, task, plan.removed, limit=limit, batch_size=batch_size)
        drop = gated.measure_drop(dense, pruned, task, seed=seed)
        share = gated.share_left(dense, pruned, task, chance, seed=seed)
        removed = len(plan.removed) / len(scores.heads)
        numbers = {"checkpoint": label, "keep": keep, "removed": removed, "loss": pruned.loss, "value": pruned.value}
        rows.append({**numbers, **drop.flat(), **share.flat(), "why": share.reason, "p": drop.score.p})
    return dense, rows


def _check_heads(context: StudyContext, checkpoints: Sequence[Checkpoint]) -> None:
    """Raises ArtifactError unless all models have the same heads, before any work."""
    first, *further = ((checkpoint.name, context.sources.read_heads(checkpoint.name)) for checkpoint in checkpoints)
    for name, heads in further:
        if heads.heads != first[1].heads:
            raise ArtifactError(
                f"{name} has other heads than {first[0]} ({len(heads)} and {len(first[1])}); name checkpoints of one training"
            )


def _check_levels(heads: HeadMap, keeps: Sequence[int]) -> None:
    """Raises PlanError for numbers of heads that no plan can keep, before any work."""
    flat = Scores(heads.heads, (0.0,) * len(heads), units=heads.units())
    for keep in keeps:
        Plan.keep_top(flat, keep)


def _summarise(checkpoint: Checkpoint, dense: Evaluation, rows: Sequence[Mapping[str, Any]], hold: float) -> dict[str, Any]:
    """Returns the score of a checkpoint and the largest share of heads that can go, level by level, while `hold` of it remains, or None."""
    removable: float | None = 0.0
    for row in sorted(rows, key=lambda row: row["removed"]):
        if row["left"] is None:
            removable = None
        if row["left"] is None or row["left"] < hold:
            break
        removable = row["removed"]
    score = {"loss": dense.loss, "metric": dense.metric, "value": dense.value, "chance": rows[0]["chance"], "n_examples": dense.n_examples}
    return {"checkpoint": checkpoint.name, "step": checkpoint.step, **score, "hold": hold, "removable": removable, "why": rows[0]["why"]}


def _table(labels: Sequence[str], rows: Sequence[Mapping[str, Any]], summary: Sequence[Mapping[str, Any]], hold: float) -> Table:
    shares = sorted({row["removed"] for row in rows})
    row_of = {(row["checkpoint"], row["removed"]): row for row in rows}
    columns = [Column("checkpoint"), Column(summary[0]["metric"] or "loss", format=".4g")]
    for share in shares:
        columns += interval_columns(f"{share:.0%}", ".0%")
    columns.append(Column(f"heads that go for {1 - hold:.0%}", format=".0%"))
    cells = []
    for label, of_checkpoint in zip(labels, summary, strict=True):
        score = of_checkpoint["loss"] if of_checkpoint["value"] is None else of_checkpoint["value"]
        remaining = [row_of[label, share][end] for share in shares for end in ("left", "left low", "left high")]
        cells.append((label, score, *remaining, of_checkpoint["removable"]))
    title = "Share of each checkpoint's own score above chance that remains, by the share of heads removed"
    return Table("checkpoints", tuple(columns), tuple(cells), title)


def _notes(labels: Sequence[str], summary: Sequence[Mapping[str, Any]]) -> list[str]:
    notes = [
        f"{label}: no share is defined: {of_checkpoint['why']}."
        for label, of_checkpoint in zip(labels, summary, strict=True)
        if of_checkpoint["why"]
    ]
    if summary[0]["chance"] is not None:
        metric = summary[0]["metric"] or "loss"
        notes.append(f"Chance is the best constant answer to the same examples: {metric} {summary[0]['chance']:.4g}.")
    return notes


def _verdict(labels: Sequence[str], summary: Sequence[Mapping[str, Any]], hold: float) -> str:
    parts = [
        f"{of_checkpoint['removable']:.0%} at {label}"
        for label, of_checkpoint in zip(labels, summary, strict=True)
        if of_checkpoint["removable"] is not None
    ]
    if not parts:
        return "No checkpoint is better than chance, so that none has a score to lose."
    return f"Heads that can go while {hold:.0%} of the score above chance remains: {', '.join(parts)}."
