from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from headcount.core.figure import Axis, HeatMap, Line, LineFigure
from headcount.core.study_result import Cell, Column, StudyResult, Table
from headcount.studies import _measure
from headcount.studies._base import Effort, StudyContext, StudyInfo
from headcount.studies._labels import shorten_labels
from headcount.studies._pruned_models import PrunedModels

if TYPE_CHECKING:
    from headcount.studies._measure.kept import KeptHeads, KeptRow


@dataclass(frozen=True)
class Kept(PrunedModels):
    """Where do the survivors sit? The heads that stay by kind of attention and by layer, against the number of heads removed.

    Voita et al. 2019 (Fig. 9 and 10: encoder-self attention goes first, cross-attention last) and Li et al. 2021. The models are those of
    `pruning-curve` with the same options. Counts are means over seeds; random heads show what chance alone leaves.
    """

    info = StudyInfo(paper="Voita et al. 2019, Fig. 9 and 10; Li et al. 2021", needs=frozenset({"model", "task", "run"}))

    def effort(self, context: StudyContext) -> Effort:
        """Returns the evaluations and trainings of all models."""
        return _measure.pruning_curve.estimate_effort(self, context)

    def measure(self, context: StudyContext) -> StudyResult:
        """Returns the heads that stay by kind and by layer, for every method and number of heads."""
        kept = _measure.kept.count_kept(self, context)
        methods = list(dict.fromkeys(row.method for row in kept.rows))
        labels, note = shorten_labels(methods)
        figures = [figure for method in methods for figure in _figures(kept, method, labels[method], note, names_method=len(methods) > 1)]
        return StudyResult(
            study=str(self),
            tables=(
                _table("kinds", kept.rows, kept.by_kind, "Heads that stay by kind of attention", by_layer=False),
                _table("layers", kept.rows, kept.by_layer, "Heads that stay by layer", by_layer=True),
                _head_table(kept.rows),
            ),
            sentence=_summary_sentence(kept),
            notes=("Counts are means over seeds.",),
            figures=tuple(figures),
            measurements={
                "model": context.model_name,
                "task": context.task.name,
                "heads by kind": dict(kept.by_kind),
                "heads by layer": dict(kept.by_layer),
                "rows": [row.to_dict() for row in kept.rows],
            },
        )


def _table(name: str, rows: Sequence[KeptRow], places: dict[str, int], title: str, *, by_layer: bool) -> Table:
    columns = (
        Column("method"),
        Column("heads"),
        Column("removed"),
        Column("seeds"),
        *(Column(place, f"of {number}", ".3g") for place, number in places.items()),
    )
    cells: list[tuple[Cell, ...]] = []
    for row in rows:
        counts = row.by_layer if by_layer else row.by_kind
        cells.append((row.method, row.n_kept, row.n_removed, len(row.survivors), *(counts[place] for place in places)))
    return Table(name, columns, tuple(cells), f"{title}: mean over seeds")


def _head_table(rows: Sequence[KeptRow]) -> Table:
    columns = (Column("method"), Column("heads"), Column("seed"), Column("survivors"))
    cells = tuple(
        (row.method, row.n_kept, seed, " ".join(heads)) for row in rows for seed, heads in zip(row.seeds, row.survivors, strict=True)
    )
    return Table("survivors", columns, cells, "The heads that stay in every model", is_printed=False)


def _figures(kept: KeptHeads, method: str, label: str, note: str, *, names_method: bool) -> list[LineFigure | HeatMap]:
    rows = sorted((row for row in kept.rows if row.method == method), key=lambda row: row.n_removed)
    suffix = f" by {label}" if names_method else ""
    removed = tuple(float(row.n_removed) for row in rows)
    lines = [Line(kind, removed, tuple(row.by_kind[kind] for row in rows), start=(0.0, number)) for kind, number in kept.by_kind.items()]
    n_seeds = len(rows[0].survivors)
    by_kind = LineFigure(
        name=f"kinds{suffix}",
        title=f"Heads that stay in each kind of attention, pruned by {label}",
        x=Axis("heads removed", is_count=True),
        y=Axis("heads that stay", is_count=True),
        table="kinds",
        n=n_seeds,
        n_unit="seeds" if n_seeds > 1 else "seed",
        note=note,
        lines=tuple(lines),
    )
    by_layer = HeatMap(
        name=f"layers{suffix}",
        title=f"Heads that stay in each layer, pruned by {label}",
        x=Axis("heads that stay in the model"),
        y=Axis("layer"),
        table="layers",
        n=n_seeds,
        n_unit="seeds" if n_seeds > 1 else "seed",
        note=note,
        rows=tuple(kept.by_layer),
        columns=tuple(str(row.n_kept) for row in rows),
        values=tuple(tuple(row.by_layer[layer] for row in rows) for layer in kept.by_layer),
        value=Axis("heads of the layer that stay"),
    )
    return [by_kind, by_layer]


def _summary_sentence(kept: KeptHeads) -> str:
    parts = []
    for method in dict.fromkeys(row.method for row in kept.rows):
        row = min((row for row in kept.rows if row.method == method), key=lambda row: row.n_kept)
        counts = row.by_kind if len(kept.by_kind) > 1 else row.by_layer
        places = ", ".join(f"{number:.3g} in {place}" for place, number in counts.items())
        parts.append(f"{method} leaves {row.n_kept} heads: {places}")
    return f"{'; '.join(parts)}."
