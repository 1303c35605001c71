"""Training of weights and gates with transformers' Trainer: recipes, resumable checkpoints, estimates of time."""
