"""What models are measured on: tasks with their three splits, readers of files, annotated text, losses and metrics, and
the evaluation of a model on a task. It imports core and models.
"""
