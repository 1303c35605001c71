"""Detection of attention blocks in any transformers model, and rows of data for the families where detection alone is
not enough.
"""
