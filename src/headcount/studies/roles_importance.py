from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, asdict, dataclass
from typing import TYPE_CHECKING

from headcount.core.options import option
from headcount.core.study_result import Column, StudyResult, Table, interval_columns
from headcount.studies._base import ANY_ROLE, SIGNIFICANT, Study, StudyContext, StudyInfo

if TYPE_CHECKING:
    from headcount.studies._measure.roles_importance import RoleRow


@dataclass(frozen=True)
class RolesImportance(Study):
    """Do the heads that matter have roles? Importance and confidence of heads with and without each role, with intervals.

    Voita et al. 2019: the most important and the most confident heads are those with a role. For every role the mean rank of its heads (1 = most
    important) is set against that of the others, with a permutation test over heads; the interval holds the shifts that this test does not reject.
    """

    _: KW_ONLY
    by: tuple[str, ...] = option(("gradient", "confidence"), "The importances to compare with roles")
    info = StudyInfo(paper="Voita et al. 2019", needs=frozenset({"model", "task"}), optional=frozenset({"text"}))

    def measure(self, context: StudyContext) -> StudyResult:
        """Returns every role that some heads have and some lack, against every importance."""
        from headcount.studies._measure.roles_importance import measure_roles_and_scores, rank_roles

        table, scores = measure_roles_and_scores(context, self.by)
        rows = sorted(rank_roles(table, scores, seed=context.seed), key=lambda row: (row.method, row.p))
        return StudyResult(
            study=str(self),
            tables=(_table(rows),),
            sentence=_verdict(rows),
            notes=("Rank 1 is the head to keep first: a negative difference means that heads with the role matter more.",),
            measurements={"model": context.model_name, "task": context.task.name, "rows": [asdict(row) for row in rows]},
        )


def _table(rows: Sequence[RoleRow]) -> Table:
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


def _verdict(rows: Sequence[RoleRow]) -> str:
    n_significant = sum(row.q <= SIGNIFICANT for row in rows)
    text = f"{n_significant} of {len(rows)} differences between heads with and without a role are significant (q ≤ {SIGNIFICANT})"
    of_any = [f"{row.difference:+.1f} by {row.method} (q = {row.q:.2g})" for row in rows if row.role == ANY_ROLE]
    return f"{text}; the mean rank of heads with any role differs by {', '.join(of_any)}." if of_any else f"{text}."
