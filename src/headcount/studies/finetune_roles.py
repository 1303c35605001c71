from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, asdict, dataclass
from typing import TYPE_CHECKING

from headcount.core.figure import Axis, HeatMap
from headcount.core.options import option
from headcount.core.study_result import Column, StudyResult, Table, interval_columns
from headcount.studies._base import SIGNIFICANT, Study, StudyContext, StudyInfo

if TYPE_CHECKING:
    from headcount.studies._measure.finetune_roles import HeadRoleChange

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
        from headcount.studies._measure.finetune_roles import measure_role_changes

        changes = measure_role_changes(context, self.tuned, self.only)
        significant = sorted((change for change in changes if change.q <= SIGNIFICANT), key=lambda change: -abs(change.difference))
        layers = _layer_table(changes)
        return StudyResult(
            study=str(self),
            tables=(_change_table(significant[:MOST_ROWS]), layers, _role_table(changes)),
            sentence=_verdict(changes, significant, layers),
            notes=(f"{MOST_ROWS} of {len(significant)} significant changes are shown.",) if len(significant) > MOST_ROWS else (),
            figures=(_figure(changes),) if changes else (),
            measurements={
                "before": context.model_name,
                "after": self.tuned,
                "changes": [{**asdict(change), "head": str(change.head)} for change in changes],
            },
        )


def _change_table(changes: Sequence[HeadRoleChange]) -> Table:
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


def _layer_table(changes: Sequence[HeadRoleChange]) -> Table:
    by_layer: dict[str, list[HeadRoleChange]] = {}
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


def _by_role_and_layer(changes: Sequence[HeadRoleChange]) -> dict[tuple[str, str], list[HeadRoleChange]]:
    groups: dict[tuple[str, str], list[HeadRoleChange]] = {}
    for change in changes:
        groups.setdefault((change.role, str(change.head).rpartition("H")[0]), []).append(change)
    return groups


def _role_table(changes: Sequence[HeadRoleChange]) -> Table:
    columns = (
        Column("role"),
        Column("layer"),
        Column("heads"),
        Column("before", "mean sieve bias", ".2f"),
        Column("after", "mean sieve bias", ".2f"),
        Column("change", "mean sieve bias", "+.2f"),
        Column("heads changed", f"q ≤ {SIGNIFICANT}"),
        Column("roles lost"),
        Column("roles gained"),
    )
    rows = []
    for (role, layer), group in _by_role_and_layer(changes).items():
        means = [sum(values) / len(group) for values in zip(*((c.before, c.after, c.difference) for c in group), strict=True)]
        n_changed = sum(change.q <= SIGNIFICANT for change in group)
        lost, gained = sum(change.had and not change.has for change in group), sum(change.has and not change.had for change in group)
        rows.append((role, layer, len(group), *means, n_changed, lost, gained))
    return Table("roles", columns, tuple(rows), "Sieve bias before and after fine-tuning by role and layer", is_printed=False)


def _figure(changes: Sequence[HeadRoleChange]) -> HeatMap:
    groups = _by_role_and_layer(changes)
    roles, layers = (tuple(dict.fromkeys(key[position] for key in groups)) for position in (0, 1))

    def mean(role: str, layer: str) -> float | None:
        group = groups.get((role, layer), ())
        return sum(change.difference for change in group) / len(group) if group else None

    return HeatMap(
        name="roles",
        title="Mean change of the sieve bias of heads in fine-tuning",
        x=Axis("layer"),
        y=Axis("role"),
        table="roles",
        n=max(change.n_sentences for change in changes),
        n_unit="sentences",
        rows=roles,
        columns=layers,
        values=tuple(tuple(mean(role, layer) for layer in layers) for role in roles),
        value=Axis("change of the sieve bias"),
        marks=tuple(tuple(any(change.q <= SIGNIFICANT for change in groups.get((role, layer), ())) for layer in layers) for role in roles),
        mark_label=f"at least one head changed (q ≤ {SIGNIFICANT})",
        is_diverging=True,
    )


def _verdict(changes: Sequence[HeadRoleChange], significant: Sequence[HeadRoleChange], layers: Table) -> str:
    most = max(layers.records(), key=lambda row: float(row["mean |change|"] or 0), default=None)
    largest = "" if most is None else f"; changes are largest in {most['layer']}"
    return f"{len(significant)} of {len(changes)} heads × roles changed (q ≤ {SIGNIFICANT}){largest}."
