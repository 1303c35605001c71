from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING

from headcount.core.definition import DEFAULT_DEFINITION
from headcount.core.errors import OptionError
from headcount.core.figure import Axis, Line, LineFigure, Reference
from headcount.core.options import option
from headcount.core.study_result import Column, StudyResult, Table, interval_columns
from headcount.studies import _measure
from headcount.studies._base import SIGNIFICANT, Effort, Study, StudyContext, StudyInfo, parse_name_value_pairs
from headcount.studies._rows import dense_scores_to_dict, dense_sentence, describe_better_and_worse

if TYPE_CHECKING:
    from headcount.studies._measure.role_pruning import RoleLevel


@dataclass(frozen=True)
class RolePruning(Study):
    """Are the heads of a role needed? Prune them first, or spare them longest, at several numbers of heads, beside as many random ones.

    Budhraja et al. 2020 (section 5): after fine-tuning, no role was worth sparing. Pruned, spared and random heads are compared at the same number of
    heads; the metric is the mean over seeds, and every difference is paired over examples. Without recovery or repair the study measures what the
    heads contribute now.
    """

    _: KW_ONLY
    role: tuple[str, ...] = option((), "Roles such as offset:-1, or any")
    groups: tuple[str, ...] = option((), "Several roles as one, as NAME=ROLE,…, such as edges=delimiter,sink")
    keep: tuple[int | float | str, ...] = option(
        (), "How many heads stay: numbers or shares; by default 75%, 50%, 25%, and all but the role's"
    )
    definition: str = option(DEFAULT_DEFINITION, "When a head has a role, of `headcount ls definitions`")
    seeds: int = option(5, "Draws of the heads that are chosen at random, from the seed on", minimum=1)
    repair: bool | None = option(False, "Refit output projections in closed form; none does so unless training follows")
    recover: float | str | None = option(
        None, "How long the pruned model is fine-tuned: a number of epochs, or of steps (300steps), or auto"
    )
    rate: float = option(5e-5, "The learning rate of the recovery", minimum=0)
    train_batch: int = option(32, "Examples per training step", minimum=1)
    info = StudyInfo(paper="Budhraja et al. 2020, section 5", needs=frozenset({"model", "task", "run"}))

    def __post_init__(self) -> None:
        super().__post_init__()
        names = [*self.role, *parse_name_value_pairs(self.groups, "groups")]
        if not names:
            raise OptionError("name the roles whose heads are pruned with role, such as offset:-1, or with groups")
        if len(set(names)) < len(names):
            raise OptionError(f"the names of roles and groups must differ; got {', '.join(names)}")

    @property
    def roles_by_role_or_group(self) -> dict[str, tuple[str, ...]]:
        """The roles of every role and group, by its name."""
        groups = {name: tuple(filter(None, text.split(","))) for name, text in parse_name_value_pairs(self.groups, "groups").items()}
        return {role: (role,) for role in dict.fromkeys(self.role)} | groups

    def effort(self, context: StudyContext) -> Effort:
        """Returns the evaluations and trainings of all models."""
        return _measure.role_pruning.estimate_effort(self, context)

    @property
    def trains_new_head(self) -> bool:
        """Whether models are fine-tuned after pruning, the dense one too."""
        return self.recover is not None

    def measure(self, context: StudyContext) -> StudyResult:
        """Returns a row for every role pruned and spared, and for random heads, at every number of heads."""
        measured = _measure.role_pruning.measure_role_pruning(self, context)
        dense, rows = measured.dense, measured.rows
        metric = dense.metric or "loss"
        return StudyResult(
            study=str(self),
            tables=(_table_of_roles_by_kept_heads(rows, metric),),
            sentence=_summary_sentence(rows, higher_is_better=dense.value is not None and dense.higher_is_better),
            notes=(dense_sentence(dense), *measured.left_out),
            figures=(_change_by_kept_heads_figure(rows, metric, dense.n_examples, len(context.loaded.heads)),),
            measurements={
                "model": context.model_name,
                "task": context.task.name,
                "dense": dense_scores_to_dict(dense),
                "heads": {role: list(map(str, heads)) for role, heads in measured.heads_by_role.items()},
                "rows": [row.to_dict() for row in rows],
            },
        )


def _table_of_roles_by_kept_heads(rows: Sequence[RoleLevel], metric: str) -> Table:
    controls = {"dense": "against the dense model", "random": "against random", "spare": "pruned against spared"}
    columns = (
        Column("heads"),
        Column("role"),
        Column("its heads go"),
        Column(metric, format=".4g"),
        *interval_columns(controls["dense"], "+.3g", metric),
        *interval_columns(controls["random"], "+.3g", metric),
        Column("q", format=".2g"),
        *interval_columns(controls["spare"], "+.3g", metric),
    )

    def change_with_interval(row: RoleLevel, control: str) -> Sequence[float | None]:
        return row.against[control].score.interval if control in row.against else (None, None, None)

    cells = [
        (
            row.choice.keep,
            row.choice.role or "random",
            {"prune": "first", "spare": "last", "random": ""}[row.choice.variant],
            row.loss if row.value is None else row.value,
            *change_with_interval(row, "dense"),
            *change_with_interval(row, "random"),
            row.q,
            *change_with_interval(row, "spare"),
        )
        for row in sorted(rows, key=lambda row: (-row.choice.keep, row.choice.role, row.choice.variant))
    ]
    title = (
        f"{metric} by the role whose heads go first or last; intervals against the dense model hold for all sizes of a choice together, the others "
        "for their row alone"
    )
    return Table("rows", columns, tuple(cells), title)


def _change_by_kept_heads_figure(rows: Sequence[RoleLevel], metric: str, n_examples: int, n_heads: int) -> LineFigure:
    lines = []
    for role, variant in dict.fromkeys((row.choice.role, row.choice.variant) for row in rows):
        of_line = sorted((row for row in rows if (row.choice.role, row.choice.variant) == (role, variant)), key=lambda row: row.choice.keep)
        label = {"prune": f"{role}: pruned first", "spare": f"{role}: pruned last", "random": "random heads"}[variant]
        changes, low, high = zip(*(row.against["dense"].score.interval for row in of_line), strict=True)
        x = tuple(float(row.choice.keep) for row in of_line)
        lines.append(Line(label, x, changes, low, high, is_control=not role, start=(float(n_heads), 0.0)))
    return LineFigure(
        name="roles",
        title=f"Change of {metric} when the heads of a role go first or last, 95 % for all sizes of a line together",
        x=Axis("heads that stay", is_count=True),
        y=Axis(f"change of {metric} from the dense model"),
        table="rows",
        n=n_examples,
        lines=tuple(lines),
        references=(Reference("dense model", 0.0),),
    )


def _summary_sentence(rows: Sequence[RoleLevel], *, higher_is_better: bool) -> str:
    parts = []
    for variant, words in (("prune", "pruning the heads of a role first"), ("spare", "sparing them longest")):
        own = [row for row in rows if row.choice.variant == variant]
        tests = [(row.against["random"].score.difference if "random" in row.against else None, row.q) for row in own]
        parts.append(f"{words} {describe_better_and_worse(tests, higher_is_better=higher_is_better)}")
    return f"Against random heads: {'; '.join(parts)} (q ≤ {SIGNIFICANT})."
