"""Head profiles of a model over a corpus, and attention maps of a few sentences, in one pass.

What is stored of the pass does not grow with the number of sentences: sums, some rows of attention chosen beforehand, and a few whole maps.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from torch import nn

from headcount.behaviour.base import MIN_OCCURRENCES, Corpus
from headcount.behaviour.catalogue.syntax import Syntax
from headcount.behaviour.profiles.measure import KeyKinds, ProfileProbe, observable_blocks_and_notes_on_others
from headcount.behaviour.profiles.numbers import (
    DISTANCES,
    NO_WORD,
    STRONGEST,
    mean_jensen_shannon_distances,
    n_affordable_queries,
    nearest_heads,
)
from headcount.behaviour.profiles.sample import STRETCH, choose_sentences_to_map, make_purpose_generator, sample_query_tokens
from headcount.behaviour.profiles.sentence import describe_query, describe_side, token_texts
from headcount.behaviour.views import VIEWS, ViewName, check_model_reads, corpus_examples, view_name
from headcount.core.errors import DataError, HeadcountError
from headcount.core.heads import AttentionBlock
from headcount.data.checks import check_finite_weights
from headcount.data.stream import Measured, Progress, Reading, rank_and_world_size, stream
from headcount.models.head_map import HeadMap
from headcount.models.modules import decoder_start_id, unwrap
from headcount.models.ownership import holds_model

N_ROWS, N_SIMILAR, N_TOP, N_OTHERS, MIN_WEIGHT = 128, 5, 3, 2, 1e-3
"""Query tokens whose attention is stored; for each head: nearest heads, most confident queries, and queries of the middle and at random; the least
weight of a key that is shown."""

Examples = dict[str, list[dict[str, Any]]]
"""Queries of a head as plain data: its most confident ones (`top`), some of the `middle`, some at `random`."""


@dataclass(frozen=True, slots=True)
class ProfileSpec:
    """How head profiles are made.

    Attributes:
        limit: How many sentences or images are read.
        n_maps: How many sentences have their attention maps stored.
        max_map_length: How many tokens these have at most, where there are enough of them.
        batch_size: Examples per forward pass; None for 32.
        seed: Seed of the choice of examples.
    """

    limit: int = 256
    n_maps: int = 8
    max_map_length: int = 32
    batch_size: int | None = None
    seed: int = 0


@dataclass(frozen=True, slots=True)
class HeadProfiles:
    """What heads attend to.

    Attributes:
        content: Plain data, as the report shows it.
        maps: Attention maps by sentence and block: uint8, round(255·√a), [heads, q, k].
    """

    content: Mapping[str, Any]
    maps: Mapping[str, np.ndarray] = field(default_factory=dict)

    @property
    def notes(self) -> list[str]:
        """What is missing, and why."""
        return list(self.content["notes"])


@holds_model("head profiles")
def profile_heads(
    model: nn.Module,
    corpus: Corpus,
    tokenizer: Any = None,
    spec: ProfileSpec = ProfileSpec(),  # noqa: B008  frozen
    *,
    progress: Progress | None = None,
) -> HeadProfiles:
    """Returns what every head attends to over the first sentences or images of a corpus, with the attention maps of some.

    Args:
        model: The model.
        corpus: The sentences or images.
        tokenizer: Names special tokens; None shows their ids.
        spec: How many sentences are read and shown.
        progress: Called with the examples done and, if known, their number.
    """
    if rank_and_world_size()[1] > 1:
        raise HeadcountError("head profiles are made by one process; start it without torchrun")
    inner: Any = unwrap(model)
    check_model_reads(inner, corpus)
    check_finite_weights(inner)
    corpus = take_first_examples(corpus, spec.limit)
    heads = HeadMap.of(inner)
    blocks, notes = observable_blocks_and_notes_on_others(inner, corpus, heads.blocks)
    kinds = _choose_key_kinds(corpus)
    chosen = [] if corpus.grid else choose_sentences_to_map(corpus.sentences, corpus.targets, spec.n_maps, spec.max_map_length, spec.seed)
    probe = ProfileProbe(inner, blocks, corpus, kinds, _choose_query_tokens_by_side(inner, corpus, blocks, spec.seed), chosen)
    reading = Reading(corpus_examples(inner, corpus), batch_size=spec.batch_size, progress=progress)
    summary = _Summary(inner, heads, corpus, probe, _sum_chunks_and_keep_top_queries(stream(reading, probe)), tokenizer, spec.seed)
    content = {
        "n_sentences": len(corpus.sentences) or len(corpus.images),
        "heads": [str(head) for head in heads],
        **summary.profile_content(),
        "sentences": summary.describe_sentences(chosen),
        "blocks": [block.path for block in heads.blocks],
        "notes": [*notes, *_explain_missing_parts(corpus, kinds, chosen, spec.max_map_length)],
    }
    return HeadProfiles(content, summary.encode_maps(chosen))


def sentences_and_attention_maps(
    model: nn.Module, corpus: Corpus, tokenizer: Any = None
) -> tuple[list[dict[str, Any]], dict[str, np.ndarray]]:
    """Returns the sentences of a small corpus and all their attention maps, as in `HeadProfiles.maps`."""
    n = len(corpus.sentences)
    profiles = profile_heads(model, corpus, tokenizer, ProfileSpec(limit=n, n_maps=n, max_map_length=10**6))
    return list(profiles.content["sentences"]), dict(profiles.maps)


def take_first_examples(corpus: Corpus, limit: int) -> Corpus:
    """Returns the first sentences or images of a corpus.

    Raises:
        DataError: there is none.
    """
    if not corpus.sentences and not len(corpus.images):
        raise DataError("there is no sentence to profile heads on; the text is empty, or none of it could be aligned")
    images = corpus.images if len(corpus.images) <= limit else [corpus.images[i] for i in range(limit)]
    return replace(corpus, sentences=corpus.sentences[:limit], targets=corpus.targets[:limit], images=images)


def _choose_key_kinds(corpus: Corpus) -> KeyKinds:
    """Returns the parts of speech by how often they occur, and the relations that occur often enough."""
    texts = (*corpus.sentences, *corpus.targets)
    tags = Counter(word.upos for s in texts for word in s.annotated.words if word.upos)
    relations = tuple(role for role in Syntax.list_offered(corpus).testable if isinstance(role, Syntax))
    return KeyKinds(tuple(sorted(tags, key=lambda tag: (-tags[tag], tag))), relations)


def _choose_query_tokens_by_side(
    model: Any, corpus: Corpus, observed_blocks: Sequence[AttentionBlock], seed: int
) -> dict[str, dict[int, list[int]]]:
    """Returns the query tokens of each side whose attention is stored: as many as the distances of all heads allow."""
    if corpus.grid:
        n_patches, n_heads = corpus.grid[0] * corpus.grid[1], sum(block.n_heads for block in observed_blocks)
        is_patch = [[False] + [True] * (n_patches - 1)] * len(corpus.images)
        return {"source": sample_query_tokens(is_patch, n_affordable_queries(n_heads, n_patches, N_ROWS), seed)}
    rows = {}
    for side, sentences, n_front in (("source", corpus.sentences, 0), ("target", corpus.targets, 1)):
        views = [view for view in VIEWS if (view == "source") == (side == "source")]
        n_heads = max((sum(b.n_heads for b in observed_blocks if view_name(model, b) == view) for view in views), default=0)
        if sentences and n_heads:
            n_keys = max(len(s.ids) for s in (*corpus.sentences, *corpus.targets))
            ordinary = [[False] * n_front + [not special for special in s.special] for s in sentences]
            rows[side] = sample_query_tokens(ordinary, n_affordable_queries(n_heads, n_keys, N_ROWS), seed)
    return rows


def _sum_chunks_and_keep_top_queries(chunks: Iterable[Measured]) -> dict[str, np.ndarray]:
    """Returns sums over examples; of the most confident queries of each example, the few best of each head."""
    totals: dict[str, np.ndarray] = {}
    n_examples = 0
    for chunk in chunks:
        for name, values in chunk.items():
            if name.endswith("/top"):
                numbers = np.arange(n_examples, n_examples + len(values))[:, None, None]
                candidates = np.concatenate([np.broadcast_to(numbers, (*values.shape[:2], 1)), values], -1)
                if name in totals:
                    candidates = np.concatenate([totals[name], candidates])
                order = np.argsort(-candidates[:, :, 2], axis=0, kind="stable")[:N_TOP]
                totals[name] = np.take_along_axis(candidates, order[:, :, None], 0)
            else:
                totals[name] = totals.get(name, 0) + values.sum(0)
        n_examples += len(next(iter(chunk.values())))
    return totals


def _explain_missing_parts(corpus: Corpus, kinds: KeyKinds, mapped_sentences: Sequence[int], max_tokens_of_map: int) -> list[str]:
    """Returns what a profile of this corpus lacks, one sentence each."""
    if corpus.grid:
        return ["Images have no words: there are no distances, parts of speech, relations, examples or attention maps of them."]
    notes = []
    if not any(s.annotated.words for s in corpus.sentences):
        notes.append("The text holds tokens without words: distances count tokens.")
    if not kinds.tags:
        notes.append("The text has no parts of speech, so attention by part of speech is left out; use a treebank (CoNLL-U) or a parser.")
    if not kinds.relations:
        notes.append(f"No dependency relation occurs {MIN_OCCURRENCES} times in the text, so attention by relation is left out.")
    if not mapped_sentences:
        notes.append(
            f"No sentence has {STRETCH * max_tokens_of_map} tokens or fewer, so no attention maps are shown; use a text with shorter sentences."
        )
    return notes


class _StoredRow(NamedTuple):
    """The attention of one query token of an example to all keys, by one head."""

    example_number: int
    query_position: int
    attention: Float[np.ndarray, " k"]


@dataclass(slots=True)
class _Summary:
    """The results of the pass, put together head by head."""

    model: Any
    heads: HeadMap
    corpus: Corpus
    probe: ProfileProbe
    totals: Mapping[str, np.ndarray]
    tokenizer: Any
    seed: int

    def profile_content(self) -> dict[str, Any]:
        """Returns everything but sentences and maps; None for heads that were not observed."""
        kinds, n = self.probe.kinds, len(self.heads)
        shares: list[np.ndarray | None] = [None] * n
        entropy: list[float | None] = [None] * n
        confidence: list[float | None] = [None] * n
        similar: list[list[Any]] = [[] for _ in range(n)]
        examples: list[Examples] = [{"top": [], "middle": [], "random": []} for _ in range(n)]
        expected: dict[str, np.ndarray] = {}
        for view in VIEWS:
            blocks = self.probe.blocks_of_view(view)
            if not blocks:
                continue
            heads = [head for block in blocks for head in range(*self.heads.positions(block).indices(n))]
            n_queries = self.totals[f"{view}/number"]  # [blocks, 1 + relations]
            n_by_head = np.repeat(n_queries, [block.n_heads for block in blocks], 0)
            for i, head in enumerate(heads):
                if n_by_head[i, 0]:
                    entropy[head] = round(float(self.totals[f"{view}/entropy"][i] / n_by_head[i, 0]), 5)
                    confidence[head] = round(float(self.totals[f"{view}/confidence"][i] / n_by_head[i, 0]), 5)
                    shares[head] = None if self.corpus.grid else self._mean_mass_per_query(self.totals[f"{view}/mass"][i], n_by_head[i])
            for head, neighbours in self._nearest_heads_of_view(view, heads).items():
                similar[head] = [[neighbour, round(distance, 4)] for neighbour, distance in neighbours]
            if not self.corpus.grid:
                expected[blocks[0].kind] = self._mean_mass_per_query(self.totals[f"{view}/even"].sum(0), n_queries.sum(0))
                for head, of_head in zip(heads, self._examples_of_each_head(view, heads), strict=True):
                    examples[head] = of_head
        has_tags, relations = bool(kinds.tags) and not self.corpus.grid, [relation.relation for relation in kinds.relations]
        return {
            "distances": list(DISTANCES),
            "distance": [_rounded_shares(row, slice(0, len(DISTANCES))) for row in shares],
            "pos": _select_share_columns(shares, expected, kinds.tag_columns, [*kinds.tags, NO_WORD]) if has_tags else None,
            "relation": _select_share_columns(shares, expected, kinds.relation_columns, relations) if relations else None,
            "entropy": entropy,
            "confidence": confidence,
            "similar": similar,
            "examples": examples,
        }

    def _mean_mass_per_query(self, mass: np.ndarray, n_queries: np.ndarray) -> np.ndarray:
        """Returns mass over the number of queries that can have it; NaN if there is none."""
        divisor = np.full(len(mass), n_queries[0], dtype=np.float64)
        divisor[self.probe.kinds.relation_columns] = n_queries[1:]
        return np.divide(mass, divisor, out=np.full(len(mass), np.nan), where=divisor > 0)

    def _nearest_heads_of_view(self, view: ViewName, head_indices: list[int]) -> dict[int, list[tuple[int, float]]]:
        """Returns the nearest heads of every head of a view, with their distances."""
        blocks, stored = self.probe.blocks_of_view(view), self.probe.stored_rows.get(view, {})
        rows = (torch.cat([by_block[block.path] for block in blocks]).numpy() for _, by_block in sorted(stored.items()))
        return nearest_heads(mean_jensen_shannon_distances(rows), head_indices, N_SIMILAR) if stored and len(head_indices) > 1 else {}

    def _examples_of_each_head(self, view: ViewName, head_indices: list[int]) -> Iterator[Examples]:
        """Yields for every head of a view its most confident queries, some of the middle, and some at random."""
        random = make_purpose_generator(self.seed, 3)
        stored = sorted(self.probe.stored_rows.get(view, {}).items())
        keys = self.corpus.targets if view == "target" else self.corpus.sentences
        n_front = 1 if view == "target" else 0  # the start token of a decoder
        is_ordinary = {number: ~np.array([True] * n_front + list(keys[number].special), dtype=bool) for (number, _), _ in stored}
        for i, head in enumerate(head_indices):
            block = self.heads.block_of(self.heads[head])
            own = block.position(self.heads[head])
            rows = [_StoredRow(number, token, by_block[block.path][own].numpy()) for (number, token), by_block in stored]
            weights = [row[is_ordinary[number]].max(initial=0.0) for number, _, row in rows]
            order = sorted(range(len(rows)), key=lambda j: abs(weights[j] - float(np.median(weights)))) if rows else []
            at_random = random.permutation(len(rows))[:N_OTHERS].tolist()
            top = []
            for number, query, weight, *strongest in self.totals[f"{view}/top"][:, i].tolist():
                pairs = zip(strongest[:STRONGEST], strongest[STRONGEST:], strict=True)
                shown_keys = [(int(key), value) for key, value in pairs if key >= 0 and value >= MIN_WEIGHT]
                if weight > 0:
                    top.append(self._describe_query(view, int(number), int(query), shown_keys, weight))
            yield {
                "top": top,
                "middle": [self._describe_stored_row(view, rows[j], weights[j]) for j in sorted(order[:N_OTHERS])],
                "random": [self._describe_stored_row(view, rows[j], weights[j]) for j in at_random],
            }

    def _describe_stored_row(self, view: ViewName, stored: _StoredRow, largest_weight: float) -> dict[str, Any]:
        """Returns a stored row of attention as plain data."""
        number, token, row = stored
        order = np.argsort(-row, kind="stable")[:STRONGEST]
        return self._describe_query(
            view, number, token, [(int(k), float(row[k])) for k in order if row[k] >= MIN_WEIGHT], float(largest_weight)
        )

    def _describe_query(
        self, view: ViewName, example_number: int, query_position: int, weighted_keys: list[tuple[int, float]], largest_weight: float
    ) -> dict[str, Any]:
        """Returns a query of an example with the keys it attends to most, as plain data."""
        source = token_texts(self.corpus.sentences[example_number], self.tokenizer)
        if view == "source":
            return describe_query(source, query_position, weighted_keys, largest_weight)
        target = token_texts(self.corpus.targets[example_number], self.tokenizer, start_token=decoder_start_id(self.model))
        return (
            describe_query(target, query_position, weighted_keys, largest_weight)
            if view == "target"
            else describe_query(source, query_position, weighted_keys, largest_weight, target)
        )

    def describe_sentences(self, sentence_numbers: Sequence[int]) -> list[dict[str, Any]]:
        """Returns the sentences whose maps are stored."""
        causal = not self.corpus.targets and any(block.kind == "decoder-self" for block in self.probe.blocks)
        start = decoder_start_id(self.model)
        return [
            {
                "id": self.corpus.sentences[number].annotated.origin or f"sentence {number}",
                "source": describe_side(self.corpus.sentences[number], self.tokenizer),
                "target": describe_side(self.corpus.targets[number], self.tokenizer, start_token=start) if self.corpus.targets else None,
                "causal": causal,
            }
            for number in sentence_numbers
        ]

    def encode_maps(self, sentence_numbers: Sequence[int]) -> dict[str, np.ndarray]:
        """Returns the maps by sentence and block, in the order of `describe_sentences` and of the blocks of the model."""
        stored = self.probe.stored_maps
        return {
            f"{sentence}/{index}": np.rint(255 * np.sqrt(stored[number, block.path].clamp(0, 1).numpy())).astype(np.uint8)
            for sentence, number in enumerate(sentence_numbers)
            for index, block in enumerate(self.heads.blocks)
            if (number, block.path) in stored
        }


def _select_share_columns(
    shares_by_head: Sequence[np.ndarray | None],
    uniform_shares_by_block_kind: Mapping[str, np.ndarray],
    columns: slice,
    column_names: list[str],
) -> dict[str, Any]:
    """Returns some columns of the shares of all heads, and of uniform attention by kind of block."""
    by_kind = {
        kind: [round(float(value), 6) if np.isfinite(value) else 0.0 for value in row[columns]]
        for kind, row in uniform_shares_by_block_kind.items()
    }
    return {"names": column_names, "share": [_rounded_shares(row, columns) for row in shares_by_head], "expected_by_kind": by_kind}


def _rounded_shares(shares_of_head: np.ndarray | None, columns: slice) -> list[float | None]:
    """Returns some columns of one head's shares, rounded; None for what was not observed."""
    if shares_of_head is None:
        return [None] * (columns.stop - columns.start)
    return [round(float(value), 5) if np.isfinite(value) else None for value in shares_of_head[columns]]
