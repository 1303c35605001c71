"""Heads beside their distance twins, over one view of a corpus: what is known before the pass, what the pass sums, and what comes of it.

Of the attention only sums by fold are kept: by the class of the key, and on the sieves of content roles. A block's mask is seen on the longest
sentence before the pass; that of every other sentence must be its upper left part, as causal masks, windows and full attention are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from scipy import sparse
from torch import Tensor
from torch.nn import functional

from headcount.behaviour.base import Corpus, Role
from headcount.behaviour.pairs import MARKED_AT_ONCE, MaskLayout, Pairs, SentenceSide, find_pairs_in_sieves, query_and_key_sides
from headcount.behaviour.swaps import SwappedExcess, Swaps
from headcount.behaviour.twin import (
    N_FOLDS,
    RoleSums,
    SievePairs,
    TwinComparison,
    VisibilityGeometry,
    compare_with_twins,
    fold_of_each_sentence,
)
from headcount.behaviour.views import ViewName


@dataclass(frozen=True, slots=True, eq=False)
class SparseSum:
    """Weights of some entries of a batch of attention in each of some sums, as `embedding_bag` takes them."""

    entries: Int[Tensor, " weights"]
    bounds: Int[Tensor, " bounds"]
    weights: Float[Tensor, " weights"]

    @classmethod
    def from_matrix(cls, matrix: sparse.csr_array, device: torch.device) -> SparseSum:
        """Returns the rows of a matrix [sums, entries]."""
        entries, bounds = (torch.from_numpy(array).to(device) for array in (matrix.indices, matrix.indptr))
        return cls(entries, bounds, torch.from_numpy(matrix.data).to(device))

    def sum_attention(self, attention: Float[Tensor, "batch heads q k"]) -> Float[Tensor, "sums heads"]:
        """Returns the weighted sums of attention, each query's scaled to 1."""
        precise = attention if attention.dtype == torch.float64 else attention.float()
        rows = precise / precise.sum(-1, keepdim=True).clamp(min=1e-30)
        rows = rows.permute(0, 2, 3, 1).reshape(-1, attention.shape[1])
        weights = self.weights.to(rows.dtype)
        return functional.embedding_bag(self.entries, rows, self.bounds, mode="sum", per_sample_weights=weights, include_last_offset=True)


@dataclass(frozen=True, slots=True, eq=False)
class MaskedText:
    """A text under the mask of some blocks: who sees whom, and the pairs of every sieve."""

    layout: MaskLayout
    geometry: VisibilityGeometry
    pairs: tuple[SievePairs, ...]
    kept: Bool[np.ndarray, "roles classes"]


