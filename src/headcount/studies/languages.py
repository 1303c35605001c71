"""Do languages need the same layers, and does a multilingual model suffer more from pruning than a monolingual one? Language × layer-block table.

Budhraja et al. 2021 on multilingual BERT: fine-tune on one language, prune, evaluate on each. Heads are chosen on the first task alone; blocks of
layers go by gates. Drops are paired with the whole model on the same examples; against a monolingual model (--against) the relative drops are set
side by side on the examples that both read. With --fine-tune the model is trained on the first task before (zero-shot transfer to the others).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headcount.app.console import inputs
from headcount.app.console.command import command
from headcount.app.console.options import split
from headcount.app.console.pruning import Rate, Repair, TrainBatch
from headcount.app.console.pruning import recipe as recipe_of
from headcount.app.console.run_folder import RunFolder, describe
from headcount.app.console.pruning import DEFAULT_TRAINING, TrainingOptions
from headcount.app.console.run_folder import Place, describe
from headcount.app.console.session import Session
from headcount.core.errors import DataError
from headcount.data.embedded.entailment import LABELS
from headcount.models.head_map import HeadMap
from headcount.studies._gated import admit, chance_of, drop, levels, relative_gap, score_of, share_left, without
from headcount.studies._results import Folder, corrected, keep_rows, led
from headcount.studies.layers import LAYER, THIRDS, groups

if TYPE_CHECKING:
    from torch import nn

    from headcount.core.evaluation import Evaluation
    from headcount.data.task import Task
    from headcount.pruning.recipe import Recipe
    from headcount.pruning.spec import PruneSpec
    from headcount.runs.store import Run

Tasks = Annotated[
    str, typer.Option("--tasks", metavar="A,B,…", help="The same task in each language; heads are chosen (and trained) on the first.")
]
Against = Annotated[
    str | None, typer.Option("--against", metavar="MODEL", help="A monolingual model, for the tasks that it can read (--shared).")
]
Common = Annotated[str | None, typer.Option("--shared", metavar="A,…", help="The tasks that the other model reads; else the first.")]
Method = Annotated[str, typer.Option("--method", metavar="NAME", help="A pruner of `headcount ls pruners`, or an importance to rank by.")]
Keep = Annotated[str | None, typer.Option("--keep", metavar="K,…", help="How many heads stay: numbers or shares; else 75%,50%,25%.")]
Tune = Annotated[float, typer.Option("--fine-tune", min=0.0, metavar="EPOCHS", help="Train both models on the first task before.")]
TuneOption = Annotated[
    list[str] | None, typer.Option("--tune-option", metavar="NAME=VALUE", help="A task option for the training alone, such as size=20000.")
]
Labels = Annotated[
    str | None, typer.Option("--labels", metavar="A,B,…", help="The classes of a new head, for a model that has none for the task.")
]
KIND, MODELS, WORK = "tuned", "models", "work"
Repair = Annotated[bool | None, typer.Option("--repair/--no-repair", help="Refit output projections in closed form.")]
CLASSIFIER = "SequenceClassification"


@dataclass(frozen=True, slots=True)
class Subject:
    """One model and its task in each language, by the name of the task."""

    name: str
    model: nn.Module
    tasks: Mapping[str, Task]
    specs: Sequence[PruneSpec]


Found = dict[tuple[str, str, str], tuple["Evaluation", "Evaluation"]]
"""(model, language, what went) → the whole model and the pruned one."""


def languages(
    run: Run,
    subjects: Sequence[Subject],
    *,
    command: str = "",
    progress: Any = None,
    seed: int = 0,
    limit: int | None = None,
    batch_size: int | None = None,
) -> tuple[list[dict[str, Any]], Found]:
    """A row for every model, language and block of layers or number of heads: change of loss and metric, and the share of the score above chance that
    is lost; None, and `why`, where a model is not above chance.
    """
    found: Found = {}
    rows: list[dict[str, Any]] = []
    for subject in subjects:
        admit(run, subject.model)
        chances = {language: chance_of(subject.model, task, limit) for language, task in subject.tasks.items()}
        for language, what, kind, whole, left in _evaluations(run, subject, command, progress, limit, batch_size):
            found[subject.name, language, what] = whole, left
            lost = drop(whole, left, subject.tasks[language], seed=seed)
            share = share_left(whole, left, subject.tasks[language], chances[language], seed=seed)
            names = {"model": subject.name, "language": language, "kind": kind, "what": what}
            rows.append(
                {
                    **names,
                    "whole": score_of(whole),
                    "loss": left.loss,
                    "value": left.value,
                    **lost.flat(),
                    **share.flat(),
                    "lost": None if share.left is None else 1 - share.left.difference,
                    "why": share.why,
                    "p": lost.shown.p,
                }
            )
    corrected(rows)
    return rows, found


def _evaluations(run: Run, subject: Subject, command: str, progress: Any, limit: int | None, batch_size: int | None) -> Any:
    model, total = subject.model, len(HeadMap.of(subject.model))
    wanted = groups(HeadMap.of(model), (THIRDS, LAYER))
    small = {
        f"{total - len(HeadMap.of(made))} of {total} heads by {spec.label}": made for spec, made in _pruned(run, subject, command, limit)
    }
    done, steps = 0, len(subject.tasks) * (len(wanted) + len(small))
    for language, task in subject.tasks.items():
        whole = without(run, f"{subject.name}, {language}: dense", model, task, (), limit=limit, batch_size=batch_size)
        for what, kind, heads in [(group.name, group.kind, group.heads) for group in wanted] + [(what, "heads", ()) for what in small]:
            label = f"{subject.name}, {language}: without {what}"
            left = without(run, label, small.get(what, model), task, heads, limit=limit, batch_size=batch_size)
            done += 1
            if progress is not None:
                progress(done, steps)
            yield language, what, kind, whole, left


def _pruned(run: Run, subject: Subject, command: str, limit: int | None) -> list[tuple[PruneSpec, nn.Module]]:
    """The pruned models, their heads chosen on the first task."""
    from headcount.workflows.prune import Pruning

    pruning = Pruning(run, subject.model, next(iter(subject.tasks.values())), limit=limit, command=command)
    device = next(subject.model.parameters()).device
    return [(spec, pruning.make(spec)[1].to(device).eval()) for spec in subject.specs]


def between_languages(found: Found, subject: Subject) -> list[dict[str, Any]]:
    """By what went, the rise of the loss in each further language minus that in the first: different examples, so Welch's t."""
    from scipy import stats

    first, *others = subject.tasks
    rows = []
    for language in others:
        for model, spoken, what in [key for key in found if key[0] == subject.name and key[1] == first]:
            pair = [found[model, one, what] for one in (language, spoken)]
            rises = [left.losses - whole.losses for whole, left in pair]
            made: Any = stats.ttest_ind(*rises, equal_var=False)
            low, high = made.confidence_interval()
            moved = rises[0].std() + rises[1].std() > 0
            gap = float(rises[0].mean() - rises[1].mean())
            ends = {"low": float(low), "high": float(high), "p": float(made.pvalue)} if moved else {"low": gap, "high": gap, "p": 1.0}
            rows.append({"model": model, "language": language, "against": first, "what": what, "difference": gap, **ends})
    corrected(rows)
    return rows


