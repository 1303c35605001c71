"""The distance twin of a head: attention by offset alone, fitted to the head; and how much more the head attends to a sieve than its twin.

    a_twin(t, k) = f(c(t, k)) / Σ f(c(t, k'))   over the keys k' that t sees

The class c of a key is its offset k − t; every special token is a class of its own. f is fitted by multiplicative updates (iterative proportional
fitting) so that the twin has the head's attention per class on pairs outside the sieve. Queries that see the same classes behave alike, so that
a text is kept as counts of query types and of sieve pairs by type and class. Pure functions of arrays; no model here.

The excess mass is the mean over sentences of Σ a(t, k) − a_twin(t, k) over the pairs of the sieve, divided by the number of queries with a sieve. The
twin of a sentence is fitted on the other folds; the standard error is the jackknife over folds, with everything fitted again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
from jaxtyping import Bool, Float, Int

N_FOLDS = 20
N_UPDATES = 5
MIN_PAIRS = 30
"""An offset with fewer pairs outside the sieve says too little about the head's preference for it, and is dropped."""
MIN_SHARE = 0.5
"""The share of a sieve's pairs that must remain for a test."""
MIN_EXCESS = 0.05
"""The excess mass that a label must exceed."""
REFIT_FROM = 0.02
"""Heads with less excess mass are far from a label; their jackknife keeps the twins of the folds."""
_FLOOR = 1e-12


@dataclass(frozen=True, slots=True, eq=False)
class SievePairs:
    """The pairs of one role's sieve, summed over equal pairs of one fold, and how many sentences of each fold show the role.

    Attributes:
        fold: The fold of the sentence.
        query_type: The type of the query.
        key_class: The class of the key.
        count: How many such pairs there are.
        mass_weight: The weight of the attention of a pair in the mass on the sieve: Σ 1 / number of queries with a sieve in the sentence.
        bias_weight: Its weight in the sieve bias: Σ N_t / |S_t| / number of queries with a sieve.
        sentences: How many sentences of each fold show the role.
    """

    fold: Int[np.ndarray, " pairs"]
    query_type: Int[np.ndarray, " pairs"]
    key_class: Int[np.ndarray, " pairs"]
    count: Float[np.ndarray, " pairs"]
    mass_weight: Float[np.ndarray, " pairs"]
    bias_weight: Float[np.ndarray, " pairs"]
    sentences: Float[np.ndarray, " folds"]

    def sum_by_type_and_class(
        self, values: Float[np.ndarray, " pairs"], shape: tuple[int, int], folds: Int[np.ndarray, " some"] | None = None
    ) -> Float[np.ndarray, "types classes"]:
        """Returns the sum of values of the pairs of some folds (of all, if none are named) by type and class."""
        chosen = slice(None) if folds is None else np.isin(self.fold, folds)
        sums = np.zeros(shape)
        np.add.at(sums, (self.query_type[chosen], self.key_class[chosen]), values[chosen])
        return sums


@dataclass(frozen=True, slots=True, eq=False)
class HeadSums:
    """Sums of the attention of some heads to the keys of a text, by fold.

    Attributes:
        by_class: Attention of all ordinary queries by the class of the key.
        inside: That on pairs of the sieve.
        mass: The sum over sentences of the mass on the sieve, over classes that are kept.
        bias: The sum over sentences of the sieve bias, over classes that are kept.
    """

    by_class: Float[np.ndarray, "folds classes heads"]
    inside: Float[np.ndarray, "folds classes heads"]
    mass: Float[np.ndarray, "folds heads"]
    bias: Float[np.ndarray, "folds heads"]


@dataclass(frozen=True, slots=True, eq=False)
class Geometry:
    """Who sees whom in a text, whatever the attention.

    Attributes:
        visible: The classes that queries of each type see.
        queries: How many ordinary queries of each type every fold has.
    """

    visible: Bool[np.ndarray, "types classes"]
    queries: Float[np.ndarray, "folds types"]

    def count_outside(self, pairs: SievePairs, folds: Int[np.ndarray, " some"] | None = None) -> Float[np.ndarray, "types classes"]:
        """Returns how many pairs of each type and class are outside the sieve, in some folds or in all."""
        queries = self.queries.sum(0) if folds is None else self.queries[folds].sum(0)
        return queries[:, None] * self.visible - pairs.sum_by_type_and_class(pairs.count, self.visible.shape, folds)

    def kept_classes(self, pairs: SievePairs) -> Bool[np.ndarray, " classes"]:
        """Returns the classes with enough pairs outside the sieve."""
        return self.count_outside(pairs).sum(0) >= MIN_PAIRS


@dataclass(frozen=True, slots=True, eq=False)
class TwinComparison:
    """Some heads beside their distance twins on one role's sieve.

    Attributes:
        mass, twin_mass: The attention on the sieve, of the head and of its twin.
        bias, twin_bias: The sieve bias of both, over offsets that are kept.
        excess: mass − twin_mass.
        stderr: The standard error of the excess.
        freedom: The degrees of freedom of its t statistic.
    """

    mass: Float[np.ndarray, " heads"]
    twin_mass: Float[np.ndarray, " heads"]
    bias: Float[np.ndarray, " heads"]
    twin_bias: Float[np.ndarray, " heads"]
    excess: Float[np.ndarray, " heads"]
    stderr: Float[np.ndarray, " heads"]
    freedom: int


