from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, asdict, astuple, dataclass
from typing import TYPE_CHECKING

from headcount.core.figure import Axis, BarFigure, Bars, Line, LineFigure, Reference
from headcount.core.options import option
from headcount.core.study_result import Column, StudyResult, Table
from headcount.studies import _measure
from headcount.studies._base import ANY_ROLE, SIGNIFICANT, Study, StudyContext, StudyInfo

if TYPE_CHECKING:
    from headcount.studies._measure.survivors import FamilySurvivors, Survival, SurvivorsWithRole


@dataclass(frozen=True)
class Survivors(Study):
    """Do specialised heads go last? Roles of the heads that each pruning level of a comparison keeps, against what chance would give.

    Voita et al. 2019 (section 5.3): as the penalty grows, heads without a role go first. Every method and number of heads of a run is set against
    as many heads of each layer, drawn at random, since layer alone explains much: the number of survivors with a role is a sum of hypergeometric
    numbers over layers and seeds. Over all levels together, heads with and without a role are compared by the share of levels that they survive,
    with a permutation of heads within layers.
    Roles are those of the dense model, of the run itself or measured on a text. A method that trains weights before it cuts (L0, DSP) prunes other
    weights, whose heads may do other things: it is left out and named, unless `dense_roles` is set.
    """

    _: KW_ONLY
    all: bool = option(False, "Show every role at every level, not only any role and what differs from chance")
    dense_roles: bool = option(
        False, "Judge methods that train weights (L0, DSP) too, by the roles that heads had in the dense model before"
    )
    info = StudyInfo(paper="Voita et al. 2019, section 5.3", needs=frozenset({"comparison"}), optional=frozenset({"text"}))

    def measure(self, context: StudyContext) -> StudyResult:
        """Returns, by method and role, the share of levels that heads survive, and the survivors with the role at every level."""
        run = context.required_run
        survivors = _measure.survivors.read_survivors(run, with_weight_training_methods=self.dense_roles)
        survivor_sets, trained = survivors.survivor_sets, survivors.weight_training_methods
        table = _measure.survivors.measure_roles_of_text_or_read_from_run(context, run)
        levels, survival = _measure.survivors.compare_survivors_with_chance(
            table, survivor_sets, kv_groups=_measure.survivors.read_kv_groups(run), seed=context.seed
        )
        families = _measure.survivors.count_survivors_by_family(table, survivor_sets)
        record = run.record()
        shown_levels = [row for row in levels if self.all or row.role == ANY_ROLE or row.q <= SIGNIFICANT]
        shown_survival = [row for row in survival if self.all or row.role == ANY_ROLE or row.q <= SIGNIFICANT]
        counts = f"{len(shown_levels)} of {len(levels)} tests of method × level × role are shown"
        notes = [f"{counts}." if self.all else f"{counts}: any role, and q ≤ {SIGNIFICANT}; all=true shows the rest."]
        if trained:
            notes.append(_trained_methods_note(trained, self.dense_roles))
        family_columns = Column("method"), Column("heads"), Column("seeds"), Column("family"), Column("survivors", format=".1f")
        family_cells = tuple(astuple(row) for row in families)
        return StudyResult(
            study=str(self),
            tables=(
                _survival_by_role_table(shown_survival),
                _survivors_by_level_and_role_table(shown_levels),
                Table(
                    "families",
                    family_columns,
                    family_cells,
                    "Heads that stay by the family of their roles, mean over seeds",
                    is_printed=False,
                ),
            ),
            sentence=_summary_sentence(survival),
            notes=tuple(notes),
            figures=(*_survivors_by_family_figures(families, len(table.heads)), *_share_with_role_figures(levels)),
            measurements={
                "run": str(run.folder),
                "model": record.model.name,
                "roles of": "the dense model",
                "trained weights": trained,
                "trained weights are judged": self.dense_roles,
                "rows": [asdict(row) for row in levels],
                "survival": [asdict(row) for row in survival],
            },
        )


