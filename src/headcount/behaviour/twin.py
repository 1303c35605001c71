"""The distance twin of a head: attention by offset alone, fitted to the head; and how much more the head attends to a sieve than its twin.

    a_twin(t, k) = f(c(t, k)) / Σ f(c(t, k'))   over the keys k' that t sees

c is the class of a key: its offset, or the number of a special token (`pairs`). f is fitted by multiplicative updates (iterative proportional
fitting), so that the twin has the head's attention per class on pairs outside the sieve. Pure functions of arrays; no model here.

The excess mass is the mean over sentences of Σ a(t, k) − a_twin(t, k) over the pairs of the sieve, divided by the number of queries with a sieve. The
twin of a sentence is fitted on the other folds. The standard error is the delete-one-fold jackknife, with everything fitted again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int
from scipy import sparse

N_FOLDS = 20
N_UPDATES = 5
MIN_PAIRS = 30
"""An offset with fewer pairs outside the sieve says too little about the head's preference for it, and is dropped."""
MIN_KEPT = 0.5
"""The share of a sieve's pairs that must remain for a test."""
SMALL_CHANGE = 0.01
"""An update that moves less of the attention outside the sieve is the last."""
_FLOOR = 1e-12


def fold_of_each_sentence(n_sentences: int) -> Int[np.ndarray, " sentences"]:
    """Returns the fold of each sentence: neighbours share one, so that most documents are whole."""
    return np.arange(n_sentences) * N_FOLDS // max(n_sentences, 1)


@dataclass(frozen=True, slots=True, eq=False)
class VisibilityGeometry:
    """Who sees whom in a text, whatever the attention.

    Attributes:
        ranges: The classes that queries of each type see, as differences of bounds.
        queries: How many queries of each type every fold has.
        n_classes: How many classes of keys there are.
        n_offsets: How many of them are offsets; special tokens follow.
    """

    ranges: sparse.csr_array
    queries: Float[np.ndarray, "folds types"]
    n_classes: int
    n_offsets: int

    def sum_over_types_that_see_class(self, values_of_types: Float[np.ndarray, "types columns"]) -> Float[np.ndarray, "classes columns"]:
        """Returns the sum of the values of the types that see each class."""
        at_bounds = self.ranges.T @ values_of_types
        return np.cumsum(at_bounds[::-1], 0)[::-1][1:]

    def count_pairs_by_class(self, folds: np.ndarray | slice = slice(None)) -> Float[np.ndarray, " classes"]:
        """Returns how many pairs there are of each class, in some folds or in all."""
        return self.sum_over_types_that_see_class(self.queries[folds].sum(0)[:, None])[:, 0]


def sum_preferences_over_ranges(
    ranges_of_types: sparse.csr_array, preferences: Float[np.ndarray, "classes heads"]
) -> Float[np.ndarray, "types heads"]:
    """Returns the sum of the preferences over the classes that each type sees."""
    prefix = np.zeros((len(preferences) + 1, preferences.shape[1]))
    np.cumsum(preferences, 0, out=prefix[1:])
    return np.maximum(ranges_of_types @ prefix, _FLOOR)


@dataclass(frozen=True, slots=True, eq=False)
class SievePairs:
    """The pairs of one role's sieve, equal ones counted together.

    Attributes:
        fold: The fold of the sentence.
        query_type: The type of the query.
        key_class: The class of the key.
        count: How many such pairs there are.
        mass: The weight of a pair's attention in the sum over sentences of the mass on the sieve: Σ 1 / number of queries with a sieve.
        bias: Its weight in the sum of the sieve bias: Σ N_t / |S_t| / number of queries with a sieve.
        sentences: How many sentences of each fold show the role.
    """

    fold: Int[np.ndarray, " pairs"]
    query_type: Int[np.ndarray, " pairs"]
    key_class: Int[np.ndarray, " pairs"]
    count: Float[np.ndarray, " pairs"]
    mass: Float[np.ndarray, " pairs"]
    bias: Float[np.ndarray, " pairs"]
    sentences: Float[np.ndarray, " folds"]

    def testable_classes(self, geometry: VisibilityGeometry) -> Bool[np.ndarray, " classes"]:
        """Returns the offsets with enough pairs outside the sieve."""
        outside = geometry.count_pairs_by_class() - np.bincount(self.key_class, self.count, minlength=geometry.n_classes)
        return (outside >= MIN_PAIRS - 0.5) & (np.arange(geometry.n_classes) < geometry.n_offsets)


