from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, asdict, dataclass
from typing import TYPE_CHECKING, Literal

from headcount.core.definition import DEFAULT_DEFINITION
from headcount.core.figure import Axis, BarFigure, Bars, HeatMap
from headcount.core.options import option
from headcount.core.study_result import Column, StudyResult, Table, interval_columns
from headcount.studies import _measure
from headcount.studies._base import SIGNIFICANT, Effort, Study, StudyContext, StudyInfo
from headcount.studies._parts import Part, choose_part
from headcount.studies._rows import describe_undecided

if TYPE_CHECKING:
    from headcount.studies._measure.role_families import FamilyCount, FamilyOverlap, FamilyResult, ThirdCount


@dataclass(frozen=True)
class RoleFamilies(Study):
    """How many heads are local, syntactic, block or delimiter heads, in which layers, and how many are several of these?

    Pande et al. 2021: many heads have several functions, most of them in the middle layers. The
    overlap of families is set against chance at fixed margins: as many heads of each family, drawn at random. Families are those of the definition.
    """

    _: KW_ONLY
    tasks: tuple[str, ...] = option((), "Further tasks whose texts are read: TASK, or TASK=MODEL for a model that was fine-tuned on it")
    definition: str = option(DEFAULT_DEFINITION, "When a head has a role, of `headcount ls definitions`")
    sentences: int | None = option(None, "How many sentences are read at most, drawn by a hash of their tokens", minimum=2)
    show: Literal["all", "shares", "overlap", "layers", "depth"] = option("all", "What the result holds")
    info = StudyInfo(paper="Pande et al. 2021", needs=frozenset({"model", "text"}), optional=frozenset({"task"}))

    def effort(self, context: StudyContext) -> Effort:
        """Returns a pass over every text."""
        return Effort(passes=(self.sentences or context.limit or 500) * (1 + len(self.tasks)))

    def measure(self, context: StudyContext) -> StudyResult:
        """Returns the share of heads by family and text, by layer, the overlap of families, and heads of several families by third."""
        measured = _measure.role_families.measure_families(context, self.name, self.definition, self.tasks, self.sentences)
        n_heads = len(measured.families.heads)
        parts = {
            "shares": _family_shares_part(measured.shares, n_heads),
            "overlap": _family_overlap_part(measured.overlaps, n_heads),
            "layers": _families_by_layer_part(measured),
            "depth": _heads_of_several_families_part(measured.thirds, n_heads),
        }
        part = choose_part(parts, self.show)
        return StudyResult(
            study=str(self),
            tables=part.tables,
            sentence=part.sentence,
            notes=(
                _measure.role_tables.describe_tested_sentences(measured.table),
                "Families without a role that the text can show are left out.",
            ),
            figures=part.figures,
            measurements={
                "model": context.model_name,
                "definition": measured.table.definition,
                "families": {family: sorted(map(str, heads)) for family, heads in measured.families.members.items()},
                "shares": [asdict(row) for row in measured.shares],
                "layers": [asdict(row) for row in measured.layers],
                "overlaps": [{**asdict(row), "chance": row.chance._asdict()} for row in measured.overlaps],
                "thirds": [{**asdict(row), "chance": row.chance._asdict()} for row in measured.thirds],
            },
        )


def _family_shares_part(shares: Sequence[FamilyCount], n_heads: int) -> Part:
    columns = (Column("text"), Column("family"), Column("heads"), Column("of tested"), Column("share", format=".0%"))
    cells = tuple((row.text, row.family, row.n_members if row.n_tested else None, row.n_tested, row.share) for row in shares)
    texts, families = (tuple(dict.fromkeys(getattr(row, name) for row in shares)) for name in ("text", "family"))
    share_of = {(row.text, row.family): row.share for row in shares}
    figure = BarFigure(
        name="shares",
        title="Share of the heads that belong to each family of roles",
        x=Axis("family"),
        y=Axis("share of the heads", is_share=True),
        table="shares",
        n=n_heads,
        n_unit="heads",
        categories=families,
        bars=tuple(Bars(text, tuple(share_of[text, family] for family in families)) for text in texts),
    )
    first = [row for row in shares if row.text == texts[0] and row.n_tested] if texts else []
    counts = ", ".join(f"{row.family} {row.n_members} of {row.n_tested}" for row in first)
    sentence = f"Heads by family on {texts[0]}: {counts}." if first else "No family could be tested."
    return Part((Table("shares", columns, cells, "Heads of each family"),), (figure,) if families else (), sentence)


