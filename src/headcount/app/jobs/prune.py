"""`headcount prune`: prunes, evaluates and saves one model in a run folder."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

import typer

from headcount.app.console.format import format_training
from headcount.app.console.inputs import TaskOptions
from headcount.app.console.models import describe, open_model, open_named_task
from headcount.app.console.pruning import PruningOptions, SizeOptions, parse_heads, show_table
from headcount.app.console.session import Session
from headcount.core.plan import Plan
from headcount.models.head_map import HeadMap
from headcount.pruning.base import Pruner
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
) -> None:
    """Prunes a model in a run folder, and prints the smaller one against the dense one."""
    pruner = Pruner.parse(method)
    spec = options.spec(pruner, size.budget(pruner.sizes_itself), seed=seed)
    model, heads, folder = open_model(session, data.model, data.loading)
    if size.keep is not None:
        spec = spec.resized(parse_heads(size.keep, heads, options.attention))
    check_request(spec, model, heads)
    if run is None:
        raise typer.BadParameter(
            "prune keeps its results in a run folder, which one process leads; torchrun trains with headcount.prune in Python"
        )
    describe(run, session, data, model, heads, {"spec": spec.to_dict(), "limit": data.limit})
    task = open_named_task(session, data, model, folder)
    bench_sizes = BenchSizes(BATCHES, LENGTHS) if measures_speed else None
    pruning = Pruning(run, model, task, limit=data.limit, command=session.command, companions=folder, bench_sizes=bench_sizes)
    with session.progress("evaluating the dense model"):
        dense = pruning.evaluate_dense()
    artifact = _compute_artifact(session, run, pruning, spec, heads, method)
    rows = pruning.rows(dense, [artifact])
    show_table(session, dense, rows)
    timings = pruning.timings(artifact)
    _show_timings(session, timings)
    model_folder = pruning.model_folder(artifact.key)
    session.note(f"the model: {model_folder}")
    session.result(
        {
            "model": data.model,
            "out": str(run.folder),
            "folder": str(model_folder),
            "plan": artifact.content["removed"],
            "rows": [row.to_dict() for row in rows],
            "bench": timings,
        }
    )
    session.next("check", model_folder)


def _compute_artifact(session: Session, run: Run, pruning: Pruning, spec: PruneSpec, heads: HeadMap, method: str) -> Artifact:
    """Returns the pruned model of a request, from the run or made now, and writes its plan beside its folder."""
    estimate = estimate_training(pruning, [spec])
    if estimate is not None:
        session.note(format_training(**asdict(estimate)))
    with session.progress(f"pruning by {method}") as advance:
        artifact, _ = pruning.make(spec, advance)
    run.present(artifact)
    folder = pruning.model_folder(artifact.key)
    plan = Plan.removing(artifact.content["removed"])
    plan.write(folder.parent / f"{folder.name}.plan.json", heads, weights=pruning.base_key["weights"])
    return artifact


def _show_timings(session: Session, timings: Sequence[Time]) -> None:
    if timings:
        table = [
            (row["batch"], row["length"], row["name"], f"{1000 * row['seconds']:.1f}", format_speed(row["speedup"])) for row in timings
        ]
        session.table(("batch", "length", "model", "ms", "against the dense model"), table, right=("batch", "length", "ms"))
