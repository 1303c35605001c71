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
from headcount.core.stats.corrected_rows import correct_rows
from headcount.models.provenance import model_record
from headcount.pruning.spec import PruneSpec
from headcount.runs.results import PRUNED, method_label
from headcount.runs.store import Run
from headcount.studies._base import ANY_ROLE, StudyContext, family_label_of_head
from headcount.workflows.roles import read_roles, roles_into

REPEATS = 10_000
SurvivorSets = Mapping[tuple[str, int], Sequence[frozenset[Head]]]
"""By method and number of heads, the survivors of every seed."""
Units = Sequence[Sequence[Head]]
"""Groups of heads that share keys and values."""


@dataclass(frozen=True, slots=True)
class Level:
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


def count_families(table: RoleTable, survivor_sets: SurvivorSets) -> list[FamilySurvivors]:
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


def compare_survivors(
    table: RoleTable, survivor_sets: SurvivorSets, *, units: Units = (), seed: int = 0
) -> tuple[list[Level], list[Survival]]:
    """Returns every method, level and role that some heads have and some lack; p-values of any role and of single roles are corrected apart.

    If heads that share keys and values were removed together, chance moves these `units`, not single heads.
    """
    every_set = [survivors for sets in survivor_sets.values() for survivors in sets]
    are_whole = all(len(survivors.intersection(unit)) in (0, len(unit)) for survivors in every_set for unit in units)
    groups = {
        role: RoleGroup(tested, having, _group_units(tested, units if are_whole else ()))
        for role, (tested, having) in _tested_and_labelled_heads(table).items()
        if 0 < len(having) < len(tested)
    }
    levels = [_test_level(key, sets, role, group, seed) for key, sets in survivor_sets.items() for role, group in groups.items()]
    survival: list[Survival] = []
    for method in dict.fromkeys(method for method, _ in survivor_sets):
        sets = [survivors for (name, _), of_level in survivor_sets.items() if name == method for survivors in of_level]
        survival += [_test_survival(method, sets, role, group, seed) for role, group in groups.items()]
    return _correct_any_role_apart(levels), _correct_any_role_apart(survival)


RoleRow = TypeVar("RoleRow", Level, Survival)


def _correct_any_role_apart(rows: Sequence[RoleRow]) -> list[RoleRow]:
    """Corrects the p-values of any role, which is the question of the study, apart from those of single roles, which are a search of their own."""
    of_any = iter(correct_rows([row for row in rows if row.role == ANY_ROLE]))
    of_single = iter(correct_rows([row for row in rows if row.role != ANY_ROLE]))
    return [next(of_any if row.role == ANY_ROLE else of_single) for row in rows]


def _group_units(tested: list[Head], units: Units) -> list[list[Head]]:
    """Returns the tested heads by unit; heads without a unit stand alone."""
    tested_set = set(tested)
    tested_units = [[head for head in unit if head in tested_set] for unit in units]
    alone = tested_set.difference(head for unit in tested_units for head in unit)
    return [unit for unit in tested_units if unit] + [[head] for head in tested if head in alone]


def _tested_and_labelled_heads(table: RoleTable) -> dict[str, tuple[list[Head], set[Head]]]:
    """Returns by role the heads that were tested for it and those that have it."""
    with_any = {head for head, roles in table.labels().items() if roles}
    by_role: dict[str, tuple[list[Head], set[Head]]] = {ANY_ROLE: (list(table.heads), with_any)}
    for row in table:
        tested, having = by_role.setdefault(row.role, ([], set()))
        tested.append(row.head)
        if row.has_role:
            having.add(row.head)
    return by_role


def _test_level(key: tuple[str, int], sets: Sequence[frozenset[Head]], role: str, group: RoleGroup, seed: int) -> Level:
    tested, having, units = group
    alive = [survivors.intersection(tested) for survivors in sets]
    n_with = sum(len(survivors & having) for survivors in alive)
    total = sum(map(len, alive))
    layers = _group_by_layer(units)
    heads_of = [{head for unit in layer for head in unit} for layer in layers]
    draws = [(len(survivors & heads), len(heads), len(having & heads)) for survivors in alive for heads in heads_of]
    expected = sum(number * n_having / n_heads for number, n_heads, n_having in draws)
    if len(units) == len(tested):
        p = _hypergeometric_p(n_with, draws)
    else:
        unit_draws = [
            (sum(unit[0] in survivors for unit in layer), [len(having.intersection(unit)) for unit in layer])
            for survivors in alive
            for layer in layers
        ]
        p = _unit_draw_p(n_with, unit_draws, seed)
    shares = (n_with / total, expected / total) if total else (0.0, 0.0)
    return Level(*key, len(sets), role, len(having), len(tested), total / len(sets), n_with / len(sets), *shares, p)