@dataclass(slots=True, eq=False)
class TwinPass:
    """The sums of a pass over one view of a corpus, from which heads are compared with their twins.

    Attributes:
        roles: The content roles of the view.
        pairs: The pairs of tokens in their sieves, before any mask.
        fold: The fold of each sentence.
        texts: The text under each different mask.
        text_of_block: The number of the text of each block, by path.
        swaps: Annotations swapped among sentences, if asked for.
    """

    roles: tuple[Role, ...]
    pairs: Pairs
    fold: Int[np.ndarray, " sentences"]
    texts: tuple[MaskedText, ...]
    text_of_block: Mapping[str, int]
    swaps: Swaps | None
    _inside: Int[np.ndarray, "roles classes"] = field(init=False)
    _n_inside: int = field(init=False)

    @classmethod
    def for_content_roles(
        cls,
        corpus: Corpus,
        view: ViewName,
        roles: Sequence[Role],
        mask_of_block: Mapping[str, Bool[np.ndarray, "q k"]],
        *,
        n_swaps: int,
        seed: int,
    ) -> TwinPass:
        """Returns the sums for the content roles of a view; `mask_of_block` are those of its blocks, as seen on the longest sentence."""
        sides = query_and_key_sides(corpus, view)
        pairs = find_pairs_in_sieves(corpus, view, roles, sides)
        fold = fold_of_each_sentence(len(pairs.start) - 1)
        different: dict[bytes, int] = {}
        text_of_block, texts = {}, []
        for path, mask in mask_of_block.items():
            if mask.tobytes() not in different:
                different[mask.tobytes()] = len(texts)
                texts.append(_text_under_mask(mask, sides, pairs, fold, len(roles)))
            text_of_block[path] = different[mask.tobytes()]
        swaps = Swaps.draw(pairs, sides, len(roles), n_swaps, seed) if n_swaps else None
        return cls(tuple(roles), pairs, fold, tuple(texts), text_of_block, swaps)

    def __post_init__(self) -> None:
        occurs = np.zeros((len(self.roles), self.texts[0].geometry.n_classes), dtype=bool)
        for text in self.texts:
            for number, role in enumerate(text.pairs):
                occurs[number, role.key_class] = True
        self._inside = np.where(occurs, occurs.cumsum().reshape(occurs.shape) - 1, -1)
        self._n_inside = int(occurs.sum())

    @property
    def n_attention_sums(self) -> int:
        """How many sums there are for each head and fold: by class, on each sieve by class, mass and bias of each role, mass under swaps."""
        swapped = 0 if self.swaps is None else self.swaps.n_attention_sums
        return self._inside.shape[1] + self._n_inside + 2 * len(self.roles) + swapped

    def folds_of_sentences(self, sentence_numbers: Sequence[int]) -> list[int]:
        """Returns the folds that some sentences belong to."""
        return sorted({int(fold) for fold in self.fold[list(sentence_numbers)]})

    def sieves_of_batch(self, sentence_numbers: Sequence[int], padded_shape: tuple[int, int]) -> dict[Role, Bool[Tensor, "batch q k"]]:
        """Returns the sieves of the content roles on a batch of sentences, from their pairs."""
        pairs = self.pairs.of_sentences(np.array(sentence_numbers))
        pairs = pairs.filter((pairs.query < padded_shape[0]) & (pairs.key < padded_shape[1]))
        marked = np.zeros((len(self.roles), len(sentence_numbers), *padded_shape), dtype=bool)
        marked[pairs.role, pairs.row, pairs.query, pairs.key] = True
        return dict(zip(self.roles, torch.from_numpy(marked), strict=True))

    def sum_weights_of_batch(
        self, masked_text: MaskedText, sentence_numbers: Sequence[int], padded_shape: tuple[int, int], device: torch.device
    ) -> SparseSum:
        """Returns what sums the attention of a batch of sentences: for each of its folds, `n_attention_sums` sums."""
        sentences, (n_queries, n_keys) = np.array(sentence_numbers), padded_shape
        layout, n_classes = masked_text.layout, self._inside.shape[1]
        folds = np.searchsorted(self.folds_of_sentences(sentence_numbers), self.fold[sentences])
        row, query, key = np.nonzero(layout.visible_pairs(sentences, padded_shape))
        shape_of_sums = (self.n_attention_sums * (folds.max() + 1), len(sentences) * n_queries * n_keys)
        index_type = np.int32 if max(shape_of_sums) < np.iinfo(np.int32).max else np.int64
        sums, entries, weights = [], [], []

        def add_entries(row: np.ndarray, query: np.ndarray, key: np.ndarray, sum_number: np.ndarray, weight: np.ndarray) -> None:
            sums.append((folds[row] * self.n_attention_sums + sum_number).astype(index_type))
            entries.append(((row * n_queries + query) * n_keys + key).astype(index_type))
            weights.append(weight)

        add_entries(row, query, key, layout.classes_of_keys(sentences[row], query, key), np.ones(len(row)))
        weighed = layout.weigh_visible_pairs(sentences, self.pairs.of_sentences(sentences), len(self.roles))
        pairs = weighed.pairs
        add_entries(pairs.row, pairs.query, pairs.key, n_classes + self._inside[pairs.role, weighed.key_class], np.ones(len(pairs.row)))
        counted, first = weighed.filter(masked_text.kept[pairs.role, weighed.key_class]), n_classes + self._n_inside
        pairs = counted.pairs
        add_entries(pairs.row, pairs.query, pairs.key, first + pairs.role, counted.mass)
        add_entries(pairs.row, pairs.query, pairs.key, first + len(self.roles) + pairs.role, counted.bias)
        if self.swaps is not None:
            first += 2 * len(self.roles)
            for of_swap in self.swaps.weigh_swapped_pairs(layout, sentences, masked_text.kept):
                swapped = of_swap.weighed
                add_entries(
                    swapped.pairs.row, swapped.pairs.query, swapped.pairs.key, first + of_swap.first_sum + swapped.pairs.role, swapped.mass
                )
        flat = (np.concatenate(weights), (np.concatenate(sums), np.concatenate(entries)))
        return SparseSum.from_matrix(sparse.coo_array(flat, shape=shape_of_sums).tocsr(), device)

    def compare_with_twins(self, text_number: int, sums: Float[np.ndarray, "folds sums heads"]) -> list[TwinComparison]:
        """Returns some heads of blocks with one mask beside their twins, for each role."""
        masked, n_classes = self.texts[text_number], self._inside.shape[1]
        first = n_classes + self._n_inside
        roles = []
        for number, pairs in enumerate(masked.pairs):
            classes = np.flatnonzero(self._inside[number] >= 0)
            begin = n_classes + int(self._inside[number][classes[:1]].sum())  # the sums of a role stand together
            inside = sums[:, begin : begin + len(classes)]
            roles.append((pairs, RoleSums(classes, inside, sums[:, first + number], sums[:, first + len(self.roles) + number])))
        return compare_with_twins(masked.geometry, sums[:, :n_classes], roles)

    def excess_under_swaps(self, text_number: int, sums: Float[np.ndarray, "folds sums heads"]) -> SwappedExcess:
        """Returns the excess mass of some heads of blocks with one mask under swapped annotations."""
        assert self.swaps is not None
        masked, n_classes = self.texts[text_number], self._inside.shape[1]
        first = n_classes + self._n_inside + 2 * len(self.roles)
        mass = sums[:, first:].reshape(len(sums), -1, len(self.roles), sums.shape[-1])
        return self.swaps.excess_under_swaps(masked.layout, masked.geometry, self.fold, masked.kept, sums[:, :n_classes], mass)


