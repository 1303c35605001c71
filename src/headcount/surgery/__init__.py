"""Cutting heads out of the weights of a model, verifying the cut model against the gated one, saving, loading and
exporting models, and measuring what they cost. It imports core, models and data.
"""
