"""Training on transformers' Trainer: fine-tuning, distillation, and gates that learn along."""

from __future__ import annotations

from headcount.training.fine_tune import Recipe, Trained, fine_tune
from headcount.training.gates import GateCallback, Gating, noise
from headcount.training.scratch import from_scratch
from headcount.training.trainer import WholeTrainer, checkpoints, last_whole

__all__ = ["GateCallback", "Gating", "Recipe", "Trained", "WholeTrainer", "checkpoints", "fine_tune", "from_scratch", "last_whole", "noise"]
