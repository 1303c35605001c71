"""`headcount compare`: prunes by every method to every size, and prints the table."""

from __future__ import annotations

from dataclasses import asdict

import typer

from headcount.app.console.format import format_smallest, format_training
from headcount.app.console.inputs import TaskOptions
from headcount.app.console.models import describe, open_model, open_named_task
from headcount.app.console.options import split
from headcount.app.console.pruning import PruningOptions, parse_heads, show_table, split_methods
from headcount.app.console.session import Session
from headcount.core.budget import Budget
from headcount.pruning.prune import check_request
from headcount.runs.report.commands import task_words
from headcount.runs.results import smallest_safe
from headcount.runs.store import Run
from headcount.workflows.prune import Pruning, build_grid, compare, estimate_training


def compare_pruners(
    session: Session, data: TaskOptions, methods: str, keep: str, seeds: int, options: PruningOptions, run: Run | None
) -> None:
    """Prunes by every method to every number of heads in a run folder, and prints each against the dense model."""
    model, heads, model_folder = open_model(session, data.model, data.loading)
    keeps = [parse_heads(text, heads, options.attention) for text in split(keep)]
    template = options.spec("random", Budget(keep=1), seed=data.seed)
    specs = build_grid(split_methods(methods), keeps, seeds, template, first_seed=data.seed)
    for spec in specs:
        check_request(spec, model, heads)
    if run is None:
        raise typer.BadParameter("compare is led by one process; share it with --workers, --engine or --join instead of torchrun")
    describe(run, session, data, model, heads, {"methods": methods, "keep": keeps, "seeds": seeds, "template": template.to_dict()})
    task = open_named_task(session, data, model, model_folder)
    pruning = Pruning(run, model, task, limit=data.limit, command=session.command)
    estimate = estimate_training(pruning, specs)
    if estimate is not None:
        session.note(format_training(**asdict(estimate)))
    with session.progress("pruning", "models") as advance:
        dense, artifacts, failed = compare(pruning, specs, progress=advance)
    rows = pruning.rows(dense, artifacts)
    show_table(session, dense, rows)
    smallest = smallest_safe(rows)
    session.table(
        ("method", "fewest heads without a significant loss"),
        [(name, format_smallest(rows, name, number)) for name, number in smallest.items()],
    )
    for name, error in failed.items():
        session.note(f"failed: {name}: {error}")
    session.result(
        {
            "model": data.model,
            "out": str(run.folder),
            "dense": {"loss": dense.loss, "metric": dense.metric, "value": dense.value, "n_examples": dense.n_examples},
            "rows": [row.to_dict() for row in rows],
            "smallest": smallest,
            "failed": {name: str(error) for name, error in failed.items()},
        }
    )
    session.note(f"kept in {run.folder}")
    words = ["--method", "surgeon", "--keep", str(keeps[0]), "--out", str(run.folder)]
    session.next("prune", data.model, *task_words(data._asdict()), *words)
