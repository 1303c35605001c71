from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING, Literal

from headcount.core.definition import DEFAULT_DEFINITION, Definition
from headcount.core.figure import Axis, Counts, HeatMap, Histogram
from headcount.core.options import option
from headcount.core.study_result import Column, StudyResult, Table, interval_columns
from headcount.studies import _measure
from headcount.studies._base import Effort, Study, StudyContext, StudyInfo
from headcount.studies._parts import Part, choose_part, layer_of_address
from headcount.studies._role_labels import build_labels_part, build_role_table, choose_roles_to_draw, is_judged_by_bias

if TYPE_CHECKING:
    from headcount.core.heads import Head
    from headcount.core.role_table import RoleScore, RoleTable
    from headcount.studies._measure.role_tables import Families

N_BINS = 20
"""Bins of the histogram of p-values."""
NEAR = 0.01
"""How far from 0 or 1 a p-value may lie to count as near."""


@dataclass(frozen=True)
class RoleMap(Study):
    """Which roles does each head have? The sieve biases with their test, the p-values, and a map of layers × heads.

    Pande et al. 2021: the sieve bias of every head is tested over sentences, and most p-values are near 0 or 1. Voita et al. 2019: the
    same map by the strongest key. The definition says which of these rules makes a role of a head.
    """

    _: KW_ONLY
    definition: str = option(DEFAULT_DEFINITION, "When a head has a role, of `headcount ls definitions`")
    sentences: int | None = option(None, "How many sentences are read at most, drawn by a hash of their tokens", minimum=2)
    show: Literal["all", "bias", "labels", "p-values", "map"] = option("all", "What the result holds")
    info = StudyInfo(paper="Pande et al. 2021; Voita et al. 2019", needs=frozenset({"model", "text"}), optional=frozenset({"task"}))

    def effort(self, context: StudyContext) -> Effort:
        """Returns a pass over the text."""
        return Effort(passes=self.sentences or context.limit or 500)

    def measure(self, context: StudyContext) -> StudyResult:
        """Returns the bias and test of every head and role, and the families of every head."""
        table = _measure.role_tables.measure_role_table(context, self.name, self.definition, self.sentences)
        definition, families = Definition.parse(self.definition), _measure.role_tables.Families.from_role_table(table)
        order = list(definition.info.families)
        rows = sorted(
            (row for row in table.rows if definition.family_of(row.role)), key=lambda row: order.index(definition.family_of(row.role) or "")
        )
        roles, heads = build_role_table(rows, table.best_heads, definition), _bias_by_head_and_role_table(rows, families, definition)
        n = int(table.conditions.get("n_examples", 0)) or None
        labels = build_labels_part(roles, heads, definition, table)
        parts = {
            "bias": Part((roles, heads), (_sieve_bias_figure(rows, n),), _largest_bias_sentence(rows)),
            "labels": labels,
            "p-values": _p_values_part(rows, definition),
            "map": _family_map_part(table, families, rows, n),
        }
        part = choose_part(parts, self.show)
        untested = [f"Not tested: {role}: {reason}." for role, reason in table.untested.items() if ":" not in role]
        return StudyResult(
            study=str(self),
            tables=part.tables,
            sentence=part.sentence,
            notes=(_measure.role_tables.describe_tested_sentences(table), *untested),
            figures=part.figures,
            measurements={
                "model": context.model_name,
                "definition": table.definition,
                "families": {family: sorted(map(str, members)) for family, members in families.members.items()},
                "labels": {str(head): roles for head, roles in table.labels().items()},
            },
        )


def _p_before_correction(row: RoleScore, definition: Definition) -> float:
    """Returns the p-value that the definition corrects: of the plain t-test where it is the published one."""
    is_plain = getattr(definition, "follows_published_rule", False) and row.p_t is not None
    return float(row.p_t if is_plain and row.p_t is not None else row.p)


