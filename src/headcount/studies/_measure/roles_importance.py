"""The ranks of heads with and without each role, by every importance, with a permutation test over the heads of a layer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int, Shaped

from headcount.core.definition import Definition
from headcount.core.role_table import RoleTable
from headcount.core.scores import Scores
from headcount.core.stats.corrected_rows import add_q_values
from headcount.core.stats.ranks import ranks
from headcount.importance.base import Importance
from headcount.importance.settings import ScoreSettings
from headcount.studies._base import ANY_ROLE, StudyContext
from headcount.studies._measure.role_tables import measure_role_table
from headcount.studies._parts import layer_of_address
from headcount.workflows.score import score_into

if TYPE_CHECKING:
    from headcount.studies.roles_importance import RolesImportance

ALPHA = 0.05


@dataclass(frozen=True, slots=True)
class RoleRow:
    """One role (or any) and one importance: mean ranks of the heads with and without it, their difference, and p of a permutation of heads.

    `low` and `high` are the interval by the same test; None where a group has a single head, or so few heads that no shift is rejected.
    """

    role: str
    method: str
    n_heads: int
    rank_with: float
    rank_without: float
    difference: float
    low: float | None
    high: float | None
    p: float
    q: float
    mean_with: float
    mean_without: float


def compare_ranks_by_role(
    table: RoleTable, scores_by_method: Mapping[str, Scores], *, seed: int = 0, n_permutations: int = 2000
) -> list[RoleRow]:
    """Returns every role and family of the definition that some heads have and some lack, against every importance.

    Heads are permuted within their layers. Roles of no family of the definition do not count, also not as any role.
    """
    labels, definition = table.labels(), Definition.parse(table.definition)
    families = {head: definition.families_of(roles) for head, roles in labels.items()}
    groups = {ANY_ROLE: [bool(families[head]) for head in table.heads]}
    by_role = {role: [role in labels[head] for head in table.heads] for role in table.roles() if definition.family_of(role)}
    by_family = {f"{name} family": [name in families[head] for head in table.heads] for name in definition.info.families}
    groups |= {
        name: having for name, having in by_family.items() if having not in by_role.values()
    } | by_role  # one role alone is no family
    layers = np.unique([layer_of_address(head) for head in table.heads], return_inverse=True)[1]
    random = np.random.Generator(np.random.Philox(seed))
    rows = []
    for method, of_method in scores_by_method.items():
        values = np.asarray(of_method.values)
        rank = ranks(values, higher_is_keep=of_method.higher_is_keep).astype(float)
        for role, having in groups.items():
            has = np.array(having)
            if not 0 < has.sum() < len(has):
                continue
            low, high, p = permutation_interval_of_difference(rank, has, draw_permutations_within_layers(random, layers, n_permutations))
            mean_ranks = float(rank[has].mean()), float(rank[~has].mean())
            gap = float(rank[has].mean() - rank[~has].mean())
            means = float(values[has].mean()), float(values[~has].mean())
            rows.append(RoleRow(role, method, int(has.sum()), *mean_ranks, gap, low, high, p, 1.0, *means))
    return add_q_values(rows)


def draw_permutations_within_layers(
    random: np.random.Generator, layer_of_head: Shaped[np.ndarray, " heads"], n_permutations: int
) -> Int[np.ndarray, "permutations heads"]:
    """Returns random permutations that leave every index in its layer, [repeats, size]: how scores differ between layers says nothing of roles."""
    permutations = np.tile(np.arange(len(layer_of_head)), (n_permutations, 1))
    for layer in np.unique(layer_of_head):
        permutations[:, layer_of_head == layer] = random.permuted(permutations[:, layer_of_head == layer], axis=1)
    return permutations


class IntervalWithP(NamedTuple):
    """The ends of the 95 % interval of a difference, None where it has none, and the two-sided p-value."""

    low: float | None
    high: float | None
    p: float


def permutation_interval_of_difference(
    values: Float[np.ndarray, " heads"], is_member: Bool[np.ndarray, " heads"], permutations: Int[np.ndarray, "permutations heads"]
) -> IntervalWithP:
    """Returns the 95 % interval of the difference of two group means, `is_member` minus the others, and its two-sided p-value, by permuting members.

    The interval holds the shifts d that the test does not reject once d is subtracted from the first group. Its ends are None where it is unbounded,
    or where a group has a single member, whose spread is unknown.
    """

    def member_mean_minus_other_mean(rows: Float[np.ndarray, "*rows heads"]) -> Float[np.ndarray, "*rows"]:
        return rows[..., is_member].mean(-1) - rows[..., ~is_member].mean(-1)

    gap, permuted, moved = (
        float(member_mean_minus_other_mean(values)),
        member_mean_minus_other_mean(values[permutations]),
        member_mean_minus_other_mean(is_member[permutations].astype(float)),
    )

    def p_value_at_shift(shift: float) -> float:
        return float((1 + (np.abs(permuted - shift * moved) >= abs(gap - shift) - 1e-9).sum()) / (len(permutations) + 1))

    reach = 100 * (float(np.ptp(values)) + 1)
    if min(is_member.sum(), (~is_member).sum()) < 2 or max(p_value_at_shift(gap - reach), p_value_at_shift(gap + reach)) > ALPHA:
        return IntervalWithP(None, None, p_value_at_shift(0.0))
    low, high = (_bisect_interval_end(p_value_at_shift, gap, end) for end in (gap - reach, gap + reach))
    return IntervalWithP(low, high, p_value_at_shift(0.0))


def _bisect_interval_end(p_value_at_shift: Callable[[float], float], accepted_shift: float, rejected_shift: float) -> float:
    """Returns the largest shift in the direction of `rejected_shift`, which the test rejects, that it does not reject, by bisection."""
    for _ in range(60):
        middle = (accepted_shift + rejected_shift) / 2
        accepted_shift, rejected_shift = (middle, rejected_shift) if p_value_at_shift(middle) > ALPHA else (accepted_shift, middle)
    return accepted_shift


def measure_roles_and_scores(study: RolesImportance, context: StudyContext) -> tuple[RoleTable, dict[str, Scores]]:
    """Returns the roles of the heads by the definition, and their scores by every importance; a run keeps both.

    Raises:
        DataError: there is no text to measure roles on.
    """
    Definition.parse(study.definition)  # an unknown one is an error before any work
    methods = [str(Importance.parse(name)) for name in study.by]
    table = measure_role_table(context, study.name, study.definition, study.sentences)
    limit = context.limit if study.examples is None else min(study.examples, context.limit or study.examples)
    settings = ScoreSettings(seed=context.seed, limit=limit, batch_size=context.batch_size)
    with context.progress("scoring") as advance:
        return table, score_into(context.run, context.loaded.model, context.task, methods, settings, progress=advance)
