from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, asdict, dataclass
from typing import TYPE_CHECKING

from headcount.core.options import option
from headcount.core.study_result import Column, StudyResult, Table, interval_columns
from headcount.studies._base import SIGNIFICANT, Study, StudyContext, StudyInfo

if TYPE_CHECKING:
    from headcount.studies._measure.finetune_roles import RoleChange

MOST_ROWS = 30


@dataclass(frozen=True)
class FinetuneRoles(Study):
    """What does fine-tuning change in the roles of heads? The same heads of two models on the same sentences, with a paired test.

    Pande et al. 2021: fine-tuning changes the late layers most, from delimiters to other tokens. For every head and role the difference of the
    sieve bias, sentence by sentence, is tested by t; p-values are corrected over all heads and roles.
    """

    tuned: str = option(help="The model after fine-tuning: a folder, a hub id, or demo/NAME")
    _: KW_ONLY
    only: tuple[str, ...] = option((), "Roles to measure; by default all")
    info = StudyInfo(paper="Pande et al. 2021", needs=frozenset({"model", "text"}), optional=frozenset({"task"}))

    def measure(self, context: StudyContext) -> StudyResult:
        """Returns every head and role that both models were tested for, with the paired difference."""
        from headcount.studies._measure.finetune_roles import measure_changes

        changes = measure_changes(context, self.tuned, self.only)
        significant = sorted((change for change in changes if change.q <= SIGNIFICANT), key=lambda change: -abs(change.difference))
        layers = _layer_table(changes)
        return StudyResult(
            study=str(self),
            tables=(_change_table(significant[:MOST_ROWS]), layers),
            sentence=_verdict(changes, significant, layers),
            notes=(f"{MOST_ROWS} of {len(significant)} significant changes are shown.",) if len(significant) > MOST_ROWS else (),
            measurements={
                "before": context.model_name,
                "after": self.tuned,
                "changes": [{**asdict(change), "head": str(change.head)} for change in changes],
            },
        )


def _change_table(changes: Sequence[RoleChange]) -> Table:
    columns = (
        Column("head"),
        Column("role"),
        Column("before", "sieve bias", ".2f"),
        Column("after", "sieve bias", ".2f"),
        *interval_columns("change", "+.2f"),
        Column("q", format=".2g"),
        Column("role is"),
    )
    rows = []
    for change in changes:
        word = "lost" if change.had and not change.has else "gained" if change.has and not change.had else ""
        numbers = (change.before, change.after, change.difference, change.low, change.high, change.q)
        rows.append((str(change.head), change.role, *numbers, word))
    return Table("changes", columns, tuple(rows))


def _layer_table(changes: Sequence[RoleChange]) -> Table:
    by_layer: dict[str, list[RoleChange]] = {}
    for change in changes:
        by_layer.setdefault(str(change.head).rpartition("H")[0], []).append(change)
    columns = (Column("layer"), Column("mean |change|", format=".3f"), Column("roles lost"), Column("roles gained"))
    rows = [
        (
            layer,
            sum(abs(change.difference) for change in group) / len(group),
            sum(change.had and not change.has for change in group),
            sum(change.has and not change.had for change in group),
        )
        for layer, group in by_layer.items()
    ]
    return Table("layers", columns, tuple(rows), "Mean size of all changes by layer")


def _verdict(changes: Sequence[RoleChange], significant: Sequence[RoleChange], layers: Table) -> str:
    most = max(layers.records(), key=lambda row: float(row["mean |change|"] or 0), default=None)
    largest = "" if most is None else f"; changes are largest in {most['layer']}"
    return f"{len(significant)} of {len(changes)} heads × roles changed (q ≤ {SIGNIFICANT}){largest}."
