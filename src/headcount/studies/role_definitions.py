from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, asdict, dataclass
from typing import TYPE_CHECKING, Literal

from headcount.core.definition import TAU
from headcount.core.errors import DataError
from headcount.core.figure import Axis, BarFigure, Bars, Line, LineFigure, Points, ScatterFigure
from headcount.core.options import option
from headcount.core.study_result import Column, StudyResult, Table
from headcount.studies import _measure
from headcount.studies._base import Effort, Study, StudyContext, StudyInfo
from headcount.studies._parts import Part, choose_part

if TYPE_CHECKING:
    from headcount.studies._measure.role_definitions import BlockRow, RuleRow, SweepRow

NEAR_UNIFORM = 0.1
"""Up to this share of the way from uniform attention to the maximum, a head counts as nearly uniform."""


@dataclass(frozen=True)
class RoleDefinitions(Study):
    """How much do roles depend on their definition? A sweep over τ; test, threshold and strongest key side by side; two forms of block heads.

    Pande et al. 2021: labels by a test of the sieve bias above τ = 3, against the definition by the strongest key of Voita et al.
    2019. Biases are measured once; every definition labels the same numbers.
    """

    _: KW_ONLY
    taus: tuple[float, ...] = option((1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0), "The thresholds of the sweep")
    tau: float = option(TAU, "The threshold of the other comparisons", minimum=0)
    sentences: int | None = option(None, "How many sentences are read at most, drawn by a hash of their tokens", minimum=2)
    show: Literal["all", "sweep", "rules", "blocks"] = option("all", "What the result holds; all leaves out blocks where no pairs are read")
    info = StudyInfo(paper="Pande et al. 2021", needs=frozenset({"model", "text"}), optional=frozenset({"task"}))

    def effort(self, context: StudyContext) -> Effort:
        """Returns a pass over the text."""
        return Effort(passes=self.sentences or context.limit or 500)

    def measure(self, context: StudyContext) -> StudyResult:
        """Returns the heads of every family by τ and by rule, and every head as block head.

        Raises:
            DataError: block heads are asked for, and no pairs of texts can be read.
        """
        measured = _measure.role_definitions.compare_definitions(context, self.name, self.taus, self.tau, self.sentences)
        if self.show == "blocks" and not measured.blocks:
            raise DataError("block heads are tested on pairs of texts, and none can be made of this text; use a task or a table with pairs")
        n_heads = len(measured.table.heads)
        parts = {"sweep": _tau_sweep_part(measured.sweep, n_heads), "rules": _labels_by_rule_part(measured.rules, n_heads)}
        if measured.blocks:
            parts["blocks"] = _block_heads_part(measured.blocks, self.tau)
        part = choose_part(parts, self.show)
        return StudyResult(
            study=str(self),
            tables=part.tables,
            sentence=part.sentence,
            notes=(
                _measure.role_tables.describe_tested_sentences(measured.table),
                "All labels are of the same measurements; a family has a head if one of its roles has it.",
            ),
            figures=part.figures,
            measurements={
                "model": context.model_name,
                "sweep": [asdict(row) for row in measured.sweep],
                "rules": [asdict(row) for row in measured.rules],
                "blocks": [{**asdict(row), "head": str(row.head)} for row in measured.blocks],
            },
        )


def _tau_sweep_part(rows: Sequence[SweepRow], n_heads: int) -> Part:
    columns = (Column("τ", format="g"), Column("family"), Column("heads tested"), Column("heads, published test"), Column("heads, BH"))
    cells = tuple((row.tau, row.family, row.n_tested, row.n_published, row.n_corrected) for row in rows)
    lines = []
    for family in dict.fromkeys(row.family for row in rows):
        of_family = sorted((row for row in rows if row.family == family), key=lambda row: row.tau)
        lines.append(Line(family, tuple(row.tau for row in of_family), tuple(float(row.n_published) for row in of_family)))
    figure = LineFigure(
        name="sweep",
        title="Heads of each family as a function of τ, by the published test",
        x=Axis("τ, the bias that a head must exceed"),
        y=Axis("heads", is_count=True),
        table="sweep",
        n=n_heads,
        n_unit="heads",
        lines=tuple(lines),
    )
    every = sorted((row for row in rows if row.family == rows[-1].family), key=lambda row: row.tau)
    counts = ", ".join(f"{row.n_published} at τ = {row.tau:g}" for row in (every[0], every[-1]))
    sentence = f"Heads of any family by the published test: {counts}."
    return Part((Table("sweep", columns, cells, "Heads of each family by τ"),), (figure,), sentence)