def between_models(found: Found, one: Subject, other: Subject, *, limit: int | None = None, seed: int = 0) -> list[dict[str, Any]]:
    """The share of its score above chance that one model loses minus that which the other loses, in every language that both read.

    A pair with a model that is not above chance has no row.
    """
    rows = []
    for name, language, what in list(found):
        if name != one.name or (other.name, language, what) not in found:
            continue
        pairs = found[name, language, what], found[other.name, language, what]
        if pairs[0][0].n_examples != pairs[1][0].n_examples:
            raise DataError(f"{one.name} and {other.name} read different examples of {language}; give both the same task and limit")
        task, chance = one.tasks[language], chance_of(one.model, one.tasks[language], limit)
        shares = [share_left(*pair, task, chance, seed=seed).left for pair in pairs]
        if chance is None or shares[0] is None or shares[1] is None:
            continue
        made = relative_gap(*pairs, task, chance, seed=seed)
        ends = {"difference": made.difference, "low": made.low, "high": made.high, "p": made.p}
        lost = {"lost": 1 - shares[0].difference, "lost by the other": 1 - shares[1].difference}
        rows.append({"language": language, "what": what, **lost, **ends})
    corrected(rows)
    return rows


def fine_tuned(
    run: Run, given: inputs.TaskOptions, say: Session, recipe: Recipe, labels: str | None, more: Mapping[str, str]
) -> tuple[nn.Module, Path]:
    """The model after training on its task, with a fresh head if it has none for it; kept in the run."""
    from headcount.data.evaluate import fingerprint_of
    from headcount.data.task import task_key
    from headcount.models.provenance import model_key, provenance
    from headcount.pruning.training.fine_tune import fine_tune
    from headcount.runs.artifacts import ArtifactKey, safe_name
    from headcount.surgery.load import load
    from headcount.surgery.save import save

    live, folder = _with_head(given, say, labels)
    options = [*(given.task_option or []), *(f"{name}={value}" for name, value in more.items())]
    task = given._replace(task_option=options or None).open_task(say, live, folder)
    parts = {
        **model_key(live),
        **task_key(task),
        "data": fingerprint_of(live, task, "calibration"),
        "recipe": recipe.to_dict(),
        "seed": given.seed,
    }
    spec = ArtifactKey(KIND, f"{given.model} on {task.name}", parts)
    place = run.folder / MODELS / f"{safe_name(spec.name)}.{spec.digest[:8]}"
    if run.find(spec) is None or run.problem_of_model(place.name) is not None:
        with say.progress(f"training {given.model} on {task.name}") as advance:
            made = fine_tune(live, task, recipe, seed=given.seed, folder=run.folder / WORK / spec.key[:24], progress=advance)
        save(live, place, command=say.command, companions=folder, overwrite=True)
        run.list_model(place)
        run.commit(spec, {"folder": place.name, "steps": made.steps}, provenance=provenance())
        _clean(run.folder / WORK / spec.digest[:24])
    return load(place).to(next(live.parameters()).device).eval(), place