def fit_preferences(
    visible: Float[np.ndarray, "types classes"],
    outside: Float[np.ndarray, "types classes"],
    attention: Float[np.ndarray, "classes heads"],
    start: Float[np.ndarray, "classes heads"] | None = None,
    *,
    n_updates: int = N_UPDATES,
) -> Float[np.ndarray, "classes heads"]:
    """Returns f: how much heads prefer each class, so that their twins have their attention per class on the pairs outside the sieve.

    Args:
        visible: 1 where queries of a type see a class.
        outside: How many pairs outside the sieve there are.
        attention: The sum of the heads' attention on these pairs.
        start: Preferences to begin with; None for none. Classes without pairs keep theirs.
        n_updates: How many multiplicative updates are made.
    """
    preferences = np.ones_like(attention) if start is None else start.copy()
    has_pairs = outside.sum(0) > 0.5
    for _ in range(n_updates):
        reproduced = preferences * (outside.T @ (1 / (visible @ preferences)))
        ratio = np.divide(attention, reproduced, out=np.ones_like(attention), where=has_pairs[:, None] & (reproduced > 0))
        preferences *= ratio
        preferences = np.maximum(preferences / preferences.max(0), _FLOOR)
    return preferences


def compare_with_twin(geometry: Geometry, pairs: SievePairs, sums: HeadSums, starts: Sequence[np.ndarray]) -> TwinComparison:
    """Returns heads beside their twins; `starts` are preferences fitted to all pairs outside each fold, which the fits begin with."""
    folds = np.flatnonzero(geometry.queries.sum(1))
    visible = geometry.visible.astype(float)
    kept = geometry.kept_classes(pairs)
    fitter = _FoldFits(geometry, visible, pairs, sums, kept)
    showing = np.flatnonzero(pairs.sentences)
    fits = {fold: fitter.fit((fold,), starts[fold]) for fold in showing}
    twin = {fold: fitter.apply(fold, fits[fold]) for fold in showing}
    n = pairs.sentences[showing]
    mass_by_fold = sums.mass[showing]
    twin_mass_by_fold = np.stack([twin[fold][0] for fold in showing])
    excess_by_fold = mass_by_fold - twin_mass_by_fold
    excess = excess_by_fold.sum(0) / n.sum()
    without = (excess_by_fold.sum(0) - excess_by_fold) / (n.sum() - n)[:, None]
    refitted = np.flatnonzero(excess > REFIT_FROM)
    if len(refitted):
        without[:, refitted] = fitter.refit_without_each(showing, fits, refitted)
    return TwinComparison(
        mass=mass_by_fold.sum(0) / n.sum(),
        twin_mass=twin_mass_by_fold.sum(0) / n.sum(),
        bias=sums.bias[showing].sum(0) / n.sum(),
        twin_bias=np.stack([twin[fold][1] for fold in showing]).sum(0) / n.sum(),
        excess=excess,
        stderr=jackknife_stderr(excess, without, n),
        freedom=len(showing) - 1,
    )


def jackknife_stderr(
    estimate: Float[np.ndarray, " heads"], without: Float[np.ndarray, "folds heads"], sizes: Float[np.ndarray, " folds"]
) -> Float[np.ndarray, " heads"]:
    """Returns the standard error of an estimate from its values without each fold, for folds of any sizes (Busing et al. 1999)."""
    share = (sizes.sum() / sizes)[:, None]
    pseudo = share * estimate - (share - 1) * without
    return np.sqrt(((pseudo - pseudo.mean(0)) ** 2 / (share - 1)).mean(0))


@dataclass(slots=True, eq=False)
class _FoldFits:
    """The fits of one role without one fold or two."""

    geometry: Geometry
    visible: np.ndarray
    pairs: SievePairs
    sums: HeadSums
    kept: np.ndarray

    def fit(self, left_out: tuple[int, ...], start: np.ndarray, heads: np.ndarray | slice = slice(None), n_updates: int = N_UPDATES) -> np.ndarray:
        """Returns the preferences of heads without some folds."""
        training = np.setdiff1d(np.arange(len(self.geometry.queries)), left_out)
        attention = self.sums.by_class[training].sum(0)[:, heads] - self.sums.inside[training].sum(0)[:, heads]
        outside = self.geometry.count_outside(self.pairs, training)
        return fit_preferences(self.visible, outside, np.maximum(attention, 0), start, n_updates=n_updates)

    def apply(self, fold: int, preferences: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Returns the sums over the sentences of a fold of the twins' mass on the sieve and of their bias."""
        chosen = (self.pairs.fold == fold) & self.kept[self.pairs.key_class]
        types, inverse = np.unique(self.pairs.query_type[chosen], return_inverse=True)
        share = (1 / (self.visible[types] @ preferences))[inverse] * preferences[self.pairs.key_class[chosen]]
        return self.pairs.mass_weight[chosen] @ share, self.pairs.bias_weight[chosen] @ share

    def refit_without_each(self, folds: np.ndarray, fits: dict[int, np.ndarray], heads: np.ndarray) -> np.ndarray:
        """Returns the excess mass of some heads without each fold, with the twins of the other folds fitted without it too."""
        mass = self.sums.mass[:, heads]
        without = np.zeros((len(folds), len(heads)))
        for (i, first), (j, second) in combinations(enumerate(folds), 2):
            preferences = self.fit((first, second), fits[first][:, heads], heads, n_updates=2)
            without[j] += mass[first] - self.apply(first, preferences)[0]
            without[i] += mass[second] - self.apply(second, preferences)[0]
        n = self.pairs.sentences[folds]
        return without / (n.sum() - n)[:, None]
