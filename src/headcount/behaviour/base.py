"""What a role file holds: `ABOUT` and `sieve(view, name)`, and `names(corpus)` where it offers several roles, `scarce(corpus)` where some of them
may occur too rarely to be tested, with how often they do.

A sieve says, for every query token, on which keys a head with this role would look: [batch, q, k], all False where the role says nothing about a
query. Everything else follows from it: the sieve bias, its test, the accuracy of the strongest key, its baseline. Keys that a query cannot see are
taken out afterwards, so a sieve need not know about masks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from headcount.data.text.aligned import Aligned
from headcount.data.text.annotated import Annotated

__all__ = ["LEAST", "About", "Aligned", "Corpus", "Side", "Sieve", "View", "Where", "bare"]

LEAST = 20
"""How often a relation or a part of speech must occur in a text to be tested."""
Where = Literal["self", "cross", "image"]
Sieve = Bool[Tensor, "batch q k"]


@dataclass(frozen=True, slots=True)
class About:
    """What a role file declares: the attention it is about, what text must carry for it, where it comes from.

    `special_targets` says that delimiters are what it looks for; else the strongest key is sought among other tokens. `positional` says that a
    fixed offset fulfils it, so that the strongest key must be right for 90 % of tokens, not better than such an offset. A file with a function
    `probe(model, seed)` is tested on sequences of its own, which that returns as a Corpus, or None where they say nothing about the model.
    `legacy` names are measured only when asked for, their bias multiplied by the entropy of the token's attention; they are never a label.
    """

    source: str
    where: frozenset[Where] = frozenset({"self"})
    needs: frozenset[str] = frozenset()
    special_targets: bool = False
    positional: bool = False
    legacy: frozenset[str] = frozenset()


@dataclass(frozen=True, eq=False)
class Side:
    """The tokens on one side of attention, padded: ids, which are real, which are delimiters, their words (-1 for none) and segments."""

    ids: Int[Tensor, "batch n"]
    real: Bool[Tensor, "batch n"]
    special: Bool[Tensor, "batch n"]
    words: Int[Tensor, "batch n"]
    segments: Int[Tensor, "batch n"]
    sentences: tuple[Aligned, ...]
    front: int = 0

    @classmethod
    def of(cls, sentences: Sequence[Aligned], length: int, *, offset: int = 0, pad_id: int = 0) -> Side:
        """The side of some sentences, each padded on the right to `length`; `offset` delimiters stand in front (a decoder's start token)."""

        def row(values: Sequence[int], front: int, fill: int) -> list[int]:
            kept = [front] * offset + list(values)
            return (kept + [fill] * length)[:length]

        words = [row([-1 if w is None else w for w in s.words], -1, -1) for s in sentences]
        return cls(
            ids=torch.tensor([row(s.ids, pad_id, pad_id) for s in sentences]),
            real=torch.tensor([row([1] * len(s.ids), 1, 0) for s in sentences]).bool(),
            special=torch.tensor([row([int(x) for x in s.special], 1, 0) for s in sentences]).bool(),
            words=torch.tensor(words),
            segments=torch.tensor([row(s.segments, 0, -1) for s in sentences]),
            sentences=tuple(sentences),
            front=offset,
        )

    @classmethod
    def of_patches(cls, rows: int, length: int, patches: int) -> Side:
        """The side of some images: delimiters first, then the patches of the grid, row by row."""
        front = length - patches
        special = (torch.arange(length) < front).expand(rows, length)
        blank = torch.zeros(rows, length, dtype=torch.long)
        places = (torch.arange(length) - front).clamp(min=-1).expand(rows, length)
        return cls(blank, torch.ones_like(special), special, places, blank, ())

    @cached_property
    def positions(self) -> Int[Tensor, " n"]:
        """The places of the tokens."""
        return torch.arange(self.ids.shape[1])

    @cached_property
    def pieces(self) -> tuple[Bool[Tensor, "words n"], ...]:
        """For every sentence, which tokens stand for each of its words; words of one multi-word token may share them."""
        found = []
        for row, sentence in enumerate(self.sentences):
            held = self.words[row][None, :] == torch.arange(len(sentence.annotated.words))[:, None]
            for word in sentence.borrowing:
                held[word, [self.front + place for place in sentence.pieces(word)]] = True
            found.append(held)
        return tuple(found)

    @property
    def ordinary(self) -> Bool[Tensor, "batch n"]:
        """Real tokens that are no delimiters."""
        return self.real & ~self.special


@dataclass(frozen=True, slots=True, eq=False)
class View:
    """What a sieve sees of one batch: the tokens that ask, the tokens that are looked at, and the corpus they come from."""

    queries: Side
    keys: Side
    corpus: Corpus

    @property
    def distance(self) -> Int[Tensor, "q k"]:
        """Key place minus query place."""
        return self.keys.positions[None, :] - self.queries.positions[:, None]

    def apart(self, axis: int) -> Int[Tensor, "batch q k"]:
        """How many rows (axis 0) or columns (axis 1) of the patch grid lie between two patches."""
        assert self.corpus.grid is not None
        columns = self.corpus.grid[1]
        places = [side.words // columns if axis == 0 else side.words % columns for side in (self.queries, self.keys)]
        return (places[0][:, :, None] - places[1][:, None, :]).abs()


@dataclass(frozen=True, eq=False)
class Corpus:
    """All sentences that roles are tested on, and what can be counted in them before any runs."""

    sentences: tuple[Aligned, ...] = ()
    targets: tuple[Aligned, ...] = ()
    images: Sequence[Mapping[str, Any]] = ()
    grid: tuple[int, int] | None = None
    """Rows and columns of patches, for images."""
    facts: Mapping[str, Any] = field(default_factory=dict)
    """What a probe wants its sieve to know."""

    @cached_property
    def counts(self) -> Counter[int]:
        """How often each ordinary token occurs, translations included."""
        texts = (*self.sentences, *self.targets)
        return Counter(i for s in texts for i, special in zip(s.ids, s.special, strict=True) if not special)

    @cached_property
    def frequent(self) -> frozenset[int]:
        """The 500 most frequent tokens."""
        return frozenset(token for token, _ in self.counts.most_common(500))

    @cached_property
    def relations(self) -> Counter[str]:
        """How often each dependency relation occurs."""
        return Counter(w.relation for s in self.sentences for w in s.annotated.words if w.relation is not None and w.head is not None)

    @cached_property
    def tags(self) -> Counter[str]:
        """How often each part of speech occurs."""
        return Counter(w.upos for s in self.sentences for w in s.annotated.words if w.upos)

    @property
    def has_pairs(self) -> bool:
        """Whether any sentence is a pair of texts."""
        return any(1 in s.segments for s in self.sentences)


def bare(ids: Sequence[int], n_special: int = 0) -> Aligned:
    """Tokens that stand for no text: the sequences of a probe; the first `n_special` are delimiters."""
    special = tuple(i < n_special for i in range(len(ids)))
    nothing = (None,) * len(ids)
    zeros = tuple(-1 if s else 0 for s in special)
    return Aligned(tuple(ids), nothing, special, zeros, Annotated("probe", ()), False, ((0, 0),) * len(ids), (), 0)