def _clean(folder: Path) -> None:
    import shutil

    shutil.rmtree(folder, ignore_errors=True)


def _with_head(given: inputs.TaskOptions, say: Session, labels: str | None) -> tuple[nn.Module, Path]:
    """The model as it is if it classifies already, else with a new head for these classes."""
    import torch

    from headcount.app.console.models import choose_device, set_library_verbosity
    from headcount.surgery.load import load
    from headcount.surgery.source import local_folder, read_config

    folder = local_folder(given.model)
    named = " ".join(read_config(folder, given.trust_remote_code).get("architectures") or ())
    if labels is None and (given.task or "").startswith("demo/entailment"):
        labels = ",".join(LABELS)
    if CLASSIFIER in named or labels is None:
        live, _, folder = given.open_model(say)
        return live, folder
    set_library_verbosity(say)
    names = dict(enumerate(split(labels)))
    torch.manual_seed(given.seed)
    classes = {"id2label": names, "label2id": {name: number for number, name in names.items()}}
    how = {name: getattr(given, name) for name in ("dtype", "allow_pickle", "trust_remote_code")}
    live = load(folder, auto=f"AutoModelFor{CLASSIFIER}", new_layers=True, model_kwargs=classes, **how)
    return live.to(choose_device(given.device)).eval(), folder


@command
def run(
    say: Session,
    given: inputs.TaskOptions,
    out: Folder,
    tasks: Tasks,
    against: Against = None,
    shared: Common = None,
    method: Method = "gradient",
    keep: Keep = None,
    repair: Repair = False,
    tune: Tune = 0.0,
    tune_option: TuneOption = None,
    labels: Labels = None,
    training: TrainingOptions = DEFAULT_TRAINING,
) -> None:
    """Do languages need the same layers, and does a multilingual model lose more? Prune, evaluate on each language, against a monolingual one."""
    names, common = _names(given, tasks, against, shared)
    with Place(out).taken(say) as taken:
        from headcount.pruning.base import Pruner
        from headcount.pruning.prune import check_request
        from headcount.pruning.spec import PruneSpec

        kept = led(taken, "languages")
        pruner, recipe = Pruner.parse(method), training.recipe()
        tuning = replace(recipe, epochs=tune or None, steps=None)
        template = PruneSpec.of(pruner, None if pruner.sizes_itself else 1, repair=repair, recipe=recipe, seed=given.seed)
        subjects: list[Subject] = []
        for model, spoken in [(given.model, names), *([(against, common)] if against else [])]:
            mine = given._replace(model=model, task=names[0])
            if tune:
                if not subjects:
                    first, heads, _ = given.open_model(say)
                    describe(kept, say, given, first, heads, {"study": "languages", "tasks": names, "fine-tune": tuning.to_dict()})
                live, folder = fine_tuned(kept, mine, say, tuning, labels, inputs.pairs(tune_option, "--tune-option"))
            else:
                live, heads, folder = mine.open_model(say)
                if not subjects:
                    describe(kept, say, given, live, heads, {"study": "languages", "tasks": names})
            own_heads = HeadMap.of(live)
            sizes_itself = pruner.sizes_itself and keep is None
            specs = [template] if sizes_itself else [template.resized(size) for size in levels(keep, own_heads, (0.75, 0.5, 0.25))]
            for spec in specs:
                check_request(spec, live, own_heads)
            read = {name: given._replace(model=model, task=name).open_task(say, live, folder) for name in spoken}
            subjects.append(Subject(model, live, read, specs))
        with say.progress("evaluations") as advance:
            rows, found = languages(kept, subjects, command=say.command, progress=advance, seed=given.seed, **given.reading)
        spread = between_languages(found, subjects[0])
        gaps = between_models(found, *subjects, limit=given.limit, seed=given.seed) if against else []
        asked = {
            "models": [s.name for s in subjects],
            "tasks": names,
            "spec": template.to_dict(),
            "keep": keep,
            "tune": tuning.to_dict() if tune else None,
        }
        keep_rows(kept, "languages", {**asked, "limit": given.limit, "seed": given.seed}, rows)
        _show(say, subjects, rows, spread, gaps)
        say.result({"study": "languages", **asked, "rows": rows, "between languages": spread, "against": gaps})


