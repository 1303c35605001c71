"""Annotated sentences, how they are read, and their exact alignment with the pieces of a tokenizer; no model in sight."""
