from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from statistics import fmean
from typing import TYPE_CHECKING, Literal

from headcount.core.figure import Axis, BarFigure, Bars, HeatMap
from headcount.core.options import option
from headcount.core.study_result import Column, StudyResult, Table, interval_columns
from headcount.studies import _measure
from headcount.studies._base import Effort, Study, StudyContext, StudyInfo
from headcount.studies._parts import Part, choose_part

if TYPE_CHECKING:
    from headcount.studies._measure.importance_map import BlockParameters, HeadDistances, MappedScores


@dataclass(frozen=True)
class ImportanceMap(Study):
    """Which heads matter, and where? The scores of every head as a map of layers and heads, one map for each kind of attention.

    Scores are normalised as their paper does, and every figure names the normalisation: `gradient` is divided by the ℓ2 norm of its layer (Michel
    et al. 2019), `lrp` gives shares of each layer, by the rule that its variant names (Voita et al. 2019). They are means over examples of the
    calibration split, with t intervals corrected for skewness (Hall); none where a method reads no data, or n < 10 × skewness². The parameters of
    one head are listed for every layer, and with `distances` the mean Jensen–Shannon distance of the attention of every two heads of a kind.
    """

    by: tuple[str, ...] = option(("gradient",), "Importances, such as gradient, lrp, confidence, entropy or distance")
    _: KW_ONLY
    examples: int = option(512, "The most examples that scores are measured on", minimum=2)
    distances: bool = option(False, "Also measure the distance between the attention of every two heads")
    show: Literal["all", "scores", "parameters"] = option(
        "all", "What the result holds: scores with distances, the parameters of a head, or both"
    )
    info = StudyInfo(paper="Michel et al. 2019, section 4; Voita et al. 2019, section 4", needs=frozenset({"model", "task"}))

    def effort(self, context: StudyContext) -> Effort:
        """Returns a forward and backward pass over the examples for every importance; parameters are only counted."""
        if self.show == "parameters":
            return Effort(seconds=0.1)
        return Effort(passes=3.0 * len(self.by) * min(self.examples, len(context.task.calibration), context.limit or self.examples))

    def measure(self, context: StudyContext) -> StudyResult:
        """Returns the scores of all heads by every importance, the parameters of a head by layer, and the distances if they are asked for."""
        maps = [] if self.show == "parameters" else _measure.importance_map.score_heads(context, self)
        parts = {"scores": self._score_part(context, maps)} if maps else {}
        if self.show != "scores":
            parts["parameters"] = _parameters_by_block_part(_measure.importance_map.count_parameters_by_block(context.loaded))
        part = choose_part(parts, self.show)
        return StudyResult(
            study=str(self),
            tables=part.tables,
            sentence=part.sentence,
            notes=tuple(
                f"{scores.title}{f': {scores.label}' if scores.label != scores.title else ''}; {scores.n_examples} examples."
                for scores in maps
            ),
            figures=part.figures,
            measurements={"model": context.model_name, "task": context.task.name, "rows": _table_of_heads_by_importance(maps).records()},
        )

    def _score_part(self, context: StudyContext, maps: Sequence[MappedScores]) -> Part:
        figures = [figure for scores in maps for figure in _score_heat_maps(scores)]
        if not self.distances:
            return Part((_table_of_heads_by_importance(maps),), tuple(figures), _score_sentence(maps))
        distances = _measure.importance_map.measure_attention_distances(context)
        columns = (Column("kind"), Column("layer"), Column("other layer"), Column("distance", format=".3f"))
        cells = tuple((matrix.kind, *layers, value) for matrix in distances for layers, value in matrix.mean_between_layers().items())
        by_layers = Table("layer distances", columns, cells, "Mean distance between the heads of two layers")
        tables = _table_of_heads_by_importance(maps), by_layers, _distance_by_head_pair_table(distances)
        sentence = f"{_score_sentence(maps)} {_distance_sentence(distances)}"
        return Part(tables, (*figures, *map(_layer_distance_heat_map, distances)), sentence)


def _table_of_heads_by_importance(maps: Sequence[MappedScores]) -> Table:
    columns = (Column("importance"), Column("kind"), Column("layer"), Column("head"), *interval_columns("score", ".4g"), Column("rank"))
    cells = [
        (scores.title, row.kind, row.layer, row.head, row.value, row.low, row.high, row.rank) for scores in maps for row in scores.rows
    ]
    return Table("scores", columns, tuple(cells), "Scores of every head; rank 1 is kept longest", is_printed=False)