@dataclass(frozen=True, slots=True, eq=False)
class RoleSums:
    """Sums of the attention of some heads to the sieve of a role, by fold.

    Attributes:
        classes: The classes of the sieve's pairs.
        inside: The attention on pairs of the sieve, by these classes.
        mass: The sum over sentences of the mass on the sieve, over classes that are kept.
        bias: The sum over sentences of the sieve bias, over classes that are kept.
    """

    classes: Int[np.ndarray, " sieve_classes"]
    inside: Float[np.ndarray, "folds sieve_classes heads"]
    mass: Float[np.ndarray, "folds heads"]
    bias: Float[np.ndarray, "folds heads"]


@dataclass(frozen=True, slots=True, eq=False)
class TwinComparison:
    """Some heads beside their distance twins on one role's sieve.

    Attributes:
        bias, twin_bias: The sieve bias of head and twin, over offsets that are kept.
        excess: The mass of the head on the sieve minus that of the twin.
        stderr: The standard error of the excess.
        n_folds: How many folds show the role.
        n_pairs: How many pairs the sieve has.
        n_kept: How many of them are at offsets that are kept. The numbers above are NaN if these are too few.
        by_class, twin_by_class: The mean attention on pairs of the sieve by class, of the heads and of the twins fitted on all folds.
    """

    bias: Float[np.ndarray, " heads"]
    twin_bias: Float[np.ndarray, " heads"]
    excess: Float[np.ndarray, " heads"]
    stderr: Float[np.ndarray, " heads"]
    n_folds: int
    n_pairs: int
    n_kept: int
    by_class: Float[np.ndarray, "classes heads"]
    twin_by_class: Float[np.ndarray, "classes heads"]


class Fit(NamedTuple):
    """Preferences fitted to all pairs of some folds, 1 / their sum over what each type sees, and the twins' attention by class.

    Beside them what they were fitted to: the heads' attention by class, the queries of each type and the pairs of each class.
    """

    attention: Float[np.ndarray, "classes heads"]
    queries: Float[np.ndarray, "types 1"]
    pairs: Float[np.ndarray, " classes"]
    preferences: Float[np.ndarray, "classes heads"]
    inverse: Float[np.ndarray, "types heads"]
    by_class: Float[np.ndarray, "classes heads"]


def fit_preferences_to_all_pairs(
    geometry: VisibilityGeometry, attention_by_class: Float[np.ndarray, "folds classes heads"], left_out_fold: int | None
) -> Fit:
    """Returns the fit to all pairs, without one fold if `left_out_fold` names it."""
    used = np.arange(len(geometry.queries)) != left_out_fold
    goal, queries = attention_by_class[used].sum(0), geometry.queries[used].sum(0)[:, None]
    counts = geometry.count_pairs_by_class(used)
    preferences = np.ones_like(goal)
    for _ in range(N_UPDATES):
        reproduced = preferences * geometry.sum_over_types_that_see_class(
            queries / sum_preferences_over_ranges(geometry.ranges, preferences)
        )
        preferences = _update_preferences(preferences, goal, reproduced, counts > 0.5).preferences
    preferences = _fill_classes_without_pairs(preferences, counts > 0.5)
    inverse = 1 / sum_preferences_over_ranges(geometry.ranges, preferences)
    return Fit(goal, queries, counts, preferences, inverse, preferences * geometry.sum_over_types_that_see_class(queries * inverse))


def compare_with_twins(
    geometry: VisibilityGeometry,
    attention_by_class: Float[np.ndarray, "folds classes heads"],
    pairs_and_sums_of_roles: Sequence[tuple[SievePairs, RoleSums]],
) -> list[TwinComparison]:
    """Returns heads beside their twins for each role.

    Args:
        geometry: Who sees whom.
        attention_by_class: The sum of the attention of all queries by the class of the key.
        pairs_and_sums_of_roles: The pairs of each sieve and the attention on them.
    """
    folds = np.flatnonzero(geometry.queries.sum(1))
    comparisons = [_RoleTwins(geometry, pairs, sums) for pairs, sums in pairs_and_sums_of_roles]
    for left_out in (*folds.tolist(), None) if any(comparison.is_testable for comparison in comparisons) else ():
        common = fit_preferences_to_all_pairs(geometry, attention_by_class, left_out)
        for comparison in comparisons:
            if comparison.is_testable:
                comparison.add_fit_without_fold(left_out, common)
    return [comparison.comparison() for comparison in comparisons]