def _group_by_layer(units: Iterable[list[Head]]) -> list[list[list[Head]]]:
    """Returns the units of each layer."""
    layers: dict[tuple[str, int], list[list[Head]]] = {}
    for unit in units:
        layers.setdefault((unit[0].stack, unit[0].layer), []).append(unit)
    return list(layers.values())


def _unit_draw_p(n_with: int, draws: Iterable[tuple[int, Sequence[int]]], seed: int) -> float:
    """Returns twice the smaller tail of the number of heads with a role, summed over draws of so many units of some with so many such heads."""
    random = np.random.Generator(np.random.Philox(seed))
    total = np.zeros(REPEATS, dtype=int)
    for number, having in draws:
        order = random.random((REPEATS, len(having))).argsort(1)[:, :number]
        total += np.array(having)[order].sum(1)
    tail = min(int((total <= n_with).sum()), int((total >= n_with).sum()))
    return min(1.0, 2 * (1 + tail) / (REPEATS + 1))


def _hypergeometric_p(n_with: int, draws: Iterable[tuple[int, int, int]]) -> float:
    """Returns twice the smaller tail of a sum of hypergeometric numbers: of the survivors, among all heads, those with the role."""
    chance: np.ndarray = np.ones(1)
    for number, n_heads, n_having in draws:
        chance = np.convolve(chance, hypergeom.pmf(np.arange(n_having + 1), n_heads, n_having, number))
    return float(min(1.0, 2 * min(chance[: n_with + 1].sum(), chance[n_with:].sum())))


def _test_survival(method: str, sets: Sequence[frozenset[Head]], role: str, group: RoleGroup, seed: int) -> Survival:
    ordered = sorted(group.units, key=_layer_and_size)
    heads = [head for unit in ordered for head in unit]
    survival = np.array([sum(head in survivors for survivors in sets) / len(sets) for head in heads])
    has = np.array([head in group.having for head in heads])
    gap = float(survival[has].mean() - survival[~has].mean())
    random = np.random.Generator(np.random.Philox(seed))
    parts, start = [], 0
    for (_, _, size), alike in groupby(ordered, key=_layer_and_size):  # units are exchanged with others of their layer and size
        number = len(list(alike))
        of_units = survival[start : start + number * size : size]
        parts.append(random.permuted(np.tile(of_units, (REPEATS, 1)), axis=1).repeat(size, axis=1))
        start += number * size
    permuted = np.concatenate(parts, axis=1)
    gaps = permuted[:, has].mean(1) - permuted[:, ~has].mean(1)
    p = (1 + int((np.abs(gaps) >= abs(gap) - 1e-12).sum())) / (REPEATS + 1)
    return Survival(method, role, int(has.sum()), float(survival[has].mean()), float(survival[~has].mean()), gap, p)


def _layer_and_size(unit: list[Head]) -> tuple[str, int, int]:
    return unit[0].stack, unit[0].layer, len(unit)


def read_units(run: Run) -> list[list[Head]]:
    """Returns the heads of a run by KV group."""
    units = []
    for block in run.heads().blocks:
        heads = [Head.parse(head) for head in block.heads]
        size = len(heads) // block.n_kv_heads if block.n_kv_heads else 1
        units += [heads[start : start + size] for start in range(0, len(heads), max(1, size))]
    return units


def read_survivors(run: Run, *, dense_roles: bool = False) -> tuple[SurvivorSets, list[str]]:
    """Returns the survivors of every method and level of a comparison, by seed, and the methods that train weights before they cut.

    The latter are left out unless `dense_roles`: the roles of the dense model are not those of the weights that they pruned.

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
        if dense_roles or not trained[artifact.key.digest]:
            survivor_sets.setdefault((method_label(artifact), len(survivors)), []).append(survivors)
    names = sorted({method_label(artifact) for artifact in artifacts if trained[artifact.key.digest]})
    if not survivor_sets:
        raise ArtifactError(
            f"{run.folder} compares {', '.join(names)} alone, which trained the weights before they cut, so the roles of the dense model "
            "are not those of the heads that were removed; compare a method that does not train, or set dense_roles to judge by the roles "
            "before that training"
        )
    return survivor_sets, names


def read_or_measure_roles(context: StudyContext, run: Run) -> RoleTable:
    """Returns the roles measured on the text of the caller, which the run keeps, or else those of the run."""
    if not context.sources.has_text:
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
