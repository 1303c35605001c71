"""`headcount prune`: ask for K heads, get the best K-head model by any method."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from headcount.app.console import inputs
from headcount.app.console.command import command
from headcount.app.console.format import format_training
from headcount.app.console.pruning import (
    DEFAULT_PRUNING,
    DEFAULT_SIZE,
    MethodOptions,
    PruningOptions,
    SizeOptions,
    add_options,
    parse_heads,
    show_table,
)
from headcount.app.console.run_folder import RunFolder, describe
from headcount.app.console.session import Session
from headcount.core.plan import Plan
from headcount.runs.report.bench import Time
from headcount.runs.report.plain import format_speed
from headcount.workflows.analysis_spec import BenchSizes

Method = Annotated[
    str,
    typer.Option(
        "--method", metavar="NAME", help="A pruner of `headcount ls pruners` (with its name: its definition), or an importance to rank by."
    ),
]
Out = Annotated[Path, typer.Option("--out", metavar="RUN", help="The run folder: plan, model, numbers; the same command goes on from it.")]
MethodSeed = Annotated[
    int | None, typer.Option("--method-seed", min=0, help="The seed of the method, where it is not that of the data (--seed).")
]
Bench = Annotated[bool, typer.Option("--bench/--no-bench", help="Measure how much faster the cut model is.")]


@command
def run(
    session: Session,
    given: inputs.TaskOptions,
    out: Out,
    size: SizeOptions = DEFAULT_SIZE,
    method: Method = "surgeon",
    option: MethodOptions = None,
    pruning_options: PruningOptions = DEFAULT_PRUNING,
    method_seed: MethodSeed = None,
    bench: Bench = True,
) -> None:
    """Prune to K heads, repair, cut, verify, evaluate against the dense model in pairs, and save the smaller model."""
    with RunFolder(out).open(session) as kept:
        from headcount.pruning.base import Pruner
        from headcount.pruning.prune import check_request
        from headcount.surgery.bench import BATCHES, LENGTHS
        from headcount.workflows.prune import Pruning, estimate_training

        pruner = Pruner.parse(add_options(method, inputs.pairs(option, "--option")))
        sizes = size.size(pruner.sizes_itself)
        seed = given.seed if method_seed is None else method_seed
        spec = pruning_options.spec(pruner, seed=seed, **{**sizes, **({"keep": 1} if "keep" in sizes else {})})
        live, heads, folder = given.open_model(session)
        if "keep" in sizes:
            spec = spec.resized(parse_heads(sizes["keep"], heads, pruning_options.attention))
        check_request(spec, live, heads)
        if kept is None:
            raise typer.BadParameter(
                "prune keeps its results in a run folder, which one process leads; torchrun trains with headcount.prune in Python"
            )
        describe(kept, session, given, live, heads, {"spec": spec.to_dict(), "limit": given.limit})
        task = given.open_task(session, live, folder)
        sizes_of_bench = BenchSizes(BATCHES, LENGTHS) if bench else None
        pruning = Pruning(kept, live, task, limit=given.limit, command=session.command, companions=folder, bench_sizes=sizes_of_bench)
        with session.progress("evaluating the dense model"):
            dense = pruning.evaluate_dense()
        estimate = estimate_training(pruning, [spec])
        if estimate is not None:
            session.note(format_training(**asdict(estimate)))
        with session.progress(f"pruning by {method}") as advance:
            artifact, _ = pruning.make(spec, advance)
        kept.present(artifact)
        model_folder = pruning.model_folder(artifact.key)
        plan = Plan.removing(artifact.content["removed"])
        plan.write(model_folder.parent / f"{model_folder.name}.plan.json", heads, weights=pruning.base_key["weights"])
        rows = pruning.rows(dense, [artifact])
        show_table(session, dense, rows)
        timings = pruning.timings(artifact)
        _show_timings(session, timings)
        session.note(f"the model: {model_folder}")
        session.result(
            {
                "model": given.model,
                "out": str(out),
                "folder": str(model_folder),
                "plan": artifact.content["removed"],
                "rows": [row.to_dict() for row in rows],
                "bench": timings,
            }
        )
        session.next("check", model_folder)


def _show_timings(session: Session, timings: list[Time]) -> None:
    if timings:
        table = [
            (row["batch"], row["length"], row["name"], f"{1000 * row['seconds']:.1f}", format_speed(row["speedup"])) for row in timings
        ]
        session.table(("batch", "length", "model", "ms", "against the dense model"), table, right=("batch", "length", "ms"))
