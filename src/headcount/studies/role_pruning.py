"""Are the heads of a role needed? Prune them first, or spare them longest, at several numbers of heads, beside as many random ones.

Budhraja et al. 2020 (section 5): after fine-tuning, no role was worth sparing. Pruned, spared and random heads stand at the same number of heads;
seeds are averaged example by example, and every difference is paired over examples. Without --recover or --repair it is what the heads do now.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headcount.app.console import inputs
from headcount.app.console.command import command
from headcount.app.console.pruning import Rate, Recover, Repair, TrainBatch, length_of, note_training, recipe
from headcount.app.console.run_folder import RunFolder, describe
from headcount.app.console.format import format_training
from headcount.app.console.pruning import DEFAULT_TRAINING, TrainingOptions
from headcount.app.console.run_folder import Place, describe
from headcount.app.console.session import Session
from headcount.core.errors import PlanError
from headcount.studies._gated import averaged, drop, interval, levels, score_of
from headcount.studies._results import Folder, corrected, keep_rows, led

if TYPE_CHECKING:
    from torch import nn

    from headcount.core.evaluation import Evaluation
    from headcount.core.heads import Head
    from headcount.data.task import Task
    from headcount.models.head_map import HeadMap
    from headcount.pruning.spec import PruneSpec
    from headcount.workflows.prune import Pruning

Roles = Annotated[
    list[str], typer.Option("--role", metavar="NAME", help="A role of `headcount ls roles`, such as offset:-1, or any; again for more.")
]
Keep = Annotated[
    str | None,
    typer.Option("--keep", metavar="K,…", help="How many heads stay: numbers or shares; else 75%,50%,25%, and all but the role's."),
]
Seeds = Annotated[int, typer.Option("--seeds", min=1, help="Draws of the heads that are chosen at random, from --seed on.")]
Repair = Annotated[bool | None, typer.Option("--repair/--no-repair", help="Refit output projections in closed form.")]
Recover = Annotated[
    str | None,
    typer.Option("--recover", metavar="LENGTH", help="Fine-tune the cut model: a number of epochs, or of steps (300steps), or auto."),
]
RANDOM = "random"
VARIANTS = ("prune", "spare")
LIMIT = 512


@dataclass(frozen=True, slots=True)
class Asked:
    """One way to choose heads: its name, the role or "" for random, prune or spare, and how many heads stay."""

    role: str
    variant: str
    keep: int

    def spec(self, template: PruneSpec, seed: int) -> PruneSpec:
        """Returns the request of one seed."""
        from headcount.pruning.base import Pruner

        method = Pruner.parse(f"role:{self.variant}(roles={self.role})" if self.role else RANDOM)
        return replace(template, method=method, seed=seed).resized(self.keep)


def having(model: nn.Module, task: Task, tokenizer: Any, role: str, *, seed: int = 0) -> list[Head]:
    """The heads that have a role on the texts of the task, as the pruner sees it; an error if there are none."""
    from headcount.behaviour.roles import roles

    only = None if role == "any" else [role]
    table = roles(model, task, tokenizer, limit=LIMIT, only=only, seed=seed)
    found = [head for head, labels in table.labels().items() if labels]
    if not found:
        why = "; ".join(table.untested.values())
        raise PlanError(f"no head has the role {role} on the texts of task '{task.name}'{f' ({why})' if why else ''}; see headcount roles")
    if len(found) == len(table.heads):
        raise PlanError(
            f"all {len(found)} heads have the role {role}, so that pruning and sparing them is the same as random; name a narrower one"
        )
    return found


def grid(heads: HeadMap, roles: dict[str, list[Head]], keeps: Sequence[int], *, exact: bool) -> list[Asked]:
    """Every choice: each role pruned and spared, and random, at each number of heads; with `exact`, also where just the role's heads go."""
    found: list[Asked] = []
    for role, own in roles.items():
        more = [len(heads) - len(own)] if exact and _whole(heads, own) else []
        found += [Asked(role, variant, keep) for keep in sorted({*keeps, *more}, reverse=True) for variant in VARIANTS]
    return [*found, *(Asked("", RANDOM, keep) for keep in sorted({asked.keep for asked in found}, reverse=True))]


def _whole(heads: HeadMap, own: list[Head]) -> bool:
    """Whether these heads are whole units of heads that stay or go together."""
    return all(set(unit) <= set(own) or not set(unit) & set(own) for unit in heads.units())


