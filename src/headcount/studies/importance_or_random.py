from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING

from headcount.core.figure import Axis, BarFigure, Bars
from headcount.core.options import option
from headcount.core.study_result import Column, StudyResult, Table, format_interval
from headcount.studies import _measure
from headcount.studies._base import Effort, Study, StudyContext, StudyInfo
from headcount.studies._rows import controlled_cells, controlled_columns

if TYPE_CHECKING:
    from headcount.studies._measure.importance_or_random import ChoiceRow, Choices


@dataclass(frozen=True)
class ImportanceOrRandom(Study):
    """Does an importance choose better than chance? Its choice, random heads and its complement, each as it is, repaired and fine-tuned.

    Budhraja et al. 2020: importance says little about prunability once the model is fine-tuned. The complement removes exactly the heads that the
    importance keeps. Every row is compared with random heads of the same number that went the same way; rows that were fine-tuned are compared
    with the dense model after the same training. Differences are paired over examples.
    """

    _: KW_ONLY
    by: str = option("gradient", "The importance, or another pruner that does not train")
    keep: tuple[int | float | str, ...] = option(("50%",), "How many heads the importance keeps: numbers or shares")
    seeds: int = option(3, "Draws of random heads, and trainings of every choice", minimum=1)
    recover: float | str | None = option(
        "auto", "How long models are fine-tuned: a number of epochs, or of steps (300steps), or auto; none leaves it out"
    )
    rate: float = option(5e-5, "The learning rate of the fine-tuning", minimum=0)
    train_batch: int = option(32, "Examples per training step", minimum=1)
    info = StudyInfo(paper="Budhraja et al. 2020, section 5", needs=frozenset({"model", "task", "run"}))

    def effort(self, context: StudyContext) -> Effort:
        """Returns the evaluations and trainings of all models."""
        return _measure.importance_or_random.estimate_effort(self, context)

    def measure(self, context: StudyContext) -> StudyResult:
        """Returns a row for every choice and stage at every number of heads."""
        choices = _measure.importance_or_random.prune_by_importance_and_at_random(self, context)
        metric = choices.dense.metric or "loss"
        trained = choices.dense_recovered
        after_training = "" if trained is None else f", {trained.score:.4g} after the same training"
        return StudyResult(
            study=str(self),
            tables=(_table_of_choices_by_size_and_stage(choices.rows, metric),),
            sentence=_summary_sentence(choices, self.by),
            notes=(f"Dense model: {metric} {choices.dense.score:.4g} on {choices.dense.n_examples} examples{after_training}.",),
            figures=tuple(_change_by_stage_figure(choices, n_kept, metric) for n_kept in dict.fromkeys(row.n_kept for row in choices.rows)),
            measurements={
                "model": context.model_name,
                "task": context.task.name,
                "by": self.by,
                "dense": {"metric": metric, "value": choices.dense.score},
                "removed": {str(keep): list(heads) for keep, heads in choices.removed.items()},
                "rows": [row.to_dict() for row in choices.rows],
            },
        )


def _table_of_choices_by_size_and_stage(rows: Sequence[ChoiceRow], metric: str) -> Table:
    columns = (Column("heads"), Column("choice"), Column("stage"), *controlled_columns(metric))
    cells = tuple((row.n_kept, row.choice, row.stage, *controlled_cells(row)) for row in rows)
    title = f"{metric} of the importance's choice, of random heads and of its complement; every interval holds for its row alone"
    return Table("choices", columns, cells, title)


def _change_by_stage_figure(choices: Choices, n_kept: int, metric: str) -> BarFigure:
    rows = [row for row in choices.rows if row.n_kept == n_kept]
    stages, bars = list(dict.fromkeys(row.stage for row in rows)), []
    for choice in dict.fromkeys(row.choice for row in rows):
        of_choice = {row.stage: row for row in rows if row.choice == choice}
        y, low, high = (tuple(getattr(of_choice[stage].change, end) for stage in stages) for end in ("difference", "low", "high"))
        bars.append(Bars(choice, y, low, high))
    return BarFigure(
        name=f"choices-{n_kept}",
        title=f"Change of {metric} from the dense model with {n_kept} heads",
        x=Axis("what follows pruning"),
        y=Axis(f"change of {metric}"),
        table="choices",
        n=choices.dense.n_examples,
        categories=tuple(stages),
        bars=tuple(bars),
    )


def _summary_sentence(choices: Choices, by: str) -> str:
    parts = [
        f"{row.stage} {format_interval(row.against_random.difference, row.against_random.low, row.against_random.high)}, q = {row.q:.2g}"
        for row in choices.rows
        if row.choice == "importance" and row.n_kept == max(choices.removed) and row.against_random is not None and row.q is not None
    ]
    return f"With {max(choices.removed)} heads, {by} against random heads: {'; '.join(parts)}."
