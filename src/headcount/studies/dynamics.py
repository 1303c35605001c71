"""When in training do heads become superfluous? The pruning curve of every checkpoint of a training run, as shares of its own score above chance.

Michel et al. 2019 (section 6): in the first epochs every head removed costs; later a part of them goes for nothing. Each checkpoint ranks its own
heads on the calibration split and loses the lowest by gates, without repair unless that is asked for; the share left has a paired bootstrap interval.
Chance is the score of the best constant answer; a checkpoint that is not above it has no share to lose, and says so.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headcount.app.console import inputs
from headcount.app.console.command import command
from headcount.app.console.run_folder import RunFolder, describe
from headcount.app.console.session import Session
from headcount.core.errors import ArtifactError
from headcount.core.plan import Plan
from headcount.models.head_map import HeadMap
from headcount.studies._gated import admit, chance_of, drop, levels, share_left, without
from headcount.studies._results import Folder, keep_rows, led

if TYPE_CHECKING:
    from torch import nn

    from headcount.core.evaluation import Evaluation
    from headcount.data.task import Task
    from headcount.runs.store import Run

More = Annotated[list[str] | None, typer.Argument(metavar="CHECKPOINT…", help="Further checkpoints; MODEL alone may be a folder of them.")]
By = Annotated[str, typer.Option("--by", metavar="NAME", help="The importance that ranks the heads of each checkpoint.")]
Keep = Annotated[str | None, typer.Option("--keep", metavar="K,…", help="How many heads stay: numbers or shares; else 90%,80%,…,10%.")]
Repair = Annotated[bool, typer.Option("--repair/--no-repair", help="Refit output projections in closed form at every level.")]
Hold = Annotated[float, typer.Option("--hold", min=0.0, max=1.0, help="The share of the score that counts as kept in the summary.")]
Tokenizer = Annotated[
    str | None, typer.Option("--tokenizer", metavar="MODEL", help="Whose tokenizer to read with, if checkpoints hold none.")
]
SCORED = 512


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A model folder of a training run, the step it was saved at, if that is known, and what it is called beside the others."""

    name: str
    step: int | None
    short: str = ""


def find(names: Sequence[str]) -> list[Checkpoint]:
    """The checkpoints that are named, or those in the one folder that is, by step; folders whose step is unknown stay in the order given."""
    from headcount.pruning.training.trainer import checkpoints

    one = Path(names[0])
    if len(names) == 1 and not (one / "config.json").is_file():
        if not one.is_dir():
            raise ArtifactError(f"{one} is no folder; name a folder of checkpoints, or several model folders")
        found = [str(path) for path in checkpoints(one) if (path / "config.json").is_file()]
        if len(found) < 2:
            raise ArtifactError(
                f"{one} holds {len(found)} checkpoints (folders checkpoint-N with a model), and a training takes two or more; "
                "train with save_strategy='epoch', or name several model folders"
            )
        names = found
    if len(names) < 2:
        raise ArtifactError(f"{one} is one model; name a folder of checkpoints, or several model folders")
    made = [Checkpoint(name, step_of(Path(name)), short) for name, short in zip(names, short_names(names), strict=True)]
    return sorted(made, key=lambda one: one.step or 0) if all(one.step is not None for one in made) else made


def short_names(names: Sequence[str]) -> list[str]:
    """The last part of every path where these differ, else as many of the last parts as tell all of them apart."""
    parts = [Path(name).absolute().parts for name in names]
    twice = next((name for name, own in zip(names, parts, strict=True) if parts.count(own) > 1), None)
    if twice is not None:
        raise ArtifactError(f"{twice} is named twice; name every checkpoint once")
    number = next(n for n in range(1, max(map(len, parts)) + 1) if len({own[-n:] for own in parts}) == len(parts))
    return [str(Path(*own[-number:])) for own in parts]


