"""Training of weights and gates with the Trainer of transformers: recipes, checkpoints that can be resumed, and
estimates of the time it takes.
"""