def _parameters_by_block_part(rows: Sequence[BlockParameters]) -> Part:
    sizes = sorted({row.per_head for row in rows})
    n_all, share = sum(row.all_heads for row in rows), sum(row.share for row in rows)
    of_one = f"{sizes[0]}" if len(sizes) == 1 else f"{sizes[0]} to {sizes[-1]}"
    sentence = f"A head has {of_one} parameters; the {sum(row.n_heads for row in rows)} heads have {n_all}, {share:.1%} of the model."
    figure = BarFigure(
        name="parameters",
        title="Parameters that go with one head, by layer",
        x=Axis("layer"),
        y=Axis("parameters of a head", is_count=True),
        table="parameters",
        n=sum(row.n_heads for row in rows),
        n_unit="heads",
        categories=tuple(row.block for row in rows),
        bars=(Bars("parameters of a head", tuple(float(row.per_head) for row in rows)),),
        is_horizontal=True,
    )
    return Part((_parameters_by_block_table(rows),), (figure,), sentence)


def _parameters_by_block_table(rows: Sequence[BlockParameters]) -> Table:
    columns = (
        Column("layer"),
        Column("kind"),
        Column("heads"),
        Column("parameters of a head"),
        Column("parameters of all heads"),
        Column("share of the model", format=".2%"),
    )
    cells = tuple((row.block, row.kind, row.n_heads, row.per_head, row.all_heads, row.share) for row in rows)
    return Table(
        "parameters", columns, cells, "Parameters that go with one head: its rows of Q, K and V and its columns of the output projection"
    )


def _distance_by_head_pair_table(distances: Sequence[HeadDistances]) -> Table:
    columns = (Column("kind"), Column("head"), Column("other head"), Column("distance", format=".4f"))
    cells = []
    for matrix in distances:
        for i, head in enumerate(matrix.heads):
            cells += [(matrix.kind, head, other, matrix.values[i][j]) for j, other in enumerate(matrix.heads) if j > i]
    return Table("distances", columns, tuple(cells), "Mean Jensen–Shannon distance of the attention of two heads, 0 to 1", is_printed=False)


def _score_heat_maps(scores: MappedScores) -> list[HeatMap]:
    kinds = list(dict.fromkeys(row.kind for row in scores.rows))
    maps = []
    for kind in kinds:
        rows = [row for row in scores.rows if row.kind == kind]
        layers, indices = sorted({row.layer for row in rows}), sorted({row.index for row in rows})
        values = {(row.layer, row.index): row.value for row in rows}
        maps.append(
            HeatMap(
                name=scores.method if len(kinds) == 1 else f"{scores.method} of {kind}",
                title=f"{scores.label}, {kind} attention",
                x=Axis("head"),
                y=Axis("layer"),
                table="scores",
                n=scores.n_examples or None,
                rows=tuple(map(str, layers)),
                columns=tuple(map(str, indices)),
                values=tuple(tuple(values.get((layer, index)) for index in indices) for layer in layers),
                value=Axis(scores.title, scores.unit),
                is_diverging=min(values.values()) < 0 < max(values.values()),
            )
        )
    return maps


def _layer_distance_heat_map(distances: HeadDistances) -> HeatMap:
    values = distances.mean_between_layers()
    layers = tuple(dict.fromkeys(distances.layers))
    return HeatMap(
        name=f"distances of {distances.kind}",
        title=f"Distance between the attention of the heads of two layers, {distances.kind}",
        x=Axis("layer"),
        y=Axis("layer"),
        table="layer distances",
        n=distances.n_queries,
        n_unit="tokens",
        rows=layers,
        columns=layers,
        values=tuple(tuple(values[layer, other] for other in layers) for layer in layers),
        value=Axis("Jensen–Shannon distance", "0 to 1"),
    )


READINGS = {
    "confidence": "the mean of the largest attention weight",
    "lrp": "the share of a layer's relevance",
    "gradient": "the gradient importance",
    "entropy": "the entropy of the attention",
    "distance": "the mean distance to what is attended to",
}
"""What the scores are, for sentences."""


def _score_sentence(maps: Sequence[MappedScores]) -> str:
    parts = []
    for scores in maps:
        order = sorted(scores.rows, key=lambda row: row.rank)
        reading = READINGS.get(scores.method, "the score")
        unit = f" {scores.unit}" if scores.unit else ""
        parts.append(
            f"{reading} ({scores.title}) from {order[0].value:.3g}{unit} in {order[0].head} to {order[-1].value:.3g}{unit} in {order[-1].head}"
        )
    return f"Heads rank by {', by '.join(parts)}."


def _distance_sentence(distances: Sequence[HeadDistances]) -> str:
    parts = []
    for matrix in distances:
        means = matrix.mean_between_layers()
        within = [value for (layer, neighbour), value in means.items() if layer == neighbour and value is not None]
        between = [value for (layer, neighbour), value in means.items() if layer != neighbour and value is not None]
        texts = [f"{fmean(values):.2f} {scope}" for values, scope in ((within, "within a layer"), (between, "between layers")) if values]
        parts.append(f"{matrix.kind} {' and '.join(texts)}")
    return f"Mean distance between the attention of two heads, from 0 to 1: {'; '.join(parts)}."
