from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from headcount.core.figure import Axis, HeatMap, Line, LineFigure
from headcount.core.study_result import Cell, Column, StudyResult, Table, interval_columns
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
        kept_heads = _measure.kept.prune_and_count_kept_heads(self, context)
        methods = list(dict.fromkeys(row.method for row in kept_heads.rows))
        labels, note = shorten_labels(methods)
        figures = [
            figure
            for method in methods
            for figure in _figures_of_method(kept_heads, method, labels[method], note, names_method=len(methods) > 1)
        ]
        return StudyResult(
            study=str(self),
            tables=(
                _table_of_models_with_kind_columns(kept_heads),
                _table_of_models_with_layer_columns(kept_heads),
                _table_of_survivors_by_model_and_seed(kept_heads.rows),
            ),
            sentence=_summary_sentence(kept_heads),
            notes=("Counts are means over seeds; in parentheses the fewest and the most of a seed.",),
            figures=tuple(figures),
            measurements={
                "model": context.model_name,
                "task": context.task.name,
                "heads by kind": dict(kept_heads.by_kind),
                "heads by layer": dict(kept_heads.by_layer),
                "rows": [row.to_dict() for row in kept_heads.rows],
            },
        )


_MODEL_COLUMNS = (Column("method"), Column("heads"), Column("removed"), Column("seeds"))


def _method_and_size_cells(row: KeptRow) -> tuple[Cell, ...]:
    return row.method, row.n_kept, row.n_removed, len(row.survivors)


def _fewest_and_most_of_seeds(row: KeptRow, kind: str) -> tuple[float | None, float | None]:
    """Returns the fewest and the most heads of a seed; None of a single seed."""
    return row.range_by_kind[kind] if len(row.survivors) > 1 else (None, None)


def _table_of_models_with_kind_columns(kept_heads: KeptHeads) -> Table:
    columns = [column for kind, number in kept_heads.by_kind.items() for column in interval_columns(kind, ".3g", f"of {number}")]
    cells = [
        [cell for kind in kept_heads.by_kind for cell in (row.by_kind[kind], *_fewest_and_most_of_seeds(row, kind))]
        for row in kept_heads.rows
    ]
    rows = tuple((*_method_and_size_cells(row), *counts) for row, counts in zip(kept_heads.rows, cells, strict=True))
    return Table("kinds", (*_MODEL_COLUMNS, *columns), rows, "Heads that stay by kind of attention: mean over seeds, fewest and most")


def _table_of_models_with_layer_columns(kept_heads: KeptHeads) -> Table:
    columns = (*_MODEL_COLUMNS, *(Column(layer, f"of {number}", ".3g") for layer, number in kept_heads.by_layer.items()))
    rows = tuple((*_method_and_size_cells(row), *(row.by_layer[layer] for layer in kept_heads.by_layer)) for row in kept_heads.rows)
    return Table("layers", columns, rows, "Heads that stay by layer: mean over seeds")


def _table_of_survivors_by_model_and_seed(rows: Sequence[KeptRow]) -> Table:
    columns = (Column("method"), Column("heads"), Column("seed"), Column("survivors"))
    cells = tuple(
        (row.method, row.n_kept, seed, " ".join(heads)) for row in rows for seed, heads in zip(row.seeds, row.survivors, strict=True)
    )
    return Table("survivors", columns, cells, "The heads that stay in every model", is_printed=False)


def _figures_of_method(
    kept_heads: KeptHeads, method: str, method_label: str, note: str, *, names_method: bool
) -> list[LineFigure | HeatMap]:
    rows = sorted((row for row in kept_heads.rows if row.method == method), key=lambda row: row.n_removed)
    suffix = f" by {method_label}" if names_method else ""
    removed = tuple(float(row.n_removed) for row in rows)
    n_seeds = len(rows[0].survivors)
    lines = []
    for kind, number in kept_heads.by_kind.items():
        low, high = (tuple(_fewest_and_most_of_seeds(row, kind)[at] for row in rows) if n_seeds > 1 else () for at in (0, 1))
        lines.append(Line(kind, removed, tuple(row.by_kind[kind] for row in rows), low, high, start=(0.0, number)))
    ranges = f"; bars go from the fewest to the most of {n_seeds} seeds" if n_seeds > 1 else ""
    by_kind = LineFigure(
        name=f"kinds{suffix}",
        title=f"Heads that stay in each kind of attention, pruned by {method_label}{ranges}",
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
        title=f"Heads that stay in each layer, pruned by {method_label}",
        x=Axis("heads that stay in the model"),
        y=Axis("layer"),
        table="layers",
        n=n_seeds,
        n_unit="seeds" if n_seeds > 1 else "seed",
        note=note,
        rows=tuple(kept_heads.by_layer),
        columns=tuple(str(row.n_kept) for row in rows),
        values=tuple(tuple(row.by_layer[layer] for row in rows) for layer in kept_heads.by_layer),
        value=Axis("heads of the layer that stay"),
    )
    return [by_kind, by_layer] if len(kept_heads.by_kind) > 1 else [by_layer]  # of one kind the line is straight


def _summary_sentence(kept_heads: KeptHeads) -> str:
    parts = []
    for method in dict.fromkeys(row.method for row in kept_heads.rows):
        row = min((row for row in kept_heads.rows if row.method == method), key=lambda row: row.n_kept)
        counts = row.by_kind if len(kept_heads.by_kind) > 1 else row.by_layer
        joined = ", ".join(f"{number:.3g} in {key}" for key, number in counts.items())
        parts.append(f"{method} leaves {row.n_kept} heads: {joined}")
    return f"{'; '.join(parts)}."
