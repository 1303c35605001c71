from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from typing import TYPE_CHECKING, Any

from headcount.core.errors import PlanError
from headcount.core.options import option
from headcount.core.study_result import Column, StudyResult, Table, interval_columns
from headcount.pruning.recipe import Recipe
from headcount.pruning.spec import PruneSpec
from headcount.runs.results import unpack_pruned
from headcount.runs.sweep import sweep
from headcount.studies._base import Progress, Study, StudyContext, StudyInfo
from headcount.studies._results import SIGNIFICANT, correct_rows, keep_rows

if TYPE_CHECKING:
    from torch import nn

    from headcount.core.evaluation import Evaluation
    from headcount.core.heads import Head
    from headcount.data.task import Task
    from headcount.models.head_map import HeadMap
    from headcount.studies._gated import Drop
    from headcount.workflows.prune import Pruning

RANDOM = "random"
VARIANTS = ("prune", "spare")
SENTENCES = 512


@dataclass(frozen=True)
class RolePruning(Study):
    """Are the heads of a role needed? Prune them first, or spare them longest, at several numbers of heads, beside as many random ones.

    Budhraja et al. 2020 (section 5): after fine-tuning, no role was worth sparing. Pruned, spared and random heads are compared at the same number of
    heads; seeds are averaged example by example, and every difference is paired over examples. Without recovery or repair the study measures what the
    heads contribute now.
    """

    _: KW_ONLY
    role: tuple[str, ...] = option(help="Roles such as offset:-1, or any")
    keep: tuple[int | float | str, ...] = option(
        (), "How many heads stay: numbers or shares; by default 75%, 50%, 25%, and all but the role's"
    )
    seeds: int = option(5, "Draws of the heads that are chosen at random, from the seed on", minimum=1)
    repair: bool | None = option(False, "Refit output projections in closed form; none does so unless training follows")
    recover: float | str | None = option(
        None, "How long the pruned model is fine-tuned: a number of epochs, or of steps (300steps), or auto"
    )
    rate: float = option(5e-5, "The learning rate of the recovery", minimum=0)
    train_batch: int = option(32, "Examples per training step", minimum=1)
    info = StudyInfo(paper="Budhraja et al. 2020, section 5", needs=frozenset({"model", "task", "run"}))

    def measure(self, context: StudyContext) -> StudyResult:
        """Returns a row for every role pruned and spared, and for random heads, at every number of heads."""
        from headcount.pruning.prune import check_request
        from headcount.studies._gated import count_levels, score_of
        from headcount.studies._tuning import note_training
        from headcount.workflows.prune import Pruning

        run, loaded = context.required_run, context.loaded
        keeps = count_levels(self.keep, loaded.heads, (0.75, 0.5, 0.25))
        recipe = Recipe(rate=self.rate, train_batch=self.train_batch)
        template = PruneSpec.of(RANDOM, 1, repair=self.repair, recover=self.recover, recipe=recipe)
        for keep in keeps:
            check_request(template.resized(keep), loaded.model, loaded.heads)
        context.describe_run(loaded, {"study": self.name, "roles": list(self.role), "keep": keeps, "seeds": self.seeds})
        task, tokenizer = context.task, context.sources.read_tokenizer(loaded)
        heads_by_role = {role: find_heads(loaded.model, task, tokenizer, role, seed=context.seed) for role in dict.fromkeys(self.role)}
        for role, heads in heads_by_role.items():
            context.note(f"{len(heads)} of {len(loaded.heads)} heads have the role {role}: {', '.join(map(str, heads))}")
        pruning = Pruning(run, loaded.model, task, limit=context.limit, command=context.command)
        choices = list_choices(loaded.heads, heads_by_role, keeps, with_exact=not self.keep)
        draws = range(context.seed, context.seed + self.seeds)
        note_training(context, pruning, [choice.request(template, draw) for choice in choices for draw in draws])
        with context.progress("pruning", "models") as advance:
            dense, rows = prune_roles(pruning, choices, template, draws=draws, progress=advance)
        request = {"roles": list(self.role), "keep": keeps, "seeds": self.seeds, "seed": context.seed, "spec": template.to_dict()}
        keep_rows(run, self.name, {**pruning.base_key, **request}, rows)
        metric = dense.metric or "loss"
        return StudyResult(
            study=str(self),
            tables=(_table(rows, metric),),
            sentence=_verdict(rows),
            notes=(f"Dense model: {metric} {score_of(dense):.4g} on {dense.n_examples} examples.",),
            measurements={
                "model": context.model_name,
                "task": task.name,
                "dense": {"loss": dense.loss, "metric": dense.metric, "value": dense.value},
                "heads": {role: list(map(str, heads)) for role, heads in heads_by_role.items()},
                "rows": rows,
            },
        )


@dataclass(frozen=True, slots=True)
class Choice:
    """A way to choose heads: the role, or "" for random heads; prune, spare or random; and how many heads stay."""

    role: str
    variant: str
    keep: int

    def request(self, template: PruneSpec, seed: int) -> PruneSpec:
        """Returns the request for the pruned model of one seed."""
        from headcount.pruning.base import Pruner

        method = Pruner.parse(f"role:{self.variant}(roles={self.role})" if self.role else RANDOM)
        return replace(template, method=method, seed=seed).resized(self.keep)