def _labels_by_rule_part(rows: Sequence[RuleRow], n_heads: int) -> Part:
    columns = (
        Column("family"),
        Column("heads tested"),
        *(Column(rule, "heads") for rule in _measure.role_definitions.RULES),
        Column("heads × roles"),
        Column("test and 2019"),
        Column("test alone"),
        Column("2019 alone"),
    )
    cells = tuple((row.family, row.n_tested, *row.counts, row.n_pairs, row.n_both, row.n_test_only, row.n_argmax_only) for row in rows)
    figure = BarFigure(
        name="rules",
        title="Heads of each family by five rules",
        x=Axis("family"),
        y=Axis("heads", is_count=True),
        table="rules",
        n=n_heads,
        n_unit="heads",
        categories=tuple(row.family for row in rows),
        bars=tuple(
            Bars(rule, tuple(float(row.counts[number]) for row in rows)) for number, rule in enumerate(_measure.role_definitions.RULES)
        ),
    )
    overall = rows[-1]
    sentence = (
        f"On {overall.n_pairs} heads × roles the published test and the rule of 2019 agree on {overall.n_both} labels; "
        f"{overall.n_test_only} are by the test alone, {overall.n_argmax_only} by the strongest key alone."
    )
    title = "Heads of each family by rule, and labels of heads × roles by the published test and by the strongest key"
    return Part((Table("rules", columns, cells, title),), (figure,), sentence)


def _block_heads_part(rows: Sequence[BlockRow], tau: float) -> Part:
    columns = (
        Column("head"),
        Column("bias", format=".3f"),
        Column("largest possible", "bias", ".3f"),
        Column("nearness", "(β − 1)/(β_max − 1)", ".3f"),
        Column("q", format=".2g"),
        Column("block head"),
        Column("bias × entropy", format=".3f"),
        Column("of uniform attention", "bias × entropy", ".3f"),
        Column("p", format=".2g"),
        Column("block head as published"),
    )
    names = ("bias", "maximum", "nearness", "q", "has_role", "weighted", "weighted_uniform", "weighted_p", "has_published")
    cells = tuple((str(row.head), *(getattr(row, name) for name in names)) for row in rows)
    groups = {
        "both rules": (True, True),
        "as published alone": (False, True),
        "nearness alone": (True, False),
        "neither rule": (False, False),
    }
    points = []
    for label, verdicts in groups.items():
        group = [row for row in rows if (row.has_role, row.has_published) == verdicts]
        if group:
            axes = tuple(row.nearness for row in group), tuple(row.weighted for row in group)
            points.append(Points(label, *axes, tuple(str(row.head) for row in group)))
    uniform = sum(row.weighted_uniform for row in rows) / len(rows)
    figure = ScatterFigure(
        name="blocks",
        title="Heads as block heads: plain bias against bias times entropy",
        x=Axis("(β − 1)/(β_max − 1)"),
        y=Axis("bias × entropy"),
        table="blocks",
        n=len(rows),
        n_unit="heads",
        groups=tuple(points),
        note=f"uniform attention scores {uniform:.2f}; τ = {tau:g}",
    )
    published = [row for row in rows if row.has_published]
    n_uniform = sum(row.nearness <= NEAR_UNIFORM for row in published)
    passes = "so a uniform head passes" if uniform > tau else "so a uniform head does not pass on texts as short as these"
    sentence = (
        f"{sum(row.has_role for row in rows)} of {len(rows)} heads are block heads by nearness above 1/2; {len(published)} as published, "
        f"{n_uniform} of which are nearly uniform: uniform attention scores {uniform:.2f} by bias × entropy, {passes} τ = {tau:g}."
    )
    return Part((Table("blocks", columns, cells, "Every head as block head"),), (figure,), sentence)