def _text_under_mask(
    mask: Bool[np.ndarray, "q k"],
    sides: tuple[SentenceSide, SentenceSide],
    pairs_in_sieves: Pairs,
    fold_of_sentence: Int[np.ndarray, " sentences"],
    n_roles: int,
) -> MaskedText:
    """Returns a text under one mask."""
    layout = MaskLayout.from_mask(mask, sides)
    n_types = layout.n_query_types
    types = layout.types[layout.pattern]
    row, query = np.nonzero(types >= 0)
    queries = np.zeros((N_FOLDS, n_types))
    np.add.at(queries, (fold_of_sentence[row], types[row, query]), 1)
    geometry = VisibilityGeometry(layout.ranges, queries, layout.n_classes, layout.n_offset_classes)
    sieves = _merge_equal_pairs_by_role(layout, pairs_in_sieves, fold_of_sentence, n_roles)
    return MaskedText(layout, geometry, sieves, np.array([sieve.testable_classes(geometry) for sieve in sieves]))


def _merge_equal_pairs_by_role(
    layout: MaskLayout, pairs_in_sieves: Pairs, fold_of_sentence: Int[np.ndarray, " sentences"], n_roles: int
) -> tuple[SievePairs, ...]:
    """Returns the visible pairs of each role; pairs of equal fold, type and class are counted together."""
    names, values, shows_role = [], [], np.zeros((N_FOLDS, n_roles))
    n_types, n_classes = layout.n_query_types, layout.n_classes
    for first in range(0, len(fold_of_sentence), MARKED_AT_ONCE):
        sentences = np.arange(first, min(first + MARKED_AT_ONCE, len(fold_of_sentence)))
        weighed = layout.weigh_visible_pairs(sentences, pairs_in_sieves.of_sentences(sentences), n_roles)
        np.add.at(shows_role, fold_of_sentence[sentences], weighed.shows_role)
        fold_and_role = weighed.pairs.role * N_FOLDS + fold_of_sentence[sentences[weighed.pairs.row]]
        names.append((fold_and_role * n_types + weighed.query_type) * n_classes + weighed.key_class)
        values.append(np.stack([np.ones(len(weighed.mass)), weighed.mass, weighed.bias]))
    unique, inverse = np.unique(np.concatenate(names), return_inverse=True)
    sums = [np.bincount(inverse, column, minlength=len(unique)) for column in np.concatenate(values, axis=1)]
    fold_and_role, of_type = np.divmod(unique, n_types * n_classes)
    query_type, key_class = np.divmod(of_type, n_classes)
    role, of_fold = np.divmod(fold_and_role, N_FOLDS)
    bounds = np.searchsorted(role, np.arange(n_roles + 1))
    sieves = []
    for number in range(n_roles):
        own = slice(bounds[number], bounds[number + 1])
        count, mass, bias = (column[own] for column in sums)
        sieves.append(SievePairs(of_fold[own], query_type[own], key_class[own], count, mass, bias, shows_role[:, number]))
    return tuple(sieves)
