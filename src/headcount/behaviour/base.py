"""Roles: what a head attends to, as a sieve over keys, and the views of a corpus that a sieve is computed on.

A sieve marks, for every query token, the keys that a head with this role attends to: [batch, q, k], all False for queries that the role says
nothing about. Everything else follows from it: the sieve bias, its test, the accuracy of the strongest key, its baseline. Keys that the attention
mask hides are removed afterwards, so a sieve need not know about masks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar, Literal, Self, get_args

import torch
from jaxtyping import Bool, Int
from torch import Tensor, nn

from headcount.core.errors import unknown_name_error
from headcount.core.options import Configurable
from headcount.core.registry import ROLES
from headcount.data.text.aligned import Aligned
from headcount.data.text.annotated import Annotated

MIN_OCCURRENCES = 20
"""How often a relation or a part of speech must occur in a text to be tested."""
AttentionOfRole = Literal["self", "cross", "image"]
Annotation = Literal["tree", "tags", "pairs", "clusters", "links"]
Sieve = Bool[Tensor, "batch q k"]


@dataclass(frozen=True, slots=True)
class RoleInfo:
    """What a role is tested on and where it comes from.

    Attributes:
        source: The paper that describes it.
        attention: The attention it is about: between tokens of a text, from a translation to its source, between patches of an image.
        needs: What the text must be annotated with.
        special_targets: Whether delimiters count as keys; otherwise the strongest key is sought among the other tokens.
        positional: Whether a fixed offset fulfils the role. Its strongest key must then be right for 90 % of the tokens, instead of more often
            than the best fixed offset.
        is_content: Whether the role is about what keys are, not where they stand. Beyond distance, it is tested against the head's distance twin.
    """

    source: str
    attention: frozenset[AttentionOfRole] = frozenset({"self"})
    needs: frozenset[Annotation] = frozenset()
    special_targets: bool = False
    positional: bool = False
    is_content: bool = False

    def __post_init__(self) -> None:
        for values, kind, known in (
            (self.attention, "attention", get_args(AttentionOfRole)),
            (self.needs, "annotation", get_args(Annotation)),
        ):
            for value in values:
                if value not in known:
                    raise unknown_name_error(f"{kind} of a role", value, known)


@dataclass(frozen=True, slots=True)
class OfferedRoles:
    """The roles of one class that a corpus can be tested for, and those that occur too rarely, with how often they occur."""

    testable: tuple[Role, ...] = ()
    too_rare: Mapping[Role, int] = field(default_factory=dict)

    @classmethod
    def by_count(cls, counts: Mapping[Role, int]) -> Self:
        """Returns the roles that occur at least `MIN_OCCURRENCES` times as testable, the others as too rare."""
        testable = tuple(role for role, number in counts.items() if number >= MIN_OCCURRENCES)
        return cls(testable, {role: number for role, number in counts.items() if number < MIN_OCCURRENCES})


@dataclass(frozen=True)
class Role(Configurable):
    """What a head may do, as a pattern of attention. Positional fields stand after the colon of its name: `syntax:nsubj` is `Syntax("nsubj")`."""

    info: ClassVar[RoleInfo]

    @property
    def is_legacy(self) -> bool:
        """Whether the bias is multiplied by the entropy of the token's attention. Such a role is measured only when named, and is never a label."""
        return False

    @classmethod
    def parse(cls, text: str | Role) -> Role:
        """Returns the role that a text describes, `name:variant(option=value)`; a role is returned as it is.

        Raises:
            UnknownName: no role is registered under the name, or it has no such variant or option.
            OptionError: a value is missing, has the wrong type or is out of range.
        """
        return ROLES.parse(text, Role)

    @classmethod
    def list_offered(cls, corpus: Corpus) -> OfferedRoles:
        """Returns the roles of this class that the corpus can show: one, unless the class has required fields."""
        return OfferedRoles((cls(),))

    def sieve(self, view: View) -> Sieve:
        """Returns, for every query, the keys that a head with this role attends to."""
        raise NotImplementedError(f"{type(self).__name__} has no sieve")