def _names(given: inputs.TaskOptions, tasks: str, against: str | None, shared: str | None) -> tuple[list[str], list[str]]:
    """The tasks of the model and those of the other one; refuses what cannot be meant."""
    names = list(dict.fromkeys(split(tasks)))
    if given.task is not None:
        raise typer.BadParameter(
            "the study names its tasks with --tasks, the first being the one that heads are chosen on; leave --task out"
        )
    if len(names) < 2:
        raise typer.BadParameter(f"--tasks takes the same task in two languages or more, got {tasks}")
    if shared is not None and against is None:
        raise typer.BadParameter("--shared names the tasks of the other model; it goes with --against")
    if against == given.model:
        raise typer.BadParameter("--against names another model")
    common = split(shared) if shared else names[:1]
    strange = next((name for name in common if name not in names), None)
    if strange is not None or common[:1] != names[:1]:
        raise typer.BadParameter(f"--shared takes tasks of --tasks, the first of them included; got {shared}")
    return names, common


def _lost(share: float | None, q: float) -> str:
    """The share that is lost, marked where the change is significant; a dash where it is not defined."""
    return f"{'–' if share is None else format(share, '.1%')}{'*' if q <= 0.05 else ''}"


def _show(
    say: Session, subjects: Sequence[Subject], rows: list[dict[str, Any]], spread: list[dict[str, Any]], gaps: list[dict[str, Any]]
) -> None:
    say.line(
        "share of its own score above chance that each model loses in each language, by what goes; * where the change is significant (q ≤ 0.05)"
    )
    lines, columns = [], [(subject.name, language) for subject in subjects for language in subject.tasks]
    whole = {(row["model"], row["language"]): row for row in rows}
    lines.append(("nothing", *(f"{whole[column]['whole']:.4g}" for column in columns)))
    lines.append(("the best constant answer", *("–" if (one := whole[column]["chance"]) is None else f"{one:.4g}" for column in columns)))
    by = {(row["model"], row["language"], row["what"]): row for row in rows}
    for what in dict.fromkeys(row["what"] for row in rows):
        artifacts = [by.get((*column, what)) for column in columns]
        lines.append((what, *("" if row is None else _lost(row["lost"], row["q"]) for row in artifacts)))
    heading = [f"{model}: {language}" for model, language in columns]
    say.table(("without", *heading), lines, right=heading)
    for (model, language), row in whole.items():
        if row["why"]:
            say.line(f"{model}, {language}: no share is defined: {row['why']}")
    say.line(f"rise of the loss beyond that in {next(iter(subjects[0].tasks))}, {subjects[0].name}")
    say.table(
        ("language", "without", "difference", "q"),
        [(r["language"], r["what"], f"{r['difference']:+.3g} ({r['low']:+.3g} … {r['high']:+.3g})", f"{r['q']:.2g}") for r in spread],
        right=("q",),
    )
    if gaps:
        say.line(f"share above chance that {subjects[0].name} loses minus that of {subjects[1].name}, on the same examples")
        say.table(
            ("language", "without", "one", "other", "difference", "q"),
            [
                (
                    r["language"],
                    r["what"],
                    f"{r['lost']:.1%}",
                    f"{r['lost by the other']:.1%}",
                    f"{r['difference']:+.1%} ({r['low']:+.1%} … {r['high']:+.1%})",
                    f"{r['q']:.2g}",
                )
                for r in gaps
            ],
            right=("one", "other", "q"),
        )