def role_pruning(
    pruning: Pruning, asked: Sequence[Asked], template: PruneSpec, *, seeds: int, seed: int = 0, progress: Any = None
) -> tuple[Evaluation, list[Any]]:
    """The dense model, and a row for each choice: change from the dense model, and from random heads of the same number, in pairs.

    Heads are drawn by `seeds` seeds from `seed` on, by which intervals are drawn too.
    """
    from headcount.runs.results import unpack_pruned
    from headcount.runs.sweep import sweep

    dense = pruning.evaluate_dense()
    draws = range(seed, seed + seeds)
    specs = {(one, draw): one.spec(template, draw) for one in asked for draw in draws}
    jobs = [pruning.job(spec) for spec in specs.values()]
    artifacts, failed = sweep(pruning.run, jobs, made=pruning.provenance, progress=progress)
    for error in failed.values():
        raise error
    pruning.run.present(*artifacts)
    made = dict(zip(specs, artifacts, strict=True))
    mean = {one: averaged([unpack_pruned(made[one, draw]) for draw in draws], pruning.task) for one in asked}
    rows = []
    for one, found in mean.items():
        control = mean[Asked("", RANDOM, one.keep)]
        other = mean.get(Asked(one.role, "spare", one.keep)) if one.variant == "prune" else None
        rows.append(
            {
                "role": one.role,
                "heads": one.variant,
                "keep": one.keep,
                "seeds": seeds,
                "loss": found.loss,
                "value": found.value,
                **_told("dense", drop(dense, found, pruning.task, seed=seed)),
                **({} if not one.role else _told("random", drop(control, found, pruning.task, seed=seed))),
                **({} if other is None else _told("spare", drop(other, found, pruning.task, seed=seed))),
            }
        )
    corrected([row for row in rows if row["role"]], "against random p", "against random q")
    return dense, rows


def _told(what: str, made: Any) -> dict[str, Any]:
    shown = made.shown
    names = ("difference", "low", "high", "p")
    return {f"against {what} {name}": getattr(shown, name) for name in names} | {
        f"loss against {what} {name}": getattr(made.loss, name) for name in names
    }


@command
def run(
    say: Session,
    given: inputs.TaskOptions,
    out: Folder,
    role: Roles,
    keep: Keep = None,
    seeds: Seeds = 5,
    repair: Repair = False,
    recover: Recover = None,
    training: TrainingOptions = DEFAULT_TRAINING,
) -> None:
    """Are the heads of a role needed? Prune them first, spare them longest, or take random ones, at the same numbers of heads."""
    with Place(out).taken(say) as taken:
        from headcount.pruning.prune import check_request
        from headcount.pruning.spec import PruneSpec
        from headcount.workflows.prune import Pruning, estimate_training

        kept = led(taken, "role-pruning")
        live, heads, folder = given.open_model(say)
        keeps = levels(keep, heads, (0.75, 0.5, 0.25))
        template = PruneSpec.of(RANDOM, 1, repair=repair, recover=recover, recipe=training.recipe())
        for number in keeps:
            check_request(template.resized(number), live, heads)
        describe(kept, say, given, live, heads, {"study": "role-pruning", "roles": role, "keep": keeps, "seeds": seeds})
        task = given.open_task(say, live, folder)
        tokenizer = inputs.reader_of(live, folder, given.trust_remote_code)
        owners = {name: having(live, task, tokenizer, name, seed=given.seed) for name in dict.fromkeys(role)}
        for name, found in owners.items():
            say.note(f"{len(found)} of {len(heads)} heads have the role {name}: {', '.join(map(str, found))}")
        pruning = Pruning(kept, live, task, limit=given.limit, command=say.command)
        asked = grid(heads, owners, keeps, exact=keep is None)
        draws = range(given.seed, given.seed + seeds)
        estimate = estimate_training(pruning, [one.spec(template, draw) for one in asked for draw in draws])
        if estimate is not None:
            say.note(format_training(**asdict(estimate)))
        with say.progress("pruned models") as advance:
            dense, rows = role_pruning(pruning, asked, template, seeds=seeds, seed=given.seed, progress=advance)
        drawn = {"seeds": seeds, "seed": given.seed}
        keep_rows(kept, "role-pruning", {**pruning.base_key, "roles": role, "keep": keeps, **drawn, "spec": template.to_dict()}, rows)
        _show(say, dense, rows)
        told = {name: list(map(str, found)) for name, found in owners.items()}
        whole = {"loss": dense.loss, "metric": dense.metric, "value": dense.value}
        say.result({"study": "role-pruning", "model": given.model, "task": task.name, "dense": whole, "heads": told, "rows": rows})


def _show(say: Session, dense: Evaluation, rows: list[dict[str, Any]]) -> None:
    from headcount.core.stats.significance import Difference

    def change(row: dict[str, Any], what: str) -> str:
        if f"against {what} difference" not in row:
            return ""
        return interval(Difference(*(row[f"against {what} {name}"] for name in ("difference", "low", "high", "p"))))

    metric = dense.metric or "loss"
    say.line(f"the whole model: {metric} {score_of(dense):.4g} on {dense.n_examples} examples")
    order = sorted(rows, key=lambda row: (-row["keep"], row["role"], row["heads"]))
    say.table(
        ("heads", "role", "its heads go", metric, "against the whole model", "against random", "q", "pruned against spared"),
        [
            (
                row["keep"],
                row["role"] or RANDOM,
                {"prune": "first", "spare": "last", RANDOM: ""}[row["heads"]],
                f"{row['loss'] if row['value'] is None else row['value']:.4g}",
                change(row, "dense"),
                change(row, "random"),
                f"{row['against random q']:.2g}" if row["role"] else "",
                change(row, "spare"),
            )
            for row in order
        ],
        right=("heads", metric, "q"),
    )
