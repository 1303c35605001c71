"""Exact ablation at little cost: runs a model once, then replays only the layers that a change of a head can reach, for
many heads at a time.
"""
