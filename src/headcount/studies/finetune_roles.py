from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, asdict, dataclass, replace
from typing import TYPE_CHECKING

from headcount.core.errors import ArtifactError, DataError
from headcount.core.heads import Head
from headcount.core.options import option
from headcount.core.stats.significance import benjamini_hochberg, paired_t
from headcount.core.study_result import Column, StudyResult, Table, interval_columns
from headcount.studies._base import LoadedModel, Study, StudyContext, StudyInfo
from headcount.studies._results import SIGNIFICANT

if TYPE_CHECKING:
    from torch import nn

    from headcount.behaviour.base import Corpus
    from headcount.data.task import Task

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
        before = context.loaded
        after = context.sources.load_model(self.tuned, auto=None)
        task = _open_task(context, before, after) if context.sources.task_name else None
        corpus = context.sources.open_corpus(before, task)
        if corpus is None:
            raise DataError("roles are measured on a text; name one")
        changes = compare_roles(before.model, after.model, corpus, only=self.only, seed=context.seed, batch_size=context.batch_size)
        significant = sorted((change for change in changes if change.q <= SIGNIFICANT), key=lambda change: -abs(change.difference))
        layers = _layer_table(changes)
        return StudyResult(
            study=str(self),
            tables=(_change_table(significant[:MOST_ROWS]), layers),
            sentence=_verdict(changes, significant, layers),
            notes=(f"{MOST_ROWS} of {len(significant)} significant changes are shown.",) if len(significant) > MOST_ROWS else (),
            measurements={
                "a": context.model_name,
                "b": self.tuned,
                "changes": [{**asdict(change), "head": str(change.head)} for change in changes],
            },
        )


@dataclass(frozen=True, slots=True)
class RoleChange:
    """One head and role: its bias in both models, the paired difference b − a with interval, p and q, and whether it had and has the role."""

    head: Head
    role: str
    n_sentences: int
    a: float
    b: float
    difference: float
    low: float
    high: float
    p: float
    q: float
    had: bool
    has: bool


def compare_roles(
    a: nn.Module, b: nn.Module, corpus: Corpus, *, only: Sequence[str] = (), seed: int = 0, batch_size: int | None = None
) -> list[RoleChange]:
    """Returns every head and role that both models were tested for, with the paired difference.

    Raises:
        ArtifactError: the models have different heads.
    """
    from headcount.behaviour.roles import biases_by_sentence, measure_roles
    from headcount.behaviour.spec import RoleSpec, parse_roles

    spec = RoleSpec(parse_roles(only or None), seed=seed, batch_size=batch_size)
    before, after = measure_roles(a, corpus, spec), measure_roles(b, corpus, spec)
    if before.heads != after.heads:
        raise ArtifactError(
            f"the models have different heads ({len(before.heads)} and {len(after.heads)}); compare a model with its fine-tuned self"
        )
    biases_a, biases_b = (biases_by_sentence(model, corpus, spec) for model in (a, b))
    later_rows = {(row.head, row.role): row for row in after}
    changes = []
    for row in before:
        key = row.head, row.role
        if key not in later_rows or key not in biases_a:
            continue
        gap, later = biases_b[key] - biases_a[key], later_rows[key]
        shift = paired_t(gap)
        test = (shift.difference, shift.low, shift.high, shift.p)
        changes.append(RoleChange(*key, len(gap), row.bias, later.bias, *test, 1.0, row.has_role, later.has_role))
    q = benjamini_hochberg([change.p for change in changes]) if changes else []
    return [replace(change, q=float(value)) for change, value in zip(changes, q, strict=True)]


def _open_task(context: StudyContext, before: LoadedModel, after: LoadedModel) -> Task:
    """Opens the task for the model that has the head it needs: as a rule the fine-tuned one."""
    try:
        return context.sources.open_task(replace(after, folder=before.folder))
    except DataError as error:
        try:
            return context.sources.open_task(before)
        except DataError:
            raise error from None


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
        numbers = (change.a, change.b, change.difference, change.low, change.high, change.q)
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
