"""How many heads every family of roles has, by text, by layer and by depth, and how families overlap, against chance at fixed margins."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from headcount.core.heads import Head
from headcount.core.role_table import RoleTable
from headcount.core.stats.chance import Chance, count_heads_with_several_marks, hypergeometric_chance
from headcount.core.stats.corrected_rows import add_q_values
from headcount.studies._base import StudyContext
from headcount.studies._measure.role_tables import Families, measure_role_table, measure_role_tables_by_task

THIRDS = ("early", "middle", "late")
"""The thirds of the layers of a stack."""


@dataclass(frozen=True, slots=True)
class FamilyCount:
    """How many heads of a text belong to a family, of those tested; `layer` is empty for all layers together."""

    text: str
    family: str
    layer: str
    n_members: int
    n_tested: int

    @property
    def share(self) -> float | None:
        """The share of the tested heads; None if none was tested."""
        return self.n_members / self.n_tested if self.n_tested else None


@dataclass(frozen=True, slots=True)
class FamilyOverlap:
    """How many heads belong to both of two families, and how many by chance; for `several`, to two families or more."""

    families: str
    n_heads: int
    sizes: str
    n_both: int
    chance: Chance
    q: float | None = None

    @property
    def p(self) -> float:
        """The p-value of as many heads by chance."""
        return self.chance.p


@dataclass(frozen=True, slots=True)
class ThirdCount:
    """How many heads of a third of the layers belong to two families or more, and how many by chance."""

    third: str
    layers: str
    n_heads: int
    n_several: int
    chance: Chance
    q: float | None = None

    @property
    def p(self) -> float:
        """The p-value of as many heads by chance."""
        return self.chance.p


@dataclass(frozen=True, slots=True)
class FamilyResult:
    """Families of the first text, by layer, overlap and third, and shares for every text."""

    table: RoleTable
    families: Families
    shares: list[FamilyCount]
    layers: list[FamilyCount]
    overlaps: list[FamilyOverlap]
    thirds: list[ThirdCount]


def measure_families(
    context: StudyContext, study_name: str, definition: str, further_tasks: Sequence[str], max_sentences: int | None
) -> FamilyResult:
    """Measures the families of the heads of a study's model, and of further tasks."""
    table = measure_role_table(context, study_name, definition, max_sentences)
    first = "text" if context.sources.text_fingerprint else context.sources.task_name or "text"
    tables = {
        first: table,
        **measure_role_tables_by_task(context, [task for task in further_tasks if task != first], definition, max_sentences),
    }
    families = Families.from_role_table(table)
    return FamilyResult(
        table,
        families,
        count_family_heads_by_text({text: Families.from_role_table(of_text) for text, of_text in tables.items()}),
        count_family_heads_by_layer(first, families),
        count_family_overlaps(families, seed=context.seed),
        count_heads_of_several_families_by_third(families),
    )


def count_family_heads_by_text(families_by_text: Mapping[str, Families]) -> list[FamilyCount]:
    """Returns the number of heads of every family for every text; families that a text cannot show have no tested heads."""
    names = dict.fromkeys(name for families in families_by_text.values() for name in families.tested)
    nobody: frozenset[Head] = frozenset()
    return [
        FamilyCount(text, name, "", len(families.members.get(name, nobody)), len(families.tested.get(name, nobody)))
        for text, families in families_by_text.items()
        for name in names
    ]


def count_family_heads_by_layer(text_name: str, families: Families) -> list[FamilyCount]:
    """Returns the number of heads of every family in every layer."""
    blocks = dict.fromkeys((head.stack, head.layer) for head in families.heads)
    counts = []
    for name, tested in families.tested.items():
        for stack, layer in blocks:
            in_layer = {head for head in tested if (head.stack, head.layer) == (stack, layer)}
            label = str(Head(stack, layer, 0)).removesuffix("H0")
            counts.append(FamilyCount(text_name, name, label, len(in_layer & families.members[name]), len(in_layer)))
    return counts


def count_family_overlaps(families: Families, *, seed: int) -> list[FamilyOverlap]:
    """Returns every pair of families that have heads, corrected over pairs, and last the heads with two families or more, against chance."""
    occupied = [name for name, members in families.members.items() if members]
    overlaps: list[FamilyOverlap] = []
    for a, b in combinations(occupied, 2):
        common = families.tested[a] & families.tested[b]
        in_a, in_b = families.members[a] & common, families.members[b] & common
        if common:
            chance = hypergeometric_chance(len(in_a & in_b), len(common), len(in_a), len(in_b))
            overlaps.append(FamilyOverlap(f"{a} and {b}", len(common), f"{len(in_a)} and {len(in_b)}", len(in_a & in_b), chance))
    overlaps = add_q_values(overlaps)
    if len(occupied) > 1:
        marks = np.array([[head in families.members[name] for head in families.heads] for name in occupied])
        n_several, chance = count_heads_with_several_marks(marks, seed=seed)
        sizes = ", ".join(str(len(families.members[name])) for name in occupied)
        overlaps.append(FamilyOverlap("two families or more", len(families.heads), sizes, n_several, chance))
    return overlaps


def count_heads_of_several_families_by_third(families: Families) -> list[ThirdCount]:
    """Returns the heads with two families or more by third of the layers of their stack, against chance."""
    depth = {
        stack: 1 + max(head.layer for head in families.heads if head.stack == stack) for stack in {head.stack for head in families.heads}
    }
    third_of = {head: THIRDS[int(3 * (head.layer + 0.5) / depth[head.stack])] for head in families.heads}
    several = [head for head in families.heads if families.count_families_of(head) >= 2]
    counts = []
    for third in THIRDS:
        in_third = [head for head in families.heads if third_of[head] == third]
        if in_third:
            n_several = sum(third_of[head] == third for head in several)
            layers = ", ".join(dict.fromkeys(str(head).rpartition("H")[0] for head in in_third))
            chance = hypergeometric_chance(n_several, len(families.heads), len(several), len(in_third))
            counts.append(ThirdCount(third, layers, len(in_third), n_several, chance))
    return add_q_values(counts)
