"""Data: tasks and their splits, readers of files, annotated text, losses, metrics, and evaluation of a model on a
task. Imports core, runs and models.
"""
