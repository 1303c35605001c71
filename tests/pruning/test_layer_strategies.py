"""Laws of the layer strategies: at every depth, level and seed, the layers that lose heads are what the name of the strategy says."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headcount.core.options import options_of
from headcount.pruning.methods.layers import LayersPruner, order_layers

depths, widths, seeds = st.integers(1, 48), st.integers(1, 32), st.integers(0, 10_000)


def touched(variant: str, capacity: list[int], number: int, seed: int) -> list[int]:
    """The layers that lose heads when `number` heads go, in the order in which they lose them."""
    order = order_layers(variant, capacity, number, np.random.default_rng(seed))
    assert sorted(order) == list(range(len(capacity)))
    remaining, actual = number, []
    for layer in order:
        if remaining > 0:
            actual.append(layer)
            remaining -= capacity[layer]
    return actual


@settings(max_examples=120, deadline=None)
@given(depths, widths, seeds, st.data())
def test_every_strategy_is_what_it_says(depth: int, width: int, seed: int, data: st.DataObject) -> None:
    number = data.draw(st.integers(0, depth * width))
    for variant in options_of(LayersPruner)[0].choices:
        layers = touched(variant, [width] * depth, number, seed)
        m, ordered = -(-number // width), sorted(layers)
        assert len(layers) == m  # no more layers than it takes
        if variant == "top":
            assert layers == list(range(depth - 1, depth - 1 - m, -1))
        if variant == "bottom":
            assert layers == list(range(m))
        if variant in ("middle", "consecutive"):
            assert all(after == before + 1 for before, after in pairwise(ordered))
            assert not layers or layers[-1] in (ordered[0], ordered[-1])  # the layer that may keep heads is an end of the run
        if variant == "middle" and m:
            assert abs((ordered[0] + ordered[-1]) / 2 - (depth - 1) / 2) <= 0.5
        if variant == "spread" and m:
            gaps = [after - before for before, after in pairwise(ordered)]
            assert set(gaps) <= {depth // m, -(-depth // m)}
            assert ordered[0] <= -(-depth // m) - 1 and ordered[-1] >= depth - -(-depth // m)


@settings(max_examples=80, deadline=None)
@given(st.lists(st.integers(1, 12), min_size=1, max_size=24), seeds, st.data())
def test_layers_of_different_sizes_are_not_missed(capacity: list[int], seed: int, data: st.DataObject) -> None:
    number = data.draw(st.integers(1, sum(capacity)))
    for variant in options_of(LayersPruner)[0].choices:
        layers = touched(variant, capacity, number, seed)
        assert sum(capacity[layer] for layer in layers) >= number
        if variant in ("middle", "consecutive"):
            assert max(layers) - min(layers) + 1 == len(layers)


@pytest.mark.parametrize("variant", ["consecutive", "spread"])
@pytest.mark.parametrize("depth", [4, 6, 12])
def test_position_is_drawn_without_preference(variant: str, depth: int) -> None:
    """`consecutive` starts wherever a run fits; `spread` takes every layer as often as any other, so that it says nothing about depth."""
    for m in range(1, depth):
        sets = Counter(tuple(sorted(touched(variant, [8] * depth, 8 * m, seed))) for seed in range(200))
        if variant == "consecutive":
            assert set(sets) == {tuple(range(start, start + m)) for start in range(depth - m + 1)}
        else:
            taken = Counter(layer for layers, times in sets.items() for layer in layers * times)
            expected = 200 * m / depth
            assert set(taken) == set(range(depth)) and all(abs(taken[layer] - expected) < 6 * np.sqrt(200) / 2 for layer in taken)
