"""Annotations swapped among sentences of equal length: how many labels a head earns from parses of other sentences.

In each swap every sentence gets the sieves of another sentence with the same number of words, as relations between words. Sentences without such a
partner take no part. Swap 0 gives each of the others its own sieves, so that the number of labels under swaps has something to be compared with.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple, Self

import numpy as np
from jaxtyping import Bool, Float, Int
from scipy import sparse

from headcount.behaviour.pairs import (
    MARKED_AT_ONCE,
    MaskLayout,
    Pairs,
    SentencePairs,
    SentenceSide,
    WeighedPairs,
    group_and_position_of_items,
)
from headcount.behaviour.twin import VisibilityGeometry, fit_preferences_to_all_pairs, jackknife_stderr


@dataclass(frozen=True, slots=True, eq=False)
class WordTokens:
    """The tokens of each word: those of word w of sentence s are `token[first[start[s] + w]:][:number[start[s] + w]]`."""

    start: Int[np.ndarray, " sentences"]
    first: Int[np.ndarray, " words"]
    number: Int[np.ndarray, " words"]
    token: Int[np.ndarray, " tokens"]

    @classmethod
    def from_side(cls, side: SentenceSide) -> Self:
        """Returns the tokens of the words of a side."""
        start = np.cumsum(side.n_words) - side.n_words
        sentence, token = group_and_position_of_items(np.array([len(words) for words in side.words]))
        word = np.concatenate(side.words)
        in_word = word >= 0
        word, token = (start[sentence] + word)[in_word], token[in_word]
        number = np.bincount(word, minlength=int(side.n_words.sum()))
        return cls(start, np.cumsum(number) - number, number, token[np.argsort(word, kind="stable")])


class PairsOfSwap(NamedTuple):
    """The pairs of tokens of one swap, and the number of the first of its sums, one for each role."""

    first_sum: int
    weighed: WeighedPairs


@dataclass(frozen=True, slots=True, eq=False)
class Swaps:
    """The sieves of other sentences as relations between words.

    Attributes:
        pairs: The pairs of words in the sieves of each sentence.
        partner: The sentence whose sieves each sentence has in each swap; -1 for none.
        tokens: The tokens of words, of the queries and of the keys.
        n_roles: The number of roles.
    """

    pairs: Pairs
    partner: Int[np.ndarray, "swaps sentences"]
    tokens: tuple[WordTokens, WordTokens]
    n_roles: int

    @classmethod
    def draw(cls, token_pairs: Pairs, sides: tuple[SentenceSide, SentenceSide], n_roles: int, n_swaps: int, seed: int) -> Self:
        """Returns random swaps after swap 0, which is none."""
        n_sentences = len(token_pairs.start) - 1
        random = np.random.Generator(np.random.Philox(seed))
        groups: dict[tuple[int, ...], list[int]] = {}
        for number, lengths in enumerate(zip(*(side.n_words.tolist() for side in sides), strict=True)):
            groups.setdefault(lengths, []).append(number)
        partner = np.full((n_swaps + 1, n_sentences), -1)
        for lengths, members in groups.items():
            if len(members) > 1 and min(lengths) > 0:
                partner[0, members] = members
                for swap in partner[1:]:
                    sample = random.permutation(members)
                    swap[sample] = np.roll(sample, 1)
        return cls(
            _word_pairs_of_token_pairs(token_pairs, sides),
            partner,
            (WordTokens.from_side(sides[0]), WordTokens.from_side(sides[1])),
            n_roles,
        )

    @property
    def n_attention_sums(self) -> int:
        """How many sums of attention the swaps need."""
        return len(self.partner) * self.n_roles

    def weigh_swapped_pairs(
        self, layout: MaskLayout, sentence_numbers: Int[np.ndarray, " some"], tested_classes: Bool[np.ndarray, "roles classes"]
    ) -> Iterator[PairsOfSwap]:
        """Yields for each swap the number of its first sum, and the pairs of tokens at kept offsets in the sieves that the sentences then have."""
        for number, partner in enumerate(self.partner[:, sentence_numbers]):
            has_partner = np.flatnonzero(partner >= 0)
            words = self.pairs.of_sentences(partner[has_partner])
            pairs = self._token_pairs_of_word_pairs(
                SentencePairs(has_partner[words.row], words.role, words.query, words.key), sentence_numbers
            )
            weighed = layout.weigh_visible_pairs(sentence_numbers, pairs, self.n_roles)
            is_kept = tested_classes[weighed.pairs.role, weighed.key_class]
            yield PairsOfSwap(number * self.n_roles, weighed.filter(is_kept))

    def _token_pairs_of_word_pairs(self, word_pairs: SentencePairs, sentence_numbers: Int[np.ndarray, " some"]) -> SentencePairs:
        """Returns the pairs of tokens of pairs of words."""
        sides = [
            (side, side.start[sentence_numbers[word_pairs.row]] + word)
            for side, word in zip(self.tokens, (word_pairs.query, word_pairs.key), strict=True)
        ]
        (queries, query), (keys, key) = sides
        pair, position = group_and_position_of_items(queries.number[query] * keys.number[key])
        n_keys = keys.number[key][pair]
        token_of_query = queries.token[queries.first[query][pair] + position // np.maximum(n_keys, 1)]
        token_of_key = keys.token[keys.first[key][pair] + position % np.maximum(n_keys, 1)]
        return SentencePairs(word_pairs.row[pair], word_pairs.role[pair], token_of_query, token_of_key)

    def excess_under_swaps(
        self,
        layout: MaskLayout,
        geometry: VisibilityGeometry,
        fold_of_sentence: Int[np.ndarray, " sentences"],
        tested_classes: Bool[np.ndarray, "roles classes"],
        attention: Float[np.ndarray, "folds classes heads"],
        mass_on_sieves: Float[np.ndarray, "folds swaps roles heads"],
    ) -> SwappedExcess:
        """Returns the excess mass of some heads under each swap, by the twins fitted to all pairs of the other folds."""
        excess, sentences = np.zeros_like(mass_on_sieves), np.zeros(mass_on_sieves.shape[:3])
        for number in np.unique(fold_of_sentence).tolist():
            fit = fit_preferences_to_all_pairs(geometry, attention, number)
            weights, shows_role = self._weights_and_sentence_counts(layout, np.flatnonzero(fold_of_sentence == number), tested_classes)
            pairs = np.flatnonzero(np.bincount(weights.indices, minlength=layout.n_query_types * layout.n_classes))
            query_type, key_class = np.divmod(pairs, layout.n_classes)
            twin = weights[:, pairs] @ (fit.preferences[key_class] * fit.inverse[query_type])
            excess[number] = mass_on_sieves[number] - twin.reshape(mass_on_sieves.shape[1:])
            sentences[number] = shows_role.reshape(mass_on_sieves.shape[1:3])
        return SwappedExcess.from_folds(excess, sentences)

    def _weights_and_sentence_counts(
        self, layout: MaskLayout, sentence_numbers: np.ndarray, tested_classes: np.ndarray
    ) -> tuple[sparse.csr_array, np.ndarray]:
        """Returns the weight of each pair of a type and a class in each sum, and how many sentences show each role."""
        shape = (self.n_attention_sums, layout.n_query_types * layout.n_classes)
        shows_role, weights = np.zeros(self.n_attention_sums), sparse.csr_array(shape)
        for first in range(0, len(sentence_numbers), MARKED_AT_ONCE):
            sums, columns, values = [], [], []
            for of_swap in self.weigh_swapped_pairs(layout, sentence_numbers[first : first + MARKED_AT_ONCE], tested_classes):
                number, swapped = of_swap.first_sum, of_swap.weighed
                shows_role[number : number + self.n_roles] += swapped.shows_role.sum(0)
                sums.append(number + swapped.pairs.role)
                columns.append(swapped.query_type * layout.n_classes + swapped.key_class)
                values.append(swapped.mass)
            flat = (np.concatenate(values), (np.concatenate(sums), np.concatenate(columns)))
            weights = weights + sparse.coo_array(flat, shape=shape).tocsr()
        return weights.tocsr(), shows_role


@dataclass(frozen=True, slots=True, eq=False)
class SwappedExcess:
    """The excess mass under each swap with its standard error over folds, and how many folds show the role."""

    excess: Float[np.ndarray, "swaps roles heads"]
    stderr: Float[np.ndarray, "swaps roles heads"]
    n_folds: Int[np.ndarray, "swaps roles"]
    n_sentences: Int[np.ndarray, "swaps roles"]

    @classmethod
    def from_folds(
        cls, excess_by_fold: Float[np.ndarray, "folds swaps roles heads"], n_sentences: Float[np.ndarray, "folds swaps roles"]
    ) -> Self:
        """Returns the means over sentences; the standard error is the jackknife over folds with the same twins."""
        mean, stderr = np.full(excess_by_fold.shape[1:], np.nan), np.full(excess_by_fold.shape[1:], np.nan)
        n_folds = (n_sentences > 0).sum(0)
        for swap, role in np.argwhere(n_folds > 1):
            folds = np.flatnonzero(n_sentences[:, swap, role])
            values, n = excess_by_fold[folds, swap, role], n_sentences[folds, swap, role]
            mean[swap, role] = values.sum(0) / n.sum()
            stderr[swap, role] = jackknife_stderr(mean[swap, role], (values.sum(0) - values) / (n.sum() - n)[:, None], n)
        return cls(mean, stderr, n_folds, n_sentences.sum(0).astype(int))


def _word_pairs_of_token_pairs(token_pairs: Pairs, sides: tuple[SentenceSide, SentenceSide]) -> Pairs:
    """Returns the pairs of words that pairs of tokens belong to, each once."""
    sentence, _ = group_and_position_of_items(np.diff(token_pairs.start))
    query, key = (
        np.concatenate([np.zeros(0, dtype=int), *side.words])[side.first_token_index[sentence] + token]
        for side, token in zip(sides, (token_pairs.query, token_pairs.key), strict=True)
    )
    in_words = (query >= 0) & (key >= 0)
    n_words = max(int(side.n_words.max()) for side in sides) + 1
    n_roles = int(token_pairs.role.max(initial=0)) + 1
    names = ((sentence * n_roles + token_pairs.role) * n_words + query) * n_words + key
    unique = np.unique(names[in_words])
    of_role, words = np.divmod(unique, n_words * n_words)
    sentence, role = np.divmod(of_role, n_roles)
    start = np.searchsorted(sentence, np.arange(len(token_pairs.start)))
    return Pairs(start, *(values.astype(np.int32) for values in (role, words // n_words, words % n_words)))
