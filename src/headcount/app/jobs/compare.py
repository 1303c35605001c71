"""`headcount compare`: prunes by every method to every size, and prints the tables."""

from __future__ import annotations

from dataclasses import astuple
from pathlib import Path

import typer
from torch import nn

from headcount.app.console.comparison import MeasureOptions, show_best_of_each_size, show_comparison
from headcount.app.console.corpus import open_optional_corpus
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
from headcount.app.console.options import split_at_commas
from headcount.app.console.pruning import PruningOptions, parse_kept_head_count, split_methods
from headcount.app.console.session import Session
from headcount.app.console.words import task_words
from headcount.core.budget import Budget
from headcount.core.definition import DEFAULT_DEFINITION, Definition
from headcount.core.margin import Margin
from headcount.core.plan import Plan
from headcount.data.task import Task
from headcount.pruning.base import Pruner
from headcount.pruning.prune import check_request
from headcount.runs.store import Run
from headcount.workflows.compare import ComparisonJob, build_comparison_requests, run_comparison
from headcount.workflows.estimate import estimate_pruning_seconds
from headcount.workflows.prune import Pruning, estimate_training
from headcount.workflows.remaining_roles import FamilyTest


def compare_pruners(
    session: Session,
    data: ModelAndTaskOptions,
    methods: str,
    kept_sizes: str,
    n_seeds: int,
    options: PruningOptions,
    measure: MeasureOptions,
    run: Run | None,
    *,
    margin: Margin | None = None,
    new_head: bool = False,
    plan_file: Path | None = None,
) -> None:
    """Prunes by every method to every number of heads in a run folder, and prints each against the dense model and against each other."""
    template = options.build_spec("random", Budget(keep=1), seed=data.seed)
    pruners = Pruner.parse_grid(split_methods(methods))
    Definition.parse(measure.definition or DEFAULT_DEFINITION)
    if new_head:
        options.check_new_head_gets_trained(pruners)
    plan = None if plan_file is None else Plan.read(plan_file)
    model, heads, model_folder = open_task_model(session, data, new_head=new_head)
    keeps = [parse_kept_head_count(text, heads, options.attention_kinds) for text in split_at_commas(kept_sizes)]
    if plan is not None:
        check_plan(session, plan, model, heads)
    removed = () if plan is None else plan.list_removed()
    specs = build_comparison_requests(pruners, keeps, n_seeds, template, heads, removed_by_plan=removed, has_untrained_head=new_head)
    for spec in specs:
        check_request(spec, model, heads)
    if run is None:
        raise typer.BadParameter("compare is led by one process; share it with --workers, --engine or --join instead of torchrun")
    set_run_description(
        run,
        session,
        data,
        model,
        heads,
        {
            "methods": methods,
            "keep": keeps,
            "seeds": n_seeds,
            "template": template.to_dict(),
            "margin": None if margin is None else str(margin),
        },
        new_head=new_head,
    )
    task = open_named_task(session, data, model, model_folder)
    note_statistical_power(session, task, data.limit)
    roles = _open_role_test(session, data, measure, model, model_folder, task) if measure.keep_models else None
    pruning = Pruning(run, model, task, limit=data.limit, command=session.command, companions=model_folder, margin=margin, seed=data.seed)
    unfinished = [spec for spec in specs if not pruning.is_finished(spec)]
    if unfinished:
        note_expected_duration(session, estimate_pruning_seconds(model, task, heads, unfinished, limit=data.limit))
    estimate = estimate_training(pruning, specs)
    if estimate is not None:
        session.write_note(format_training(*astuple(estimate)))
    sizes, kinds = measure.bench_sizes(), options.attention_kinds
    comparison = run_comparison(ComparisonJob(pruning, specs, kinds, sizes, measure.keep_models, roles, data.seed, session.progress))
    show_comparison(session, comparison)
    show_best_of_each_size(session, comparison)
    for name, error in comparison.failed.items():
        session.write_note(f"failed: {name}: {error}")
    session.write_json({"model": data.model, **comparison.to_dict()})
    session.write_note(f"kept in {run.folder}")
    words = ["--method", "surgeon", "--keep", str(keeps[0]), "--out", str(run.folder)]
    words += ["--recover", str(options.recover)] if new_head and options.recover is not None else []
    session.suggest_next("prune", data.model, *task_words({**data._asdict(), "new_head": new_head}), *words)


def _open_role_test(
    session: Session, data: ModelAndTaskOptions, measure: MeasureOptions, model: nn.Module, model_folder: Path, task: Task
) -> FamilyTest | None:
    """Returns the test of roles on the text of the command line, or else of the task; None, with a note, where there is none."""
    corpus, why_none = open_optional_corpus(
        session, data, model, model_folder, task, text_file=measure.text, embedded_name=measure.embedded, parser_name=measure.parser
    )
    if corpus is None:
        session.write_note(f"the roles of the kept models are not measured: {why_none}; name a text with --text FILE or --embedded NAME")
        return None
    return FamilyTest.by_definition(corpus, measure.definition or DEFAULT_DEFINITION, seed=data.seed, batch_size=data.examples_per_batch)
