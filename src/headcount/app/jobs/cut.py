"""`headcount cut`: reads which heads go, cuts, verifies and saves."""

from __future__ import annotations

from pathlib import Path

import typer
from torch import nn

from headcount.app.cli.cut import CutRequest
from headcount.app.console.inputs import ModelOptions
from headcount.app.console.models import open_model
from headcount.app.console.options import split_at_commas
from headcount.app.console.pruning import parse_keep
from headcount.app.console.session import Session
from headcount.core.budget import Budget
from headcount.core.errors import ArtifactError, PlanError
from headcount.core.files import is_folder
from headcount.core.folders import check_output_folder
from headcount.core.plan import Plan
from headcount.core.scores import Scores
from headcount.models.head_map import HeadMap
from headcount.models.provenance import weight_hash
from headcount.runs.scores import all_scores, scores_of
from headcount.runs.store import Run
from headcount.surgery.cost import Cost, cost
from headcount.surgery.cut import cut
from headcount.surgery.manifest import NAME
from headcount.surgery.save import save


def cut_model(session: Session, model_name: str, request: CutRequest, out: Path, loading: ModelOptions, *, overwrite: bool) -> None:
    """Removes the heads of a request from a model, and saves the smaller one."""
    source = _read_plan_or_scores(request)
    check_output_folder(out, overwrite, NAME)
    model, heads, folder = open_model(session, model_name, loading)
    if isinstance(source, Scores):
        _check_scores_are_of_model(request, model)
        plan = Plan.keep_top(source.reorder(heads), Budget(keep=parse_keep(request.keep or "")))
    else:
        plan = source
    _check_plan(plan, model, heads)
    session.begin_work("cutting, and comparing with the gated model")
    before = cost(model, heads=heads)
    small = cut(model, plan, in_place=True)
    after = cost(small)
    session.begin_work("saving")
    save(small, out, command=session.command, cost=(before, after), tokenizer=folder, overwrite=overwrite)
    session.write_note(f"cut equals gate; wrote {out}")
    _show_costs(session, before, after)
    removed = [str(head) for head in plan.removed]
    session.write_json({"model": model_name, "out": str(out), "removed": removed, "before": before.to_dict(), "after": after.to_dict()})
    session.suggest_next("check", out)


def _read_plan_or_scores(request: CutRequest) -> Plan | Scores:
    """Returns the plan, or the scores that it is made from, before the model is opened."""
    if request.heads is not None:
        return Plan.removing(split_at_commas(request.heads))
    if request.plan is not None:
        return Plan.read(request.plan)
    path = Path(request.scores or "")
    if not is_folder(path):
        return Scores.read(path, only_method=request.only_method, higher_is_keep=False if request.lower_is_keep else None)
    if request.lower_is_keep:
        raise typer.BadParameter("--lower-is-keep is for tables; a run folder records itself what its scores mean")
    run = Run.open(path)
    if request.only_method is not None:
        return scores_of(run, request.only_method)
    scores = all_scores(run)
    if len(scores) != 1:
        raise ArtifactError(f"{path} holds scores by {', '.join(scores) or 'no method'}; choose one (--method NAME)")
    return next(iter(scores.values()))


def _check_scores_are_of_model(request: CutRequest, model: nn.Module) -> None:
    """Raises PlanError for the scores of a run whose model has other weights."""
    if request.scores is None or not is_folder(request.scores):
        return
    recorded, actual = Run.open(request.scores).record().model.weights, weight_hash(model)
    if recorded != actual:
        raise PlanError(
            f"{request.scores} holds scores of other weights ({recorded[:12]}; this model has {actual[:12]}). To use them for another model "
            f"of this shape, name the table: --scores {request.scores / 'scores.parquet'}"
        )


def _check_plan(plan: Plan, model: nn.Module, heads: HeadMap) -> None:
    """Raises PlanError for a plan that removes nothing, or was made for another model."""
    if not plan.removed:
        raise PlanError(f"nothing would be removed from {heads.describe()}; name heads, or keep fewer")
    names_weights = plan.model_identity is not None and plan.model_identity.weights
    plan.check(heads, weight_hash(model) if names_weights else "")


def _show_costs(session: Session, before: Cost, after: Cost) -> None:
    """Prints the costs of a model before and after a cut side by side."""
    old, new = before.to_dict(), after.to_dict()
    labels = {
        "heads": "attention heads",
        "parameters": "parameters",
        "bytes": "bytes of parameters",
        "flops": f"FLOPs of a pass over {before.tokens} tokens",
        "kv_bytes_per_token": "bytes of KV cache per token",
    }
    rows = [
        (label, f"{old[name]:,}", f"{new[name]:,}", f"{new[name] / old[name]:.1%}" if old[name] else "") for name, label in labels.items()
    ]
    session.write_table(("", "before", "after", "left"), rows, right_aligned=("before", "after", "left"))
