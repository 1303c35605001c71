"""Annotated sentences (words, parts of speech, dependency trees) and their alignment with the tokens of a model."""
