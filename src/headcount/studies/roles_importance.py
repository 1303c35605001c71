from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, asdict, dataclass
from typing import TYPE_CHECKING

from headcount.core.definition import DEFAULT_DEFINITION, Definition
from headcount.core.figure import Axis, BarFigure, Bars, Counts, Histogram, Points, ScatterFigure
from headcount.core.options import option
from headcount.core.study_result import Column, StudyResult, Table, interval_columns
from headcount.studies import _measure
from headcount.studies._base import ANY_ROLE, SIGNIFICANT, Effort, Study, StudyContext, StudyInfo
from headcount.studies._rows import describe_undecided

if TYPE_CHECKING:
    from headcount.core.role_table import RoleTable
    from headcount.core.scores import Scores
    from headcount.studies._measure.roles_importance import RoleRow


N_BINS = 20
"""Bins of the histogram of scores."""


@dataclass(frozen=True)
class RolesImportance(Study):
    """Do the heads that matter have roles? Importance and confidence of heads with and without each role, with intervals.

    Voita et al. 2019: the most important and the most confident heads are those with a role. For every role the mean rank of its heads (1 = most
    important) is set against that of the others, by permuting heads within their layers; the interval holds the shifts that this
    test does not reject. The roles are those of the families of the definition; any role is one of these.
    """

    _: KW_ONLY
    by: tuple[str, ...] = option(("gradient", "confidence"), "The importances to compare with roles")
    definition: str = option(DEFAULT_DEFINITION, "When a head has a role, of `headcount ls definitions`; its families colour the heads")
    sentences: int | None = option(None, "How many sentences are read at most, drawn by a hash of their tokens", minimum=2)
    examples: int | None = option(None, "The most examples that scores are measured on; by default all of the calibration split", minimum=2)
    info = StudyInfo(paper="Voita et al. 2019", needs=frozenset({"model", "task"}), optional=frozenset({"text"}))

    def effort(self, context: StudyContext) -> Effort:
        """Returns a pass over the text, and a forward and backward pass over the examples for every importance."""
        n_examples = len(context.task.calibration)
        limits = [n_examples, self.examples or n_examples, context.limit or n_examples]
        return Effort(passes=(self.sentences or context.limit or 500) + 3.0 * len(self.by) * min(limits))

    def measure(self, context: StudyContext) -> StudyResult:
        """Returns every role that some heads have and some lack, against every importance."""
        table, scores = _measure.roles_importance.measure_roles_and_scores(self, context)
        rows = sorted(
            _measure.roles_importance.compare_ranks_by_role(table, scores, seed=context.seed), key=lambda row: (row.method, row.p)
        )
        return StudyResult(
            study=str(self),
            tables=(_rank_difference_table(rows), _roles_and_scores_by_head_table(table, scores)),
            sentence=_summary_sentence(rows),
            notes=(
                "Rank 1 is the head to keep first: a negative difference means that heads with the role matter more.",
                _measure.role_tables.describe_tested_sentences(table),
            ),
            figures=(_scores_by_family_figure(table, scores), *([_rank_difference_figure(rows)] if rows else [])),
            measurements={"model": context.model_name, "task": context.task.name, "rows": [asdict(row) for row in rows]},
        )


def _rank_difference_table(rows: Sequence[RoleRow]) -> Table:
    columns = (
        Column("score"),
        Column("role"),
        Column("heads"),
        Column("mean rank with", format=".1f"),
        Column("without", format=".1f"),
        *interval_columns("difference", "+.1f"),
        Column("q", format=".2g"),
    )
    names = ("method", "role", "n_heads", "rank_with", "rank_without", "difference", "low", "high", "q")
    return Table("rows", columns, tuple(tuple(getattr(row, name) for name in names) for row in rows))


