from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING

from headcount.core.figure import Axis, HeatMap
from headcount.core.options import option
from headcount.core.study_result import Column, StudyResult, Table, interval_columns
from headcount.studies import _measure
from headcount.studies._base import Effort, Study, StudyContext, StudyInfo

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
    info = StudyInfo(paper="Michel et al. 2019, section 4; Voita et al. 2019, section 4", needs=frozenset({"model", "task"}))

    def effort(self, context: StudyContext) -> Effort:
        """Returns a forward and backward pass over the examples for every importance."""
        return Effort(passes=3.0 * len(self.by) * min(self.examples, len(context.task.calibration), context.limit or self.examples))

    def measure(self, context: StudyContext) -> StudyResult:
        """Returns the scores of all heads by every importance, the parameters of a head by layer, and the distances if they are asked for."""
        maps = _measure.importance_map.score_heads(context, self)
        parameters = _measure.importance_map.count_parameters(context.loaded.model)
        distances = _measure.importance_map.measure_distances(context) if self.distances else []
        tables = [
            _score_table(maps),
            _parameter_table(parameters),
            *([_layer_distance_table(distances), _distance_table(distances)] if distances else []),
        ]
        return StudyResult(
            study=str(self),
            tables=tuple(tables),
            sentence=_summary_sentence(maps),
            notes=tuple(f"{scores.method}: {scores.label}; {scores.n_examples} examples." for scores in maps),
            figures=(*(figure for scores in maps for figure in _score_maps(scores)), *map(_distance_map, distances)),
            measurements={"model": context.model_name, "task": context.task.name, "rows": _score_table(maps).records()},
        )


def _score_table(maps: Sequence[MappedScores]) -> Table:
    columns = (Column("importance"), Column("kind"), Column("layer"), Column("head"), *interval_columns("score", ".4g"), Column("rank"))
    cells = [
        (scores.method, row.kind, row.layer, row.head, row.value, row.low, row.high, row.rank) for scores in maps for row in scores.rows
    ]
    return Table("scores", columns, tuple(cells), "Scores of every head; rank 1 is kept longest", is_printed=False)


def _parameter_table(rows: Sequence[BlockParameters]) -> Table:
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


def _distance_table(distances: Sequence[HeadDistances]) -> Table:
    columns = (Column("kind"), Column("head"), Column("other head"), Column("distance", format=".4f"))
    cells = []
    for matrix in distances:
        for i, head in enumerate(matrix.heads):
            cells += [(matrix.kind, head, other, matrix.values[i][j]) for j, other in enumerate(matrix.heads) if j > i]
    return Table("distances", columns, tuple(cells), "Mean Jensen–Shannon distance of the attention of two heads, 0 to 1", is_printed=False)


def _score_maps(scores: MappedScores) -> list[HeatMap]:
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
                value=Axis(scores.method, scores.unit),
                is_diverging=min(values.values()) < 0 < max(values.values()),
            )
        )
    return maps


def _layer_distance_table(distances: Sequence[HeadDistances]) -> Table:
    columns = (Column("kind"), Column("layer"), Column("other layer"), Column("distance", format=".3f"))
    cells = [(matrix.kind, *layers, value) for matrix in distances for layers, value in matrix.between_layers().items()]
    return Table("layer distances", columns, tuple(cells), "Mean distance between the heads of two layers")


def _distance_map(distances: HeadDistances) -> HeatMap:
    values = distances.between_layers()
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


def _summary_sentence(maps: Sequence[MappedScores]) -> str:
    parts = []
    for scores in maps:
        order = sorted(scores.rows, key=lambda row: row.rank)
        parts.append(f"by {scores.method} from {order[0].head} ({order[0].value:.3g}) to {order[-1].head} ({order[-1].value:.3g})")
    return f"Heads rank {', '.join(parts)}."