@dataclass(frozen=True)
class ProbeRole(Role):
    """A role that is tested on sequences of its own instead of the caller's text."""

    def probe(self, model: nn.Module, seed: int) -> Corpus | None:
        """Returns the sequences that the role is tested on; None if the model cannot be tested on such sequences."""
        raise NotImplementedError(f"{type(self).__name__} has no probe")


@dataclass(frozen=True, eq=False)
class Side:
    """The tokens on one side of attention, padded: the queries or the keys of a batch.

    Attributes:
        ids: Token ids.
        real: False for padding.
        special: True for delimiters.
        words: The word of each token, -1 for none; for images, the patch.
        segments: The text of a pair that each token is from, -1 for delimiters.
        sentences: The aligned sentences, empty for images.
        n_front: How many delimiters stand before the first token of a sentence (the start token of a decoder).
    """

    ids: Int[Tensor, "batch n"]
    real: Bool[Tensor, "batch n"]
    special: Bool[Tensor, "batch n"]
    words: Int[Tensor, "batch n"]
    segments: Int[Tensor, "batch n"]
    sentences: tuple[Aligned, ...]
    n_front: int = 0

    @classmethod
    def from_sentences(cls, sentences: Sequence[Aligned], n_tokens: int, *, n_delimiters_before: int = 0, pad_id: int = 0) -> Self:
        """Returns the side of some sentences, each padded on the right to `n_tokens`, with `n_delimiters_before` delimiters before each."""

        def pad_row(values: Sequence[int], front_value: int, end_value: int) -> list[int]:
            return ([front_value] * n_delimiters_before + list(values) + [end_value] * n_tokens)[:n_tokens]

        words = [pad_row([-1 if word is None else word for word in s.words], -1, -1) for s in sentences]
        return cls(
            ids=torch.tensor([pad_row(s.ids, pad_id, pad_id) for s in sentences]),
            real=torch.tensor([pad_row([1] * len(s.ids), 1, 0) for s in sentences]).bool(),
            special=torch.tensor([pad_row([int(is_special) for is_special in s.special], 1, 0) for s in sentences]).bool(),
            words=torch.tensor(words),
            segments=torch.tensor([pad_row(s.segments, 0, -1) for s in sentences]),
            sentences=tuple(sentences),
            n_front=n_delimiters_before,
        )

    @classmethod
    def from_images(cls, n_images: int, n_tokens: int, n_patches: int) -> Self:
        """Returns the side of some images of `n_tokens` each: delimiters first, then the patches of the grid, row by row."""
        n_front = n_tokens - n_patches
        special = (torch.arange(n_tokens) < n_front).expand(n_images, n_tokens)
        zeros = torch.zeros(n_images, n_tokens, dtype=torch.long)
        patches = (torch.arange(n_tokens) - n_front).clamp(min=-1).expand(n_images, n_tokens)
        return cls(zeros, torch.ones_like(special), special, patches, zeros, ())

    @cached_property
    def positions(self) -> Int[Tensor, " n"]:
        """The positions of the tokens."""
        return torch.arange(self.ids.shape[1])

    @cached_property
    def pieces(self) -> tuple[Bool[Tensor, "words n"], ...]:
        """For every sentence, the tokens of each of its words; words of one multi-word token may share them."""
        pieces = []
        for row, sentence in enumerate(self.sentences):
            of_word = self.words[row][None, :] == torch.arange(len(sentence.annotated.words))[:, None]
            for word in sentence.words_borrowing_pieces:
                of_word[word, [self.n_front + token for token in sentence.pieces(word)]] = True
            pieces.append(of_word)
        return tuple(pieces)

    @property
    def ordinary(self) -> Bool[Tensor, "batch n"]:
        """Real tokens that are no delimiters."""
        return self.real & ~self.special


