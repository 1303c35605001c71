"""The whole job on one model and task, in a run that can be stopped and continued.

find → evaluate → score → judge single heads → roles → profiles → prune by several methods at several sizes → keep one → save, load, verify →
measure its latency → write the report.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from headcount.behaviour.base import Corpus
from headcount.behaviour.profiles.profile import ProfileSpec
from headcount.behaviour.spec import RoleSpec
from headcount.core.arguments import check_arguments
from headcount.core.damage import HeadVerdicts, examples_needed_for_harmless_head
from headcount.core.errors import HeadcountError, UnsupportedModel
from headcount.core.evaluation import Evaluation
from headcount.core.margin import Margin
from headcount.core.plan import Plan, nearest_count_of_whole_units
from headcount.core.progress import Progress, show_progress_by_stage
from headcount.core.scores import Scores
from headcount.core.survivors import SurvivingHeads
from headcount.data.chunks import chunks
from headcount.data.draw import limit_split_by_hash
from headcount.data.task import Task
from headcount.importance.base import Importance
from headcount.importance.rankings import agreements
from headcount.importance.settings import ScoreSettings
from headcount.models.gates import HeadGates
from headcount.models.head_map import HeadMap
from headcount.models.observe import model_inputs
from headcount.models.provenance import machine_entries, model_record
from headcount.models.state import preserve
from headcount.pruning.base import Pruner
from headcount.pruning.prune import check_request
from headcount.pruning.recipe import Recipe
from headcount.pruning.spec import PruneSpec
from headcount.runs.artifacts import Artifact
from headcount.runs.describe import describe_run
from headcount.runs.report.certificates import describe_size_tests, describe_smallest_margin, headline
from headcount.runs.report.repeat import PruneCommand, format_prune_call
from headcount.runs.report.write import write_report
from headcount.runs.results import ChosenModel, PrunedModelRow, PrunedRecord, choose_model, choose_row_index_by_kept_count
from headcount.runs.store import Run
from headcount.surgery.load import load
from headcount.surgery.verify import forward_outputs, gate_values_of_plan, largest_relative_difference, run_gated
from headcount.workflows.analysis_spec import DEFAULT_SHARES, AnalysisSpec, BenchSizes
from headcount.workflows.evaluate import evaluate_into
from headcount.workflows.inputs import TextsForRoles, corpus_or_reason, open_inputs
from headcount.workflows.profiles import profiles_into
from headcount.workflows.prune import Pruning, build_grid, estimate_training, prune_all
from headcount.workflows.roles import roles_into
from headcount.workflows.score import judge_into, score_into

NEW_TOKENS = 16
NumberOfCalibrationExamples = int
NumberOfReportExamples = int
NumberOfExamplesPerSplit = int
"""Of the selection and of the report split."""
NumberOfSentences = int
NumberOfTokens = int
Watch = Callable[[str, str], Progress | None]
"""(a piece of work, its unit) -> the function that is called with its progress, if there is one."""


@dataclass(frozen=True, slots=True)
class Step:
    """One finished step of an analysis: its name, and its numbers by name. The command line makes sentences of them."""

    model: str
    name: str
    numbers: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class AnalysisJob:
    """A live model with its task and texts, and the request of its analysis."""

    name: str
    model: nn.Module
    task: Task
    spec: AnalysisSpec = field(default_factory=AnalysisSpec)
    corpus: Corpus | None = None
    why_no_corpus: str = ""
    command: str = ""
    tokenizer: Any = None
    folder: Path | None = None
    """Where the model comes from; its tokenizer is saved with the smaller one."""
    config: Mapping[str, Any] = field(default_factory=dict)
    watch: Watch | None = None
    prune_command: PruneCommand = format_prune_call
    """Says on the page how a pruned model is made again."""

    def progress(self, work: str, unit: str = "examples") -> Progress | None:
        """Returns the function that is called with the progress of a piece of work."""
        return self.watch(work, unit) if self.watch is not None else None

    def example_batch(self) -> dict[str, Tensor]:
        """Returns one example of the selection split, without its labels where the model does not need them."""
        _, batch = next(next(chunks(self.task, split="selection", limit=1)).batches(1))
        needs_labels = getattr(self.model.config, "is_encoder_decoder", False)
        return {name: value for name, value in model_inputs(batch, self.model).items() if needs_labels or name != "labels"}


def _make_step(job: AnalysisJob, name: str, **numbers: Any) -> Step:
    return Step(job.name, name, numbers)


@check_arguments
def analyze(  # noqa: PLR0913 - every argument is explicit
    model: nn.Module | str | Path,
    data: Task | str | None = None,
    *,
    out: str | Path,
    tokenizer: Any = None,
    text: TextsForRoles = None,
    by: Sequence[str] = AnalysisSpec.by,
    methods: Sequence[str] = AnalysisSpec.methods,
    keep: Sequence[int | float | str] | None = AnalysisSpec.keep,
    margin: str | Margin | None = AnalysisSpec.margin,
    seeds: int = AnalysisSpec.seeds,
    training_seeds: int | None = AnalysisSpec.training_seeds,
    score_limit: NumberOfCalibrationExamples = AnalysisSpec.score_limit,
    verdict_limit: NumberOfReportExamples | None = AnalysisSpec.verdict_limit,
    comparison_limit: NumberOfExamplesPerSplit | None = AnalysisSpec.comparison_limit,
    profile_limit: NumberOfSentences = AnalysisSpec.profile_limit,
    max_map_length: NumberOfTokens = AnalysisSpec.max_map_length,
    recipe: Recipe = AnalysisSpec.recipe,
    bench_sizes: BenchSizes = AnalysisSpec.bench_sizes,
    batch_size: int | None = None,
    seed: int = AnalysisSpec.seed,
    on_step: Callable[[Step], None] | None = None,
    progress: bool | Progress = True,
) -> Run:
    """Does the whole job on a model and a task in the run folder `out`; the same call continues an interrupted one.

    Args:
        model: A live model, a folder or a hub id.
        data: An hc.Task or the name of one; by default the task that the model is made for.
        out: The run folder.
        tokenizer: The tokenizer of a live model; a folder brings its own.
        text: A file, texts or a corpus for roles and head profiles (see `hc.roles`); by default the texts of the task.
        by: Importances.
        methods: Pruners, or importances to rank by; random is always added.
        keep: Numbers of heads that stay, or shares of them; by default the whole KV groups nearest to 12.5, 25 and 50 %.
        margin: How much worse the kept model may be, as "1%" of the dense model's metric or "0.5pt": the smallest certified model is kept. Without
            it every model has its bound, and the one that is best on the selection split is kept.
        seeds: Seeds of methods with chance in them.
        training_seeds: Seeds of methods that train; by default as many as of the others.
        score_limit: Calibration examples that scores are taken on.
        verdict_limit: Report examples that the verdicts on single heads are taken on; by default as many as a head that changes none of them needs
            to be safe, or all that there are.
        comparison_limit: Examples that models are compared on; by default the whole report split.
        profile_limit: Sentences that head profiles are taken on.
        max_map_length: Tokens of the longest sentence whose attention is shown.
        recipe: How methods that train do so.
        bench_sizes: What the latency of the kept model is measured for.
        batch_size: Examples read at a time; by default what memory allows.
        seed: The seed of everything drawn at random.
        on_step: Called with each finished step.
        progress: A bar on a terminal or in a notebook (True), nothing (False), or a function that is called with (done, total).

    Returns:
        The run; `run.report()` is the path of its report.

    Raises:
        UnknownName: no importance, pruner or task has that name.
        PlanError: a size is no whole number of KV groups of this model.

    Example:
        >>> run = hc.analyze("demo/entailment", "demo/entailment", out="runs/a", methods=("gradient",), keep=(0.5,))
    """
    spec = AnalysisSpec(
        by=tuple(by),
        methods=tuple(methods),
        keep=None if keep is None else tuple(keep),
        margin=None if margin is None else str(Margin.parse(margin)),
        seeds=seeds,
        training_seeds=training_seeds,
        score_limit=score_limit,
        verdict_limit=verdict_limit,
        comparison_limit=comparison_limit,
        profile_limit=profile_limit,
        max_map_length=max_map_length,
        recipe=recipe,
        bench_sizes=bench_sizes,
        seed=seed,
    )
    check_names(spec)
    inputs = open_inputs(model, data, tokenizer, seed=seed, limit=None, batch_size=batch_size)
    corpus, why_no_corpus = corpus_or_reason(inputs.model, inputs.task, inputs.tokenizer, text=text)
    command = _format_analyze_call(inputs.name, inputs.task.name, out, text, spec)
    with show_progress_by_stage(progress) as begin, Run.lead(Path(out), command=command) as run_folder:
        job = AnalysisJob(
            inputs.name,
            inputs.model,
            inputs.task,
            spec,
            corpus,
            why_no_corpus=why_no_corpus,
            command=command,
            tokenizer=inputs.tokenizer,
            folder=inputs.folder,
            config=inputs.opening,
            watch=begin,
        )
        for step in run_analysis(job, run_folder):
            if on_step is not None:
                on_step(step)
    return Run.open(Path(out))


def check_names(spec: AnalysisSpec) -> None:
    """Raises UnknownName or OptionError for importances and pruners that do not exist, before a model is opened for them."""
    for name in spec.by:
        Importance.parse(name)
    Pruner.parse_grid(spec.methods)


def _format_analyze_call(model_name: str, task_name: str, out: str | Path, text: TextsForRoles, spec: AnalysisSpec) -> str:
    """Returns the call as Python text, with the arguments that differ from their defaults."""
    arguments: dict[str, Any] = {"out": str(out), **({"text": str(text)} if isinstance(text, str | Path) else {})}
    arguments |= {item.name: getattr(spec, item.name) for item in fields(spec) if getattr(spec, item.name) != item.default}
    words = [f"{key}={value!r}" for key, value in arguments.items()]
    return f"headcount.analyze({', '.join([repr(model_name), repr(task_name), *words])})"


def run_analysis(job: AnalysisJob, run_folder: Run) -> Iterator[Step]:
    """Yields one step after another of the whole job; everything is checked before the first."""
    spec, heads = job.spec, HeadMap.of(job.model)
    check_names(spec)
    requests = make_prune_requests(spec, heads)
    for request in requests:
        check_request(request, job.model, heads)
    record = describe_run(
        model_record(job.model, job.name),
        command=job.command,
        seed=spec.seed,
        task=job.task.name,
        machine=machine_entries(job.model),
        config={**spec.to_dict(), **job.config},
    )
    run_folder.stage_records(record, heads)
    yield _verify_heads(job, heads, requests)
    limited = limit_split_by_hash(limit_split_by_hash(job.task, "selection", spec.comparison_limit), "report", spec.comparison_limit)
    yield _evaluate_dense_and_headless(replace(job, task=limited), heads, run_folder)
    scores = score_into(
        run_folder, job.model, job.task, spec.by, ScoreSettings(limit=spec.score_limit, seed=spec.seed), progress=job.progress("scoring")
    )
    yield _summarise_scores(job, scores)
    if verdicts := _judge_heads(job, heads, run_folder):
        yield _make_step(job, "judge", **verdicts.to_dict(), safe=[str(head) for head in verdicts.safe_heads])
    yield from _measure_roles_and_profiles(job, run_folder)
    pruning = Pruning(
        run_folder,
        job.model,
        limited,
        limit=spec.comparison_limit,
        command=job.command,
        companions=job.folder,
        bench_sizes=spec.bench_sizes,
        margin=spec.quality_margin,
        seed=spec.seed,
    )
    estimate = estimate_training(pruning, requests)
    if estimate is not None:
        yield _make_step(job, "train", **asdict(estimate))
    dense, artifacts, failed = prune_all(pruning, requests, progress=job.progress("pruning", "models"))
    rows = pruning.compare_all_with_dense(dense, artifacts)
    chosen = choose_model(rows, has_margin=spec.margin is not None)
    yield _summarise_models(job, dense, rows, chosen, failed)
    if chosen is not None:
        request = PruneSpec.from_dict(PrunedRecord.from_artifact(artifacts[chosen.position]).spec)
        artifact, small = pruning.load_or_make_model(request, progress=job.progress("the kept model"))
        pruning.attach_certificate(artifact, rows[chosen.position].certificate, chosen.tests)
        yield _describe_kept_model(job, pruning, rows[chosen.position], request, artifact)
        yield from _verify_saved_model(job, heads, pruning, artifact, small)
        yield _make_step(job, "bench", rows=pruning.latency_of(artifact))
    path = write_report(run_folder, prune_command=job.prune_command)
    yield _make_step(job, "report", path=str(path), bytes=path.stat().st_size)


def make_prune_requests(spec: AnalysisSpec, heads: HeadMap) -> list[PruneSpec]:
    """Returns the request of every pruned model."""
    if spec.keep is None:
        unit_sizes = [len(unit) for unit in heads.units()]
        keeps: list[Any] = sorted({nearest_count_of_whole_units(share, unit_sizes) for share in DEFAULT_SHARES})
    else:
        keeps = sorted({PruneSpec.of("random", keep).resolve_share(heads).limits.heads(len(heads)) for keep in spec.keep})
    template = PruneSpec.of("random", 1, recipe=spec.recipe)
    return build_grid(spec.methods, keeps, spec.seeds, template, first_seed=spec.seed, n_training_seeds=spec.training_seeds)


def _verify_heads(job: AnalysisJob, heads: HeadMap, requests: Sequence[PruneSpec]) -> Step:
    heads.verify(job.model)
    return _make_step(
        job,
        "find",
        class_name=type(job.model).__name__,
        heads=heads.describe(),
        layouts=sorted({block.layout for block in heads.blocks}),
        keeps=sorted({request.limits.keep for request in requests if request.limits.keep is not None}),
        shares=list(DEFAULT_SHARES) if job.spec.keep is None else None,
        largest_unit=max(len(unit) for unit in heads.units()),
        n_heads=len(heads),
        n_kv_heads=sum(block.n_kv_heads for block in heads.blocks),
        n_blocks=len(heads.blocks),
        n_blocks_to_cut=sum(block.can_cut for block in heads.blocks),
    )


def _evaluate_dense_and_headless(job: AnalysisJob, heads: HeadMap, run_folder: Run) -> Step:
    options: Any = {"limit": job.spec.comparison_limit, "progress": job.progress("evaluating")}
    dense = evaluate_into(run_folder, "dense", job.model, job.task, **options)
    with HeadGates(job.model, torch.zeros(len(heads)), heads=heads):
        none = evaluate_into(run_folder, "without any head", job.model, job.task, gate_description={"gates": "all zero"}, **options)
    return _make_step(job, "evaluate", task=job.task.name, whole=_evaluation_numbers(dense), none=_evaluation_numbers(none))


def _evaluation_numbers(evaluation: Evaluation) -> dict[str, Any]:
    return {name: getattr(evaluation, name) for name in ("loss", "loss_stderr", "metric", "value", "n_examples")}


def _summarise_scores(job: AnalysisJob, scores: Mapping[str, Scores]) -> Step:
    first = next(iter(scores.values()))
    agreement = agreements(scores, seed=job.spec.seed) if "ablation" in scores else {}
    return _make_step(
        job,
        "score",
        strongest=str(first.ranking()[0]),
        by=first.label,
        n_examples=first.n_examples,
        agreement={name: pair.spearman.value for name, pair in agreement.items()},
    )


def _judge_heads(job: AnalysisJob, heads: HeadMap, run_folder: Run) -> HeadVerdicts | None:
    """Returns the verdicts on single heads by the first ablation among the scores, on as many report examples as they need; None without one."""
    limit = job.spec.verdict_limit or examples_needed_for_harmless_head(len(heads))
    settings = ScoreSettings(limit=limit, seed=job.spec.seed)
    by_method = judge_into(run_folder, job.model, job.task, job.spec.by, settings, progress=job.progress("removing single heads"))
    return next(iter(by_method.values()), None)


def _measure_roles_and_profiles(job: AnalysisJob, run_folder: Run) -> Iterator[Step]:
    """Yields the roles and the profiles of heads; where the model or its data have none, why."""
    if job.corpus is None:
        yield _make_step(job, "roles", left_out=job.why_no_corpus or "no text was given")
        return
    batch_size, seed = job.task.batch_size, job.spec.seed
    try:
        table = roles_into(run_folder, job.model, job.corpus, RoleSpec(seed=seed, batch_size=batch_size), progress=job.progress("roles"))
        labels = table.labels()
        counts = {role: sum(role in own for own in labels.values()) for role in table.roles()}
        yield _make_step(
            job,
            "roles",
            heads=sum(bool(own) for own in labels.values()),
            n_heads=len(labels),
            n_roles=len(counts),
            multifunctional=len(table.multifunctional()),
            counts={role: count for role, count in counts.items() if count},
        )
    except UnsupportedModel as error:
        run_folder.log(f"failed: roles: {error}")
        yield _make_step(job, "roles", left_out=str(error))
    profile_spec = ProfileSpec(limit=job.spec.profile_limit, max_map_length=job.spec.max_map_length, batch_size=batch_size, seed=seed)
    profiles = profiles_into(run_folder, job.model, job.corpus, job.tokenizer, profile_spec, progress=job.progress("profiles"))
    content = profiles.content
    n_sentences = content["n_sentences"] if content["heads"] else 0
    yield _make_step(
        job, "profiles", n_sentences=n_sentences, n_shown=len(content["sentences"]) if n_sentences else 0, notes=profiles.notes
    )


def _summarise_models(
    job: AnalysisJob, dense: Evaluation, rows: Sequence[PrunedModelRow], chosen: ChosenModel | None, failed: Mapping[str, HeadcountError]
) -> Step:
    """Returns the step of all pruned models: of each size the one that the selection split chose, with its bound, and the sizes tested."""
    margin, tests = job.spec.quality_margin, () if chosen is None else chosen.tests
    return _make_step(
        job,
        "prune",
        artifacts=len(rows),
        metric=dense.metric or "loss",
        models=[row.to_dict() for row in rows],
        methods=len({row.method for row in rows}),
        by_size=[
            {"keep": rows[at].keep, "method": rows[at].method, "seed": rows[at].seed, "headline": headline(rows[at].certificate)}
            for at in choose_row_index_by_kept_count(rows).values()
        ],
        margin=None if margin is None else str(margin),
        sizes=[asdict(test.to_record()) for test in tests],
        outcome=describe_size_tests(tests, margin) if margin is not None and tests else "",
        failed={name: str(error) for name, error in failed.items()},
    )


def _describe_kept_model(job: AnalysisJob, pruning: Pruning, row: PrunedModelRow, request: PruneSpec, artifact: Artifact) -> Step:
    record = PrunedRecord.from_artifact(artifact)
    return _make_step(
        job,
        "keep",
        method=request.label,
        keep=len(pruning.heads) - len(record.removed),
        folder=str(pruning.model_folder(artifact.key)),
        removed=record.removed,
        loss=record.loss,
        before=record.dense_cost,
        after=record.cost,
        headline=headline(row.certificate),
        verdict=row.certificate.verdict,
        smallest_margin=describe_smallest_margin(row.certificate.quality),
        survivors=SurvivingHeads.after_removal(pruning.heads.blocks, record.removed).to_dict(),
    )


def _verify_saved_model(job: AnalysisJob, heads: HeadMap, pruning: Pruning, artifact: Artifact, small: nn.Module) -> Iterator[Step]:
    """Yields the comparison of the saved model with the one in memory, and with the dense model under gates."""
    batch, plan = job.example_batch(), Plan.removing(PrunedRecord.from_artifact(artifact).removed)
    loaded = load(pruning.model_folder(artifact.key)).to(next(small.parameters()).device)
    ours, theirs = small.state_dict(), loaded.state_dict()
    yield _make_step(
        job,
        "load",
        n_tensors=len(theirs),
        equal_weights=ours.keys() == theirs.keys() and all(torch.equal(ours[name], theirs[name]) for name in ours),
        equal_outputs=all(torch.equal(a, b) for a, b in zip(forward_outputs(small, batch), forward_outputs(loaded, batch), strict=True)),
        n_heads=len(HeadMap.of(loaded)),
    )
    yield _make_step(
        job, "verify", effect=largest_relative_difference(forward_outputs(small, batch), run_gated(job.model, plan, batch, heads))
    )
    if hasattr(small, "generate") and heads.blocks[0].kind == "decoder-self":
        options = {"max_new_tokens": NEW_TOKENS, "min_new_tokens": NEW_TOKENS, "do_sample": False}
        prompt = {name: value[:, : value.shape[1] // 2] for name, value in batch.items()}
        with preserve(job.model), HeadGates(job.model, gate_values_of_plan(heads, plan), heads=heads):
            gated = job.model.generate(**prompt, **options)  # pyright: ignore[reportCallIssue]
        with preserve(small):
            tokens = small.generate(**prompt, **options)  # pyright: ignore[reportCallIssue]
        same = int((gated[0] == tokens[0]).sum()) - prompt["input_ids"].shape[1]
        yield _make_step(job, "generate", n_tokens=NEW_TOKENS, same_tokens=same)
