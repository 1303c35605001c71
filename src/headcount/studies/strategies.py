from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING

from headcount.core.figure import Axis, Line, LineFigure, Reference
from headcount.core.options import option
from headcount.core.study_result import Column, StudyResult, Table, interval_columns
from headcount.studies import _measure
from headcount.studies._base import SIGNIFICANT, Effort, Study, StudyContext, StudyInfo
from headcount.studies._rows import (
    controlled_cells,
    controlled_columns,
    dense_sentence,
    describe_better_and_worse,
    difference_with_interval,
)

if TYPE_CHECKING:
    from headcount.studies._measure.strategies import StrategyPair, StrategyResult, StrategyRow

ONE_KIND = "The model has one type of attention, so that random:type is random."
DEFAULT = ("random:type", "layers:top", "layers:middle", "layers:bottom", "layers:consecutive", "layers:spread")


@dataclass(frozen=True)
class Strategies(Study):
    """Does it matter where heads are removed? Random heads, top, middle, bottom, consecutive and spread-out layers, each followed by fine-tuning.

    Budhraja et al. 2020: after fine-tuning, large random fractions go with limited loss. Every model is trained by one recipe with its mask fixed,
    the dense model too, and differences are from that. A pre-trained model gets an untrained head first, is pruned and then fine-tuned
    (`pretrained`, or a new head for the model itself). The metric is the mean over seeds; differences are paired over the examples of the
    report split; the intervals of those from the dense model hold for all sizes of a strategy together, and the interval of a mean over seeds is
    Student's t, from three seeds on.
    """

    _: KW_ONLY
    strategies: tuple[str, ...] = option(DEFAULT, "Pruners that choose without training; random is always added")
    keep: tuple[int | float | str, ...] = option(
        ("75%", "50%", "25%"), "How many heads stay: numbers or shares, of the attention that is pruned"
    )
    by_kind: bool = option(False, "Also prune every kind of attention alone, where there are several")
    seeds: int = option(3, "Draws of the heads and trainings of every strategy", minimum=1)
    recover: float | str | None = option(
        "auto", "How long all models are fine-tuned: a number of epochs, or of steps (300steps), or auto; none trains nothing"
    )
    repair: bool | None = option(False, "Refit output projections in closed form; none does so unless training follows")
    rate: float = option(5e-5, "The learning rate of the fine-tuning", minimum=0)
    train_batch: int = option(32, "Examples per training step", minimum=1)
    pretrained: str = option(
        "", "A pre-trained model to prune instead: it gets a new head for the same classes and is fine-tuned after pruning"
    )
    info = StudyInfo(paper="Budhraja et al. 2020, sections 4 and 5", needs=frozenset({"model", "task", "run"}))

    def effort(self, context: StudyContext) -> Effort:
        """Returns the evaluations and trainings of all models."""
        return _measure.strategies.estimate_effort(self, context)

    def check_inputs(self, context: StudyContext) -> None:
        """Raises an error where the pre-trained model cannot be opened with a head for the task."""
        _measure.strategies.open_model_to_prune(self, context)

    @property
    def trains_new_head(self) -> bool:
        """Whether models are fine-tuned after pruning, the dense one too."""
        return self.recover is not None

    def measure(self, context: StudyContext) -> StudyResult:
        """Returns a row for every strategy, kind of attention and number of heads, and one for every pair of strategies."""
        measured = _measure.strategies.measure_strategies(self, context)
        metric = measured.dense.metric or "loss"
        condition = " after the same training, mean over seeds" if measured.is_dense_trained else " as it is"
        return StudyResult(
            study=str(self),
            tables=(_strategy_table(measured.rows, metric), *([_strategy_pair_table(measured.pairs, metric)] if measured.pairs else [])),
            sentence=_summary_sentence(measured),
            notes=(dense_sentence(measured.dense, condition), *([ONE_KIND] if measured.has_one_kind else [])),
            figures=tuple(
                _change_by_share_removed_figure(measured, kind, metric) for kind in dict.fromkeys(row.kind for row in measured.rows)
            ),
            measurements={
                "model": measured.model,
                "task": context.task.name,
                "dense": {"metric": metric, "value": measured.dense.score, "seeds": list(measured.dense_seeds)},
                "rows": [row.to_dict() for row in measured.rows],
                "pairs": [pair.to_dict() for pair in measured.pairs],
            },
        )


def _strategy_table(rows: Sequence[StrategyRow], metric: str) -> Table:
    columns = (
        Column("strategy"),
        Column("attention"),
        Column("heads"),
        Column("removed", format=".0%"),
        *controlled_columns(metric),
    )
    cells = tuple((row.strategy, row.kind, row.n_kept, row.share_removed, *controlled_cells(row)) for row in rows)
    title = (
        f"{metric} by strategy: mean and standard deviation over seeds, differences paired over examples; intervals against the dense model hold "
        "for all sizes of a strategy together, those against random for their row alone; p and q are against random"
    )
    return Table("strategies", columns, cells, title)


def _strategy_pair_table(pairs: Sequence[StrategyPair], metric: str) -> Table:
    columns = (
        Column("attention"),
        Column("heads"),
        Column("strategy"),
        Column("other strategy"),
        *interval_columns("difference", "+.3g", metric),
        Column("p", format=".2g"),
        Column("q", format=".2g"),
    )
    cells = tuple(
        (pair.kind, pair.n_kept, pair.strategy, pair.other, *difference_with_interval(pair.change), pair.p, pair.q) for pair in pairs
    )
    return Table("pairs", columns, cells, f"Difference of {metric} between strategies at the same number of heads, on the same examples")


def _change_by_share_removed_figure(measured: StrategyResult, kind: str, metric: str) -> LineFigure:
    lines, dense = [], measured.dense
    of_kind = [row for row in measured.rows if row.kind == kind]
    for strategy in dict.fromkeys(row.strategy for row in of_kind):
        points = sorted((row for row in of_kind if row.strategy == strategy), key=lambda row: row.share_removed)
        y, low, high = (tuple(getattr(row.change, end) for row in points) for end in ("difference", "low", "high"))
        x = tuple(row.share_removed for row in points)
        lines.append(Line(strategy, x, y, low, high, is_control=strategy == "random", start=(0.0, 0.0)))
    name = "strategies" if kind == "all" else f"strategies-{kind}"
    attention = "" if kind == "all" else f" of {kind} attention"
    return LineFigure(
        name=name,
        title=f"Change of {metric} from the dense model by the share of heads{attention} removed, 95 % for all sizes together",
        x=Axis(f"heads{attention} removed", is_share=True),
        y=Axis(f"change of {metric}"),
        table="strategies",
        n=dense.n_examples,
        lines=tuple(lines),
        references=(Reference("dense model, trained alike" if measured.is_dense_trained else "dense model", 0.0),),
    )


def _summary_sentence(measured: StrategyResult) -> str:
    tested = [row for row in measured.rows if row.q is not None]
    if not tested:
        return "Random heads alone were removed, so that no strategy is compared with them."
    higher_is_better, parts = measured.dense.value is not None and measured.dense.higher_is_better, []
    for strategy in dict.fromkeys(row.strategy for row in tested):
        tests = [(row.against_random.difference if row.against_random else None, row.q) for row in tested if row.strategy == strategy]
        parts.append(f"{strategy} {describe_better_and_worse(tests, higher_is_better=higher_is_better)}")
    return f"Against random heads: {'; '.join(parts)} (q ≤ {SIGNIFICANT})."
