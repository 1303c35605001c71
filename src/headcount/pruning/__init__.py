"""Pruning: from a request to the smaller model. Base classes of pruners, the choice of heads within a budget, repair,
training of gates and weights. Imports everything below: scores, roles and surgery.
"""
