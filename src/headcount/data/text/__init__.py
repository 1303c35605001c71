"""Annotated sentences and their alignment with the tokens of a model."""