def _bias_by_head_and_role_table(rows: Sequence[RoleScore], families: Families, definition: Definition) -> Table:
    columns = (
        Column("head"),
        Column("role"),
        Column("family"),
        Column("sentences"),
        *interval_columns("bias", ".3f"),
        Column("p", format=".3g"),
        Column("q", format=".3g"),
        *interval_columns("accuracy", ".3f"),
        Column("accuracy needed", format=".3f"),
        Column("has the role"),
        Column("families of the head"),
    )
    order = {head: number for number, head in enumerate(families.heads)}
    cells = [
        (
            str(row.head),
            row.role,
            definition.family_of(row.role),
            row.n_sentences,
            row.bias,
            row.low,
            row.high,
            _p_before_correction(row, definition),
            row.q,
            row.accuracy,
            row.accuracy_low,
            row.accuracy_high,
            definition.accuracy_threshold(row),
            row.has_role,
            families.count_families_of(row.head),
        )
        for row in sorted(rows, key=lambda row: order[row.head])
    ]
    return Table("heads", columns, tuple(cells), "Bias, test and label of every head and role", is_printed=False)


def _sieve_bias_figure(rows: Sequence[RoleScore], n_sentences: int | None) -> HeatMap:
    largest_of_role: dict[str, float] = {}
    for row in rows:
        largest_of_role[row.role] = max(row.bias, largest_of_role.get(row.role, row.bias))
    roles, note = choose_roles_to_draw(largest_of_role, "largest bias")
    layers = tuple(dict.fromkeys(layer_of_address(row.head) for row in rows))
    largest: dict[tuple[str, str], RoleScore] = {}
    for row in rows:
        key = row.role, layer_of_address(row.head)
        if key not in largest or row.bias > largest[key].bias:
            largest[key] = row
    cells = [[largest.get((role, layer)) for layer in layers] for role in roles]
    return HeatMap(
        name="bias",
        title="Largest sieve bias of a head, by role and layer; 1 is uniform attention",
        x=Axis("layer"),
        y=Axis("role"),
        table="heads",
        n=n_sentences,
        n_unit="sentences",
        note=note,
        rows=roles,
        columns=layers,
        values=tuple(tuple(None if row is None else row.bias for row in cells_of_role) for cells_of_role in cells),
        value=Axis("sieve bias"),
        marks=tuple(tuple(row is not None and row.has_role for row in cells_of_role) for cells_of_role in cells),
        mark_label="this head has the role",
    )


def _largest_bias_sentence(rows: Sequence[RoleScore]) -> str:
    if not rows:
        return "No role of the definition could be tested on this text."
    top = max(rows, key=lambda row: row.normalised)
    return f"Nearest to its largest possible bias is {top.head} with {top.role}: {top.bias:.2f} of at most {top.maximum:.2f}."


def _p_values_part(rows: Sequence[RoleScore], definition: Definition) -> Part:
    by_family = {family: [row for row in rows if definition.family_of(row.role) == family] for family in definition.info.families}
    p_values = {
        family: [_p_before_correction(row, definition) for row in of_family] for family, of_family in by_family.items() if of_family
    }
    columns = (
        Column("family"),
        Column("tests"),
        Column("near 0", f"p ≤ {NEAR}", ".1%"),
        Column("near 1", f"p ≥ {1 - NEAR}", ".1%"),
        Column("near 0 or 1", format=".1%"),
    )
    everything = [p for of_family in p_values.values() for p in of_family]
    cells = []
    for family, values in {**p_values, "all": everything}.items():
        near_0, near_1 = sum(p <= NEAR for p in values), sum(p >= 1 - NEAR for p in values)
        shares = [count / len(values) if values else None for count in (near_0, near_1, near_0 + near_1)]
        cells.append((family, len(values), *shares))
    table = Table("p-values", columns, tuple(cells), "p-values of all heads and roles, not corrected")
    edges = tuple(number / N_BINS for number in range(N_BINS + 1))

    def count_per_bin(p_values_of_family: Sequence[float]) -> tuple[float, ...]:
        bins = [min(N_BINS - 1, int(p * N_BINS)) for p in p_values_of_family]
        return tuple(float(bins.count(number)) for number in range(N_BINS))

    figure = Histogram(
        name="p-values",
        title="p-values of the test of every head and role, by family",
        x=Axis("p-value"),
        y=Axis("heads × roles", is_count=True),
        table="p-values",
        n=len(everything),
        n_unit="tests",
        edges=edges,
        groups=tuple(Counts(family, count_per_bin(values)) for family, values in p_values.items()),
    )
    share = cells[-1][-1]
    sentence = "No role was tested." if share is None else f"{share:.0%} of {len(everything)} p-values are within {NEAR} of 0 or 1."
    return Part((table,), (figure,), sentence)


