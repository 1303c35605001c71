"""`headcount demo`: the whole job on two of the models that come with the package."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import nn

from headcount.app.console.inputs import ModelOptions
from headcount.app.console.models import open_model
from headcount.app.console.run_folder import lead_run
from headcount.app.console.session import Session
from headcount.app.console.words import prune_command
from headcount.app.jobs.analyze import run_and_print_steps
from headcount.behaviour.base import Corpus
from headcount.behaviour.corpus import read_corpus
from headcount.data.embedded.sentences import draw_sentences, draw_translations
from headcount.data.open_task import open_task
from headcount.data.readers.processor import tokenizer_or_image_processor
from headcount.pruning.recipe import Recipe
from headcount.workflows.analysis_spec import AnalysisSpec
from headcount.workflows.analyze import AnalysisJob

TASKS = {"entailment": "demo/entailment", "translator": "demo/translation"}
"""The embedded models of the demo, with the task of each."""
SIZES = {"entailment": (1000, None), "translator": (320, 64)}
"""Examples of each split, and how many of the report split models are compared on; None for all of them."""
VERDICT_LIMITS = {"entailment": None, "translator": 64}
"""Report examples that verdicts on single heads are taken on: as many as they need, and few where removing each head takes long."""
MARGINS = {"entailment": "3pt", "translator": None}
"""What 1,000 answers can show of a model that loses little; 64 translations give no verdict."""
METHODS = {"entailment": ("surgeon", "gradient", "dsp", "random"), "translator": ("surgeon", "gradient", "random")}
"""No more methods that train than have the steps they need within three minutes."""
RATES = {"entailment": 2e-4, "translator": 5e-4}
STEPS, FEW_STEPS = 300, 10
"""Optimiser steps of what trains; few under --limit, which is for a quick look."""
PROFILE_LIMIT = 48
"""Sentences that head profiles are taken on."""


def run_demo(session: Session, out: Path, limit: int | None, loading: ModelOptions, seed: int) -> None:
    """Analyses the embedded models of the demo, each into a run folder of its own under `out`."""
    steps: list[dict[str, Any]] = []
    with _torch_on_one_thread():
        for name in TASKS:
            records = _analyze_embedded(session, name, out / name, limit, loading, seed)
            steps += [{"model": f"demo/{name}", **record} for record in records]
    reports = [step["path"] for step in steps if step["step"] == "report"]
    session.write_json({"out": str(out), "steps": steps, "reports": reports})
    for path in reports:
        session.write_line(f"report: {path}")
    session.suggest_next(
        "compare", "demo/entailment", "--task", "demo/entailment", "--methods", "surgeon,fisher,gradient", "--out", "runs/compare"
    )


@contextmanager
def _torch_on_one_thread() -> Iterator[None]:
    """Models this small gain nothing from a second thread, and lose much by it where the machine is busy."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _analyze_embedded(
    session: Session, model_name: str, out: Path, limit: int | None, loading: ModelOptions, seed: int
) -> list[dict[str, Any]]:
    """Runs all steps on one embedded model and returns them as plain data."""
    with lead_run(session, out, "demo is led by one process; start it without torchrun") as run:
        model, _, folder = open_model(session, f"demo/{model_name}", loading)
        tokenizer = tokenizer_or_image_processor(model, folder)
        size, comparison_limit = SIZES[model_name] if limit is None else (limit, limit)
        spec = AnalysisSpec(
            keep=(0.25, 0.5),
            methods=METHODS[model_name],
            training_seeds=1,
            score_limit=min(AnalysisSpec.score_limit, comparison_limit or size),
            verdict_limit=VERDICT_LIMITS[model_name] if limit is None else limit,
            comparison_limit=comparison_limit,
            margin=MARGINS[model_name],
            profile_limit=PROFILE_LIMIT,
            recipe=Recipe(steps=STEPS if limit is None else FEW_STEPS, rate=RATES[model_name]),
            seed=seed,
        )
        job = AnalysisJob(
            f"demo/{model_name}",
            model,
            open_task(f"{TASKS[model_name]}(size={size})", model, tokenizer, seed=seed),
            spec,
            _draw_embedded_corpus(model_name, model, tokenizer, min(200, comparison_limit or size), seed),
            command=session.command,
            tokenizer=tokenizer,
            folder=folder,
            config={"opened": {"task": TASKS[model_name], "task_option": [f"size={size}"], "seed": seed}},
            watch=session.begin_counted_work,
            prune_command=prune_command,
        )
        return run_and_print_steps(session, job, run, line_prefix=f"{model_name:<10} ")


def _draw_embedded_corpus(model_name: str, model: nn.Module, tokenizer: Any, n_sentences: int, seed: int) -> Corpus:
    """Returns sentences of the embedded language that a model reads, with translations for the translator."""
    if model_name != "translator":
        return read_corpus(model, draw_sentences("english", n_sentences, seed=seed), tokenizer)
    sentences = draw_translations(number=n_sentences, seed=seed)
    return read_corpus(model, sentences, tokenizer, add_special_tokens=False, end=(tokenizer.eos_token_id,))
