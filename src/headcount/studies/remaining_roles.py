from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, asdict, dataclass
from typing import TYPE_CHECKING

from headcount.core.figure import Axis, BarFigure, Bars
from headcount.core.options import option
from headcount.core.study_result import Column, StudyResult, Table
from headcount.studies import _measure
from headcount.studies._base import Effort, StudyContext, StudyInfo
from headcount.studies._labels import shorten_labels
from headcount.studies._pruned_models import PrunedModels

if TYPE_CHECKING:
    from headcount.workflows.remaining_roles import FamilyChange, RemainingFamilies


@dataclass(frozen=True)
class RemainingRoles(PrunedModels):
    """Which roles do the heads have that remain? Roles measured again on every pruned model, by family, against those of the dense model.

    Voita et al. 2019 (Fig. 8): positional and syntactic heads go last. A head of the dense model's family is removed, keeps the family or loses it,
    and a head that stays can gain one: removed + kept + lost is the number in the dense model, kept + gained that in the pruned one. Counts are
    means over seeds, of heads of the kinds of attention that lose heads.
    """

    _: KW_ONLY
    definition: str = option("voita2019", "When a head has a role, of `headcount ls definitions`")
    sentences: int | None = option(None, "How many sentences are read at most, drawn by a hash of their tokens", minimum=2)
    info = StudyInfo(paper="Voita et al. 2019, Fig. 8", needs=frozenset({"model", "task", "run", "text"}))

    def effort(self, context: StudyContext) -> Effort:
        """Returns the evaluations and trainings of all models, and a pass of each over the text."""
        n_sentences = self.sentences or context.limit or 500
        return _measure.pruning_curve.estimate_effort(self, context) + Effort(
            passes=n_sentences * (1 + len(_measure.pruning_curve.build_study_requests(self, context)))
        )

    def measure(self, context: StudyContext) -> StudyResult:
        """Returns the heads of every family in every pruned model, and how many kept, lost and gained it."""
        measured = _measure.remaining_roles.measure_roles_of_pruned_models(self, context)
        methods = list(dict.fromkeys(row.method for row in measured.changes))
        head_columns = tuple(map(Column, ("method", "heads", "seed", "head", "roles in the dense model", "roles")))
        heads = tuple((row.method, row.n_kept, row.seed, row.head, row.dense_roles, row.roles) for row in measured.heads)
        return StudyResult(
            study=str(self),
            tables=(
                _table_of_models_with_family_columns(measured),
                _family_change_table(measured.changes),
                Table("heads", head_columns, heads, "Roles of every head that remains, before and after", is_printed=False),
            ),
            sentence=_summary_sentence(measured),
            notes=(
                _measure.role_tables.describe_tested_sentences(measured.dense),
                "Counts are means over seeds; a head of several families counts once as such.",
            ),
            figures=tuple(_heads_by_family_figure(measured, method, names_method=len(methods) > 1) for method in methods),
            measurements={
                "model": context.model_name,
                "task": context.task.name,
                "definition": measured.dense.definition,
                "rows": [asdict(row) for row in measured.changes],
            },
        )


def _table_of_models_with_family_columns(measured: RemainingFamilies) -> Table:
    columns = (
        Column("method"),
        Column("heads"),
        Column("seeds"),
        *(Column(name, "heads", ".3g") for name in measured.groups),
    )
    dense = ("dense model", measured.n_heads, 1, *(measured.dense_counts[name] for name in measured.groups))
    cells = [(level.method, level.n_kept, level.n_seeds, *(level.counts[name] for name in measured.groups)) for level in measured.levels]
    return Table("families", columns, (dense, *cells), "Heads that remain by the family of their roles in the pruned model")


def _family_change_table(changes: Sequence[FamilyChange]) -> Table:
    columns = (
        Column("method"),
        Column("heads"),
        Column("seeds"),
        Column("family"),
        Column("in the dense model"),
        *(Column(name, format=".3g") for name in ("removed", "kept", "lost", "gained", "in the pruned model")),
    )
    cells = tuple(
        (row.method, row.n_kept, row.n_seeds, row.family, row.n_dense, row.removed, row.kept, row.lost, row.gained, row.n_in_pruned_model)
        for row in changes
    )
    return Table("changes", columns, cells, "Heads of each family: removed, kept, lost and gained against the dense model")


def _heads_by_family_figure(measured: RemainingFamilies, method: str, *, names_method: bool) -> BarFigure:
    levels, labels = (
        [level for level in measured.levels if level.method == method],
        shorten_labels(level.method for level in measured.levels),
    )
    label = labels.by_method[method]
    counts = [measured.dense_counts, *(level.counts for level in levels)]
    n_seeds = levels[0].n_seeds
    return BarFigure(
        name=f"families by {label}" if names_method else "families",
        title=f"Roles of the heads that remain, pruned by {label}{'; mean over seeds' if n_seeds > 1 else ''}",
        x=Axis("heads that remain", is_count=True),
        y=Axis("heads", is_count=True),
        table="families",
        n=n_seeds,
        n_unit="seeds" if n_seeds > 1 else "seed",
        note=labels.note,
        categories=(str(measured.n_heads), *(str(level.n_kept) for level in levels)),
        bars=tuple(Bars(name, tuple(float(of_level[name]) for of_level in counts)) for name in measured.groups),
        is_stacked=True,
    )


def _summary_sentence(measured: RemainingFamilies) -> str:
    parts = []
    for method in dict.fromkeys(level.method for level in measured.levels):
        last = min((level for level in measured.levels if level.method == method), key=lambda level: level.n_kept)
        counts = ", ".join(f"{name} {number:.3g}" for name, number in last.counts.items())
        parts.append(f"of {last.n_kept} heads that {method.replace(' without repair', '')} leaves: {counts}")
    dense = ", ".join(f"{name} {number:.3g}" for name, number in measured.dense_counts.items())
    return f"Of {measured.n_heads} heads of the dense model: {dense}; {'; '.join(parts)}."
