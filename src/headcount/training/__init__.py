"""Training on transformers' Trainer: fine-tuning, distillation, and gates that learn along."""

from __future__ import annotations

from headcount.training.estimate import estimate_step_seconds
from headcount.training.fine_tune import FAIR_STEPS, Recipe, Trained, fine_tune
from headcount.training.gates import GateCallback, Gating, noise
from headcount.training.scratch import from_scratch
from headcount.training.trainer import WholeTrainer, checkpoints, last_whole

__all__ = [
    "FAIR_STEPS",
    "GateCallback",
    "Gating",
    "Recipe",
    "Trained",
    "WholeTrainer",
    "checkpoints",
    "estimate_step_seconds",
    "fine_tune",
    "from_scratch",
    "last_whole",
    "noise",
]