def _trained_methods_note(method_names: Sequence[str], are_judged: bool) -> str:
    """Returns the sentence about methods that trained the weights before they cut."""
    methods = ", ".join(method_names)
    if are_judged:
        return f"{methods} trained the weights before cutting; their rows use the roles that heads had in the dense model before that."
    return (
        f"left out: {methods}: trained the weights before cutting, so the roles of the dense model are not those of the heads that were removed "
        "(dense_roles judges by them nevertheless)."
    )


def _survival_by_role_table(rows: Sequence[Survival]) -> Table:
    columns = (
        Column("method"),
        Column("role"),
        Column("heads"),
        Column("with", format=".0%"),
        Column("without", format=".0%"),
        Column("difference", format="+.0%"),
        Column("p", format=".2g"),
        Column("q", format=".2g"),
    )
    names = ("method", "role", "heads_with", "survive_with", "survive_without", "difference", "p", "q")
    cells = tuple(tuple(getattr(row, name) for name in names) for row in rows)
    return Table("survival", columns, cells, "Share of all levels that heads survive, with and without a role")


def _survivors_by_level_and_role_table(rows: Sequence[SurvivorsWithRole]) -> Table:
    columns = (
        Column("method"),
        Column("heads"),
        Column("seeds"),
        Column("role"),
        Column("survivors with it", format=".1f"),
        Column("survivors", format=".1f"),
        Column("share", format=".0%"),
        Column("by chance", format=".0%"),
        Column("p", format=".2g"),
        Column("q", format=".2g"),
    )
    names = ("method", "keep", "seeds", "role", "survivors_with", "survivors", "share", "chance", "p", "q")
    cells = tuple(tuple(getattr(row, name) for name in names) for row in rows)
    return Table("levels", columns, cells, "Share of the survivors that have a role, by level")


def _survivors_by_family_figures(families: Sequence[FamilySurvivors], n_heads: int) -> list[BarFigure]:
    """Returns, by method, the heads that stay at every level, stacked by the family of their roles."""
    figures = []
    names = sorted({row.family for row in families}, key=lambda family: (family == "no role", family == "several", family))
    for number, method in enumerate(dict.fromkeys(row.method for row in families), 1):
        of_method = {(row.keep, row.family): row for row in families if row.method == method}
        keeps = sorted({keep for keep, _ in of_method})
        figures.append(
            BarFigure(
                name=f"families {number}",
                title=f"Families of roles among the heads that stay under {method}",
                x=Axis("heads that stay", is_count=True),
                y=Axis("heads", "mean over seeds"),
                table="families",
                n=n_heads,
                n_unit="heads before pruning",
                categories=tuple(map(str, keeps)),
                bars=tuple(Bars(family, tuple(of_method[keep, family].survivors for keep in keeps)) for family in names),
                is_stacked=True,
            )
        )
    return figures


def _share_with_role_figures(levels: Sequence[SurvivorsWithRole]) -> list[LineFigure]:
    """Returns the share of the heads that stay with a role, by method and level; none if all heads have a role, or none has."""
    rows = [row for row in levels if row.role == ANY_ROLE]
    if not rows:
        return []
    lines = []
    for method in dict.fromkeys(row.method for row in rows):
        of_method = sorted((row for row in rows if row.method == method), key=lambda row: row.keep)
        lines.append(
            Line(
                method,
                tuple(float(row.keep) for row in of_method),
                tuple(row.share for row in of_method),
                is_control=method.startswith("random"),
            )
        )
    return [
        LineFigure(
            name="share",
            title="Share of the heads that stay with a role",
            x=Axis("heads that stay", is_count=True),
            y=Axis("heads with a role", is_share=True),
            table="levels",
            n=rows[0].heads_tested,
            n_unit="heads before pruning",
            lines=tuple(lines),
            references=(Reference("by chance", rows[0].chance),),
        )
    ]


def _summary_sentence(survival: Sequence[Survival]) -> str:
    parts = [
        f"under {row.method}, heads with a role survive {row.survive_with:.0%} of the levels "
        f"and the others {row.survive_without:.0%} (q = {row.q:.2g})"
        for row in survival
        if row.role == ANY_ROLE
    ]
    sentence = "; ".join(parts)
    return f"{sentence[0].upper()}{sentence[1:]}." if parts else "All heads have a role, or none has, so that nothing can be compared."
