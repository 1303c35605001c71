"""`headcount prune`: prunes, evaluates and saves one model in a run folder."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import typer

from headcount.app.console.format import format_training
from headcount.app.console.inputs import TaskOptions
from headcount.app.console.models import open_named_task, open_task_model, set_run_description
from headcount.app.console.pruning import (
    PruningOptions,
    SizeOptions,
    parse_head_count,
    read_removed_heads,
    show_pruned_rows,
    show_survivors,
)
from headcount.app.console.session import Session
from headcount.core.budget import Budget
from headcount.core.plan import Plan
from headcount.models.provenance import weight_hash
from headcount.pruning.base import Pruner
from headcount.pruning.methods.plan import PlanPruner
from headcount.pruning.prune import check_request
from headcount.pruning.spec import PruneSpec
from headcount.runs.artifacts import Artifact
from headcount.runs.report.bench import Time
from headcount.runs.report.plain import format_speed
from headcount.runs.store import Run
from headcount.surgery.bench import BATCHES, LENGTHS
from headcount.workflows.analysis_spec import BenchSizes
from headcount.workflows.prune import Pruning, estimate_training


def prune_model(
    session: Session,
    data: TaskOptions,
    method: str,
    size: SizeOptions,
    options: PruningOptions,
    run: Run | None,
    *,
    seed: int,
    measures_speed: bool,
    new_head: bool = False,
    plan: Path | None = None,
) -> None:
    """Prunes a model in a run folder, and prints the smaller one against the dense one."""
    pruner, spec = Pruner.parse(method) if plan is None else PlanPruner(), None
    if plan is None:
        spec = options.spec(pruner, size.budget(pruner.sizing_option), seed=seed)
    else:
        Plan.read(plan)
    if new_head:
        options.check_new_head([pruner])
    model, heads, folder = open_task_model(session, data, new_head=new_head)
    if spec is None:
        assert plan is not None
        spec = options.spec(PlanPruner(removed=read_removed_heads(session, plan, heads, weight_hash(model))), Budget(), seed=seed)
    if size.keep is not None:
        spec = spec.resized(parse_head_count(size.keep, heads, options.attention_kinds))
    check_request(spec, model, heads)
    if run is None:
        raise typer.BadParameter(
            "prune keeps its results in a run folder, which one process leads; torchrun trains with headcount.prune in Python"
        )
    set_run_description(run, session, data, model, heads, {"spec": spec.to_dict(), "limit": data.limit}, new_head=new_head)
    task = open_named_task(session, data, model, folder)
    bench_sizes = BenchSizes(BATCHES, LENGTHS) if measures_speed else None
    pruning = Pruning(run, model, task, limit=data.limit, command=session.command, companions=folder, bench_sizes=bench_sizes)
    with session.progress("evaluating the dense model"):
        dense = pruning.evaluate_dense()
    artifact = _compute_artifact(session, run, pruning, spec)
    if new_head:
        session.write_note("the head of the dense model is not trained: prune with --keep 100% for the dense model after the same training")
    rows = pruning.compare_all_with_dense(dense, [artifact])
    show_pruned_rows(session, dense, rows)
    show_survivors(session, rows)
    timings = pruning.latency_of(artifact)
    _show_timings(session, timings)
    model_folder = pruning.model_folder(artifact.key)
    session.write_note(f"the model: {model_folder}")
    session.write_json(
        {
            "model": data.model,
            "out": str(run.folder),
            "folder": str(model_folder),
            "plan": artifact.content["removed"],
            "rows": [row.to_dict() for row in rows],
            "bench": timings,
        }
    )
    session.suggest_next("check", model_folder)


def _compute_artifact(session: Session, run: Run, pruning: Pruning, spec: PruneSpec) -> Artifact:
    """Returns the pruned model of a request, from the run or made now, and writes its plan beside its folder."""
    estimate = estimate_training(pruning, [spec])
    if estimate is not None:
        session.write_note(format_training(**asdict(estimate)))
    with session.progress(f"pruning by {spec.method.label}") as advance:
        artifact, _ = pruning.make_model(spec, advance)
    run.present(artifact)
    pruning.write_plan(artifact)
    return artifact


def _show_timings(session: Session, timings: Sequence[Time]) -> None:
    if timings:
        table = [
            (row["batch"], row["length"], row["name"], f"{1000 * row['seconds']:.1f}", format_speed(row["speedup"])) for row in timings
        ]
        session.write_table(("batch", "length", "model", "ms", "against the dense model"), table, right=("batch", "length", "ms"))
