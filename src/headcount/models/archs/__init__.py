"""How attention blocks are found in any model of transformers, and rows of data about the families for which detection
alone is not enough.
"""
