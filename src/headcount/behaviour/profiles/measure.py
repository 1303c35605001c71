"""Runs sentences or images through a model and hands every block's attention to the numbers of `_numbers`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from headcount.behaviour.base import Corpus, Side, View
from headcount.behaviour.catalogue import syntax
from headcount.behaviour.measure import view_of
from headcount.behaviour.profiles.numbers import DISTANCES, distance_bins, entropies, even, mass, one_hot, strongest
from headcount.core.errors import NonFinite, UnsupportedModel
from headcount.core.heads import AttentionBlock
from headcount.data.checks import check_batch
from headcount.models.modules import at_least_single
from headcount.models.observe import Observation, Observer, reads_text

VIEWS = ("source", "target", "cross")


@dataclass(frozen=True, slots=True)
class Kinds:
    """The kinds of keys that shares are taken of: parts of speech and relations in both directions."""

    pos: tuple[str, ...] = ()
    relations: tuple[str, ...] = ()

    @property
    def width(self) -> int:
        """Distances, parts of speech and `no word` where there are any, then relations."""
        return len(DISTANCES) + (len(self.pos) + 1 if self.pos else 0) + len(self.relations)

    @property
    def pos_part(self) -> slice:
        """Where parts of speech are."""
        return slice(len(DISTANCES), len(DISTANCES) + (len(self.pos) + 1 if self.pos else 0))

    @property
    def relation_part(self) -> slice:
        """Where relations are."""
        return slice(self.pos_part.stop, self.width)


@dataclass(frozen=True, slots=True, eq=False)
class Ready:
    """One view of a batch: which queries ask, which keys are ordinary, the kinds of keys [batch, q, k, kinds]; and the queries of each relation."""

    asks: Tensor
    ordinary: Tensor
    kinds: Tensor
    sieves: Tensor


@dataclass(slots=True)
class PortraitProbe:
    """Measures portraits of a corpus; `rows` are query tokens by side and example whose attention is kept, `maps` examples that are kept whole."""

    model: nn.Module
    blocks: Sequence[AttentionBlock]
    corpus: Corpus
    kinds: Kinds
    rows: Mapping[str, Mapping[int, Sequence[int]]]
    maps: Sequence[int] = ()
    kept_rows: dict[str, dict[tuple[int, int], dict[str, Tensor]]] = field(default_factory=dict)
    kept_maps: dict[tuple[int, str], Tensor] = field(default_factory=dict)
    _found: dict[str, dict[str, list[Tensor]]] = field(default_factory=dict)
    _numbers: list[int] = field(default_factory=list)
    _ready: dict[str, Ready] = field(default_factory=dict)
    _calls: dict[str, int] = field(default_factory=dict)

    def blocks_of(self, view: str) -> list[AttentionBlock]:
        """The blocks in which a view meets."""
        return [block for block in self.blocks if view_of(self.model, block) == view]

    def __call__(self, batch: Mapping[str, Any], numbers: list[int]) -> dict[str, Tensor]:
        """Per example, for every view: mass of each head on each kind of key, of even attention, numbers of queries, entropy, confidence, and its
        surest query. A block that runs several times in a pass counts by the mean of its calls."""
        check_batch(self.model, batch, numbers)
        self._found, self._numbers, self._ready, self._calls = {}, numbers, {}, {}
        with Observer(self.model, self._consume, blocks=self.blocks, outputs=False) as observer:
            observer.run(batch)
        silent = next((block.path for block in self.blocks if block.path not in self._calls), None)
        if silent is not None:
            raise UnsupportedModel(f"block '{silent}' did not run on this input, so its attention cannot be seen")
        order = {block.path: place for place, block in enumerate(self.blocks)}
        return {
            name: torch.cat([torch.stack(calls[path]).mean(0) for path in sorted(calls, key=order.__getitem__)], 1)
            for name, calls in self._found.items()
        }

    def _consume(self, seen: Observation) -> None:
        assert seen.attention is not None and seen.visible is not None
        view, path = view_of(self.model, seen.block), seen.block.path
        if seen.attention.shape[0] != len(self._numbers):
            raise UnsupportedModel(f"block '{path}' does not attend example by example, so it has no portrait")
        attention = at_least_single(seen.attention)
        if not attention.isfinite().all():
            row = int((~attention.isfinite()).flatten(1).any(1).int().argmax())
            raise NonFinite(f"example {self._numbers[row]}: the attention of block '{path}' holds NaN; try float32 or bfloat16")
        if view not in self._ready:
            self._ready[view] = self._prepared(view, *seen.visible.shape[1:])
        ready = self._ready[view]
        self._calls[path] = self._calls.get(path, 0) + 1
        for name, value in self._measured(attention, seen.visible, ready).items():
            self._found.setdefault(f"{view}/{name}", {}).setdefault(path, []).append(value)
        self._keep(view, path, attention)

    def _measured(self, attention: Tensor, visible: Tensor, ready: Ready) -> dict[str, Tensor]:
        device = attention.device
        asks, kinds, sieves = ready.asks.to(device), ready.kinds.to(device), ready.sieves.to(device)
        surest, top = strongest(attention, asks, ready.ordinary.to(device))
        number = asks.sum(-1, keepdim=True)
        asked = (sieves & visible[..., None]).any(2).sum(1)  # [batch, relations]
        return {
            "mass": mass(attention, kinds),
            "even": mass(even(visible), kinds),
            "number": torch.cat([number, asked], -1)[:, None].double(),
            "entropy": torch.where(asks[:, None, :], entropies(attention), 0.0).sum(-1),
            "confidence": surest.sum(-1),
            "top": top,
        }

    def _keep(self, view: str, path: str, attention: Tensor) -> None:
        """Whole rows of the chosen tokens, and whole maps of the chosen examples; the mean over calls so far."""
        side, before = "source" if view == "source" else "target", self._calls[path] - 1
        rows, maps = self.kept_rows.setdefault(view, {}), self.kept_maps
        for place, number in enumerate(self._numbers):
            n_queries, n_keys = self._lengths(view, number, attention.shape[-2:])
            for token in self.rows.get(side, {}).get(number, ()):
                held, fresh = rows.setdefault((number, token), {}), attention[place, :, token, :n_keys].cpu()
                held[path] = (held[path] * before + fresh) / (before + 1) if before else fresh.clone()
            if number in self.maps:
                fresh = attention[place, :, :n_queries, :n_keys].cpu()
                key = (number, path)
                maps[key] = (maps[key] * before + fresh) / (before + 1) if before else fresh.clone()

    def _lengths(self, view: str, number: int, padded: Sequence[int]) -> tuple[int, int]:
        if self.corpus.grid:
            return padded[0], padded[1]
        source = len(self.corpus.sentences[number].ids)
        target = len(self.corpus.targets[number].ids) + 1 if self.corpus.targets else 0
        return {"source": (source, source), "target": (target, target), "cross": (target, source)}[view]

    def _prepared(self, view: str, n_queries: int, n_keys: int) -> Ready:
        queries, keys = self._sides(view, n_queries, n_keys)
        asks = queries.ordinary
        nothing = torch.zeros(len(self._numbers), n_queries, n_keys, 0)
        if self.corpus.grid:
            return Ready(asks, keys.ordinary, nothing, nothing.bool())
        seen = View(queries, keys, self.corpus)
        relations = self.kinds.relations if view != "cross" else ()
        sieves = [syntax.sieve(seen, name) for name in relations]
        stacked = torch.stack(sieves, -1) if sieves else torch.zeros(*nothing.shape[:3], len(self.kinds.relations), dtype=torch.bool)
        parts = [one_hot(distance_bins(_words(queries), _words(keys)), len(DISTANCES))]
        if self.kinds.pos:
            parts.append(one_hot(self._tags(keys)[:, None, :].expand(-1, n_queries, -1), len(self.kinds.pos) + 1))
        kinds = torch.cat([*parts, stacked.float()], -1) * asks[:, :, None, None]
        return Ready(asks, keys.ordinary, kinds, stacked & asks[:, :, None, None])

    def _sides(self, view: str, n_queries: int, n_keys: int) -> tuple[Side, Side]:
        if self.corpus.grid:
            rows, columns = self.corpus.grid
            if n_keys < rows * columns:
                raise UnsupportedModel(
                    f"a block has {n_keys} tokens, fewer than the {rows * columns} patches of an image: it has no such grid"
                )
            side = Side.of_patches(len(self._numbers), n_keys, rows * columns)
            return side, side
        source = [self.corpus.sentences[i] for i in self._numbers]
        targets = [self.corpus.targets[i] for i in self._numbers] if self.corpus.targets else []
        keys = Side.of(targets, n_keys, offset=1) if view == "target" else Side.of(source, n_keys)
        return (Side.of(targets, n_queries, offset=1) if view == "cross" else keys), keys

    def _tags(self, side: Side) -> Tensor:
        """The part of speech of every token; the last number is none."""
        place = {tag: number for number, tag in enumerate(self.kinds.pos)}
        none = len(self.kinds.pos)
        found = torch.full_like(side.words, none)
        for row, sentence in enumerate(side.sentences):
            tags = torch.tensor([place.get(word.upos, none) for word in sentence.annotated.words] + [none])
            found[row] = tags[side.words[row]]
        return found


def _words(side: Side) -> Tensor:
    """The number of every token's word; of text without words every ordinary token is its own."""
    bare = torch.tensor([not sentence.annotated.words for sentence in side.sentences])
    return torch.where(bare[:, None] & side.ordinary, side.positions[None, :], side.words)


def visible_blocks(model: Any, corpus: Corpus, blocks: Sequence[AttentionBlock]) -> tuple[list[AttentionBlock], list[str]]:
    """The blocks that a corpus shows, and sentences about those that it does not."""
    found, notes = [], []
    for block in blocks:
        if not block.n_heads:
            continue
        if not corpus.grid and not reads_text(block):
            notes.append((block, "it reads no text"))
        elif view_of(model, block) != "source" and not corpus.targets:
            notes.append((block, "the text has no translations, so the decoder reads nothing"))
        else:
            found.append(block)
    reasons: dict[str, list[str]] = {}
    for block, why in notes:
        reasons.setdefault(why, []).append(block.name)
    return found, [f"No portraits of {', '.join(names)}: {why}." for why, names in reasons.items()]
