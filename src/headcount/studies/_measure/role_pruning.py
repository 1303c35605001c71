"""Models whose heads of a role are pruned first or spared longest, beside models with as many random heads."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from torch import nn

from headcount.behaviour.roles import roles
from headcount.core.definition import DEFAULT_DEFINITION
from headcount.core.errors import PlanError
from headcount.core.evaluation import Evaluation
from headcount.core.heads import Head
from headcount.core.stats.corrected_rows import add_q_values
from headcount.core.stats.significance import single_interval_level
from headcount.data.task import Task
from headcount.models.head_map import HeadMap
from headcount.pruning.base import Pruner
from headcount.pruning.prune import check_request
from headcount.pruning.recipe import Recipe
from headcount.pruning.spec import PruneSpec
from headcount.runs.results import unpack_pruned_evaluation
from headcount.runs.sweep import sweep
from headcount.studies._base import STEP_BATCH, Effort, Progress, StudyContext
from headcount.studies._gated import PairedChange, list_kept_counts, measure_paired_change
from headcount.studies._grid import evaluate_dense_reference
from headcount.studies._results import describe_study_run
from headcount.studies._tuning import announce_training
from headcount.workflows.grid import average_evaluations
from headcount.workflows.prune import Pruning

if TYPE_CHECKING:
    from headcount.studies.role_pruning import RolePruning

RANDOM = "random"
VARIANTS = ("prune", "spare")
SENTENCES = 512
"""Sentences of the task that roles are measured on."""


@dataclass(frozen=True, slots=True)
class RolePruningResult:
    """The dense model, the heads of every role, and a row for each way to choose heads at each number of heads."""

    dense: Evaluation
    heads_by_role: Mapping[str, Sequence[Head]]
    rows: list[RoleLevel]
    left_out: tuple[str, ...] = ()
    """The roles that no head or every head has, with the reason."""


def measure_role_pruning(study: RolePruning, context: StudyContext) -> RolePruningResult:
    """Prunes the model of a study by role and at random, at every number of heads."""
    run, loaded = context.required_run, context.loaded
    keeps = list_kept_counts(study.keep, loaded.heads, (0.75, 0.5, 0.25))
    recipe = Recipe(rate=study.rate, train_batch=study.train_batch)
    template = PruneSpec.of(RANDOM, 1, repair=study.repair, recover=study.recover, recipe=recipe)
    for keep in keeps:
        check_request(template.resized(keep), loaded.model, loaded.heads)
    describe_study_run(
        context, loaded, {"study": study.name, "roles": list(study.roles_by_role_or_group), "keep": keeps, "seeds": study.seeds}
    )
    task, tokenizer = context.task, context.sources.find_processor(loaded)
    heads_by_role: dict[str, list[Head]] = {}
    left_out: dict[str, PlanError] = {}
    for name, names in study.roles_by_role_or_group.items():
        try:
            heads_by_role[name] = select_heads_with_roles(
                loaded.model, task, tokenizer, ",".join(names), definition=study.definition, seed=context.seed
            )
        except PlanError as error:
            left_out[name] = error
    if not heads_by_role:
        raise next(iter(left_out.values()))
    for role, heads in heads_by_role.items():
        context.note(f"{len(heads)} of {len(loaded.heads)} heads have the role {role}: {', '.join(map(str, heads))}")
    pruning = Pruning(run, loaded.model, task, limit=context.limit, command=context.command, seed=context.seed)
    choices = list_head_selections(loaded.heads, heads_by_role, keeps, with_exact_role_removal=not study.keep)
    choices = [replace(choice, roles=study.roles_by_role_or_group.get(choice.role, ()), definition=study.definition) for choice in choices]
    draws = range(context.seed, context.seed + study.seeds)
    requests = [choice.prune_spec(template, draw) for choice in choices for draw in draws]
    announce_training(context, pruning, requests)
    dense = evaluate_dense_reference(context, pruning, requests)
    with context.progress("pruning", "models") as advance:
        rows = prune_head_selections(pruning, dense, choices, template, seeds=draws, progress=advance)
    return RolePruningResult(dense, heads_by_role, rows, tuple(f"{name} is left out: {error}." for name, error in left_out.items()))


def estimate_effort(study: RolePruning, context: StudyContext) -> Effort:
    """Returns the evaluations of all models, roles and the training steps; as if every role had a level of its own."""
    task = context.task
    n_train, n_report, n_selection = (
        min(len(split), context.limit or len(split)) for split in (task.calibration, task.report, task.selection)
    )
    n_levels = len(study.keep) or 4
    n_models = n_levels * (2 * len(study.roles_by_role_or_group) + 1) * study.seeds
    recipe = Recipe(train_batch=study.train_batch)
    steps = 0 if study.recover is None else recipe.with_length(study.recover).n_steps(n_train)
    passes = n_report + n_models * (n_report + n_selection) + len(study.roles_by_role_or_group) * study.seeds * min(n_train, SENTENCES)
    return Effort(passes=passes, steps=steps * n_models * study.train_batch / STEP_BATCH)


@dataclass(frozen=True, slots=True)
class HeadSelection:
    """A way to choose heads: the role or group, or "" for random heads; prune, spare or random; and how many heads stay.

    `roles` are those of a group; empty for the role of that name itself. `definition` says when a head has them.
    """

    role: str
    variant: str
    keep: int
    roles: tuple[str, ...] = field(default=(), compare=False)
    definition: str = field(default=DEFAULT_DEFINITION, compare=False)

    def prune_spec(self, template: PruneSpec, seed: int) -> PruneSpec:
        """Returns the request for the pruned model of one seed."""
        names = ",".join(self.roles) or self.role
        method = Pruner.parse(f"role:{self.variant}(roles={names};definition={self.definition})" if self.role else RANDOM)
        return replace(template, method=method, seed=seed).resized(self.keep)


def select_heads_with_roles(
    model: nn.Module, task: Task, tokenizer: Any, comma_separated_roles: str, *, definition: str = DEFAULT_DEFINITION, seed: int = 0
) -> list[Head]:
    """Returns the heads that have a role on the texts of the task, as the role pruner measures it.

    Raises:
        PlanError: no head has the role, or all heads have it.
    """
    only = None if comma_separated_roles == "any" else comma_separated_roles.split(",")
    table = roles(model, task, tokenizer, limit=SENTENCES, only=only, definition=definition, seed=seed, swaps=0)
    heads = [head for head, labels in table.labels().items() if labels]
    if not heads:
        reason = "; ".join(table.untested.values())
        raise PlanError(
            f"no head has the role {comma_separated_roles} on the texts of task '{task.name}'{f' ({reason})' if reason else ''}; "
            "see `headcount roles`"
        )
    if len(heads) == len(table.heads):
        raise PlanError(
            f"all {len(heads)} heads have the role {comma_separated_roles}, so that pruning and sparing them is the same as random; "
            "name a narrower one"
        )
    return heads


def list_head_selections(
    heads: HeadMap, heads_by_role: Mapping[str, Sequence[Head]], kept_counts: Sequence[int], *, with_exact_role_removal: bool
) -> list[HeadSelection]:
    """Returns each role pruned and spared, and random heads, at each number of heads.

    With `with_exact_role_removal`, also the level at which exactly the heads of the role go, if these are whole KV groups.
    """
    selections: list[HeadSelection] = []
    for role, members in heads_by_role.items():
        are_whole = all(set(unit) <= set(members) or not set(unit) & set(members) for unit in heads.units())
        exact = [len(heads) - len(members)] if with_exact_role_removal and are_whole else []
        selections += [HeadSelection(role, variant, keep) for keep in sorted({*kept_counts, *exact}, reverse=True) for variant in VARIANTS]
    return [*selections, *(HeadSelection("", RANDOM, keep) for keep in sorted({selection.keep for selection in selections}, reverse=True))]


@dataclass(frozen=True, slots=True)
class RoleLevel:
    """The pruned models of one choice, averaged over seeds, and their change from other models, paired over examples.

    `against` holds the change from the dense model, from random heads of the same number, and, for heads that are pruned, from sparing them; `p` is
    that of the change from random heads. The interval of the change from the dense model holds for all sizes of the choice together.
    """

    choice: HeadSelection
    seeds: int
    loss: float
    value: float | None
    against: Mapping[str, PairedChange]
    q: float | None = None

    @property
    def p(self) -> float | None:
        """The p-value of no difference from random heads; None for these."""
        return self.against[RANDOM].score.p if RANDOM in self.against else None

    def to_dict(self) -> dict[str, object]:
        """Returns the row as plain data."""
        choice, names = self.choice, ("difference", "low", "high", "p")
        row: dict[str, object] = {"role": choice.role, "heads": choice.variant, "keep": choice.keep, "seeds": self.seeds}
        row |= {"loss": self.loss, "value": self.value}
        for control, drop in self.against.items():
            row |= {f"against {control} {name}": getattr(drop.score, name) for name in names}
            row |= {f"loss against {control} {name}": getattr(drop.loss, name) for name in names}
        return row | ({} if self.q is None else {"against random q": self.q})


def prune_head_selections(
    pruning: Pruning,
    dense: Evaluation,
    selections: Sequence[HeadSelection],
    template: PruneSpec,
    *,
    seeds: range,
    progress: Progress | None = None,
) -> list[RoleLevel]:
    """Returns a row for each choice: its change from the dense model and from random heads of the same number, paired.

    Every seed of `seeds` draws the heads once; the first is also the seed of the intervals.
    """
    task, first_seed = pruning.task, seeds[0]
    requests = {(selection, seed): selection.prune_spec(template, seed) for selection in selections for seed in seeds}
    jobs = [pruning.make_job(request) for request in requests.values()]
    artifacts, failed = sweep(pruning.run, jobs, provenance=pruning.provenance, progress=progress)
    for error in failed.values():
        raise error
    pruning.run.register_results(*artifacts)
    artifact_of = dict(zip(requests, artifacts, strict=True))
    means = {
        selection: average_evaluations([unpack_pruned_evaluation(artifact_of[selection, seed]) for seed in seeds], task)
        for selection in selections
    }
    n_sizes = Counter((selection.role, selection.variant) for selection in selections)
    rows = []
    for selection, pruned in means.items():
        controls = {"dense": dense}
        if selection.role:
            controls[RANDOM] = means[HeadSelection("", RANDOM, selection.keep)]
        if selection.role and selection.variant == "prune":
            controls["spare"] = means[HeadSelection(selection.role, "spare", selection.keep)]
        levels = {"dense": single_interval_level(n_sizes[selection.role, selection.variant])}
        against = {
            name: measure_paired_change(control, pruned, task, seed=first_seed, level=levels.get(name, 0.95))
            for name, control in controls.items()
        }
        rows.append(RoleLevel(selection, len(seeds), pruned.loss, pruned.value, against))
    return add_q_values(rows)