def find_heads(model: nn.Module, task: Task, tokenizer: Any, role: str, *, seed: int = 0) -> list[Head]:
    """Returns the heads that have a role on the texts of the task, as the role pruner measures it.

    Raises:
        PlanError: no head has the role, or all heads have it.
    """
    from headcount.behaviour.roles import roles

    only = None if role == "any" else [role]
    table = roles(model, task, tokenizer, limit=SENTENCES, only=only, seed=seed)
    heads = [head for head, labels in table.labels().items() if labels]
    if not heads:
        reason = "; ".join(table.untested.values())
        raise PlanError(
            f"no head has the role {role} on the texts of task '{task.name}'{f' ({reason})' if reason else ''}; see `headcount roles`"
        )
    if len(heads) == len(table.heads):
        raise PlanError(
            f"all {len(heads)} heads have the role {role}, so that pruning and sparing them is the same as random; name a narrower one"
        )
    return heads


def list_choices(heads: HeadMap, heads_by_role: Mapping[str, Sequence[Head]], keeps: Sequence[int], *, with_exact: bool) -> list[Choice]:
    """Returns each role pruned and spared, and random heads, at each number of heads.

    With `with_exact`, also the level at which exactly the heads of the role go, if these are whole KV groups.
    """
    choices: list[Choice] = []
    for role, members in heads_by_role.items():
        are_whole = all(set(unit) <= set(members) or not set(unit) & set(members) for unit in heads.units())
        exact = [len(heads) - len(members)] if with_exact and are_whole else []
        choices += [Choice(role, variant, keep) for keep in sorted({*keeps, *exact}, reverse=True) for variant in VARIANTS]
    return [*choices, *(Choice("", RANDOM, keep) for keep in sorted({choice.keep for choice in choices}, reverse=True))]


def prune_roles(
    pruning: Pruning, choices: Sequence[Choice], template: PruneSpec, *, draws: range, progress: Progress | None = None
) -> tuple[Evaluation, list[dict[str, Any]]]:
    """Returns the dense model, and a row for each choice: its change from the dense model and from random heads of the same number, paired.

    Every seed of `draws` draws the heads once; the first is also the seed of the intervals.
    """
    from headcount.studies._gated import average_evaluations, measure_drop

    dense, task, seed = pruning.evaluate_dense(), pruning.task, draws[0]
    requests = {(choice, draw): choice.request(template, draw) for choice in choices for draw in draws}
    jobs = [pruning.job(request) for request in requests.values()]
    artifacts, failed = sweep(pruning.run, jobs, provenance=pruning.provenance, progress=progress)
    for error in failed.values():
        raise error
    pruning.run.present(*artifacts)
    artifact_of = dict(zip(requests, artifacts, strict=True))
    means = {choice: average_evaluations([unpack_pruned(artifact_of[choice, draw]) for draw in draws], task) for choice in choices}
    rows = []
    for choice, pruned in means.items():
        names = {"role": choice.role, "heads": choice.variant, "keep": choice.keep, "seeds": len(draws)}
        row = {**names, "loss": pruned.loss, "value": pruned.value, **_flatten("dense", measure_drop(dense, pruned, task, seed=seed))}
        if choice.role:
            control = means[Choice("", RANDOM, choice.keep)]
            row |= _flatten("random", measure_drop(control, pruned, task, seed=seed))
        if choice.role and choice.variant == "prune":
            sparing = means[Choice(choice.role, "spare", choice.keep)]
            row |= _flatten("spare", measure_drop(sparing, pruned, task, seed=seed))
        rows.append(row)
    correct_rows([row for row in rows if row["role"]], "against random p", "against random q")
    return dense, rows


def _flatten(control: str, drop: Drop) -> dict[str, float]:
    """Returns the numbers of a difference by name."""
    names = ("difference", "low", "high", "p")
    return {f"against {control} {name}": getattr(drop.score, name) for name in names} | {
        f"loss against {control} {name}": getattr(drop.loss, name) for name in names
    }


def _table(rows: Sequence[Mapping[str, Any]], metric: str) -> Table:
    controls = {"dense": "against the dense model", "random": "against random", "spare": "pruned against spared"}
    columns = (
        Column("heads"),
        Column("role"),
        Column("its heads go"),
        Column(metric, format=".4g"),
        *interval_columns(controls["dense"], "+.3g", metric),
        *interval_columns(controls["random"], "+.3g", metric),
        Column("q", format=".2g"),
        *interval_columns(controls["spare"], "+.3g", metric),
    )

    def change(row: Mapping[str, Any], control: str) -> list[float | None]:
        return [row.get(f"against {control} {end}") for end in ("difference", "low", "high")]

    cells = [
        (
            row["keep"],
            row["role"] or RANDOM,
            {"prune": "first", "spare": "last", RANDOM: ""}[row["heads"]],
            row["loss"] if row["value"] is None else row["value"],
            *change(row, "dense"),
            *change(row, "random"),
            row.get("against random q"),
            *change(row, "spare"),
        )
        for row in sorted(rows, key=lambda row: (-row["keep"], row["role"], row["heads"]))
    ]
    return Table("rows", columns, tuple(cells))


def _verdict(rows: Sequence[Mapping[str, Any]]) -> str:
    parts = []
    for variant, words in (("prune", "pruning the heads of a role first"), ("spare", "sparing them longest")):
        tests = [row for row in rows if row["heads"] == variant]
        n_significant = sum(row["against random q"] <= SIGNIFICANT for row in tests)
        parts.append(f"{words} differs from random heads at {n_significant} of {len(tests)} levels")
    sentence = ", ".join(parts)
    return f"{sentence[0].upper()}{sentence[1:]} (q ≤ {SIGNIFICANT})."
