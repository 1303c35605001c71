"""Pairs of query and key tokens, as flat arrays: those that sieves mark, and who sees whom in a text under one attention mask.

The class c of a key is its offset k − t; every special token is a class of its own, the same for the first, second, … of all sentences. Queries are
ordinary tokens. Queries that see the same classes are of one type: they behave alike in everything that attends by class.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from scipy import sparse

from headcount.behaviour.base import Corpus, Role
from headcount.behaviour.views import ViewName, build_view
from headcount.data.text.aligned import Aligned

MARKED_AT_ONCE = 64
"""Sentences whose sieves are dense at a time."""
ORDINARY, NO_TOKEN = -1, -2
"""What stands in place of the number of a special token."""


@dataclass(frozen=True, slots=True, eq=False)
class SentenceSide:
    """One side of attention, sentence by sentence: which tokens are special, and the word of each (-1 for none).

    `n_words` are the words of the annotation, whether they have tokens or not.
    """

    special: tuple[Bool[np.ndarray, " tokens"], ...]
    words: tuple[Int[np.ndarray, " tokens"], ...]
    n_words: Int[np.ndarray, " sentences"]

    @classmethod
    def from_sentences(cls, sentences: Sequence[Aligned], n_delimiters_before: int) -> Self:
        """Returns the side of some sentences with `n_delimiters_before` special tokens before each."""
        special = tuple(np.array([True] * n_delimiters_before + list(s.special)) for s in sentences)
        words = tuple(np.array([-1] * n_delimiters_before + [-1 if word is None else word for word in s.words]) for s in sentences)
        return cls(special, words, np.array([len(s.annotated.words) for s in sentences]))

    @property
    def first_token_index(self) -> Int[np.ndarray, " sentences"]:
        """The number of the first token of each sentence, if all tokens are counted."""
        lengths = np.array([len(words) for words in self.words])
        return np.cumsum(lengths) - lengths

    @property
    def n_tokens_of_longest_sentence(self) -> int:
        """The number of tokens of the longest sentence."""
        return max(map(len, self.special))


def query_and_key_sides(corpus: Corpus, view: ViewName) -> tuple[SentenceSide, SentenceSide]:
    """Returns the queries and the keys of a view; one object for both in self-attention."""
    if view == "source":
        source = SentenceSide.from_sentences(corpus.sentences, 0)
        return source, source
    targets = SentenceSide.from_sentences(corpus.targets, 1)
    return targets, targets if view == "target" else SentenceSide.from_sentences(corpus.sentences, 0)


@dataclass(frozen=True, slots=True, eq=False)
class Pairs:
    """Pairs of a query and a key, tokens or words, in the sieve of a role; pairs of sentence s are `start[s]` to `start[s + 1]`."""

    start: Int[np.ndarray, " bounds"]
    role: Int[np.ndarray, " pairs"]
    query: Int[np.ndarray, " pairs"]
    key: Int[np.ndarray, " pairs"]

    def of_sentences(self, sentence_numbers: Int[np.ndarray, " some"]) -> SentencePairs:
        """Returns the pairs of some sentences, in their order; a sentence may occur several times."""
        first, n = self.start[sentence_numbers], self.start[sentence_numbers + 1] - self.start[sentence_numbers]
        row, position = group_and_position_of_items(n)
        chosen = first[row] + position
        return SentencePairs(row, self.role[chosen].astype(int), self.query[chosen].astype(int), self.key[chosen].astype(int))


@dataclass(frozen=True, slots=True, eq=False)
class SentencePairs:
    """Pairs in the sieves of roles; `row` numbers some chosen sentences."""

    row: Int[np.ndarray, " pairs"]
    role: Int[np.ndarray, " pairs"]
    query: Int[np.ndarray, " pairs"]
    key: Int[np.ndarray, " pairs"]

    def filter(self, is_selected: Bool[np.ndarray, " pairs"]) -> SentencePairs:
        """Returns some of the pairs."""
        return SentencePairs(self.row[is_selected], self.role[is_selected], self.query[is_selected], self.key[is_selected])


def group_and_position_of_items(group_sizes: Int[np.ndarray, " groups"]) -> tuple[Int[np.ndarray, " items"], Int[np.ndarray, " items"]]:
    """Returns for each item of groups of some sizes, one after another, the number of its group and its own number in it."""
    group = np.repeat(np.arange(len(group_sizes)), group_sizes)
    return group, np.arange(len(group)) - np.repeat(np.cumsum(group_sizes) - group_sizes, group_sizes)


def find_pairs_in_sieves(corpus: Corpus, view: ViewName, roles: Sequence[Role], sides: tuple[SentenceSide, SentenceSide]) -> Pairs:
    """Returns the pairs of tokens in the sieves of roles, before any mask, between real tokens."""
    queries, keys = sides
    lengths = np.array([(len(q), len(k)) for q, k in zip(queries.special, keys.special, strict=True)])
    parts: list[SentencePairs] = []
    order = np.lexsort((np.arange(len(lengths)), lengths.sum(1)))
    for first in range(0, len(order), MARKED_AT_ONCE):
        numbers = order[first : first + MARKED_AT_ONCE]
        tokens = build_view(corpus, view, numbers.tolist(), tuple(lengths[numbers].max(0).tolist()))
        real = tokens.queries.real[:, :, None] & tokens.keys.real[:, None, :]
        sieves = torch.stack([role.sieve(tokens) & real for role in roles], dim=-1)
        row, query, key, role = sieves.nonzero().numpy().T
        parts.append(SentencePairs(numbers[row], role, query, key))
    row, role, query, key = (np.concatenate([getattr(part, name) for part in parts]) for name in SentencePairs.__slots__)
    by_sentence = np.argsort(row, kind="stable")
    start = np.concatenate([[0], np.cumsum(np.bincount(row, minlength=len(lengths)))])
    return Pairs(start, *(values[by_sentence].astype(np.int32) for values in (role, query, key)))


@dataclass(frozen=True, slots=True, eq=False)
class MaskLayout:
    """Who sees whom in every sentence of a text under one mask.

    Attributes:
        mask: Which key positions each query position sees, where both are tokens of the sentence.
        pattern: The pattern of each sentence: sentences whose special tokens stand at the same positions have the same.
        special: By pattern, the number of each special key among those of its sentence, -1 for ordinary keys, -2 beyond the last token.
        types: By pattern, the type of each query, -1 for special tokens and beyond the last token.
        n_visible: By pattern, how many keys each query sees.
        n_classes: How many classes of keys there are: offsets, then special tokens.
        ranges: The classes that each type sees, as differences of bounds: `ranges @ prefix_sums` is the sum over these classes.
    """

    mask: Bool[np.ndarray, "q k"]
    pattern: Int[np.ndarray, " sentences"]
    special: Int[np.ndarray, "patterns k"]
    types: Int[np.ndarray, "patterns q"]
    n_visible: Int[np.ndarray, "patterns q"]
    n_classes: int
    ranges: sparse.csr_array

    @classmethod
    def from_mask(cls, mask: Bool[np.ndarray, "q k"], sides: tuple[SentenceSide, SentenceSide]) -> Self:
        """Returns who sees whom in the sentences of two sides."""
        keys_of_sentences = list(zip(*(side.special for side in sides), strict=True))
        names = [(len(query), query.tobytes(), key.tobytes()) for query, key in keys_of_sentences]
        first_of = {name: number for number, name in reversed(list(enumerate(names)))}
        number_of = {name: number for number, name in enumerate(first_of)}
        n_queries, n_keys = mask.shape
        special, types = np.full((len(first_of), n_keys), NO_TOKEN), np.full((len(first_of), n_queries), -1)
        n_visible = np.zeros((len(first_of), n_queries), dtype=int)
        n_special = max(int(key.sum()) for _, key in keys_of_sentences)
        n_classes = n_queries + n_keys - 1 + n_special
        visible_classes: dict[bytes, np.ndarray] = {}
        type_of: dict[bytes, int] = {}
        for number, sentence in enumerate(first_of.values()):
            query_special, key_special = keys_of_sentences[sentence]
            special[number, : len(key_special)] = np.where(key_special, np.cumsum(key_special) - 1, ORDINARY)
            for query in np.flatnonzero(~query_special).tolist():
                keys = np.flatnonzero(mask[query, : len(key_special)])
                if not len(keys):
                    continue
                classes = np.sort(_classes_of_keys(special[number, keys], query, keys, mask.shape))
                name = classes.tobytes()
                visible_classes.setdefault(name, classes)
                types[number, query] = type_of.setdefault(name, len(type_of))
                n_visible[number, query] = len(keys)
        ranges = _bounds_of_class_ranges(list(visible_classes.values()), n_classes)
        return cls(mask, np.array([number_of[name] for name in names]), special, types, n_visible, n_classes, ranges)

    @property
    def n_query_types(self) -> int:
        """How many types of queries there are."""
        return int(self.types.max(initial=-1)) + 1

    @property
    def n_offset_classes(self) -> int:
        """How many of the classes are offsets."""
        return sum(self.mask.shape) - 1

    @property
    def class_of_offset_zero(self) -> int:
        """The class of a key at the query's own position."""
        return self.mask.shape[0] - 1

    def classes_of_keys(self, sentence_numbers: np.ndarray, query_positions: np.ndarray, key_positions: np.ndarray) -> np.ndarray:
        """Returns the classes of keys, for queries of some sentences."""
        return _classes_of_keys(
            self.special[self.pattern[sentence_numbers], key_positions], query_positions, key_positions, self.mask.shape
        )

    def visible_pairs(self, sentence_numbers: Int[np.ndarray, " some"], padded_shape: tuple[int, int]) -> Bool[np.ndarray, "some q k"]:
        """Returns which keys the ordinary queries of some sentences see, in a batch padded to `padded_shape`."""
        pattern, (queries, keys) = self.pattern[sentence_numbers], padded_shape
        is_token, is_ordinary = self.special[pattern, :keys] != NO_TOKEN, self.types[pattern, :queries] >= 0
        return self.mask[None, :queries, :keys] & is_token[:, None, :] & is_ordinary[:, :, None]

    def ordinary_queries_match_mask(self, sentence_numbers: Int[np.ndarray, " some"], visible: Bool[np.ndarray, "some q k"]) -> bool:
        """Returns whether the ordinary queries of a batch see what they see by the mask."""
        shape = (visible.shape[1], visible.shape[2])
        if shape[0] > self.mask.shape[0] or shape[1] > self.mask.shape[1]:
            return False
        is_ordinary = self.types[self.pattern[sentence_numbers], : shape[0]] >= 0
        return np.array_equal(self.visible_pairs(sentence_numbers, shape), visible & is_ordinary[:, :, None])

    def weigh_visible_pairs(self, sentence_numbers: Int[np.ndarray, " some"], pairs_in_sieves: SentencePairs, n_roles: int) -> WeighedPairs:
        """Returns the visible pairs of ordinary queries, with their weights in the mean over the sentences."""
        pattern = self.pattern[sentence_numbers]
        is_visible = self.mask[pairs_in_sieves.query, pairs_in_sieves.key]
        is_of_ordinary_query = self.types[pattern[pairs_in_sieves.row], pairs_in_sieves.query] >= 0
        pairs = pairs_in_sieves.filter(is_visible & is_of_ordinary_query)
        n_queries = self.mask.shape[0]
        of_query = (pairs.row * n_roles + pairs.role) * n_queries + pairs.query
        sizes = np.bincount(of_query, minlength=len(sentence_numbers) * n_roles * n_queries)
        queries = (sizes.reshape(len(sentence_numbers), n_roles, n_queries) > 0).sum(-1)
        mass = 1 / queries[pairs.row, pairs.role]
        pattern = pattern[pairs.row]
        return WeighedPairs(
            pairs=pairs,
            query_type=self.types[pattern, pairs.query],
            key_class=_classes_of_keys(self.special[pattern, pairs.key], pairs.query, pairs.key, self.mask.shape),
            mass=mass,
            bias=mass * self.n_visible[pattern, pairs.query] / sizes[of_query],
            shows_role=queries > 0,
        )