def _family_map_part(role_table: RoleTable, families: Families, rows: Sequence[RoleScore], n_sentences: int | None) -> Part:
    labels, definition = role_table.labels(), Definition.parse(role_table.definition)
    is_of_bias = is_judged_by_bias(rows, definition)
    rows_of = {family: [row for row in rows if definition.family_of(row.role) == family] for family in families.members}
    nearness = {
        family: _largest_normalised_bias_by_head(of_family) if is_of_bias else _largest_accuracy_by_head(of_family)
        for family, of_family in rows_of.items()
    }
    value = "nearness" if is_of_bias else "strongest keys"
    columns = (
        Column("head"),
        Column("layer"),
        Column("families"),
        Column("number of families"),
        Column("roles"),
        *(Column(f"{value}, {family}", format=".3f") for family in nearness),
    )
    cells = []
    for head in role_table.heads:
        names = [family for family, members in families.members.items() if head in members]
        numbers = [of_family.get(head) for of_family in nearness.values()]
        cells.append((str(head), layer_of_address(head), ", ".join(names), len(names), ", ".join(labels[head]), *numbers))
    counts = {head: families.count_families_of(head) for head in role_table.heads}
    figures = [
        _heat_map_of_heads(
            "map", "Number of families that each head belongs to", Axis("families", is_count=True), role_table, counts, n_sentences
        )
    ]
    axis = Axis("nearness") if is_of_bias else Axis("share of tokens", is_share=True)
    for family, members in families.members.items():
        title = (
            f"Nearness of every head to a perfect {family} head: 0 for uniform attention, 1 at the largest possible bias"
            if is_of_bias
            else f"Largest share of tokens whose strongest key shows a {family} role, by head"
        )
        figures.append(
            _heat_map_of_heads(f"map-{family.replace(' ', '-')}", title, axis, role_table, nearness[family], n_sentences, members)
        )
    sizes = ", ".join(f"{family} {len(members)}" for family, members in families.members.items())
    map_table = Table("map", columns, tuple(cells), "Families and roles of every head", is_printed=False)
    return Part((map_table,), tuple(figures), f"Heads by family: {sizes}, of {len(role_table.heads)}.")


def _largest_normalised_bias_by_head(rows: Sequence[RoleScore]) -> dict[Head, float]:
    """Returns how near each head comes to the maximum of a role, for the roles that can be labels, or else for all."""
    nearness: dict[Head, float] = {}
    for row in [row for row in rows if not row.note] or rows:
        nearness[row.head] = max(nearness.get(row.head, 0.0), min(1.0, max(0.0, row.normalised)))
    return nearness


def _largest_accuracy_by_head(rows: Sequence[RoleScore]) -> dict[Head, float]:
    """Returns the largest share of tokens whose strongest key shows a role, for the roles that can be labels, or else for all."""
    shares: dict[Head, float] = {}
    for row in [row for row in rows if not row.note] or rows:
        shares[row.head] = max(shares.get(row.head, 0.0), row.accuracy)
    return shares


def _heat_map_of_heads(
    figure_name: str,
    title: str,
    value_axis: Axis,
    role_table: RoleTable,
    values: dict[Head, float] | dict[Head, int],
    n_sentences: int | None,
    marked_heads: frozenset[Head] = frozenset(),
) -> HeatMap:
    layers = tuple(dict.fromkeys(layer_of_address(head) for head in role_table.heads))
    by_layer = {layer: [head for head in role_table.heads if layer_of_address(head) == layer] for layer in layers}
    n_columns = max(map(len, by_layer.values()))

    def padded_heads_of(layer: str) -> list[Head | None]:
        heads = by_layer[layer]
        return [heads[number] if number < len(heads) else None for number in range(n_columns)]

    grid = [padded_heads_of(layer) for layer in layers]
    return HeatMap(
        name=figure_name,
        title=title,
        x=Axis("head"),
        y=Axis("layer"),
        table="map",
        n=n_sentences,
        n_unit="sentences",
        rows=layers,
        columns=tuple(str(number) for number in range(n_columns)),
        values=tuple(tuple(None if head is None or head not in values else float(values[head]) for head in heads) for heads in grid),
        value=value_axis,
        marks=tuple(tuple(head in marked_heads for head in heads) for heads in grid) if marked_heads else (),
        mark_label="has a role of the family" if marked_heads else "",
    )
