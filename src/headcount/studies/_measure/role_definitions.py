"""The labels of the same measurements by several definitions: a sweep over τ, test against threshold against the strongest key, block heads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from headcount.behaviour.definitions.pande2021 import Pande2021
from headcount.behaviour.definitions.voita2019 import Voita2019
from headcount.core.heads import Head
from headcount.core.role_table import RoleScore, RoleTable
from headcount.studies._base import StudyContext
from headcount.studies._measure.role_tables import measure_role_table

ANY = "any family"
RULES = ("bias above τ", "t-test (published)", "test, BH", "test, Bonferroni", "strongest key (2019)")
"""Ways to turn measurements into labels."""


@dataclass(frozen=True, slots=True)
class SweepRow:
    """How many heads belong to a family at one τ, by the published test and with a correction over heads and roles."""

    tau: float
    family: str
    n_tested: int
    n_published: int
    n_corrected: int


@dataclass(frozen=True, slots=True)
class RuleRow:
    """How many heads belong to a family by each of `RULES`, and how the published test and the rule of 2019 agree on heads × roles."""

    family: str
    n_tested: int
    counts: tuple[int, ...]
    n_pairs: int
    n_both: int
    n_test_only: int
    n_argmax_only: int


@dataclass(frozen=True, slots=True)
class BlockRow:
    """A head as block head: the plain bias with its nearness to the maximum, the entropy-weighted one with that of uniform attention."""

    head: Head
    bias: float
    maximum: float
    nearness: float
    q: float
    has_role: bool
    weighted: float
    weighted_uniform: float
    weighted_p: float
    has_published: bool


@dataclass(frozen=True, slots=True)
class DefinitionResult:
    """The table that all labels come from, and the rows of the three comparisons."""

    table: RoleTable
    sweep: list[SweepRow]
    rules: list[RuleRow]
    blocks: list[BlockRow]


def compare_definitions(
    context: StudyContext, study_name: str, swept_taus: Sequence[float], tau: float, max_sentences: int | None
) -> DefinitionResult:
    """Measures the roles of a study's model once, and labels them by several definitions."""
    table = measure_role_table(context, study_name, str(Pande2021(tau=tau)), max_sentences)
    return DefinitionResult(
        table, sweep_tau(table, swept_taus), compare_labelling_rules(table, tau), compare_block_head_definitions(table, tau)
    )


def _rows_of_family(table: RoleTable, family: str) -> list[RoleScore]:
    """Returns the rows of a family of Pande et al. 2021; of all families for `ANY`."""
    definition = Pande2021()
    return [row for row in table.rows if (name := definition.family_of(row.role)) is not None and family in (name, ANY)]


def _list_families_and_any(table: RoleTable) -> list[str]:
    definition = Pande2021()
    return [*definition.families_of({row.role for row in table.rows}), ANY]


def _count_heads_with_family(table: RoleTable, family: str) -> int:
    return len({row.head for row in _rows_of_family(table, family) if row.has_role})


def sweep_tau(table: RoleTable, taus: Sequence[float]) -> list[SweepRow]:
    """Returns the heads of every family at every τ; the biases were measured once."""
    rows = []
    for tau in taus:
        published, corrected = (table.relabel(Pande2021(tau=tau, correct=correct)) for correct in ("none", "bh"))
        for family in _list_families_and_any(table):
            n_tested = len({row.head for row in _rows_of_family(table, family)})
            rows.append(
                SweepRow(tau, family, n_tested, _count_heads_with_family(published, family), _count_heads_with_family(corrected, family))
            )
    return rows


def compare_labelling_rules(table: RoleTable, tau: float) -> list[RuleRow]:
    """Returns how many heads of every family the rules name, and the agreement of the published test with the rule of 2019."""
    corrections = ("none", "bh", "bonferroni")
    tables = [*(table.relabel(Pande2021(tau=tau, correct=correct)) for correct in corrections), table.relabel(Voita2019())]
    rows = []
    for family in _list_families_and_any(table):
        tested = _rows_of_family(tables[0], family)
        above = {row.head for row in tested if row.bias > tau}
        counts = (len(above), *(_count_heads_with_family(labelled, family) for labelled in tables))
        both, test_only, argmax_only = (
            sum((row.has_role, row.by_argmax) == verdicts for row in tested) for verdicts in ((True, True), (True, False), (False, True))
        )
        rows.append(RuleRow(family, len({row.head for row in tested}), counts, len(tested), both, test_only, argmax_only))
    return rows


def compare_block_head_definitions(table: RoleTable, tau: float) -> list[BlockRow]:
    """Returns every head that was tested as block head; none if the text has no pairs."""
    published, corrected = (table.relabel(Pande2021(tau=tau, correct=correct)) for correct in ("none", "bh"))
    plain = {row.head: row for row in corrected if row.role == "segment"}
    weighted = {row.head: row for row in published if row.role == "segment:entropy"}
    rows = []
    for head in table.heads:
        if head in plain and head in weighted:
            own, other = plain[head], weighted[head]
            assert other.p_t is not None
            by_entropy = (other.bias, other.uniform, other.p_t, other.has_role)
            rows.append(BlockRow(head, own.bias, own.maximum, own.normalised, own.q, own.has_role, *by_entropy))
    return rows
