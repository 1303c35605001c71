"""`headcount demo`: the whole job on two of the models that come with the package."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from headcount.app.console.command import command
from headcount.app.console.inputs import reader_of
from headcount.app.console.options import Device, Dtype, Seed
from headcount.app.console.run_folder import RunFolder
from headcount.app.console.session import Session
from headcount.app.console.steps import format_step
from headcount.data.embedded.sentences import draw_sentences, draw_translations
from headcount.data.open_task import open_task
from headcount.pruning.recipe import Recipe
from headcount.workflows.analysis_spec import AnalysisSpec

Limit = Annotated[int | None, typer.Option("--limit", min=2, help="Read at most that many examples of each split, whatever for.")]
Out = Annotated[Path, typer.Option("--out", metavar="DIR", help="The folder for scores and for the models that are saved.")]
SHOWN = {"entailment": "demo/entailment", "translator": "demo/translation"}
"""The embedded models that are shown, with the task of each."""
SIZES = {"entailment": (800, 500), "translator": (320, 64)}
"""Examples to train on, and examples of the report."""
METHODS = {"entailment": ("surgeon", "gradient", "dsp", "random"), "translator": ("surgeon", "gradient", "random")}
"""No more methods that train than have the steps they need within three minutes."""
RATES = {"entailment": 2e-4, "translator": 5e-4}
STEPS, FEW_STEPS = 300, 10
"""Optimiser steps of what trains; few under --limit, which is for a quick look."""
PROFILED = 48
"""Sentences that head profiles are taken on."""


@command
def run(
    session: Session,
    out: Out = Path("runs/demo"),
    limit: Limit = None,
    device: Device = "auto",
    dtype: Dtype = "auto",
    seed: Seed = 0,
) -> None:
    """Find, score, label and prune the heads of two small trained models by several methods, offline, and write a report of each."""
    with _one_thread():
        steps, reports = _analyze_models(session, out, limit, device, dtype, seed)
    session.result({"out": str(out), "steps": steps, "reports": reports})
    for path in reports:
        session.line(f"report: {path}")
    session.next("compare", "demo/entailment", "--task", "demo/entailment", "--methods", "surgeon,fisher,gradient", "--out", "runs/compare")


@contextmanager
def _one_thread() -> Iterator[None]:
    """Models this small gain nothing from a second thread, and lose much by it where the machine is busy."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _analyze_models(session: Session, out: Path, limit: int | None, device: str, dtype: str, seed: int) -> tuple[list[Any], list[str]]:
    """Every step of both models, and the reports."""
    from headcount.app.console.models import open_model
    from headcount.behaviour.corpus import read_corpus
    from headcount.workflows.analyze import AnalysisJob, run_analysis

    steps: list[Any] = []
    reports: list[str] = []
    for name, task in SHOWN.items():
        with RunFolder(out / name).open(session) as kept:
            if kept is None:
                raise typer.BadParameter("demo is led by one process; start it without torchrun")
            model, _, folder = open_model(session, f"demo/{name}", device=device, dtype=dtype)
            tokenizer = reader_of(model, folder)
            size, reported = SIZES[name] if limit is None else (limit, limit)
            data = open_task(f"{task}(size={size})", model, tokenizer, seed=seed)
            number = min(200, reported)
            if name == "translator":
                text, how = (
                    draw_translations(number=number, seed=seed),
                    {"add_special_tokens": False, "end": (tokenizer.eos_token_id,)},
                )
            else:
                text, how = draw_sentences("english", number, seed=seed), {}
            spec = AnalysisSpec(
                keep=(0.25, 0.5),
                methods=METHODS[name],
                training_seeds=1,
                scored=min(AnalysisSpec.scored, reported),
                reported=reported,
                profiled=PROFILED,
                recipe=Recipe(steps=STEPS if limit is None else FEW_STEPS, rate=RATES[name]),
                seed=seed,
            )
            job = AnalysisJob(
                f"demo/{name}",
                model,
                data,
                spec,
                read_corpus(model, text, tokenizer, **how),
                command=session.command,
                tokenizer=tokenizer,
                folder=folder,
                config={"opened": {"task": task, "task_option": [f"size={size}"], "seed": seed}},
                watch=session.watch,
            )
            for step in run_analysis(job, kept):
                sentence = format_step(step.name, step.numbers)
                steps.append({"model": step.model, "step": step.name, "text": sentence, **step.numbers})
                reports += [step.numbers["path"]] if step.name == "report" else []
                session.line(f"{name:<10} {step.name:<9} {sentence}")
                session.doing(f"{name}, after step {step.name}")
    return steps, reports