def step_of(folder: Path) -> int | None:
    """The step of a checkpoint, as the Trainer noted it, or from the end of the folder's name."""
    state = folder / "trainer_state.json"
    if state.is_file():
        try:
            return int(json.loads(state.read_text(encoding="utf-8"))["global_step"])
        except (ValueError, KeyError, TypeError) as error:
            raise ArtifactError(f"{state} does not tell the step of its checkpoint: {error}") from error
    number = folder.name.rpartition("-")[2]
    return int(number) if number.isdecimal() else None


def curve(
    model: nn.Module,
    task: Task,
    name: str,
    keeps: Sequence[int],
    *,
    by: str = "gradient",
    run: Run | None = None,
    seed: int = 0,
    repair: bool = False,
    limit: int | None = None,
    batch_size: int | None = None,
) -> tuple[Evaluation, list[dict[str, Any]]]:
    """The whole checkpoint on the report split, and a row for each number of heads that stay: the share left of its own score above chance, in pairs;
    `why` of a row says where that is not defined.
    """
    from headcount.importance.settings import ScoreSettings
    from headcount.workflows.score import score_into

    admit(run, model)
    settings = ScoreSettings(seed=seed, limit=min(SCORED, limit or SCORED), batch_size=batch_size)
    (scores,) = score_into(run, model, task, [by], settings).values()
    whole = without(run, f"{name}: dense", model, task, (), limit=limit, batch_size=batch_size)
    chance = chance_of(model, task, limit)
    rows = []
    for keep in keeps:
        plan = Plan.keep_top(scores, keep)
        live = _repaired(model, plan, task) if repair else model
        label = f"{name}: {keep} heads by {scores.label}{', repaired' if repair else ''}"
        left = without(run, label, live, task, plan.removed, limit=limit, batch_size=batch_size)
        lost, share = drop(whole, left, task, seed=seed), share_left(whole, left, task, chance, seed=seed)
        gone = len(plan.removed) / len(scores.heads)
        measured = {"checkpoint": name, "keep": keep, "removed": gone, "loss": left.loss, "value": left.value}
        rows.append({**measured, **lost.flat(), **share.flat(), "why": share.why, "p": lost.shown.p})
    return whole, rows


def _repaired(model: nn.Module, plan: Plan, task: Task) -> nn.Module:
    from headcount.pruning.repair.repair import refit

    return refit(model, plan, task).model


@command
def run(
    say: Session,
    given: inputs.TaskOptions,
    out: Folder,
    more: More = None,
    by: By = "gradient",
    keep: Keep = None,
    repair: Repair = False,
    hold: Hold = 0.9,
    tokenizer: Tokenizer = None,
) -> None:
    """When do heads become superfluous? The pruning curve of every checkpoint of a training: MODEL is a folder of them, or the first of several."""
    from headcount.importance.base import Importance

    by = str(Importance.parse(by))
    found = find([given.model, *(more or [])])
    with RunFolder(out).open(say) as taken:
        from headcount.core.scores import SCALED

        kept = led(taken, "dynamics")
        _check_heads(found, given)
        rows: list[dict[str, Any]] = []
        summary: list[dict[str, Any]] = []
        keeps: list[int] = []
        shape: HeadMap | None = None
        for number, one in enumerate(found):
            mine = given._replace(model=one.name)
            live, heads, folder = mine.open_model(say)
            if shape is None:
                shape, keeps = heads, levels(keep, heads, [share / 10 for share in range(9, 0, -1)])
                _check(heads, keeps)
                describe(
                    kept, say, mine, live, heads, {"study": "dynamics", "keep": keeps, "by": by, "repair": repair, "limit": given.limit}
                )
            task = mine.open_task(say, live, _reader(tokenizer) or folder)
            with say.progress(f"checkpoint {number + 1} of {len(found)}"):
                whole, made = curve(live, task, one.short, keeps, by=by, run=kept, seed=given.seed, repair=repair, **given.reading)
            rows += [{"step": one.step, **row} for row in made]
            summary.append(_summary(one, whole, made, hold))
        scaling = Importance.parse(by).info.normalise
        ranking = {"by": by, "normalise": scaling}
        asked = {"checkpoints": [one.name for one in found], "keep": keeps, **ranking, "repair": repair, "task": given.task or ""}
        keep_rows(kept, "dynamics", {**asked, "limit": given.limit, "seed": given.seed}, rows)
        _show(say, [one.short for one in found], rows, summary, hold)
        say.line(f"heads are ranked by {by}, scores {SCALED[scaling]}")
        say.result({"study": "dynamics", **ranking, "task": given.task, "repair": repair, "checkpoints": summary, "rows": rows})


