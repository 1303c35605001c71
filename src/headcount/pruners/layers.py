"""Layers: heads go layer by layer, from the top, the bottom or the middle, in a run of consecutive layers, or spread out; inside a layer at random.

Budhraja et al. 2020: sparing the middle and avoiding consecutive layers helped BERT.
"""

from __future__ import annotations

import numpy as np

from headcount.pruners._contract import About, Choice, Work

ABOUT = About(source="Budhraja et al. 2020", variants=("top", "middle", "bottom", "consecutive", "spread"), draws=True)


def choose(work: Work, variant: str) -> Choice:
    """The plan."""
    depth = max(block.layer for block in work.heads.blocks) + 1
    turn = {layer: place for place, layer in enumerate(order(depth, variant, work.random()))}
    within = work.random().random(len(work.heads))
    values = [turn[head.layer] + share for head, share in zip(work.heads, within, strict=True)]
    scores = work.scores(values, f"layers:{variant}")
    return Choice(work.plan(values, scores.method), scores=scores)


def order(depth: int, variant: str, random: np.random.Generator) -> list[int]:
    """The layers in the order in which they go."""
    layers = list(range(depth))
    middle = (depth - 1) / 2
    if variant == "top":
        return layers[::-1]
    if variant == "bottom":
        return layers
    if variant == "middle":
        return sorted(layers, key=lambda layer: (abs(layer - middle), layer))
    if variant == "consecutive":
        start = int(random.integers(depth))
        return [(start + layer) % depth for layer in layers]
    return [*layers[1::2], *layers[::2]]
