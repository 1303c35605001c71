from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, asdict, astuple, dataclass
from typing import TYPE_CHECKING

from headcount.core.errors import OptionError
from headcount.core.figure import Axis, Line, LineFigure, Reference
from headcount.core.options import option
from headcount.core.study_result import Column, StudyResult, Table, format_interval, interval_columns
from headcount.studies import _measure
from headcount.studies._base import SIGNIFICANT, Effort, Study, StudyContext, StudyInfo
from headcount.studies._rows import describe_undecided, difference_with_interval, format_significance, seed_cells, seed_columns

if TYPE_CHECKING:
    from headcount.studies._measure.compensation import ChangeRow, Evenness, QualityRow


FEW_HEADS = 3
"""Up to so many heads in a layer an interval is so wide that it does not decide how far the axis goes."""


@dataclass(frozen=True)
class Compensation(Study):
    """Do the heads that stay make up for those that went? Their change in the fine-tuning after pruning, against that of the dense model.

    Budhraja et al. 2020 (section 6): the relative change of the slices of a head, ‖ΔW_h‖/‖W_h‖ of Q, K, V and O, and of its importance, in two
    trainings by one recipe: that of the pruned model and that of the dense one, each by several seeds. The same head is compared with itself,
    averaged over the seeds in which it stays; the test runs over heads. The quality before and after says how much of the score came back.
    Published: compensation is spread evenly over layers.
    """

    _: KW_ONLY
    keep: int | float | str = option(help="How many heads stay, 2 or more: a number, or a share such as 25%")
    method: str = option("gradient", "A pruner with its options, such as dsp(tau=2), or an importance to rank by")
    by: str = option("gradient", "The importance whose change is measured")
    steps: int | None = option(None, "Optimiser steps of every training; by default those of one epoch, and at least 300", minimum=1)
    seeds: int = option(3, "Trainings of both models; a head is averaged over those in which it stays", minimum=1)
    epochs: float | None = option(None, "Instead of steps: epochs of every training", above=0)
    rate: float = option(5e-5, "The learning rate", minimum=0)
    train_batch: int = option(32, "Examples per training step", minimum=1)
    info = StudyInfo(paper="Budhraja et al. 2020, section 6", needs=frozenset({"model", "task", "run"}))

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.steps is not None and self.epochs is not None:
            raise OptionError("the length of training is set by steps or by epochs, not by both; leave one out")

    def effort(self, context: StudyContext) -> Effort:
        """Returns the evaluations and trainings of both models."""
        return _measure.compensation.estimate_effort(self, context)

    @property
    def trains_new_head(self) -> bool:
        """Whether the pruned and the dense model are fine-tuned: always."""
        return True

    def measure(self, context: StudyContext) -> StudyResult:
        """Returns the differences by part over all survivors and by layer, and how evenly they are spread over layers."""
        changes = _measure.compensation.measure_compensation(self, context)
        return StudyResult(
            study=str(self),
            tables=(
                _change_by_part_and_layer_table(changes.rows),
                _evenness_by_part_table(changes.evenness),
                _quality_by_model_table(changes.quality, changes.metric),
            ),
            sentence=f"{_quality_after_fine_tuning_sentence(changes.quality, changes.metric)} {_significant_changes_sentence(changes.rows)}",
            notes=(f"{self.seeds} trainings of each model; quality is measured on {changes.n_examples} examples.",),
            figures=(
                _change_by_layer_figure(changes.rows, "weights", ("q", "k", "v", "o"), "relative change of weights"),
                _change_by_layer_figure(changes.rows, "importance", ("importance",), "ln of the ratio of importance after to before"),
            ),
            measurements={
                "model": context.model_name,
                "task": context.task.name,
                "removed": list(map(str, changes.removed)),
                "tuned": {name: [asdict(score) for score in scores] for name, scores in changes.scores.items()},
                "quality": [asdict(row) for row in changes.quality],
                "rows": [asdict(row) for row in changes.rows],
                "evenness": [asdict(row) for row in changes.evenness],
                "heads": changes.heads,
            },
        )


def _change_by_part_and_layer_table(rows: Sequence[ChangeRow]) -> Table:
    columns = (
        Column("part"),
        Column("layer"),
        Column("heads"),
        Column("after pruning", format=".4g"),
        Column("in the dense model", format=".4g"),
        *interval_columns("difference", "+.3g"),
        Column("p", format=".2g"),
        Column("q", format=".2g"),
    )
    title = "Relative change of the heads that stay (importance: logarithm of the ratio after to before)"
    return Table("changes", columns, tuple(astuple(row) for row in rows), title)