def _family_overlap_part(overlaps: Sequence[FamilyOverlap], n_heads: int) -> Part:
    columns = (
        Column("families"),
        Column("heads tested"),
        Column("heads of each"),
        Column("heads of both"),
        *interval_columns("by chance", ".3g", "heads"),
        Column("p", format=".2g"),
        Column("q", format=".2g"),
    )
    cells = tuple((row.families, row.n_heads, row.sizes, row.n_both, *row.chance[:3], row.p, row.q) for row in overlaps)
    table = Table("overlap", columns, cells, "Overlap of families, with the number by chance and its central 95 % at fixed margins")
    if not overlaps:
        return Part((table,), (), "Fewer than two families have heads, so that none overlap.")
    figure = BarFigure(
        name="overlap",
        title="Heads of two families; chance with its central 95 %",
        x=Axis("families"),
        y=Axis("heads", is_count=True),
        table="overlap",
        n=n_heads,
        n_unit="heads",
        categories=tuple(row.families for row in overlaps),
        bars=(
            Bars("observed", tuple(float(row.n_both) for row in overlaps)),
            Bars("by chance", *zip(*(row.chance[:3] for row in overlaps), strict=True)),
        ),
        is_horizontal=True,
    )
    several, n_significant = overlaps[-1], sum(row.q is not None and row.q <= SIGNIFICANT for row in overlaps[:-1])
    sentence = (
        f"{several.n_both} of {several.n_heads} heads belong to two families or more, {several.chance.expected:.3g} by chance "
        f"(p = {several.p:.2g}); {n_significant} of {len(overlaps) - 1} pairs of families differ from chance (q ≤ {SIGNIFICANT})"
        f"{describe_undecided(n_significant, len(overlaps) - 1)}."
    )
    return Part((table,), (figure,), sentence)


def _families_by_layer_part(measured: FamilyResult) -> Part:
    rows = measured.layers
    columns = (Column("family"), Column("layer"), Column("heads"), Column("of tested"), Column("share", format=".0%"))
    cells = tuple((row.family, row.layer, row.n_members, row.n_tested, row.share) for row in rows)
    table = Table("layers", columns, cells, "Heads of each family by layer")
    families, layers = (tuple(dict.fromkeys(getattr(row, name) for row in rows)) for name in ("family", "layer"))
    share_of = {(row.family, row.layer): row.share for row in rows}
    if not rows:
        return Part((table,), (), "No family could be tested.")
    figure = HeatMap(
        name="layers",
        title="Share of the heads of a layer that belong to each family",
        x=Axis("layer"),
        y=Axis("family"),
        table="layers",
        n=len(measured.families.heads),
        n_unit="heads",
        rows=families,
        columns=layers,
        values=tuple(tuple(share_of[family, layer] for layer in layers) for family in families),
        value=Axis("share of the heads", is_share=True),
    )
    most = [max((row for row in rows if row.family == family), key=lambda row: row.share or 0.0) for family in families]
    most_text = ", ".join(f"{row.family} in {row.layer} ({row.n_members} of {row.n_tested})" for row in most if row.n_members)
    return Part((table,), (figure,), f"Most heads of each family: {most_text}." if most_text else "No head belongs to a family.")


def _heads_of_several_families_part(thirds: Sequence[ThirdCount], n_heads: int) -> Part:
    columns = (
        Column("third"),
        Column("layers"),
        Column("heads"),
        Column("with several families"),
        *interval_columns("by chance", ".3g", "heads"),
        Column("p", format=".2g"),
        Column("q", format=".2g"),
    )
    cells = tuple((row.third, row.layers, row.n_heads, row.n_several, *row.chance[:3], row.p, row.q) for row in thirds)
    table = Table("thirds", columns, cells, "Heads of two families or more by third of the layers; chance with its central 95 %")
    figure = BarFigure(
        name="thirds",
        title="Heads of two families or more by third of the layers; chance with its central 95 %",
        x=Axis("third of the layers"),
        y=Axis("heads", is_count=True),
        table="thirds",
        n=n_heads,
        n_unit="heads",
        categories=tuple(row.third for row in thirds),
        bars=(
            Bars("observed", tuple(float(row.n_several) for row in thirds)),
            Bars("by chance", *zip(*(row.chance[:3] for row in thirds), strict=True)),
        ),
    )
    middle = next((row for row in thirds if row.third == "middle"), None)
    if middle is None:
        return Part((table,), (figure,), "The model has too few layers for a middle third.")
    sentence = (
        f"{middle.n_several} of {sum(row.n_several for row in thirds)} heads with several families are in the middle third, "
        f"{middle.chance.expected:.3g} by chance (p = {middle.p:.2g})."
    )
    return Part((table,), (figure,), sentence)
