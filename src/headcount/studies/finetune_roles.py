from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, asdict, dataclass
from typing import TYPE_CHECKING, Literal

from headcount.core.definition import DEFAULT_DEFINITION, Definition
from headcount.core.figure import Axis, BarFigure, Bars, HeatMap
from headcount.core.options import option
from headcount.core.study_result import Column, StudyResult, Table, interval_columns
from headcount.studies import _measure
from headcount.studies._base import SIGNIFICANT, Effort, Study, StudyContext, StudyInfo
from headcount.studies._checks import check_same_heads_as_other_model
from headcount.studies._parts import Part, choose_part, layer_of_address
from headcount.studies._rows import describe_undecided, is_significant

if TYPE_CHECKING:
    from headcount.studies._measure.finetune_roles import HeadRoleChange, Trend

MOST_ROWS = 30


@dataclass(frozen=True)
class FinetuneRoles(Study):
    """What does fine-tuning change in the roles of heads? The same heads of two models on the same sentences, with a paired test.

    Pande et al. 2021: fine-tuning changes the late layers most, from delimiters to other tokens. For every head and role the difference of the
    sieve bias, sentence by sentence, is tested by t; p-values are corrected over all heads and roles. Whether changes
    grow with the layer is tested by permuting heads.
    """

    tuned: str = option(help="The model after fine-tuning: a folder, a hub id, or demo/NAME")
    _: KW_ONLY
    only: tuple[str, ...] = option((), "Roles to measure; by default all")
    definition: str = option(DEFAULT_DEFINITION, "When a head has a role, of `headcount ls definitions`")
    sentences: int | None = option(None, "How many sentences are read at most, drawn by a hash of their tokens", minimum=2)
    show: Literal["all", "layers", "families"] = option("all", "What the result holds")
    info = StudyInfo(paper="Pande et al. 2021", needs=frozenset({"model", "text"}), optional=frozenset({"task"}))

    def effort(self, context: StudyContext) -> Effort:
        """Returns two passes over the text for either model."""
        return Effort(passes=4 * (self.sentences or context.limit or 500))

    def check_inputs(self, context: StudyContext) -> None:
        """Raises ArtifactError unless the fine-tuned model has the same heads."""
        check_same_heads_as_other_model(context, self.tuned)

    def measure(self, context: StudyContext) -> StudyResult:
        """Returns every head and role that both models were tested for, with the paired difference."""
        changes = _measure.finetune_roles.measure_role_changes(context, self.tuned, self.only, self.definition, self.sentences)
        trends = _measure.finetune_roles.correlate_role_changes_with_depth(changes, self.definition, seed=context.seed)
        significant = sorted((change for change in changes if is_significant(change.q)), key=lambda change: -abs(change.difference))
        layers = _mean_change_by_layer_table(changes)
        tables = (
            _change_by_head_and_role_table(significant[:MOST_ROWS]),
            layers,
            _bias_by_role_and_layer_table(changes),
            _depth_trend_table(trends),
        )
        parts = {
            "layers": Part(
                tables, (_bias_change_figure(changes),) if changes else (), _summary_sentence(changes, significant, layers, trends)
            ),
            "families": _families_part(changes, Definition.parse(self.definition)),
        }
        part = choose_part(parts, self.show)
        return StudyResult(
            study=str(self),
            tables=part.tables,
            sentence=part.sentence,
            notes=(f"{MOST_ROWS} of {len(significant)} significant changes are shown.",) if len(significant) > MOST_ROWS else (),
            figures=part.figures,
            measurements={
                "before": context.model_name,
                "after": self.tuned,
                "trends": [asdict(row) for row in trends],
                "changes": [{**asdict(change), "head": str(change.head)} for change in changes],
            },
        )


def _change_by_head_and_role_table(changes: Sequence[HeadRoleChange]) -> Table:
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


def _mean_change_by_layer_table(changes: Sequence[HeadRoleChange]) -> Table:
    by_layer: dict[str, list[HeadRoleChange]] = {}
    for change in changes:
        by_layer.setdefault(layer_of_address(change.head), []).append(change)
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


def _group_by_role_and_layer(changes: Sequence[HeadRoleChange]) -> dict[tuple[str, str], list[HeadRoleChange]]:
    groups: dict[tuple[str, str], list[HeadRoleChange]] = {}
    for change in changes:
        groups.setdefault((change.role, layer_of_address(change.head)), []).append(change)
    return groups