def _evenness_by_part_table(rows: Sequence[Evenness]) -> Table:
    correlation = "rank correlation with heads lost in the layer"
    columns = (Column("part"), Column("between layers", format=".0%"), Column("p", format=".2g"), Column(correlation, format="+.2f"))
    title = "Share of the variance of the differences that lies between layers; p of heads permuted over layers"
    return Table("evenness", columns, tuple(astuple(row) for row in rows), title)


def _quality_by_model_table(rows: Sequence[QualityRow], metric: str) -> Table:
    columns = (
        Column("model"),
        *seed_columns(metric),
        *interval_columns("against the dense model", "+.3g", metric),
        *interval_columns("against the dense model, fine-tuned", "+.3g", metric),
        Column("p", format=".2g"),
    )

    cells = tuple(
        (
            row.model,
            *seed_cells(row.scores),
            *difference_with_interval(row.against_dense),
            *difference_with_interval(row.against_tuned),
            None if row.against_tuned is None else row.against_tuned.p,
        )
        for row in rows
    )
    return Table(
        "quality", columns, cells, f"{metric} before and after fine-tuning; p is that of no difference from the fine-tuned dense model"
    )


def _quality_after_fine_tuning_sentence(rows: Sequence[QualityRow], metric: str) -> str:
    """Says how far the fine-tuned pruned model is from the fine-tuned dense one, and how far it was before."""
    by_model = {row.model: row for row in rows}
    before, after = by_model["pruned"], by_model["pruned, fine-tuned"]
    if after.against_tuned is None:
        return ""
    change = after.against_tuned
    difference = format_interval(change.difference, change.low, change.high)
    alone = "" if before.against_dense is None else f"; by pruning alone it changed by {before.against_dense.difference:+.3g}"
    return (
        f"The {metric} is {difference} from that of the dense model after the same training ({format_significance('p', change.p)}){alone}."
    )


def _change_by_layer_figure(rows: Sequence[ChangeRow], figure_name: str, parts: Sequence[str], quantity_of_axis: str) -> LineFigure:
    layers = list(dict.fromkeys(row.layer for row in rows if row.layer != "all"))
    lines = []
    for part in parts:
        of_part = {row.layer: row for row in rows if row.part == part}
        values = [(of_part[layer].difference, of_part[layer].low, of_part[layer].high) for layer in layers]
        differences, low, high = zip(*values, strict=True)
        lines.append(Line(part, tuple(map(float, range(len(layers)))), differences, low, high))
    limits = _choose_axis_limits([row for row in rows if row.part in parts and row.layer != "all"])
    return LineFigure(
        name=figure_name,
        title="Change of the heads that stay in the fine-tuning after pruning, beyond that in the dense model",
        x=Axis("layer", ticks=tuple((float(number), layer) for number, layer in enumerate(layers))),
        y=Axis(f"difference in {quantity_of_axis}", limits=limits),
        table="changes",
        n=next(row.heads for row in rows if row.layer == "all"),
        n_unit="heads",
        note="Intervals of layers with few heads go beyond the axis; the table has them." if limits else "",
        lines=tuple(lines),
        references=(Reference("as in the dense model", 0.0),),
    )


def _choose_axis_limits(rows: Sequence[ChangeRow]) -> tuple[float, float] | tuple[()]:
    """Returns the limits of the axis if a layer of so few heads has so wide an interval that the others could not be read, else nothing."""
    points = [0.0, *(row.difference for row in rows if row.difference is not None)]
    ends = [end for row in rows for end in (row.low, row.high) if end is not None]
    usual = [end for row in rows if row.heads > FEW_HEADS for end in (row.low, row.high) if end is not None]
    low, high = min([*points, *usual]), max([*points, *usual])
    margin = 0.08 * (high - low)
    if not ends or high == low or max(max(ends) - high, low - min(ends)) <= high - low:
        return ()
    return low - margin, high + margin


def _significant_changes_sentence(rows: Sequence[ChangeRow]) -> str:
    significant = [row for row in rows if row.layer == "all" and row.q is not None and row.q <= SIGNIFICANT]
    parts = [f"{row.part} {row.difference:+.3g} (q = {row.q:.2g})" for row in significant]
    if not parts:
        return f"Whether the heads that stay change otherwise after pruning than in the dense model is undecided (no q ≤ {SIGNIFICANT})."
    n_tested = sum(row.layer == "all" and row.q is not None for row in rows)
    changes, undecided = ", ".join(parts), describe_undecided(len(parts), n_tested)
    return f"The heads that stay change otherwise after pruning than in the dense model: {changes}{undecided}."
