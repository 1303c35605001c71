"""Roles that a caller describes in one line: a function from a view to a sieve, or a matrix for each sentence."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from headcount.behaviour.base import Role, RoleInfo, Sieve, View
from headcount.behaviour.word_sieves import link_words
from headcount.core.errors import OptionError
from headcount.core.registry import ROLES

PatternRule = Callable[[View], Any] | Sequence[Any]
"""A function that returns the keys of each query, [batch, q, k], or for each sentence a boolean matrix [q, k] over its words or its tokens."""


@dataclass(frozen=True)
class Pattern(Role):
    """Attends to the keys that a caller's rule names; tested as roles of content are."""

    label: str
    mark: Callable[[View], Any] = field(repr=False)
    info = RoleInfo(source="the caller", is_content=True)

    def __post_init__(self) -> None:
        if self.label.partition(":")[0] in ROLES.names():
            raise OptionError(f"pattern '{self.label}' has the name of a role of `headcount ls roles`; choose another name")

    def __str__(self) -> str:
        """Returns the caller's name of the pattern."""
        return self.label

    def sieve(self, view: View) -> Sieve:
        """Returns the keys that the rule names."""
        shape = (*view.queries.ids.shape, view.keys.ids.shape[1])
        marks = torch.as_tensor(self.mark(view))
        if marks.dtype != torch.bool or tuple(marks.shape) not in (shape, shape[1:]):
            raise OptionError(
                f"pattern '{self.label}' must return booleans [batch, q, k], here {list(shape)}; got {marks.dtype} {list(marks.shape)}"
            )
        return marks.expand(shape)


def parse_patterns(patterns: Mapping[str, PatternRule] | None) -> tuple[Pattern, ...]:
    """Returns the roles of a caller's rules.

    Raises:
        OptionError: a rule is neither a function nor a sequence of boolean matrices, or has the name of a role.
    """
    parsed = []
    for label, rule in (patterns or {}).items():
        if callable(rule):
            parsed.append(Pattern(label, rule))
        elif isinstance(rule, Sequence):
            parsed.append(Pattern(label, _MatrixRule(label, tuple(np.asarray(matrix) for matrix in rule))))
        else:
            raise OptionError(
                f"pattern '{label}' must be a function from a view to a sieve, or a boolean matrix for each sentence; got {rule!r}"
            )
    return tuple(parsed)


@dataclass(frozen=True, eq=False)
class _MatrixRule:
    """The keys by a matrix for each sentence of the corpus."""

    label: str
    matrices: tuple[np.ndarray, ...]

    def __call__(self, view: View) -> Sieve:
        sentences = view.corpus.sentences
        if len(self.matrices) != len(sentences):
            raise OptionError(f"pattern '{self.label}' has {len(self.matrices)} matrices for {len(sentences)} sentences that can be tested")
        sieve = torch.zeros(*view.queries.ids.shape, view.keys.ids.shape[1], dtype=torch.bool)
        number_of = {id(sentence): number for number, sentence in enumerate(sentences)}
        links: list[list[tuple[int, int]]] = []
        for row, sentence in enumerate(view.queries.sentences):
            number = number_of.get(id(sentence))
            matrix = np.zeros((0, 0), dtype=bool) if number is None else self.matrices[number]
            n_tokens, n_words = len(sentence.ids), len(sentence.annotated.words)
            of_tokens = matrix.shape == (n_tokens, n_tokens)
            if number is not None and (matrix.dtype != bool or (not of_tokens and matrix.shape != (n_words, n_words))):
                expected = f"booleans of {n_words} × {n_words} words or {n_tokens} × {n_tokens} tokens"
                raise OptionError(
                    f"pattern '{self.label}', sentence {number}: {expected} are needed, got {matrix.dtype} {list(matrix.shape)}"
                )
            if of_tokens:
                sieve[row, :n_tokens, :n_tokens] = torch.from_numpy(matrix)
            links.append([] if of_tokens else [(int(query), int(key)) for query, key in np.argwhere(matrix)])
        return sieve | link_words(view, links)
