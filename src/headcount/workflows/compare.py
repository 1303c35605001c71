"""A comparison of pruning methods at several sizes, in a run that can be stopped and continued."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from torch import nn

from headcount.behaviour.corpus import SENTENCES
from headcount.core.arguments import check_arguments
from headcount.core.budget import Budget
from headcount.core.definition import DEFAULT_DEFINITION, Definition
from headcount.core.errors import HeadcountError, OptionError
from headcount.core.evaluation import Evaluation
from headcount.core.heads import Head, HeadIndex
from headcount.core.margin import Margin
from headcount.core.plan import Plan
from headcount.core.progress import Progress, show_progress_by_stage
from headcount.data.task import Task
from headcount.models.head_map import HeadMap
from headcount.models.provenance import machine_entries, model_record
from headcount.pruning.base import Pruner
from headcount.pruning.methods.plan import PlanPruner
from headcount.pruning.prune import check_request
from headcount.pruning.recipe import Length, Recipe
from headcount.pruning.spec import PruneSpec, PruningAblation
from headcount.runs.artifacts import Artifact, ArtifactKey
from headcount.runs.describe import describe_run
from headcount.runs.latency import LatencyRow, unpack_latency
from headcount.runs.results import COMPARISON, ChosenModel, PrunedModelRow, PrunedRecord, choose_model, choose_row_index_by_kept_count
from headcount.runs.store import Run
from headcount.surgery.cut import cut
from headcount.workflows.analysis_spec import COMPARED_SIZES, BenchSizes, ComparisonSpec
from headcount.workflows.grid import (
    Grid,
    GridPoint,
    MethodDifference,
    MethodRow,
    differences_from_random_and_between_methods,
    summarise_methods,
)
from headcount.workflows.inputs import TextsForRoles, corpus_or_reason, open_inputs
from headcount.workflows.latency import CutModel, time_models
from headcount.workflows.prune import Pruning, build_grid, prune_all
from headcount.workflows.remaining_roles import FamilyChange, FamilyTest, measure_dense_roles, measure_remaining_roles


@dataclass(frozen=True, slots=True)
class Comparison:
    """What a comparison of pruning methods found.

    Attributes:
        folder: The run folder.
        dense: The dense model on the report split.
        models: Every pruned model: its results, its difference from the dense model, and the heads that stay.
        methods: Every method at every number of heads, over seeds, in pairs with random heads.
        differences: The difference of every method from random heads, and of every two other methods, at each number of heads.
        latency: The dense and the cut models at every batch size; empty unless it was measured.
        role_changes: What became of every family of roles at each method and number of heads; empty unless roles were measured again.
        saved: The folders of the models that the run keeps, by the name of the request.
        failed: The errors of requests that failed, by name.
        margin: How much worse a pruned model may be; None for bounds without a verdict.
    """

    folder: Path
    dense: Evaluation
    models: tuple[PrunedModelRow, ...]
    methods: tuple[MethodRow, ...]
    differences: tuple[MethodDifference, ...]
    latency: tuple[LatencyRow, ...] = ()
    role_changes: tuple[FamilyChange, ...] = ()
    saved: Mapping[str, Path] = field(default_factory=dict)
    failed: Mapping[str, HeadcountError] = field(default_factory=dict)
    margin: Margin | None = None

    @property
    def chosen(self) -> ChosenModel | None:
        """The smallest certified model, or the first that failed; without a margin, the best one by the selection split."""
        return choose_model(self.models, has_margin=self.margin is not None)

    def to_dict(self) -> dict[str, Any]:
        """Returns the comparison as plain data."""
        dense, chosen = self.dense, self.chosen
        by_size = choose_row_index_by_kept_count(self.models)
        return {
            "out": str(self.folder),
            "dense": {"loss": dense.loss, "metric": dense.metric, "value": dense.value, "n_examples": dense.n_examples},
            "rows": [row.to_dict() for row in self.models],
            "methods": [row.flatten() for row in self.methods],
            "differences": [row.flatten() for row in self.differences],
            "latency": [row.to_dict() for row in self.latency],
            "role_changes": [row.flatten() for row in self.role_changes],
            "models": {name: str(folder) for name, folder in self.saved.items()},
            "margin": None if self.margin is None else str(self.margin),
            "chosen_by_size": [self.models[position].to_dict() for position in by_size.values()],
            "sizes": [] if chosen is None else [asdict(test.to_record()) for test in chosen.tests],
            "chosen": None if chosen is None else self.models[chosen.position].to_dict(),
            "is_certified": None if chosen is None or self.margin is None else chosen.is_certified,
            "failed": {name: str(error) for name, error in self.failed.items()},
        }


@dataclass(frozen=True, slots=True)
class ComparisonJob:
    """The requests of a comparison in a run, and what is measured beside them.

    Attributes:
        pruning: The dense model, its task, and the run.
        specs: The requests.
        kinds: The kinds of attention that may lose heads; all, if none are named.
        bench_sizes: What latency is measured for; None to measure none.
        keep_models: Whether the run keeps every pruned model.
        roles: The test of roles on every pruned model; None to measure none. The run keeps the models then.
        seed: Seeds the bootstrap.
        progress: Opens the display of a piece of work, counted in some unit.
    """

    pruning: Pruning
    specs: Sequence[PruneSpec]
    kinds: tuple[str, ...] = ()
    bench_sizes: BenchSizes | None = None
    keep_models: bool = False
    roles: FamilyTest | None = None
    seed: int = 0
    progress: Callable[[str, str], AbstractContextManager[Progress | None]] = lambda work, unit: nullcontext(None)


@check_arguments
def compare(  # noqa: PLR0913 - every argument is explicit
    model: nn.Module | str | Path,
    data: Task | str | None = None,
    *,
    out: str | Path,
    methods: Sequence[str | Pruner] = ComparisonSpec.methods,
    keep: Sequence[int | float | str] = ComparisonSpec.keep,
    seeds: int = ComparisonSpec.seeds,
    margin: str | Margin | None = None,
    plan: Plan | str | Path | None = None,
    bench: bool = False,
    batches: Sequence[int] = COMPARED_SIZES.batches,
    length: int = COMPARED_SIZES.lengths[0],
    keep_models: bool = False,
    text: TextsForRoles = None,
    definition: str = DEFAULT_DEFINITION,
    kinds: str | Iterable[str] = PruneSpec.kinds,
    protected: str | Head | Iterable[str | Head] = (),
    floor: int = Budget.floor,
    unit: Literal["kv_group", "even"] = Budget.unit,
    ablation: PruningAblation = PruneSpec.ablation,
    repair: bool | None = PruneSpec.repair,
    recover: Length | None = PruneSpec.recover,
    recipe: Recipe | None = None,
    tokenizer: Any = None,
    limit: int | None = None,
    batch_size: int | None = None,
    seed: int = 0,
    progress: bool | Progress = True,
) -> Comparison:
    """Prunes a model by several methods to several sizes, and compares the results in pairs; the same call continues an interrupted one.

    Args:
        model: A live model, a folder or a hub id.
        data: An hc.Task or the name of one; by default the task that the model is made for.
        out: The run folder.
        methods: Pruners, or importances to rank by, also with alternatives (`dsp(tau=1|10)`); random is always added.
        keep: Numbers of heads that stay, or shares of them.
        seeds: Seeds of methods with chance in them.
        margin: How much worse a pruned model may be, as "1%" of the dense model's metric or "0.5pt": the sizes are tested in order, each by the
            model that is best on the selection split.
        plan: A plan made elsewhere, or its file: it, its complement, and random heads of their sizes are compared too.
        bench: Measure the latency of the dense model and of every method at every size, heads cut, by the first seed.
        batches: The batch sizes that latency is measured for.
        length: The tokens of a row that latency is measured for, at most the positions of the model.
        keep_models: Keep every pruned model in the run, and measure the roles of its heads again; a warning says so where there is no text.
        text: The text that roles are measured on, as for `hc.roles`; by default the texts of the task.
        definition: When a head has a role, and the families of roles.
        kinds: Attention that may lose heads (encoder-self, decoder-self, cross); `keep` then counts heads of these.
        protected: Heads that stay whatever their score.
        floor: Heads that stay at least in every block.
        unit: What goes together where query heads share keys and values: whole groups ("kv_group"), or as many heads of each ("even").
        ablation: What replaces a removed head: nothing ("zero"), or its mean output ("mean").
        repair: Refit the output projections in closed form; by default unless training follows.
        recover: Fine-tune the cut models for a number of epochs, "300steps", or "auto".
        recipe: How methods that train, and the recovery, do so.
        tokenizer: The tokenizer of a live model; a folder brings its own.
        limit: The most examples read of each split; None for all.
        batch_size: Examples read at a time; by default what memory allows.
        seed: The first of the seeds, and the seed of everything else drawn at random.
        progress: A bar on a terminal or in a notebook (True), nothing (False), or a function that is called with (done, total).

    Returns:
        Every pruned model with the heads that stay, the methods over seeds, and the tests between them. The run keeps them as tables.

    Raises:
        UnknownName: no pruner, importance, definition, task or kind of attention has that name.
        OptionError: a number is out of range.
        PlanError: this model cannot be pruned so, or the plan is for another one.

    Example:
        >>> found = hc.compare("demo/entailment", "demo/entailment", out="runs/c", methods=["gradient"], keep=["25%", "50%"])
        >>> for row in found.methods: print(row.method, row.n_kept, row.mean, row.deviation, row.q)
    """
    if text is not None and not keep_models:
        raise OptionError("text is what roles of the kept models are measured on; add keep_models=True, or leave text out")
    bench_sizes = BenchSizes(tuple(batches), (length,), COMPARED_SIZES.rounds)
    pruners = Pruner.parse_grid(methods)
    Definition.parse(definition)
    parsed_margin = None if margin is None else Margin.parse(margin)
    template = PruneSpec.of(
        "random",
        1,
        protected=protected,
        floor=floor,
        unit=unit,
        kinds=kinds,
        ablation=ablation,
        repair=repair,
        recover=recover,
        recipe=recipe,
        seed=seed,
    )
    budgets = [Budget(keep=size) for size in keep]
    parsed_plan = None if plan is None else Plan.parse(plan)
    removed = () if parsed_plan is None else parsed_plan.list_removed()
    inputs = open_inputs(model, data, tokenizer, seed=seed, limit=limit, batch_size=batch_size)
    heads = HeadMap.of(inputs.model)
    if parsed_plan is not None:
        parsed_plan.check(heads)
    n_free = sum(block.n_heads for block in heads.blocks if not template.kinds or block.kind in template.kinds)
    keeps = [budget.heads(n_free) for budget in budgets]
    specs = build_comparison_requests(pruners, keeps, seeds, template, heads, removed_by_plan=removed)
    for spec in specs:
        check_request(spec, inputs.model, heads)
    roles = None
    if keep_models:
        corpus, why_none = corpus_or_reason(inputs.model, inputs.task, inputs.tokenizer, text=text, limit=limit or SENTENCES)
        if corpus is None:
            warnings.warn(f"the roles of the kept models are not measured: {why_none}; name a text", stacklevel=2)
        else:
            roles = FamilyTest.by_definition(corpus, definition, seed=seed, batch_size=batch_size)
    names = [str(pruner) for pruner in pruners]
    command = (
        f"headcount.compare({inputs.name!r}, {inputs.task.name!r}, out={str(out)!r}, methods={names}, keep={list(keep)}, seeds={seeds})"
    )
    with show_progress_by_stage(progress) as begin, Run.lead(Path(out), command=command) as run:
        config = {"methods": ",".join(names), "keep": keeps, "seeds": seeds, "template": template.to_dict()}
        config |= {"margin": None if parsed_margin is None else str(parsed_margin), **inputs.opening}
        record = model_record(inputs.model, inputs.name)
        machine = machine_entries(inputs.model)
        run.stage_records(describe_run(record, command=command, seed=seed, task=inputs.task.name, machine=machine, config=config), heads)
        pruning = Pruning(
            run, inputs.model, inputs.task, limit=limit, command=command, companions=inputs.folder, margin=parsed_margin, seed=seed
        )
        return run_comparison(
            ComparisonJob(
                pruning,
                specs,
                template.kinds,
                bench_sizes if bench else None,
                keep_models,
                roles,
                seed,
                lambda work, unit: nullcontext(begin(work, unit)),
            )
        )


def build_comparison_requests(
    methods: Sequence[str | Pruner],
    keeps: Sequence[int],
    n_seeds: int,
    template: PruneSpec,
    heads: HeadIndex,
    *,
    removed_by_plan: tuple[str, ...] = (),
    has_untrained_head: bool = False,
) -> list[PruneSpec]:
    """Returns all requests of a comparison.

    Args:
        methods: Pruners or importances; random is always added.
        keeps: Numbers of heads that stay.
        n_seeds: Number of seeds of methods with chance in them.
        template: The request that all others differ from in method, size and seed alone; its seed is the first.
        heads: The heads of the model.
        removed_by_plan: The heads that a plan made elsewhere removes: the plan, its complement, and random heads of their sizes are added.
        has_untrained_head: Whether the dense model has an untrained head, whose control, the training alone, is added.
    """
    pruners, sizes = list(methods), []
    if removed_by_plan:
        pruners += [PlanPruner(removed=removed_by_plan), PlanPruner(removed=removed_by_plan, complement=True)]
        sizes = [size for size in (len(heads) - len(removed_by_plan), len(removed_by_plan)) if size not in keeps]
    specs = build_grid(pruners, keeps, n_seeds, template, first_seed=template.seed)
    specs += build_grid((), sizes, n_seeds, template, first_seed=template.seed)
    if has_untrained_head:
        specs += build_grid((), [len(heads)], n_seeds, template, first_seed=template.seed)
    return specs


def run_comparison(job: ComparisonJob) -> Comparison:
    """Makes, evaluates and compares all models of a comparison; what the run holds already is not computed again."""
    pruning = job.pruning
    with job.progress("pruning", "models") as advance:
        dense, artifacts, failed = prune_all(pruning, job.specs, saves_model=lambda spec: job.keep_models, progress=advance)
    grid = Grid.from_artifacts(pruning, dense, artifacts)
    methods = summarise_methods(grid, job.kinds, seed=job.seed)
    differences = differences_from_random_and_between_methods(grid, methods, job.kinds, seed=job.seed)
    if artifacts:
        tables = {"methods": [row.flatten() for row in methods], "differences": [row.flatten() for row in differences]}
        _store_tables(job, "methods", artifacts, tables)
    return Comparison(
        pruning.run.folder,
        dense,
        tuple(pruning.compare_all_with_dense(dense, artifacts)),
        tuple(methods),
        tuple(differences),
        tuple(_measure_latency(job, grid)) if job.bench_sizes is not None else (),
        tuple(_measure_role_changes(job, artifacts)) if job.roles is not None else (),
        _save_all_models(job, artifacts) if job.keep_models else {},
        failed,
        pruning.margin,
    )


def _store_tables(
    job: ComparisonJob, artifact_name: str, artifacts: Sequence[Artifact], tables: Mapping[str, Sequence[Mapping[str, object]]]
) -> None:
    """Keeps rows that were made of pruned models as an artifact, from which the tables of the run are written."""
    pruning = job.pruning
    roles = "" if job.roles is None else job.roles.key_of_roles(pruning, "dense model", "").digest
    request = {"models": sorted(artifact.key.digest for artifact in artifacts), "kinds": job.kinds, "seed": job.seed, "roles": roles}
    key = ArtifactKey(COMPARISON, artifact_name, {**pruning.base_key, **request})
    pruning.run.register_results(pruning.run.commit(key, tables, provenance=pruning.provenance))


def _save_all_models(job: ComparisonJob, artifacts: Sequence[Artifact]) -> dict[str, Path]:
    """Returns the folders of all models by name; models of artifacts that were finished before are made now."""
    folders = {}
    with job.progress("keeping models", "models") as advance:
        for number, artifact in enumerate(artifacts, 1):
            folders[artifact.key.name] = job.pruning.find_or_make_model_folder(
                PruneSpec.from_dict(PrunedRecord.from_artifact(artifact).spec)
            )
            if advance is not None:
                advance(number, len(artifacts))
    return folders


def _measure_latency(job: ComparisonJob, grid: Grid) -> list[LatencyRow]:
    """Returns the latency of the dense model and of the first seed of every method; those of one size run in the same rounds."""
    assert job.bench_sizes is not None
    pruning, sizes = job.pruning, job.bench_sizes
    by_size: dict[int, list[GridPoint]] = {}
    for point in sorted(grid.points, key=lambda point: -point.n_kept):
        if point.n_kept < len(grid.heads):
            by_size.setdefault(len(point.survivors[0]), []).append(point)
    timed: list[Artifact] = []
    with job.progress("measuring latency", "sizes") as advance:
        for number, (n_kept, points) in enumerate(by_size.items(), 1):
            plans = {point.method: Plan.removing(sorted(set(grid.heads) - point.survivors[0])) for point in points}
            cut_models = [CutModel(method, plan, cut(pruning.model, plan)) for method, plan in plans.items()]
            timed += [
                time_models(
                    pruning.run,
                    f"{n_kept} heads",
                    pruning.model,
                    cut_models,
                    heads=pruning.heads,
                    batch=batch,
                    length=length,
                    rounds=sizes.rounds,
                )
                for batch in sizes.batches
                for length in sizes.lengths
            ]
            if advance is not None:
                advance(number, len(by_size))
    pruning.run.register_results(*timed)
    return [row for artifact in timed for row in unpack_latency(artifact)]


def _measure_role_changes(job: ComparisonJob, artifacts: Sequence[Artifact]) -> list[FamilyChange]:
    """Returns what became of every family of roles in the pruned models, which the run keeps as a table."""
    assert job.roles is not None
    pruning = job.pruning
    specs = [PruneSpec.from_dict(PrunedRecord.from_artifact(artifact).spec) for artifact in artifacts]
    with job.progress("roles of the dense model", "examples") as advance:
        dense = measure_dense_roles(pruning, job.roles, progress=advance)
    with job.progress("roles of the pruned models", "models") as advance:
        changes = measure_remaining_roles(pruning, specs, job.roles, dense, attention_kinds=job.kinds, progress=advance).changes
    if changes:
        _store_tables(job, "roles", artifacts, {"role_changes": [change.flatten() for change in changes]})
    return changes
