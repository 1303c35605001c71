"""Which roles the survivors of a comparison have, against heads drawn at random."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import NamedTuple, TypeVar

import numpy as np
from scipy.stats import hypergeom

from headcount.behaviour.spec import RoleSpec
from headcount.core.errors import ArtifactError
from headcount.core.heads import Head
from headcount.core.role_table import RoleTable
from headcount.core.stats.corrected_rows import add_q_values
from headcount.models.provenance import model_record
from headcount.pruning.spec import PruneSpec
from headcount.runs.results import PRUNED, method_label
from headcount.runs.store import Run
from headcount.studies._base import ANY_ROLE, StudyContext, family_label_of_head
from headcount.workflows.roles import read_roles, roles_into

REPEATS = 10_000
SurvivorSets = Mapping[tuple[str, int], Sequence[frozenset[Head]]]
"""By method and number of heads, the survivors of every seed."""
KVGroups = Sequence[Sequence[Head]]
"""Groups of heads that share keys and values."""


@dataclass(frozen=True, slots=True)
class SurvivorsWithRole:
    """One method, number of heads and role: of the `survivors` (mean over `seeds`) how many have it, and how many would by chance.

    By chance as many heads of every layer survive, drawn at random: layer alone explains much of both. `p` is two-sided: twice the smaller tail of
    the sum over seeds and layers of hypergeometric numbers, or of draws of KV groups if these were removed whole.
    """

    method: str
    keep: int
    seeds: int
    role: str
    heads_with: int
    heads_tested: int
    survivors: float
    survivors_with: float
    share: float
    chance: float
    p: float
    q: float = 1.0


@dataclass(frozen=True, slots=True)
class Survival:
    """One method and role: the share of all levels that heads with it and without it survive; `p` of a permutation within layers, two-sided."""

    method: str
    role: str
    heads_with: int
    survive_with: float
    survive_without: float
    difference: float
    p: float
    q: float = 1.0


@dataclass(frozen=True, slots=True)
class FamilySurvivors:
    """How many survivors of one method and number of heads have roles of one family alone, mean over seeds."""

    method: str
    keep: int
    seeds: int
    family: str
    survivors: float


def count_survivors_by_family(table: RoleTable, survivor_sets: SurvivorSets) -> list[FamilySurvivors]:
    """Returns the survivors of every method and number of heads by the family of their roles; families that no head has are left out."""
    family_of = {head: family_label_of_head(labels) for head, labels in table.labels().items()}
    families = sorted(set(family_of.values()))
    return [
        FamilySurvivors(
            method, keep, len(sets), family, sum(family_of.get(head) == family for survivors in sets for head in survivors) / len(sets)
        )
        for (method, keep), sets in survivor_sets.items()
        for family in families
    ]


class RoleGroup(NamedTuple):
    """The heads that were tested for a role, those that have it, and the units that move together."""

    tested: list[Head]
    having: set[Head]
    units: list[list[Head]]


class HeadDraw(NamedTuple):
    """How many heads of a layer survive one seed, of how many, and how many of these have the role."""

    n_drawn: int
    n_heads: int
    n_with_role: int


class UnitDraw(NamedTuple):
    """How many units of a layer survive one seed, and how many heads of every unit of the layer have the role."""

    n_drawn: int
    n_with_role_by_unit: Sequence[int]


def compare_survivors_with_chance(
    table: RoleTable, survivor_sets: SurvivorSets, *, kv_groups: KVGroups = (), seed: int = 0
) -> tuple[list[SurvivorsWithRole], list[Survival]]:
    """Returns every method, level and role that some heads have and some lack; p-values of any role and of single roles are corrected apart.

    If a method removed heads that share keys and values together, chance moves these `kv_groups` there, not single heads.
    """
    levels: list[SurvivorsWithRole] = []
    survival: list[Survival] = []
    for method in dict.fromkeys(method for method, _ in survivor_sets):
        of_method = {key: sets for key, sets in survivor_sets.items() if key[0] == method}
        every_set = [survivors for sets in of_method.values() for survivors in sets]
        are_whole = all(len(survivors.intersection(unit)) in (0, len(unit)) for survivors in every_set for unit in kv_groups)
        groups = {
            role: RoleGroup(tested, having, _restrict_units_to_tested(tested, kv_groups if are_whole else ()))
            for role, (tested, having) in _tested_heads_and_members_by_role(table).items()
            if 0 < len(having) < len(tested)
        }
        levels += [_test_level(*key, sets, role, group, seed) for key, sets in of_method.items() for role, group in groups.items()]
        survival += [_test_survival(method, every_set, role, group, seed) for role, group in groups.items()]
    return _correct_any_role_separately(levels), _correct_any_role_separately(survival)


AnySurvivalRow = TypeVar("AnySurvivalRow", SurvivorsWithRole, Survival)


def _correct_any_role_separately(rows: Sequence[AnySurvivalRow]) -> list[AnySurvivalRow]:
    """Corrects the p-values of any role, which is the question of the study, apart from those of single roles, which are a search of their own."""
    of_any = iter(add_q_values([row for row in rows if row.role == ANY_ROLE]))
    of_single = iter(add_q_values([row for row in rows if row.role != ANY_ROLE]))
    return [next(of_any if row.role == ANY_ROLE else of_single) for row in rows]


def _restrict_units_to_tested(tested: list[Head], kv_groups: KVGroups) -> list[list[Head]]:
    """Returns the tested heads by unit; heads without a unit stand alone."""
    tested_set = set(tested)
    tested_units = [[head for head in group if head in tested_set] for group in kv_groups]
    alone = tested_set.difference(head for group in tested_units for head in group)
    return [group for group in tested_units if group] + [[head] for head in tested if head in alone]


def _tested_heads_and_members_by_role(table: RoleTable) -> dict[str, tuple[list[Head], set[Head]]]:
    """Returns by role the heads that were tested for it and those that have it."""
    with_any = {head for head, roles in table.labels().items() if roles}
    by_role: dict[str, tuple[list[Head], set[Head]]] = {ANY_ROLE: (list(table.heads), with_any)}
    for row in table:
        tested, having = by_role.setdefault(row.role, ([], set()))
        tested.append(row.head)
        if row.has_role:
            having.add(row.head)
    return by_role


def _test_level(
    method: str, n_kept: int, survivors_by_seed: Sequence[frozenset[Head]], role: str, group: RoleGroup, seed: int
) -> SurvivorsWithRole:
    tested, having, units = group
    alive = [survivors.intersection(tested) for survivors in survivors_by_seed]
    n_with = sum(len(survivors & having) for survivors in alive)
    total = sum(map(len, alive))
    layers = _group_units_by_layer(units)
    heads_of = [{head for unit in layer for head in unit} for layer in layers]
    draws = [HeadDraw(len(survivors & heads), len(heads), len(having & heads)) for survivors in alive for heads in heads_of]
    expected = sum(number * n_having / n_heads for number, n_heads, n_having in draws)
    if len(units) == len(tested):
        p = _two_sided_p_of_head_draws(n_with, draws)
    else:
        unit_draws = [
            UnitDraw(sum(unit[0] in survivors for unit in layer), [len(having.intersection(unit)) for unit in layer])
            for survivors in alive
            for layer in layers
        ]
        p = _two_sided_p_of_unit_draws(n_with, unit_draws, seed)
    shares = (n_with / total, expected / total) if total else (0.0, 0.0)
    n_seeds = len(survivors_by_seed)
    return SurvivorsWithRole(method, n_kept, n_seeds, role, len(having), len(tested), total / n_seeds, n_with / n_seeds, *shares, p)


def _group_units_by_layer(units: Iterable[list[Head]]) -> list[list[list[Head]]]:
    """Returns the units of each layer."""
    layers: dict[tuple[str, int], list[list[Head]]] = {}
    for unit in units:
        layers.setdefault((unit[0].stack, unit[0].layer), []).append(unit)
    return list(layers.values())


def _two_sided_p_of_unit_draws(n_survivors_with_role: int, draws: Iterable[UnitDraw], seed: int) -> float:
    """Returns twice the smaller tail of the number of heads with a role, summed over draws of so many units of some with so many such heads."""
    random = np.random.Generator(np.random.Philox(seed))
    total = np.zeros(REPEATS, dtype=int)
    for draw in draws:
        order = random.random((REPEATS, len(draw.n_with_role_by_unit))).argsort(1)[:, : draw.n_drawn]
        total += np.array(draw.n_with_role_by_unit)[order].sum(1)
    tail = min(int((total <= n_survivors_with_role).sum()), int((total >= n_survivors_with_role).sum()))
    return min(1.0, 2 * (1 + tail) / (REPEATS + 1))


def _two_sided_p_of_head_draws(n_survivors_with_role: int, draws: Iterable[HeadDraw]) -> float:
    """Returns twice the smaller tail of a sum of hypergeometric numbers: of the survivors, among all heads, those with the role."""
    chance: np.ndarray = np.ones(1)
    for number, n_heads, n_having in draws:
        chance = np.convolve(chance, hypergeom.pmf(np.arange(n_having + 1), n_heads, n_having, number))
    return float(min(1.0, 2 * min(chance[: n_survivors_with_role + 1].sum(), chance[n_survivors_with_role:].sum())))


def _test_survival(method: str, survivor_sets: Sequence[frozenset[Head]], role: str, group: RoleGroup, seed: int) -> Survival:
    ordered = sorted(group.units, key=_stack_layer_and_size)
    heads = [head for unit in ordered for head in unit]
    survival = np.array([sum(head in survivors for survivors in survivor_sets) / len(survivor_sets) for head in heads])
    has = np.array([head in group.having for head in heads])
    gap = float(survival[has].mean() - survival[~has].mean())
    random = np.random.Generator(np.random.Philox(seed))
    parts, start = [], 0
    for (_, _, size), alike in groupby(ordered, key=_stack_layer_and_size):  # units are exchanged with others of their layer and size
        number = len(list(alike))
        of_units = survival[start : start + number * size : size]
        parts.append(random.permuted(np.tile(of_units, (REPEATS, 1)), axis=1).repeat(size, axis=1))
        start += number * size
    permuted = np.concatenate(parts, axis=1)
    gaps = permuted[:, has].mean(1) - permuted[:, ~has].mean(1)
    p = (1 + int((np.abs(gaps) >= abs(gap) - 1e-12).sum())) / (REPEATS + 1)
    return Survival(method, role, int(has.sum()), float(survival[has].mean()), float(survival[~has].mean()), gap, p)


def _stack_layer_and_size(unit: list[Head]) -> tuple[str, int, int]:
    return unit[0].stack, unit[0].layer, len(unit)


def read_kv_groups(run: Run) -> list[list[Head]]:
    """Returns the heads of a run by KV group."""
    units = []
    for block in run.heads().blocks:
        heads = [Head.parse(head) for head in block.heads]
        size = len(heads) // block.n_kv_heads if block.n_kv_heads else 1
        units += [heads[start : start + size] for start in range(0, len(heads), max(1, size))]
    return units


class ComparisonSurvivors(NamedTuple):
    """The survivors of every method and level of a comparison, by seed, and the methods that train weights before they cut."""

    survivor_sets: SurvivorSets
    weight_training_methods: list[str]


def read_survivors(run: Run, *, with_weight_training_methods: bool = False) -> ComparisonSurvivors:
    """Returns the survivors of the comparison in a run.

    Methods that train weights before they cut are left out unless `with_weight_training_methods`: the roles of the dense model are not those of the
    weights that they pruned.

    Raises:
        ArtifactError: the run holds no comparison, or only methods that are left out.
    """
    weights = run.record().model.weights
    artifacts = [artifact for artifact in run.results(PRUNED).values() if artifact.key.inputs.get("weights") == weights]
    if not artifacts:
        raise ArtifactError(f"{run.folder} holds no comparison; make one with: headcount compare MODEL in that folder")
    heads = frozenset(Head.parse(head) for block in run.heads().blocks for head in block.heads)
    trained = {
        artifact.key.digest: PruneSpec.from_dict(artifact.content["spec"]).method.info.trains == "weights"
        and "gates" not in artifact.content
        for artifact in artifacts
    }  # an artifact holds gates, if only None, where its weights are the dense model's
    survivor_sets: dict[tuple[str, int], list[frozenset[Head]]] = {}
    for artifact in sorted(artifacts, key=lambda artifact: (method_label(artifact), -len(heads) + len(artifact.content["removed"]))):
        survivors = heads.difference(map(Head.parse, artifact.content["removed"]))
        if with_weight_training_methods or not trained[artifact.key.digest]:
            survivor_sets.setdefault((method_label(artifact), len(survivors)), []).append(survivors)
    names = sorted({method_label(artifact) for artifact in artifacts if trained[artifact.key.digest]})
    if not survivor_sets:
        raise ArtifactError(
            f"{run.folder} compares {', '.join(names)} alone, which trained the weights before they cut, so the roles of the dense model "
            "are not those of the heads that were removed; compare a method that does not train, or set dense_roles to judge by the roles "
            "before that training"
        )
    return ComparisonSurvivors(survivor_sets, names)


def measure_roles_of_text_or_read_from_run(context: StudyContext, run: Run) -> RoleTable:
    """Returns the roles measured on the text of the caller, which the run keeps, or else those of the run."""
    if not context.sources.has_text_or_task:
        if not run.results("roles"):
            raise ArtifactError(
                f"{run.folder} has no roles; name a text or a task to measure them on, or measure them with `headcount roles`"
            )
        return read_roles(run)
    loaded = context.loaded
    run.check_model(model_record(loaded.model, loaded.name))
    corpus = context.sources.open_corpus(loaded)
    assert corpus is not None
    with context.progress("roles") as advance:
        return roles_into(run, loaded.model, corpus, RoleSpec(seed=context.seed, batch_size=context.batch_size), progress=advance)