def _roles_and_scores_by_head_table(table: RoleTable, scores: Mapping[str, Scores]) -> Table:
    labels = table.labels()
    columns = (Column("head"), Column("family"), Column("roles"), *(Column(method, format=".4g") for method in scores))
    rows = []
    for index, head in enumerate(table.heads):
        values = [of_method.values[index] for of_method in scores.values()]
        rows.append((str(head), _family_label_of_head(table, labels[head]), ", ".join(labels[head]), *values))
    return Table("heads", columns, tuple(rows), "Roles and scores of every head", is_printed=False)


def _family_label_of_head(role_table: RoleTable, roles_of_head: Sequence[str]) -> str:
    """Returns the family of a head with these roles by the definition of the table, `several` or `no role`."""
    families = Definition.parse(role_table.definition).families_of(roles_of_head)
    return families[0] if len(families) == 1 else "several" if families else "no role"


def _scores_by_family_figure(table: RoleTable, scores: Mapping[str, Scores]) -> ScatterFigure | Histogram:
    """Returns every head by its first two scores, coloured by the family of its roles; a histogram if there is one score."""
    labels = table.labels()
    family_of = [_family_label_of_head(table, labels[head]) for head in table.heads]
    families = sorted(set(family_of), key=lambda family: (family == "no role", family == "several", family))
    members = {family: [index for index, of_head in enumerate(family_of) if of_head == family] for family in families}
    first, *further = scores.values()
    about_heads = {"name": "heads", "table": "heads", "n": len(table.heads), "n_unit": "heads"}
    if not further:
        low, high = min(first.values), max(first.values)
        edges = tuple(low + ((high - low) or 1.0) * number / N_BINS for number in range(N_BINS + 1))
        bin_of = [max(0, sum(value >= edge for edge in edges[:-1]) - 1) for value in first.values]
        counts = {
            family: tuple(sum(bin_of[index] == number for index in of_family) for number in range(N_BINS))
            for family, of_family in members.items()
        }
        groups = tuple(Counts(family, numbers) for family, numbers in counts.items())
        title = f"Heads by {first.method}, with the family of their roles"
        return Histogram(title=title, x=Axis(first.label), y=Axis("heads", is_count=True), edges=edges, groups=groups, **about_heads)
    second = further[0]
    points = tuple(
        Points(
            family,
            tuple(second.values[index] for index in of_family),
            tuple(first.values[index] for index in of_family),
            tuple(str(table.heads[index]) for index in of_family),
        )
        for family, of_family in members.items()
    )
    title = f"Every head by {first.method} and {second.method}, with the family of its roles"
    return ScatterFigure(title=title, x=Axis(second.label), y=Axis(first.label), groups=points, **about_heads)


def _rank_difference_figure(rows: Sequence[RoleRow]) -> BarFigure:
    roles, row_of = tuple(dict.fromkeys(row.role for row in rows)), {(row.method, row.role): row for row in rows}
    bars = []
    for method in dict.fromkeys(row.method for row in rows):
        cells = [row_of[method, role] for role in roles]
        bars.append(Bars(method, *zip(*((row.difference, row.low, row.high) for row in cells), strict=True)))
    return BarFigure(
        name="ranks",
        title="Mean rank of heads with a role minus that of heads without; below 0, heads with the role matter more",
        x=Axis("role"),
        y=Axis("difference of mean ranks"),
        table="rows",
        n=None,
        n_unit="heads",
        categories=roles,
        bars=tuple(bars),
        is_horizontal=True,
    )


def _summary_sentence(rows: Sequence[RoleRow]) -> str:
    if not rows:
        return "No role is held by some heads and not by others, so that there is nothing to compare."
    n_significant = sum(row.q <= SIGNIFICANT for row in rows)
    text = (
        f"Heads with and without a role differ in {n_significant} of {len(rows)} comparisons (q ≤ {SIGNIFICANT})"
        f"{describe_undecided(n_significant, len(rows))}"
    )
    of_any = [f"{row.difference:+.1f} by {row.method} (q = {row.q:.2g})" for row in rows if row.role == ANY_ROLE]
    return f"{text}; the mean rank of heads with any role differs by {', '.join(of_any)}." if of_any else f"{text}."
