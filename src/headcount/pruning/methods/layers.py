from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Literal

import numpy as np

from headcount.core.options import option
from headcount.pruning.base import Choice, PruneContext, Pruner, PrunerInfo
from headcount.pruning.scope import group_limits

Strategy = Literal["top", "middle", "bottom", "consecutive", "spread"]


@dataclass(frozen=True)
class LayersPruner(Pruner):
    """Layers: heads go layer by layer, from the top, bottom or middle, in one run, or at even distances.

    Within the last layer that loses heads, they are chosen at random. As many layers lose heads as it takes:
    all of them lose every head that may go, but for the one that is taken last. Layers count from 0, at the
    input; a layer of every stack goes together, and layers that cannot lose a head are not counted.

    top          the last layers, from the output down
    bottom       the first layers, from the input up
    middle       the layers nearest to the centre of the stack, the lower one first where two are as near
    consecutive  a run of adjacent layers, its position drawn uniformly among all that fit; it never wraps round. Taken from one end, drawn too
    spread       m of n layers at even distances, ⌊(j n + r) / m⌋ for j = 0 … m − 1 with one r drawn from 0 … n − 1: neighbours are ⌊n / m⌋ or ⌈n / m⌉
                 layers apart, and every layer is as likely as any other, at every level. Taken in an order that is drawn

    Budhraja et al. 2020: sparing the middle and avoiding consecutive layers helped BERT.
    """

    strategy: Strategy = option("top", "Which layers lose heads first")
    info = PrunerInfo("Budhraja et al. 2020", draws=True)

    def choose(self, context: PruneContext) -> Choice:
        """Returns the plan."""
        capacity = count_removable_heads_by_layer(context)
        random = context.random()
        draws = random.random(len(context.heads))
        order = order_layers(self.strategy, list(capacity.values()), len(context.heads) - context.keep, random)
        turn = {list(capacity)[position]: number for number, position in enumerate(order)}
        last = len(capacity)  # layers that cannot lose a head
        values = [turn.get(head.layer, last) + share for head, share in zip(context.heads, draws, strict=True)]
        scores = context.scores(values, f"layers:{self.strategy}")
        return Choice(context.plan(values, scores.method), scores=scores)


def count_removable_heads_by_layer(context: PruneContext) -> dict[int, int]:
    """Returns how many heads each layer can lose within the budget's floor and protected heads; layers that can lose none are left out."""
    capacity: dict[int, int] = {}
    for layer in sorted({block.layer for block in context.heads.blocks}):
        limits = group_limits(context, [head for block in context.heads.blocks if block.layer == layer for head in block.heads])
        if limits.n_heads > limits.min_heads:
            capacity[layer] = limits.n_heads - limits.min_heads
    return capacity


def order_layers(strategy: Strategy, n_removable_by_layer: Sequence[int], n_removed: int, random: np.random.Generator) -> list[int]:
    """Returns the positions of the layers in the order in which they go. Layer i can lose so many heads, and `n_removed` go in all.

    Only the layers that it takes to remove so many are ordered by the strategy; the others follow, the nearest first.
    """
    depth = len(n_removable_by_layer)
    if strategy in ("top", "bottom", "middle"):
        order = (
            sorted(range(depth), key=lambda layer: (abs(layer - (depth - 1) / 2), layer)) if strategy == "middle" else list(range(depth))
        )
        return order[::-1] if strategy == "top" else order
    n_removed = min(n_removed, sum(n_removable_by_layer))  # a budget that asks for more is refused where the plan is made of this order
    draw = _draw_adjacent_layers if strategy == "consecutive" else _draw_evenly_spaced_layers
    chosen = draw(n_removable_by_layer, n_removed, random) if n_removed > 0 else []
    others = [layer for layer in range(depth) if layer not in chosen]
    return [*chosen, *sorted(others, key=lambda layer: (min((abs(layer - near) for near in chosen), default=0), layer))]


def _draw_adjacent_layers(n_removable_by_layer: Sequence[int], n_removed: int, random: np.random.Generator) -> list[int]:
    """Returns a run of adjacent layers that can lose so many heads, and could not without its first or last, in the direction that it is taken."""
    sums = [0, *accumulate(n_removable_by_layer)]
    stops = [next((stop for stop in range(len(sums)) if sums[stop] - before >= n_removed), 0) for before in sums[:-1]]
    runs = [(start, stop) for start, stop in enumerate(stops) if stop and sums[stop] - sums[start + 1] < n_removed]
    start, stop = runs[int(random.integers(len(runs)))]
    return list(range(start, stop))[:: -1 if random.random() < 0.5 else 1]


def _draw_evenly_spaced_layers(n_removable_by_layer: Sequence[int], n_removed: int, random: np.random.Generator) -> list[int]:
    """Returns the fewest layers at even distances that can lose so many heads, in an order that is drawn."""
    depth = len(n_removable_by_layer)
    first = int(random.integers(depth))
    samples = ([(j * depth + first) // many for j in range(many)] for many in range(1, depth + 1))
    chosen = next(layers for layers in samples if sum(n_removable_by_layer[layer] for layer in layers) >= n_removed)
    return [chosen[position] for position in random.permutation(len(chosen))]