def jackknife_stderr(
    estimate: Float[np.ndarray, " heads"], estimates_without_fold: Float[np.ndarray, "folds heads"], fold_sizes: Float[np.ndarray, " folds"]
) -> Float[np.ndarray, " heads"]:
    """Returns the standard error of an estimate from its values without each fold, for folds of any sizes (Busing et al. 1999)."""
    share = (fold_sizes.sum() / fold_sizes)[:, None]
    pseudo = share * estimate - (share - 1) * estimates_without_fold
    return np.sqrt(((pseudo - pseudo.mean(0)) ** 2 / (share - 1)).mean(0))


class _UpdatedPreferences(NamedTuple):
    """Preferences after an update, and the share of the attention of each head that was at the wrong class before it."""

    preferences: np.ndarray
    misplaced_share: Float[np.ndarray, " heads"]


def _update_preferences(
    preferences: np.ndarray, target_attention: np.ndarray, reproduced_attention: np.ndarray, has_pairs: Bool[np.ndarray, " classes"]
) -> _UpdatedPreferences:
    """Returns preferences after one multiplicative update towards the attention of a target by class."""
    can_update = has_pairs[:, None] & (reproduced_attention > _FLOOR)
    ratio = np.divide(target_attention, reproduced_attention, out=np.ones_like(target_attention), where=can_update)
    change = np.where(can_update, np.abs(target_attention - reproduced_attention), 0.0).sum(0) / np.maximum(target_attention.sum(0), _FLOOR)
    updated = preferences * ratio
    return _UpdatedPreferences(np.maximum(updated / np.maximum(updated.max(0), _FLOOR), _FLOOR), change)


def _fill_classes_without_pairs(preferences: np.ndarray, has_pairs: Bool[np.ndarray, " classes"]) -> np.ndarray:
    """Returns preferences in which classes without pairs have that of the nearest class with some."""
    observed = np.flatnonzero(has_pairs)
    if not len(observed):
        return preferences
    classes = np.arange(len(preferences))
    right = np.minimum(np.searchsorted(observed, classes), len(observed) - 1)
    lower = np.maximum(right - 1, 0)
    nearest = np.where(np.abs(observed[lower] - classes) < np.abs(observed[right] - classes), observed[lower], observed[right])
    return preferences[nearest]


