"""Runs sentences or images through a model and measures what every head attends to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor, nn

from headcount.behaviour.base import Corpus, Side
from headcount.behaviour.catalogue.syntax import Syntax
from headcount.behaviour.measure import check_finite
from headcount.behaviour.profiles.numbers import (
    DISTANCES,
    confidences_and_top_query,
    one_hot_kinds,
    row_entropies_in_nats,
    sum_attention_by_kind,
    uniform_attention,
    word_distance_bins,
)
from headcount.behaviour.views import ViewName, build_view, view_name
from headcount.core.errors import UnsupportedModel
from headcount.core.heads import AttentionBlock
from headcount.data.checks import check_batch
from headcount.models.modules import Batch, in_float32_or_float64
from headcount.models.observe import Observation, Observer, reads_text


@dataclass(frozen=True, slots=True)
class KeyKinds:
    """The kinds of keys whose share of attention is measured: distances, parts of speech, and relations in both directions."""

    tags: tuple[str, ...] = ()
    relations: tuple[Syntax, ...] = ()

    @property
    def tag_columns(self) -> slice:
        """The columns of parts of speech and, after them, of keys without a word; empty without parts of speech."""
        return slice(len(DISTANCES), len(DISTANCES) + (len(self.tags) + 1 if self.tags else 0))

    @property
    def relation_columns(self) -> slice:
        """The columns of relations."""
        return slice(self.tag_columns.stop, self.tag_columns.stop + len(self.relations))


@dataclass(frozen=True, slots=True, eq=False)
class _BatchKeyKinds:
    """One view of a batch: its queries [batch, q], ordinary keys [batch, k], kinds of keys [batch, q, k, kinds], and sieves of relations."""

    queries: Tensor
    ordinary: Tensor
    kinds: Tensor
    sieves: Tensor


@dataclass(slots=True)
class ProfileProbe:
    """Measures the head profiles of a corpus.

    Attributes:
        model: The model.
        blocks: The attention blocks that are observed.
        corpus: The sentences or images.
        kinds: The kinds of keys.
        rows: The query tokens whose attention is stored, by side and example.
        maps: The examples whose attention maps are stored.
        stored_rows: The attention of these tokens, by view, then by example and token, then by block.
        stored_maps: The maps of these examples, by example and block.
    """

    model: nn.Module
    blocks: Sequence[AttentionBlock]
    corpus: Corpus
    kinds: KeyKinds
    rows: Mapping[str, Mapping[int, Sequence[int]]]
    maps: Sequence[int] = ()
    stored_rows: dict[str, dict[tuple[int, int], dict[str, Tensor]]] = field(default_factory=dict)
    stored_maps: dict[tuple[int, str], Tensor] = field(default_factory=dict)
    _calls: dict[str, dict[str, list[Tensor]]] = field(default_factory=dict)
    _examples: list[int] = field(default_factory=list)
    _views: dict[str, _BatchKeyKinds] = field(default_factory=dict)
    _n_calls: dict[str, int] = field(default_factory=dict)

    def blocks_of_view(self, view: ViewName) -> list[AttentionBlock]:
        """Returns the blocks in which the tokens of a view meet."""
        return [block for block in self.blocks if view_name(self.model, block) == view]

    def __call__(self, batch: Batch, numbers: list[int]) -> dict[str, Tensor]:
        """Returns, for every view, numbers of each example of a batch.

        These are the attention mass of each head on each kind of key, that of uniform attention, the number of queries, entropy, confidence, and
        the most confident query. A block that runs several times in a pass counts by the mean of its calls.
        """
        check_batch(self.model, batch, numbers)
        self._calls, self._examples, self._views, self._n_calls = {}, numbers, {}, {}
        with Observer(self.model, self._measure_block, blocks=self.blocks, outputs=False) as observer:
            observer.run(batch)
        idle = next((block.path for block in self.blocks if block.path not in self._n_calls), None)
        if idle is not None:
            raise UnsupportedModel(f"block '{idle}' did not run on this input, so its attention cannot be observed")
        order = {block.path: index for index, block in enumerate(self.blocks)}
        return {
            name: torch.cat([torch.stack(calls[path]).mean(0) for path in sorted(calls, key=order.__getitem__)], 1)
            for name, calls in self._calls.items()
        }

    def _measure_block(self, observation: Observation) -> None:
        visible, path = observation.visible, observation.block.path
        assert observation.attention is not None and visible is not None
        view = view_name(self.model, observation.block)
        if observation.attention.shape[0] != len(self._examples):
            raise UnsupportedModel(f"block '{path}' does not attend example by example, so its heads have no profile")
        attention = in_float32_or_float64(observation.attention)
        check_finite(attention, self._examples, observation.block)
        if view not in self._views:
            self._views[view] = self._classify_keys(view, (visible.shape[1], visible.shape[2]))
        self._n_calls[path] = self._n_calls.get(path, 0) + 1
        for name, values in _measure_attention(attention, visible, self._views[view]).items():
            self._calls.setdefault(f"{view}/{name}", {}).setdefault(path, []).append(values)
        self._store_rows_and_maps(view, path, attention)

    def _store_rows_and_maps(self, view: ViewName, block_path: str, attention: Tensor) -> None:
        """Stores the attention of the chosen tokens and the maps of the chosen examples; of several calls, the mean so far."""
        side, n_before = "source" if view == "source" else "target", self._n_calls[block_path] - 1
        rows, maps = self.stored_rows.setdefault(view, {}), self.stored_maps
        for index, number in enumerate(self._examples):
            n_queries, n_keys = self._unpadded_query_and_key_counts(view, number, attention.shape[-2:])
            for token in self.rows.get(side, {}).get(number, ()):
                by_block, row = rows.setdefault((number, token), {}), attention[index, :, token, :n_keys].cpu()
                by_block[block_path] = (by_block[block_path] * n_before + row) / (n_before + 1) if n_before else row.clone()
            if number in self.maps:
                map_, key = attention[index, :, :n_queries, :n_keys].cpu(), (number, block_path)
                maps[key] = (maps[key] * n_before + map_) / (n_before + 1) if n_before else map_.clone()

    def _unpadded_query_and_key_counts(self, view: ViewName, example_number: int, padded_counts: Sequence[int]) -> tuple[int, int]:
        """Returns how many queries and keys of an example are no padding."""
        if self.corpus.grid:
            return padded_counts[0], padded_counts[1]
        source = len(self.corpus.sentences[example_number].ids)
        target = len(self.corpus.targets[example_number].ids) + 1 if self.corpus.targets else 0
        return {"source": (source, source), "target": (target, target), "cross": (target, source)}[view]

    def _classify_keys(self, view: ViewName, n_queries_and_keys: tuple[int, int]) -> _BatchKeyKinds:
        """Returns the kinds of keys of a batch in one view, of so many queries and keys; they do not depend on attention."""
        tokens = build_view(self.corpus, view, self._examples, n_queries_and_keys)
        queries, keys = tokens.queries, tokens.keys
        is_query = queries.ordinary
        if self.corpus.grid:
            empty = torch.zeros(len(self._examples), *n_queries_and_keys, 0)
            return _BatchKeyKinds(is_query, keys.ordinary, empty, empty.bool())
        sieves = torch.zeros(len(self._examples), *n_queries_and_keys, len(self.kinds.relations), dtype=torch.bool)
        if view != "cross" and self.kinds.relations:
            sieves = torch.stack([relation.sieve(tokens) for relation in self.kinds.relations], -1)
        parts = [one_hot_kinds(word_distance_bins(_word_numbers_of_tokens(queries), _word_numbers_of_tokens(keys)), len(DISTANCES))]
        if self.kinds.tags:
            parts.append(
                one_hot_kinds(self._tag_numbers_of_tokens(keys)[:, None, :].expand(-1, n_queries_and_keys[0], -1), len(self.kinds.tags) + 1)
            )
        kinds = torch.cat([*parts, sieves.float()], -1) * is_query[:, :, None, None]
        return _BatchKeyKinds(is_query, keys.ordinary, kinds, sieves & is_query[:, :, None, None])

    def _tag_numbers_of_tokens(self, side: Side) -> Int[Tensor, "batch n"]:
        """Returns the part of speech of every token by its number; the last number is for tokens without one."""
        index = {tag: number for number, tag in enumerate(self.kinds.tags)}
        no_tag = len(self.kinds.tags)
        numbers = torch.full_like(side.words, no_tag)
        for row, sentence in enumerate(side.sentences):
            tags = torch.tensor([index.get(word.upos, no_tag) for word in sentence.annotated.words] + [no_tag])
            numbers[row] = tags[side.words[row]]
        return numbers


def _measure_attention(attention: Tensor, visible: Tensor, key_kinds: _BatchKeyKinds) -> dict[str, Tensor]:
    """Returns the numbers of one block on a batch, by name."""
    device = attention.device
    queries, kinds, sieves = key_kinds.queries.to(device), key_kinds.kinds.to(device), key_kinds.sieves.to(device)
    confidence, top = confidences_and_top_query(attention, queries, key_kinds.ordinary.to(device))
    n_with_relation = (sieves & visible[..., None]).any(2).sum(1)  # [batch, relations]
    return {
        "mass": sum_attention_by_kind(attention, kinds),
        "even": sum_attention_by_kind(uniform_attention(visible), kinds),
        "number": torch.cat([queries.sum(-1, keepdim=True), n_with_relation], -1)[:, None].double(),
        "entropy": torch.where(queries[:, None, :], row_entropies_in_nats(attention), 0.0).sum(-1),
        "confidence": confidence.sum(-1),
        "top": top,
    }


def _word_numbers_of_tokens(side: Side) -> Int[Tensor, "batch n"]:
    """Returns the number of every token's word; in text without words, every ordinary token is its own."""
    has_no_words = torch.tensor([not sentence.annotated.words for sentence in side.sentences])
    return torch.where(has_no_words[:, None] & side.ordinary, side.positions[None, :], side.words)


def observable_blocks_and_notes_on_others(
    model: Any, corpus: Corpus, blocks: Sequence[AttentionBlock]
) -> tuple[list[AttentionBlock], list[str]]:
    """Returns the blocks that read the corpus, and sentences about those that do not."""
    observable, reasons = [], {}
    for block in blocks:
        if not block.n_heads:
            continue
        if not corpus.grid and not reads_text(block):
            reasons.setdefault("it reads no text", []).append(block.name)
        elif view_name(model, block) != "source" and not corpus.targets:
            reasons.setdefault("the text has no translations, so the decoder reads nothing", []).append(block.name)
        else:
            observable.append(block)
    return observable, [f"No head profiles of {', '.join(names)}: {reason}." for reason, names in reasons.items()]