def _reader(name: str | None) -> Path | None:
    from headcount.surgery.source import local_folder

    return None if name is None else local_folder(name)


def _check_heads(found: Sequence[Checkpoint], given: inputs.TaskOptions) -> None:
    """Refuses models that are not of one training, before any work."""
    from headcount.surgery.load import load

    trust: dict[str, Any] = {"allow_pickle": given.allow_pickle, "trust_remote_code": given.trust_remote_code}
    first, *rest = ((one, HeadMap.of(load(one.name, auto=given.auto, **trust))) for one in found)
    for one, heads in rest:
        if heads.heads != first[1].heads:
            raise ArtifactError(
                f"{one.name} has other heads than {first[0].name} ({len(heads)} and {len(first[1])}); name checkpoints of one training"
            )


def _check(heads: HeadMap, keeps: Sequence[int]) -> None:
    """Refuses numbers of heads that no plan can keep, before any work."""
    from headcount.core.scores import Scores

    flat = Scores(heads.heads, (0.0,) * len(heads), units=heads.units())
    for keep in keeps:
        Plan.keep_top(flat, keep)


def _summary(one: Checkpoint, whole: Evaluation, rows: Sequence[dict[str, Any]], hold: float) -> dict[str, Any]:
    """A checkpoint's own score, and the largest share of heads that goes, level by level, while so much of it is left; None where undefined."""
    gone: float | None = 0.0
    for row in sorted(rows, key=lambda row: row["removed"]):
        if row["left"] is None:
            gone = None
        if row["left"] is None or row["left"] < hold:
            break
        gone = row["removed"]
    score = {"loss": whole.loss, "metric": whole.metric, "value": whole.value, "chance": rows[0]["chance"], "n_examples": whole.n_examples}
    return {"checkpoint": one.name, "step": one.step, **score, "hold": hold, "removable": gone, "why": rows[0]["why"]}


def _show(say: Session, names: Sequence[str], rows: list[dict[str, Any]], summary: list[dict[str, Any]], hold: float) -> None:
    shares = sorted({row["removed"] for row in rows})
    by = {(row["checkpoint"], row["removed"]): row for row in rows}
    metric = summary[0]["metric"] or "loss"
    say.line("share of each checkpoint's own score above chance that is left, by the share of heads removed")
    lines = []
    for name, one in zip(names, summary, strict=True):
        mine = [by[name, share] for share in shares]
        value = one["loss"] if one["value"] is None else one["value"]
        artifacts = ["–" if row["left"] is None else f"{row['left']:.0%} ({row['left low']:.0%} … {row['left high']:.0%})" for row in mine]
        lines.append((name, f"{value:.4g}", *artifacts, "–" if one["removable"] is None else f"{one['removable']:.0%}"))
    columns = ("checkpoint", metric, *(f"{share:.0%}" for share in shares), f"heads that go for {1 - hold:.0%}")
    say.table(columns, lines, right=(metric, columns[-1]))
    for name, one in zip(names, summary, strict=True):
        if one["why"]:
            say.line(f"{name}: no share is defined: {one['why']}")
    if summary[0]["chance"] is not None:
        say.line(f"chance is the best constant answer to the same examples: {metric} {summary[0]['chance']:.4g}")