class _RoleTwins:
    """The twins of all heads on one role's sieve, fit by fit."""

    def __init__(self, geometry: VisibilityGeometry, pairs: SievePairs, sums: RoleSums) -> None:
        self.geometry, self.pairs, self.sums = geometry, pairs, sums
        testable = pairs.testable_classes(geometry)
        self.is_kept = testable[pairs.key_class]
        self.n_pairs, self.n_kept = round(pairs.count.sum()), round(pairs.count[self.is_kept].sum())
        self.folds = np.flatnonzero(pairs.sentences)
        self.is_testable = self.n_kept >= MIN_KEPT * self.n_pairs and len(self.folds) > 1
        self.types, self.row = np.unique(pairs.query_type, return_inverse=True)
        self.ranges = geometry.ranges[self.types]
        shape = (geometry.n_classes, len(self.types))
        cells, self.cell = np.unique(pairs.key_class * shape[1] + self.row, return_inverse=True)
        bounds = np.searchsorted(cells, np.arange(shape[0] + 1) * shape[1])

        def sum_by_cell(weights: np.ndarray) -> sparse.csr_array:
            return sparse.csr_array((np.bincount(self.cell, weights, minlength=len(cells)), cells % max(shape[1], 1), bounds), shape=shape)

        self.count, self.mass = sum_by_cell(pairs.count), sum_by_cell(np.where(self.is_kept, pairs.mass, 0.0))
        self.count_of_others = self.count.copy()
        self.pairs_by_class = np.bincount(pairs.key_class, pairs.count, minlength=geometry.n_classes)
        self.inside = sums.inside.sum(0)
        self.by_fold: dict[int, np.ndarray] = {fold: np.flatnonzero(pairs.fold == fold) for fold in self.folds.tolist()}
        n_heads = sums.mass.shape[1]
        self.twin_mass, self.twin_bias, self.twin_mass_of_others = (np.zeros((len(self.folds), n_heads)) for _ in range(3))
        self.twin_mass_in_sample = np.zeros(n_heads)
        self.twin_by_class = np.full((geometry.n_classes, n_heads), np.nan)

    def add_fit_without_fold(self, left_out_fold: int | None, fit_to_all_pairs: Fit) -> None:
        """Fits the twins outside the sieve without one fold, and sums their attention to the sieve, in that fold and in the others."""
        preferences = self._fit_preferences_outside_sieve(left_out_fold, fit_to_all_pairs)
        inverse = 1 / sum_preferences_over_ranges(self.ranges, preferences)
        on_sieve = (preferences * (self.mass @ inverse)).sum(0)
        if left_out_fold is None:
            self.twin_mass_in_sample = on_sieve
            self.twin_by_class = preferences * (self.count @ inverse)
        elif left_out_fold in self.by_fold:
            own = self.by_fold[left_out_fold]
            own = own[self.is_kept[own]]
            share = preferences[self.pairs.key_class[own]] * inverse[self.row[own]]
            number = int(np.searchsorted(self.folds, left_out_fold))
            self.twin_mass[number], self.twin_bias[number] = self.pairs.mass[own] @ share, self.pairs.bias[own] @ share
            self.twin_mass_of_others[number] = on_sieve - self.twin_mass[number]

    def _fit_preferences_outside_sieve(self, left_out_fold: int | None, fit_to_all_pairs: Fit) -> np.ndarray:
        """Returns the preferences fitted outside the sieve, beginning with the fit to all pairs; heads that an update hardly moves stop there."""
        geometry, inside = self.geometry, self.count_of_others
        own = self.by_fold.get(-1 if left_out_fold is None else left_out_fold, np.zeros(0, dtype=int))
        own_pairs, own_count = self.pairs.key_class[own], self.pairs.count[own]
        inside.data[:] = self.count.data - np.bincount(self.cell[own], own_count, minlength=len(inside.data))
        pairs_inside = self.pairs_by_class - np.bincount(own_pairs, own_count, minlength=geometry.n_classes)
        has_pairs = fit_to_all_pairs.pairs - pairs_inside > 0.5
        outside = fit_to_all_pairs.attention.copy()
        outside[self.sums.classes] -= self.inside if left_out_fold is None else self.inside - self.sums.inside[left_out_fold]
        outside = np.maximum(outside, 0.0)
        preferences = fit_to_all_pairs.preferences.copy()
        heads = np.arange(preferences.shape[1])
        inverse, by_class = fit_to_all_pairs.inverse, fit_to_all_pairs.by_class
        for _ in range(N_UPDATES):
            reproduced = by_class - preferences[:, heads] * (inside @ inverse[self.types])
            updated = _update_preferences(preferences[:, heads], outside[:, heads], reproduced, has_pairs)
            preferences[:, heads] = updated.preferences
            heads = heads[updated.misplaced_share > SMALL_CHANGE]
            if not len(heads):
                break
            inverse = 1 / sum_preferences_over_ranges(geometry.ranges, preferences[:, heads])
            by_class = preferences[:, heads] * geometry.sum_over_types_that_see_class(fit_to_all_pairs.queries * inverse)
        return preferences

    def comparison(self) -> TwinComparison:
        """Returns the comparison after all fits."""
        n = self.pairs.sentences[self.folds]
        n_heads = self.sums.mass.shape[1]
        if not self.is_testable:
            missing = np.full(n_heads, np.nan)
            by_class = np.full_like(self.twin_by_class, np.nan)
            return TwinComparison(missing, missing, missing, missing, len(n), self.n_pairs, self.n_kept, by_class, by_class)
        mass, total = self.sums.mass[self.folds], n.sum()
        without = (mass.sum(0) - mass - self.twin_mass_of_others) / (total - n)[:, None]
        in_sample = (mass.sum(0) - self.twin_mass_in_sample) / total
        counts = self.pairs_by_class[:, None]
        no_pairs = np.full_like(self.twin_by_class, np.nan)
        inside = np.zeros_like(self.twin_by_class)
        inside[self.sums.classes] = self.inside
        return TwinComparison(
            bias=self.sums.bias[self.folds].sum(0) / total,
            twin_bias=self.twin_bias.sum(0) / total,
            excess=(mass - self.twin_mass).sum(0) / total,
            stderr=jackknife_stderr(in_sample, without, n),
            n_folds=len(n),
            n_pairs=self.n_pairs,
            n_kept=self.n_kept,
            by_class=np.divide(inside, counts, out=no_pairs.copy(), where=counts > 0),
            twin_by_class=np.divide(self.twin_by_class, counts, out=no_pairs, where=counts > 0),
        )