@dataclass(frozen=True, slots=True, eq=False)
class WeighedPairs:
    """Pairs in sieves with the weight of their attention in a sentence's mass on the sieve (1 / queries with a sieve) and in its sieve bias."""

    pairs: SentencePairs
    query_type: Int[np.ndarray, " pairs"]
    key_class: Int[np.ndarray, " pairs"]
    mass: Float[np.ndarray, " pairs"]
    bias: Float[np.ndarray, " pairs"]
    shows_role: Bool[np.ndarray, "some roles"]

    def filter(self, is_selected: Bool[np.ndarray, " pairs"]) -> WeighedPairs:
        """Returns some of the pairs; which sentences show which role stays."""
        types, classes = self.query_type[is_selected], self.key_class[is_selected]
        return WeighedPairs(self.pairs.filter(is_selected), types, classes, self.mass[is_selected], self.bias[is_selected], self.shows_role)


def _classes_of_keys(
    special_number_of_key: np.ndarray, query_position: np.ndarray | int, key_position: np.ndarray, mask_shape: tuple[int, ...]
) -> np.ndarray:
    return np.where(
        special_number_of_key >= 0, sum(mask_shape) - 1 + special_number_of_key, key_position - query_position + mask_shape[0] - 1
    )


def _bounds_of_class_ranges(visible_classes_of_types: Sequence[Int[np.ndarray, " classes"]], n_classes: int) -> sparse.csr_array:
    """Returns −1 at the first class of each range of classes and +1 after its last, for every type."""
    rows, columns, values = [], [], []
    for number, classes in enumerate(visible_classes_of_types):
        breaks = np.flatnonzero(np.diff(classes) != 1)
        first, after = classes[np.concatenate([[0], breaks + 1])], classes[np.concatenate([breaks, [len(classes) - 1]])] + 1
        columns += [first, after]
        values += [-np.ones(len(first)), np.ones(len(after))]
        rows.append(np.full(2 * len(first), number))
    shape = (len(visible_classes_of_types), n_classes + 1)
    if not rows:
        return sparse.csr_array(shape)
    return sparse.csr_array((np.concatenate(values), (np.concatenate(rows), np.concatenate(columns))), shape=shape)
