from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, asdict, dataclass
from typing import TYPE_CHECKING

from headcount.core.figure import Axis, Points, ScatterFigure
from headcount.core.options import option
from headcount.core.study_result import Column, StudyResult, Table, format_interval, interval_columns
from headcount.studies import _measure
from headcount.studies._base import SIGNIFICANT, Study, StudyContext, StudyInfo
from headcount.studies._rows import describe_undecided

if TYPE_CHECKING:
    from headcount.core.scores import Scores
    from headcount.studies._measure.transfer import ScoreAgreement


@dataclass(frozen=True)
class Transfer(Study):
    """Do the same heads matter on other data? Pearson and Spearman correlations of the scores of two or more runs, with intervals.

    Michel et al. 2019 (section 4.3), who publish 0.56 to 0.68 (Pearson) for ablation across domains. The interval and p are those of the observed
    correlation when examples are drawn again; the correlation without the noise of few examples stands beside it under that name.
    """

    runs: tuple[str, ...] = option(help="Run folders of the same model scored on different data, two or more")
    _: KW_ONLY
    by: str | None = option(None, "The importance to compare; by default every one that all runs have")
    info = StudyInfo(paper="Michel et al. 2019, section 4.3")

    def measure(self, context: StudyContext) -> StudyResult:
        """Returns every pair of runs for every importance that all of them have."""
        by_method = _measure.transfer.read_scores_by_importance_and_run(context, self.runs, self.by)
        pairs = [pair for scores in by_method.values() for pair in _measure.transfer.correlate_scores(scores, seed=context.seed)]
        notes = [
            f"{pair.a} and {pair.b} were scored on the same examples, so their agreement says nothing about other data."
            for pair in pairs
            if pair.same_data
        ]
        return StudyResult(
            study=str(self),
            tables=(_run_pair_table(pairs), _scores_by_run_and_head_table(by_method)),
            sentence=_summary_sentence(pairs),
            notes=tuple(notes),
            measurements={"pairs": [asdict(pair) for pair in pairs]},
            figures=tuple(_two_run_scatter(number, pair, by_method[pair.method]) for number, pair in enumerate(pairs, 1)),
        )


def _run_pair_table(pairs: Sequence[ScoreAgreement]) -> Table:
    columns = (
        Column("method"),
        Column("run"),
        Column("against"),
        *interval_columns("Pearson", ".2f"),
        Column("Pearson without noise", format=".2f"),
        *interval_columns("Spearman", ".2f"),
        Column("Spearman without noise", format=".2f"),
        Column("p of Spearman", format=".2g"),
        Column("lowest shared"),
        Column("of"),
        Column("by chance", format=".1f"),
    )
    rows = []
    for pair in pairs:
        numbers = []
        for estimate in (pair.pearson, pair.spearman):
            numbers += [estimate.value, estimate.low, estimate.high, estimate.without_noise]
        lowest = pair.lowest
        rows.append((pair.method, pair.a, pair.b, *numbers, pair.spearman.p, lowest.shared, lowest.k, lowest.expected * lowest.k))
    return Table("pairs", columns, tuple(rows))


def _scores_by_run_and_head_table(by_method: Mapping[str, Mapping[str, Scores]]) -> Table:
    columns = (Column("method"), Column("run"), Column("head"), Column("score", format=".4g"))
    rows = [
        (method, run, str(head), value)
        for method, by_run in by_method.items()
        for run, scores in by_run.items()
        for head, value in zip(scores.heads, scores.values, strict=True)
    ]
    return Table("heads", columns, tuple(rows), "Scores of every head in every run", is_printed=False)


def _two_run_scatter(figure_number: int, pair: ScoreAgreement, by_run: Mapping[str, Scores]) -> ScatterFigure:
    a, b = by_run[pair.a], by_run[pair.b]
    values_of_b = dict(zip(b.heads, b.values, strict=True))
    points = Points("heads", tuple(a.values), tuple(values_of_b[head] for head in a.heads), tuple(map(str, a.heads)))
    estimates = {"Pearson": pair.pearson, "Spearman": pair.spearman}
    texts = [f"{name} {format_interval(estimate.value, estimate.low, estimate.high, '.2f')}" for name, estimate in estimates.items()]
    return ScatterFigure(
        name=f"pair {figure_number}",
        title=f"Scores of every head in two runs by {pair.method}",
        x=Axis(pair.a),
        y=Axis(pair.b),
        table="heads",
        n=len(a.heads),
        n_unit="heads",
        groups=(points,),
        note=", ".join(texts),
    )


def _summary_sentence(pairs: Sequence[ScoreAgreement]) -> str:
    values = [pair.spearman.value for pair in pairs]
    n_significant = sum(pair.spearman.p <= SIGNIFICANT for pair in pairs)
    span = f"{min(values):.2f}" if len(values) == 1 else f"{min(values):.2f} to {max(values):.2f}"
    return (
        f"Between the runs, the scores of heads have a rank correlation (Spearman) of {span}; "
        f"{n_significant} of {len(pairs)} correlations differ from 0 (p ≤ {SIGNIFICANT}){describe_undecided(n_significant, len(pairs))}."
    )
