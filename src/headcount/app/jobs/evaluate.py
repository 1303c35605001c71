"""`headcount evaluate`: evaluates a model as it is and under a plan, and prints both with their paired difference."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any, cast

import typer

from headcount.app.console.format import format_interval_ends, format_p_value
from headcount.app.console.inputs import ModelAndTaskOptions
from headcount.app.console.models import note_other_weights, open_named_task, open_task_model, set_run_description
from headcount.app.console.options import split_at_commas
from headcount.app.console.session import Session
from headcount.core.errors import unknown_name_error
from headcount.core.evaluation import Evaluation, PairedDifference, loss_and_metric_of_pruned_minus_dense
from headcount.core.plan import Plan
from headcount.data.mask import mask
from headcount.data.task import SPLITS
from headcount.data.task import Split as SplitName
from headcount.runs.store import Run
from headcount.workflows.evaluate import evaluate_into


def evaluate_model(
    session: Session, data: ModelAndTaskOptions, plan_file: Path | None, head_list: str | None, split_name: str, run: Run | None
) -> None:
    """Evaluates a model on a split of its task, as it is and without the heads of a plan, and prints both.

    Raises:
        BadParameter: heads are named twice.
        PlanError: the plan does not fit the model.
    """
    if plan_file is not None and head_list is not None:
        raise typer.BadParameter("--plan and --heads both say which heads go; leave one out")
    if split_name not in SPLITS:
        raise unknown_name_error("split", split_name, SPLITS)
    plan = Plan.removing(split_at_commas(head_list or "")) if plan_file is None else Plan.read(plan_file)
    removed = () if plan_file is None and head_list is None else plan.list_removed()
    model, head_map, model_folder = open_task_model(session, data)
    plan.check_model(head_map)  # heads that are gated alone need not be cut
    note_other_weights(session, plan, model)
    if run is not None:
        set_run_description(run, session, data, model, head_map, {"plan": list(removed), "split": split_name, "limit": data.limit})
    task, which = open_named_task(session, data, model, model_folder), cast(SplitName, split_name)
    reading: Any = {"split": which, "limit": data.limit, "batch_size": data.examples_per_batch}
    with session.progress("evaluating the model as it is") as advance:
        dense = evaluate_into(run, "dense", model, task, progress=advance, **reading)
    pruned, changes = None, {}
    if removed:
        under = {"removed": sorted(removed), "how": "zero"}
        with session.progress(f"evaluating without {len(removed)} heads") as advance, mask(model, removed):
            pruned = evaluate_into(run, f"without {len(removed)} heads", model, task, gate_description=under, progress=advance, **reading)
        changes = loss_and_metric_of_pruned_minus_dense(dense, pruned, task.metric.total if task.metric else None, seed=data.seed)
    _show_evaluations(session, dense, pruned, changes, len(head_map), len(removed))
    content: dict[str, Any] = {"model": data.model, "task": task.name, "split": split_name, "dense": _evaluation_to_dict(dense)}
    if pruned is not None:
        content |= {
            "plan": list(removed),
            "pruned": _evaluation_to_dict(pruned),
            "changes": {name: asdict(change) for name, change in changes.items()},
        }
    session.write_json(content)


def _evaluation_to_dict(evaluation: Evaluation) -> dict[str, Any]:
    return {name: getattr(evaluation, name) for name in ("loss", "metric", "value", "n_examples")}


def _show_evaluations(
    session: Session, dense: Evaluation, pruned: Evaluation | None, changes: dict[str, PairedDifference], n_heads: int, n_removed: int
) -> None:
    """Prints a row for every model and quantity, with the paired difference of the second."""
    columns = ("model", "heads", "quantity", "value", "change", "95% interval", "p", "test")
    rows: list[tuple[object, ...]] = []
    for name, evaluation, number in (("as it is", dense, n_heads), ("without the plan's heads", pruned, n_heads - n_removed)):
        if evaluation is None:
            continue
        quantities = {"metric": (evaluation.metric, evaluation.value), "loss": ("loss", evaluation.loss)}
        for key, (label, value) in quantities.items():
            change = changes.get(key) if evaluation is pruned else None
            tested = ("", "", "", "")
            if change is not None:
                tested = (f"{change.difference:+.4g}", format_interval_ends(change.low, change.high), format_p_value(change.p), change.by)
            if value is not None:
                rows.append((name, number, label, f"{value:.4g}", *tested))
    session.write_table(columns, rows, right_aligned=("heads", "value", "change", "95% interval", "p"))
    session.write_line(f"{dense.n_examples} examples of the {dense.split} split")
