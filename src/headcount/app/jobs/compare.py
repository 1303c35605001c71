"""`headcount compare`: prunes by every method to every size, and prints the table."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import typer

from headcount.app.console.format import format_smallest, format_training
from headcount.app.console.inputs import TaskOptions
from headcount.app.console.models import describe, open_named_task, open_task_model
from headcount.app.console.options import split
from headcount.app.console.pruning import PruningOptions, parse_heads, read_plan, show_table, split_methods
from headcount.app.console.session import Session
from headcount.core.budget import Budget
from headcount.core.plan import Plan
from headcount.models.provenance import weight_hash
from headcount.pruning.base import Pruner
from headcount.pruning.methods.plan import PlanPruner
from headcount.pruning.prune import check_request
from headcount.runs.report.commands import task_words
from headcount.runs.results import smallest_safe
from headcount.runs.store import Run
from headcount.workflows.prune import Pruning, build_grid, compare, estimate_training


def compare_pruners(
    session: Session,
    data: TaskOptions,
    methods: str,
    keep: str,
    seeds: int,
    options: PruningOptions,
    run: Run | None,
    *,
    new_head: bool = False,
    plan: Path | None = None,
) -> None:
    """Prunes by every method to every number of heads in a run folder, and prints each against the dense model."""
    template = options.spec("random", Budget(keep=1), seed=data.seed)
    if new_head:
        options.check_new_head(split_methods(methods))
    if plan is not None:
        Plan.read(plan)
    model, heads, model_folder = open_task_model(session, data, new_head=new_head)
    keeps = [parse_heads(text, heads, options.attention) for text in split(keep)]
    pruners: list[str | Pruner] = [*split_methods(methods)]
    sizes: list[int] = []  # random heads of as many as the plan and its complement keep
    if plan is not None:
        removed = read_plan(session, plan, heads, weight_hash(model))
        pruners += [PlanPruner(removed=removed), PlanPruner(removed=removed, complement=True)]
        sizes = [size for size in (len(heads) - len(removed), len(removed)) if size not in keeps]
    specs = build_grid(pruners, keeps, seeds, template, first_seed=data.seed)
    specs += build_grid((), sizes, seeds, template, first_seed=data.seed)
    if new_head:  # the head of the dense model is not trained: its control is the training alone
        specs += build_grid((), [len(heads)], seeds, template, first_seed=data.seed)
    for spec in specs:
        check_request(spec, model, heads)
    if run is None:
        raise typer.BadParameter("compare is led by one process; share it with --workers, --engine or --join instead of torchrun")
    describe(
        run,
        session,
        data,
        model,
        heads,
        {"methods": methods, "keep": keeps, "seeds": seeds, "template": template.to_dict()},
        new_head=new_head,
    )
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
    words += ["--recover", str(options.recover)] if new_head and options.recover is not None else []
    session.next("prune", data.model, *task_words({**data._asdict(), "new_head": new_head}), *words)
