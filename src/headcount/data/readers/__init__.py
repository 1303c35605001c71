"""Readers of users' files: tables, lines, CoNLL-U, and the tokenizer or image processor of a model."""
