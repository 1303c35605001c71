"""Study `kept`: means over seeds with the fewest and the most of a seed, and no figure of a single kind of attention."""

from __future__ import annotations

from headcount.core.figure import HeatMap, LineFigure
from headcount.studies._measure.kept import KeptHeads, KeptRow
from headcount.studies.kept import _figures_of_method, _table_of_models_with_kind_columns


def make_row(counts: tuple[tuple[int, int], ...]) -> KeptRow:
    means = {kind: sum(count[at] for count in counts) / len(counts) for at, kind in enumerate(("encoder-self", "cross"))}
    ranges = {kind: (min(count[at] for count in counts), max(count[at] for count in counts)) for at, kind in enumerate(means)}
    layers = {f"{kind} 0": mean for kind, mean in means.items()}
    return KeptRow("l0", 4, 4, tuple(range(len(counts))), means, layers, ranges, tuple((f"L0H{seed}",) for seed in range(len(counts))))


def kept_heads(*counts: tuple[int, int]) -> KeptHeads:
    return KeptHeads({"encoder-self": 4, "cross": 4}, {"encoder-self 0": 4, "cross 0": 4}, [make_row(counts)])


def test_means_stand_between_the_fewest_and_the_most_of_a_seed() -> None:
    remaining = kept_heads((1, 3), (2, 2), (0, 4))
    (row,) = _table_of_models_with_kind_columns(remaining).records()
    assert [row[f"encoder-self{end}"] for end in (" low", "", " high")] == [0, 1, 2]
    assert [row[f"cross{end}"] for end in (" low", "", " high")] == [2, 3, 4]
    by_kind, by_layer = _figures_of_method(remaining, "l0", "l0", "", names_method=False)
    assert isinstance(by_kind, LineFigure) and isinstance(by_layer, HeatMap) and "the fewest to the most of 3 seeds" in by_kind.title
    assert [(line.label, line.low, line.y, line.high) for line in by_kind.lines] == [
        ("encoder-self", (0,), (1,), (2,)),
        ("cross", (2,), (3,), (4,)),
    ]


def test_one_seed_has_no_range_and_one_kind_no_figure() -> None:
    remaining = kept_heads((1, 3))
    assert _table_of_models_with_kind_columns(remaining).records()[0]["cross low"] is None
    by_kind, _ = _figures_of_method(remaining, "l0", "l0", "", names_method=False)
    assert isinstance(by_kind, LineFigure) and all(line.low == () for line in by_kind.lines) and "seeds" not in by_kind.title
    alone = KeptHeads({"encoder-self": 4}, {"encoder-self 0": 4}, [make_row(((1, 3), (2, 2)))])
    assert [type(figure) for figure in _figures_of_method(alone, "l0", "l0", "", names_method=False)] == [HeatMap]
