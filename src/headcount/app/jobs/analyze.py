"""`headcount analyze`: every step of an analysis, each as a sentence."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from headcount.app.console.corpus import open_optional_corpus
from headcount.app.console.inputs import ModelAndTaskOptions
from headcount.app.console.models import note_expected_duration, note_statistical_power, open_named_task, open_task_model
from headcount.app.console.session import Session
from headcount.app.console.steps import format_step
from headcount.app.console.words import prune_command
from headcount.core.files import absolute_path_if_exists
from headcount.data.readers.processor import tokenizer_or_image_processor
from headcount.runs.store import Run
from headcount.workflows.analysis_spec import AnalysisSpec
from headcount.workflows.analyze import AnalysisJob, check_names, make_prune_requests, run_analysis
from headcount.workflows.estimate import estimate_analysis_seconds


def analyze_model(
    session: Session,
    data: ModelAndTaskOptions,
    spec: AnalysisSpec,
    run: Run,
    *,
    text_file: Path | None,
    embedded_name: str | None,
    parser_name: str | None,
) -> None:
    """Runs all steps of an analysis in a run folder, or those that it does not hold yet."""
    check_names(spec)
    model, heads, folder = open_task_model(session, data)
    task = open_named_task(session, data, model, folder)
    note_statistical_power(session, task, spec.comparison_limit)
    note_expected_duration(
        session,
        estimate_analysis_seconds(model, task, heads, spec, make_prune_requests(spec, heads)),
        ", roles, profiles and latency left out",
    )
    corpus, why_no_corpus = open_optional_corpus(
        session, data, model, folder, task, text_file=text_file, embedded_name=embedded_name, parser_name=parser_name
    )
    if corpus is None:
        session.write_note(f"roles are left out: {why_no_corpus}")
    texts = {"text": absolute_path_if_exists(text_file) if text_file else None, "embedded": embedded_name}
    job = AnalysisJob(
        data.model,
        model,
        task,
        spec,
        corpus,
        why_no_corpus=why_no_corpus,
        command=session.command,
        tokenizer=tokenizer_or_image_processor(model, folder, data.trust_remote_code),
        folder=folder,
        config={"opened": data.opening_record() | {name: value for name, value in texts.items() if value}},
        watch=session.begin_counted_work,
        prune_command=prune_command,
    )
    records = run_and_print_steps(session, job, run)
    session.write_json({"out": str(run.folder), "steps": records})
    session.suggest_next("serve", run.folder)


def run_and_print_steps(session: Session, job: AnalysisJob, run: Run, line_prefix: str = "") -> list[dict[str, Any]]:
    """Prints every step of an analysis as a sentence, when it is finished; returns the steps as plain data."""
    records = []
    for step in run_analysis(job, run):
        sentence = format_step(step.name, step.numbers)
        records.append({"step": step.name, "text": sentence, **step.numbers})
        session.write_line(f"{line_prefix}{step.name:<9} {sentence}")
        session.begin_work(f"after step {step.name}")
    return records