def _bias_by_role_and_layer_table(changes: Sequence[HeadRoleChange]) -> Table:
    columns = (
        Column("role"),
        Column("layer"),
        Column("heads"),
        Column("before", "mean sieve bias", ".2f"),
        Column("after", "mean sieve bias", ".2f"),
        Column("change", "mean sieve bias", "+.2f"),
        Column("heads changed", f"q ≤ {SIGNIFICANT}"),
        Column("had the role"),
        Column("have it"),
        Column("roles lost"),
        Column("roles gained"),
    )
    rows = []
    for (role, layer), group in _group_by_role_and_layer(changes).items():
        means = [sum(values) / len(group) for values in zip(*((c.before, c.after, c.difference) for c in group), strict=True)]
        n_changed = sum(is_significant(change.q) for change in group)
        lost, gained = sum(change.had and not change.has for change in group), sum(change.has and not change.had for change in group)
        had, have = sum(change.had for change in group), sum(change.has for change in group)
        rows.append((role, layer, len(group), *means, n_changed, had, have, lost, gained))
    return Table("roles", columns, tuple(rows), "Sieve bias and heads with the role before and after fine-tuning, by role and layer")


def _bias_change_figure(changes: Sequence[HeadRoleChange]) -> HeatMap:
    groups = _group_by_role_and_layer(changes)
    roles, layers = (tuple(dict.fromkeys(key[position] for key in groups)) for position in (0, 1))

    def mean_bias_change(role: str, layer: str) -> float | None:
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
        values=tuple(tuple(mean_bias_change(role, layer) for layer in layers) for role in roles),
        value=Axis("change of the sieve bias"),
        marks=tuple(tuple(any(change.had != change.has for change in groups.get((role, layer), ())) for layer in layers) for role in roles),
        mark_label="a head lost or gained the role",
        is_diverging=True,
    )


def _depth_trend_table(trends: Sequence[Trend]) -> Table:
    columns = (
        Column("family"),
        Column("stack"),
        Column("heads"),
        Column("rank correlation with the layer", format="+.2f"),
        Column("p", format=".2g"),
        Column("q", format=".2g"),
    )
    rows = tuple((row.family, row.stack or "–", row.n_heads, row.rho, row.p, row.q) for row in trends)
    return Table("trend", columns, rows, "Do changes grow with the layer? Mean size of the changes of each head; p by permuting heads")


def _families_part(changes: Sequence[HeadRoleChange], definition: Definition) -> Part:
    """Returns how the roles of every family change: to which tokens attention goes instead."""
    columns = (
        Column("family"),
        Column("heads × roles"),
        Column("before", "mean sieve bias", ".2f"),
        Column("after", "mean sieve bias", ".2f"),
        Column("bias rose", f"q ≤ {SIGNIFICANT}"),
        Column("bias fell", f"q ≤ {SIGNIFICANT}"),
        Column("share that rose", format=".0%"),
        Column("share that fell", format=".0%"),
        Column("had the role"),
        Column("have it"),
        Column("lost"),
        Column("gained"),
    )
    rows = []
    for family in definition.families_of({change.role for change in changes}):
        group = [change for change in changes if definition.family_of(change.role) == family]
        before, after = (sum(values) / len(group) for values in zip(*((c.before, c.after) for c in group), strict=True))
        rose, fell = (sum(is_significant(c.q) and sign * c.difference > 0 for c in group) for sign in (1, -1))
        had, have = sum(c.had for c in group), sum(c.has for c in group)
        lost, gained = sum(c.had and not c.has for c in group), sum(c.has and not c.had for c in group)
        rows.append((family, len(group), before, after, rose, fell, rose / len(group), fell / len(group), had, have, lost, gained))
    table = Table("families", columns, tuple(rows), "Families of roles before and after fine-tuning")
    if not rows:
        return Part((table,), (), f"No role of a family of {definition} was measured.")
    records = table.records()
    figure = BarFigure(
        name="families",
        title="Heads × roles whose sieve bias rose or fell in fine-tuning, by family",
        x=Axis("family"),
        y=Axis("share of heads × roles", is_share=True),
        table="families",
        n=max(change.n_sentences for change in changes),
        n_unit="sentences",
        categories=tuple(str(record["family"]) for record in records),
        bars=tuple(
            Bars(f"bias {word} (q ≤ {SIGNIFICANT})", tuple(float(record[f"share that {word}"] or 0) for record in records))
            for word in ("rose", "fell")
        ),
    )
    words = [f"{row[0]} {row[2]:.2f} → {row[3]:.2f} ({row[10]} lost, {row[11]} gained)" for row in rows]
    return Part((table,), (figure,), f"Mean sieve bias by family: {', '.join(words)}.")


def _summary_sentence(
    changes: Sequence[HeadRoleChange], significant: Sequence[HeadRoleChange], layer_table: Table, trends: Sequence[Trend]
) -> str:
    most = max(layer_table.records(), key=lambda row: float(row["mean |change|"] or 0), default=None)
    largest = "" if most is None else f"; changes are largest in {most['layer']}"
    overall = next((row for row in trends if row.family == "all roles"), None)
    by_depth = (
        "" if overall is None else f"; rank correlation of the size of changes with the layer {overall.rho:+.2f} (p = {overall.p:.2g})"
    )
    undecided = describe_undecided(len(significant), len(changes))
    return f"{len(significant)} of {len(changes)} heads × roles changed (q ≤ {SIGNIFICANT}){undecided}{largest}{by_depth}."
