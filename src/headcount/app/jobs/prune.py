"""`headcount prune`: prunes, evaluates and saves one model in a run folder."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, astuple
from pathlib import Path
from typing import Any

import typer

from headcount.app.console.format import format_training
from headcount.app.console.inputs import ModelAndTaskOptions
from headcount.app.console.models import (
    check_plan,
    note_expected_duration,
    note_statistical_power,
    open_named_task,
    open_task_model,
    set_run_description,
)
from headcount.app.console.pruning import (
    PruningOptions,
    SizeOptions,
    parse_kept_head_count,
    show_pruned_rows,
    show_size_tests,
    show_surviving_heads,
)
from headcount.app.console.session import ExitCode, Session
from headcount.core.evaluation import Evaluation
from headcount.core.margin import Margin
from headcount.core.plan import Plan
from headcount.core.sizes import SizeTest, smallest_certified
from headcount.pruning.base import Pruner
from headcount.pruning.certified import list_kept_counts_to_test
from headcount.pruning.prune import check_request
from headcount.pruning.spec import DEFAULT_METHOD, PruneSpec
from headcount.runs.artifacts import Artifact
from headcount.runs.latency import BATCHES, LENGTHS
from headcount.runs.report.bench import Time
from headcount.runs.report.certificates import describe_smallest_margin, describe_verdict, headline
from headcount.runs.report.plain import format_speed
from headcount.runs.store import Run
from headcount.workflows.analysis_spec import BenchSizes
from headcount.workflows.estimate import estimate_pruning_seconds
from headcount.workflows.prune import Pruning, estimate_training, prune_until_a_size_fails


def prune_model(
    session: Session,
    data: ModelAndTaskOptions,
    method: str | None,
    size: SizeOptions,
    options: PruningOptions,
    run: Run | None,
    *,
    seed: int,
    margin: Margin | None,
    measures_speed: bool,
    new_head: bool = False,
    plan_file: Path | None = None,
) -> ExitCode:
    """Prunes a model in a run folder, and prints the smaller one against the dense one; 1 where no size is certified, else 0."""
    plan = None if plan_file is None else Plan.read(plan_file)
    sizing_option = "--plan" if plan is not None else Pruner.parse(method or DEFAULT_METHOD).sizing_option_text
    margin_decides = margin is not None and not size.has_size and not sizing_option
    spec = options.build_spec(method, size.provisional_budget(sizing_option, has_margin=margin is not None), seed=seed, plan=plan)
    if new_head:
        options.check_new_head_gets_trained([spec.method])
    model, heads, folder = open_task_model(session, data, new_head=new_head)
    if plan is not None:
        check_plan(session, plan, model, heads)
    if size.keep is not None:
        spec = spec.resized(parse_kept_head_count(size.keep, heads, options.attention_kinds))
    sizes = list_kept_counts_to_test(spec, model, heads) if margin_decides else []
    if not margin_decides:
        check_request(spec, model, heads)
    if run is None:
        raise typer.BadParameter(
            "prune keeps its results in a run folder, which one process leads; torchrun trains with headcount.prune in Python"
        )
    config = {"spec": spec.to_dict(), "limit": data.limit, "margin": None if margin is None else str(margin), "sizes": sizes}
    set_run_description(run, session, data, model, heads, config, new_head=new_head)
    task = open_named_task(session, data, model, folder)
    note_statistical_power(session, task, data.limit)
    bench_sizes = BenchSizes(BATCHES, LENGTHS) if measures_speed else None
    pruning = Pruning(
        run,
        model,
        task,
        limit=data.limit,
        command=session.command,
        companions=folder,
        bench_sizes=bench_sizes,
        margin=margin,
        seed=data.seed,
    )
    requests = [spec.resized(n_kept) for n_kept in sizes] or [spec]
    unfinished = [request for request in requests if not pruning.is_finished(request)]
    if unfinished:
        seconds = estimate_pruning_seconds(model, task, heads, unfinished, limit=data.limit)
        note_expected_duration(session, seconds, ", if every size is certified" if sizes else "")
    with session.progress("evaluating the dense model"):
        dense = pruning.evaluate_dense()
    tests: list[SizeTest] = []
    if margin is not None and sizes:
        tests = _prune_until_a_size_fails(session, pruning, spec, sizes)
        show_size_tests(session, tests, margin, dense.n_examples)
        certified = smallest_certified(tests)
        if certified is None:
            session.write_json(
                {"model": data.model, "out": str(run.folder), "folder": None, "margin": str(margin), "sizes": _size_tests_to_dicts(tests)}
            )
            return 1
        spec = spec.resized(certified.n_kept)
    artifact = _read_or_make_pruned_model(session, run, pruning, spec)
    if new_head:
        session.write_note("the head of the dense model is not trained: prune with --keep 100% for the dense model after the same training")
    _show_and_certify_model(session, data.model, pruning, dense, artifact, tests)
    return 0


def _prune_until_a_size_fails(session: Session, pruning: Pruning, spec: PruneSpec, kept_counts: Sequence[int]) -> list[SizeTest]:
    """Returns the tests of the sizes in order, up to the first that fails."""
    estimate = estimate_training(pruning, [spec.resized(n_kept) for n_kept in kept_counts])
    if estimate is not None:
        session.write_note(f"at most, if every size is certified: {format_training(*astuple(estimate))}")
    with session.progress(f"pruning by {spec.method.label} and testing sizes", "sizes") as advance:
        return prune_until_a_size_fails(pruning, spec, kept_counts, progress=advance)


def _size_tests_to_dicts(tests: Sequence[SizeTest]) -> list[dict[str, Any]]:
    return [asdict(test.to_record()) for test in tests]


def _show_and_certify_model(
    session: Session, model_name: str, pruning: Pruning, dense: Evaluation, artifact: Artifact, tests: Sequence[SizeTest]
) -> None:
    """Prints the smaller model with its bound, survivors and latency, and writes its certificate beside it where there is a margin."""
    rows = pruning.compare_all_with_dense(dense, [artifact])
    show_pruned_rows(session, dense, rows)
    show_surviving_heads(session, rows)
    timings = pruning.latency_of(artifact)
    _show_timings(session, timings)
    certificate = rows[0].certificate
    session.write_line(f"{_capitalise(headline(certificate))}.")
    if pruning.margin is not None:
        session.write_line(f"{_capitalise(describe_verdict(certificate.quality))}.")
        pruning.attach_certificate(artifact, certificate, tests)
    else:
        session.write_line(f"The smallest margin that these data certify: {describe_smallest_margin(certificate.quality)}.")
    model_folder = pruning.model_folder(artifact.key)
    session.write_note(f"the model: {model_folder}")
    session.write_json(
        {
            "model": model_name,
            "out": str(pruning.run.folder),
            "folder": str(model_folder),
            "plan": artifact.content["removed"],
            "margin": None if pruning.margin is None else str(pruning.margin),
            "sizes": _size_tests_to_dicts(tests),
            "rows": [row.to_dict() for row in rows],
            "bench": timings,
        }
    )
    session.suggest_next("check", model_folder)


def _capitalise(sentence: str) -> str:
    return sentence[:1].upper() + sentence[1:]


def _read_or_make_pruned_model(session: Session, run: Run, pruning: Pruning, spec: PruneSpec) -> Artifact:
    """Returns the pruned model of a request, from the run or made now, and writes its plan beside its folder."""
    estimate = estimate_training(pruning, [spec])
    if estimate is not None:
        session.write_note(format_training(*astuple(estimate)))
    with session.progress(f"pruning by {spec.method.label}") as advance:
        artifact, _ = pruning.load_or_make_model(spec, advance)
    run.register_results(artifact)
    pruning.write_plan(artifact)
    return artifact


def _show_timings(session: Session, timings: Sequence[Time]) -> None:
    if timings:
        table = [
            (
                row["batch"],
                row["length"],
                row["name"],
                f"{1000 * row['seconds']:.1f}",
                format_speed(row["speedup"], row.get("speedup_low"), row.get("speedup_high")),
            )
            for row in timings
        ]
        session.write_table(("batch", "length", "model", "ms", "against the dense model"), table, right_aligned=("batch", "length", "ms"))