@dataclass(frozen=True, slots=True, eq=False)
class View:
    """What a sieve is computed from: the queries and the keys of one batch, and the corpus they come from."""

    queries: Side
    keys: Side
    corpus: Corpus

    @property
    def distance(self) -> Int[Tensor, "q k"]:
        """Position of the key minus position of the query."""
        return self.keys.positions[None, :] - self.queries.positions[:, None]

    @property
    def ordinary(self) -> Bool[Tensor, "batch q k"]:
        """Pairs of an ordinary query and an ordinary key."""
        return self.queries.ordinary[:, :, None] & self.keys.ordinary[:, None, :]

    @property
    def other_words(self) -> Bool[Tensor, "batch q k"]:
        """Pairs of an ordinary query and a key that belongs to another word."""
        return (self.queries.words[:, :, None] != self.keys.words[:, None, :]) & self.queries.ordinary[:, :, None]

    def grid_distance(self, axis: int) -> Int[Tensor, "batch q k"]:
        """Returns how many rows (axis 0) or columns (axis 1) of the patch grid lie between two patches."""
        assert self.corpus.grid is not None
        n_columns = self.corpus.grid[1]
        queries, keys = (side.words // n_columns if axis == 0 else side.words % n_columns for side in (self.queries, self.keys))
        return (queries[:, :, None] - keys[:, None, :]).abs()


@dataclass(frozen=True, eq=False)
class Corpus:
    """The sentences, images or utterances that roles are tested on.

    Attributes:
        sentences: Sentences aligned with the tokens of the model.
        targets: Their translations, for encoder-decoder models.
        images: Mappings with `pixel_values`.
        grid: Rows and columns of patches, for images.
        refused: How many sentences could not be aligned, by reason.
        audio: Mappings with `input_features`. The sentences are then the frames of each utterance, and the targets what is said in it.
    """

    sentences: tuple[Aligned, ...] = ()
    targets: tuple[Aligned, ...] = ()
    images: Sequence[Mapping[str, Any]] = ()
    grid: tuple[int, int] | None = None
    refused: Mapping[str, int] = field(default_factory=dict)
    audio: Sequence[Mapping[str, Any]] = ()

    @cached_property
    def token_counts(self) -> Counter[int]:
        """How often each ordinary token occurs, translations included."""
        texts = (*(() if self.audio else self.sentences), *self.targets)
        return Counter(token for s in texts for token, is_special in zip(s.ids, s.special, strict=True) if not is_special)

    def most_frequent_tokens(self, n_tokens: int) -> frozenset[int]:
        """Returns the most frequent ordinary tokens."""
        return frozenset(token for token, _ in self.token_counts.most_common(n_tokens))

    @cached_property
    def relation_counts(self) -> Counter[str]:
        """How often each dependency relation occurs."""
        return Counter(w.relation for s in self.sentences for w in s.annotated.words if w.relation is not None and w.head is not None)

    @cached_property
    def tag_counts(self) -> Counter[str]:
        """How often each part of speech occurs."""
        return Counter(w.upos for s in self.sentences for w in s.annotated.words if w.upos)

    @property
    def has_two_text_sentences(self) -> bool:
        """Whether any sentence is a pair of texts."""
        return any(1 in s.segments for s in self.sentences)


def make_wordless_sequence(
    ids: Sequence[int], special: Sequence[bool] = (), type_ids: Sequence[int] | None = None, *, label: str = "probe"
) -> Aligned:
    """Returns tokens that have no words, such as the random tokens of a probe.

    Args:
        ids: Token ids.
        special: Which of the first tokens are delimiters; tokens beyond its end are not.
        type_ids: The text of a pair that each token is from.
        label: What stands in place of the text.
    """
    is_special = (*special, *(False,) * (len(ids) - len(special)))
    texts = (0,) * len(ids) if type_ids is None else type_ids
    segments = tuple(-1 if delimiter else text for delimiter, text in zip(is_special, texts, strict=True))
    return Aligned(
        ids=tuple(ids),
        words=(None,) * len(ids),
        special=is_special,
        segments=segments,
        annotated=Annotated(label, ()),
        truncated=False,
        offsets=((0, 0),) * len(ids),
        by_word=(),
        shared=0,
        type_ids=None if type_ids is None else tuple(type_ids),
    )
