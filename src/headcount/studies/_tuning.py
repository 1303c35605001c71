"""Trainings of studies as artifacts of a run. Imports torch."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from headcount.core.heads import Head
from headcount.data.evaluate import evaluate, fingerprint_of_examples
from headcount.data.task import Task, task_key
from headcount.importance.score import score
from headcount.models.head_map import HeadMap
from headcount.models.modules import unwrap
from headcount.models.provenance import model_key, rounding_provenance
from headcount.models.state import copy_model
from headcount.models.weights import weights_of
from headcount.pruning.recipe import Recipe
from headcount.pruning.spec import PruneSpec
from headcount.pruning.training.fine_tune import fine_tune
from headcount.runs.artifacts import Artifact, ArtifactKey, safe_name
from headcount.studies._base import LoadedModel, Progress, StudyContext
from headcount.surgery.load import load
from headcount.surgery.save import save
from headcount.workflows.prune import Pruning, estimate_training

PARTS = ("q", "k", "v", "o")
KIND, MODELS, WORK = "tuned", "models", "work"
CLASSIFIER = "SequenceClassification"
SCORED = 512
"""Examples of the calibration split that importances are measured on."""
TINY = 1e-12
"""The smallest importance that a ratio is taken of."""


def announce_training(context: StudyContext, pruning: Pruning, requests: Sequence[PruneSpec]) -> None:
    """Tells the caller how long the pruned models that are not finished yet will train, if any of them trains."""
    estimate = estimate_training(pruning, requests)
    if estimate is not None:
        context.note_training(estimate)


def weights_by_head(model: nn.Module, heads: HeadMap) -> dict[Head, dict[str, Tensor]]:
    """Returns the weights of every head in Q, K, V and O, in float64; heads of one KV group share those of K and V."""
    slices: dict[Head, dict[str, Tensor]] = {}
    for block in heads.blocks:
        parts = {part: weights_of(unwrap(model), block, part) for part in PARTS}
        for index, head in enumerate(block.heads):
            slices[head] = {part: weights[index].double().cpu() for part, weights in parts.items()}
    return slices


def relative_weight_changes(
    before: Mapping[Head, Mapping[str, Tensor]], after: Mapping[Head, Mapping[str, Tensor]]
) -> dict[Head, dict[str, float]]:
    """Returns ‖W' − W‖/‖W‖ of every part of every head; 0 for a part that was and stays zero."""
    changes: dict[Head, dict[str, float]] = {}
    for head, parts in before.items():
        norms = {part: (float((after[head][part] - old).norm()), float(old.norm())) for part, old in parts.items()}
        changes[head] = {part: gap / size if size else float(gap > 0) for part, (gap, size) in norms.items()}
    return changes


def tune_model(
    context: StudyContext,
    artifact_name: str,
    model: nn.Module,
    recipe: Recipe,
    *,
    importance: str,
    seed: int | None = None,
    progress: Progress | None = None,
) -> Artifact:
    """Returns the fine-tuning of a model from the run if it is finished there, else carries it out, from its last checkpoint if there is one.

    `seed` is by default that of the context.
    """
    run, task = context.required_run, context.task
    seed = context.seed if seed is None else seed
    fingerprints = {split: fingerprint_of_examples(task, split) for split in ("calibration", "report")}
    request = {"recipe": recipe.to_dict(), "seed": seed, "by": importance, "limit": context.limit}
    key = ArtifactKey(KIND, artifact_name, {**model_key(model), **task_key(task), **fingerprints, **request})
    folder = run.folder / WORK / key.digest[:24]
    artifact = run.find_or_compute(
        key,
        lambda: _tune_copy_and_measure_changes(
            model, task, recipe, importance=importance, limit=context.limit, seed=seed, folder=folder, progress=progress
        ),
        provenance=rounding_provenance(),
    )
    shutil.rmtree(folder, ignore_errors=True)
    return artifact


def _tune_copy_and_measure_changes(
    model: nn.Module, task: Task, recipe: Recipe, *, importance: str, limit: int | None, seed: int, folder: Path, progress: Progress | None
) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Fine-tunes a copy of the model; returns the content and the arrays of its artifact.

    The arrays hold, by head, the relative change of its parts, and ln of the ratio of its importance after to before.
    """
    tuned_model = copy_model(model)
    reading: Any = {"limit": min(SCORED, limit or SCORED), "seed": seed, "normalise": "none"}  # sizes are compared, not ranks
    heads = HeadMap.of(tuned_model)
    slices, scores_before = weights_by_head(tuned_model, heads), score(tuned_model, task, importance, **reading).keep_values()
    fine_tune(tuned_model, task, recipe, seed=seed, folder=folder, progress=progress)
    changes, scores_after = (
        relative_weight_changes(slices, weights_by_head(tuned_model, heads)),
        score(tuned_model, task, importance, **reading).keep_values(),
    )
    result = evaluate(tuned_model, task, limit=limit)
    log_ratio = {head: float(np.log(max(abs(scores_after[head]), TINY)) - np.log(max(abs(scores_before[head]), TINY))) for head in changes}
    values = np.array([[*(parts[part] for part in PARTS), log_ratio[head]] for head, parts in changes.items()])
    content = {"heads": list(map(str, changes)), "loss": result.loss, "metric": result.metric, "value": result.value}
    arrays = {"changes": values, "losses": result.losses} | ({} if result.parts is None else {"parts": result.parts})
    return {**content, "n_examples": result.n_examples}, arrays


def load_as_classifier(context: StudyContext, model_name: str, class_names: Sequence[str]) -> LoadedModel:
    """Returns the model unchanged if it classifies already or no labels are known, else with a new head for these classes."""
    loaded = context.loaded if model_name == context.model_name else context.sources.load_model(model_name)
    if CLASSIFIER in type(unwrap(loaded.model)).__name__ or not class_names:
        return loaded
    torch.manual_seed(context.seed)
    return context.sources.load_model(model_name, new_classes=class_names)


def train_or_read_model(context: StudyContext, loaded: LoadedModel, task: Task, recipe: Recipe) -> LoadedModel:
    """Returns the model after training on a task, from the run if it is finished there; the run keeps it."""
    run, model = context.required_run, loaded.model
    data = fingerprint_of_examples(task, "calibration")
    inputs = {**model_key(model), **task_key(task), "data": data, "recipe": recipe.to_dict(), "seed": context.seed}
    key = ArtifactKey(KIND, f"{loaded.name} on {task.name}", inputs)
    folder, work = run.folder / MODELS / f"{safe_name(key.name)}.{key.digest[:8]}", run.folder / WORK / key.digest[:24]
    if run.find(key) is None or run.problem_of_saved_model(folder.name) is not None:
        tuned_model = copy_model(model)
        with context.progress(f"training {loaded.name} on {task.name}") as advance:
            training = fine_tune(tuned_model, task, recipe, seed=context.seed, folder=work, progress=advance)
        save(tuned_model, folder, command=context.command, tokenizer=loaded.folder, overwrite=True)
        run.register_saved_model(folder)
        run.commit(key, {"folder": folder.name, "steps": training.steps}, provenance=rounding_provenance())
        shutil.rmtree(work, ignore_errors=True)
    return LoadedModel(loaded.name, load(folder).to(next(model.parameters()).device).eval(), folder)
