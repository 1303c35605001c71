"""One figure of every kind, with long labels, undefined values and intervals, for tests of what is stored and drawn."""

from __future__ import annotations

from typing import Any

from headcount.core.figure import Axis, BarFigure, Bars, Counts, HeatMap, Histogram, Line, LineFigure, Points, Reference, ScatterFigure

COMMON: dict[str, Any] = {"title": "What is shown, in a title that is longer than one line of a column", "table": "rows", "n": 300}
SHARE = Axis("share of the score above chance that remains", is_share=True)
LABELS = ("the lower half of the heads by gradient", "all heads", "random")
FIGURES = (
    LineFigure(
        name="lines",
        x=Axis("heads removed", is_share=True),
        y=SHARE,
        lines=(
            Line(LABELS[0], (0.1, 0.5, 0.9), (1.0, None, 0.2), (0.9, None, 0.1), (1.1, None, 0.4)),
            Line(LABELS[2], (0.1, 0.5, 0.9), (0.9, 0.4, -0.2), is_control=True),
            Line("a single level", (0.5,), (0.7,), (0.6,), (0.8,)),
        ),
        references=(Reference("dense model", 1.0),),
        **COMMON,
    ),
    LineFigure(
        name="layers",
        x=Axis("layer", ticks=tuple((float(layer), f"enc.L{layer}") for layer in range(30))),
        y=Axis("relative change"),
        lines=(Line("q", tuple(map(float, range(30))), tuple(layer / 30 for layer in range(30))),),
        **COMMON,
    ),
    BarFigure(
        name="grouped",
        x=Axis("type of attention"),
        y=Axis("rise of the loss", "nats"),
        categories=("encoder-self", "decoder-self", "cross"),
        bars=tuple(Bars(label, (0.1, None, -0.3), (0.05, None, -0.4), (0.2, None, -0.1)) for label in LABELS),
        **COMMON,
    ),
    BarFigure(
        name="lying",
        x=Axis("layers without heads"),
        y=Axis("change of accuracy"),
        categories=("bottom (enc.L0+L1+L2+L3+L4+L5)", "top (enc.L6)", "L0"),
        bars=(Bars("accuracy", (-0.2, 0.1, 0.0)),),
        is_horizontal=True,
        **COMMON,
    ),
    BarFigure(
        name="stacked",
        x=Axis("heads that stay"),
        y=Axis("heads"),
        categories=tuple(str(8 * number) for number in range(1, 19)),
        bars=tuple(Bars(f"family {number}", (float(number),) * 18) for number in range(9)),
        is_stacked=True,
        **COMMON,
    ),
    HeatMap(
        name="map",
        x=Axis("layer"),
        y=Axis("role"),
        rows=("offset:-1", "a role with a name that takes more than one line"),
        columns=tuple(f"L{layer}" for layer in range(24)),
        values=((0.5, -1.0, None) * 8, (0.0,) * 24),
        value=Axis("change of the sieve bias"),
        marks=((True, False, False) * 8, (False,) * 24),
        mark_label="a change with q ≤ 0.05",
        is_diverging=True,
        **COMMON,
    ),
    ScatterFigure(
        name="scatter",
        x=Axis("confidence"),
        y=Axis("gradient", "divided by the ℓ2 norm of the layer"),
        groups=(Points("with a role", (0.1, 0.2), (0.3, 0.5), ("L0H0", "L0H1")), Points("without", (0.7,), (0.1,))),
        note="Pearson r = 0.74 (0.62 … 0.83), Spearman ρ = 0.71 (0.60 … 0.80)",
        **COMMON,
    ),
    Histogram(
        name="histogram",
        x=Axis("change of accuracy"),
        y=Axis("heads"),
        edges=(-0.1, -0.05, 0.0, 0.05),
        groups=(Counts("with a role", (1, 5, 2)), Counts("without", (0, 3, 1))),
        **COMMON,
    ),
)
