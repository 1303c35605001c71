"""Readers of users' files: tables, lines of text, CoNLL-U treebanks, and the tokenizer or image processor of a model
folder.
"""
