"""The best head of a role: chosen by accuracy on one half of the sentences, with its accuracy measured on the other.

    a(head) = Σ hits / Σ tokens        the head of the largest a on the choosing half; a, its interval and the test of a = baseline from the other

The maximum over many heads is biased upwards on the sentences that chose it, and unbiased on others. The best fixed offset, to
which it is compared, is chosen and measured the same way. Which half a sentence belongs to is a bit of the hash of its tokens.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np

from headcount.core.heads import Head
from headcount.core.role_table import BestHead

Half = Literal[0, 1]
CHOOSING: Half = 0
MEASURING: Half = 1
"""The two halves of the sentences."""
LEVEL = 0.95
MIN_MEASURING = 2
"""Sentences that the measuring half needs for an interval."""


def half_of_example(example_content: Any) -> Half:
    """Returns the half that an example belongs to, by a hash of its content: it depends on no other example."""
    return MEASURING if hashlib.sha256(repr(example_content).encode()).digest()[0] & 1 else CHOOSING


class _HeadCandidate(NamedTuple):
    """A head that shows a role: its accuracy on the choosing half, a hash that settles ties, and where its sums are."""

    accuracy: float
    tie_breaker: str
    totals: HalfTotals
    column: int


class HalfTotals:
    """Sums of hits and tokens over each half of the sentences, for heads × roles, flattened."""

    def __init__(self, heads: Sequence[Head], roles: Sequence[str]) -> None:
        self.heads, self.roles = tuple(heads), tuple(roles)
        size = len(heads) * len(roles)
        self.hits, self.tokens, self.sentences = np.zeros((2, size)), np.zeros((2, size)), np.zeros((2, size))
        self.squares = np.zeros((3, size))  # Σ hits², Σ hits · tokens, Σ tokens² of the measuring half
        self.by_block: dict[str, list[Any]] = {"offsets": [0, 0], "chance": [0, 0]}

    def add_sentences(self, measured_by_name: Mapping[str, np.ndarray]) -> None:
        """Adds sentences, each to its half."""
        hits, tokens = (measured_by_name[name].reshape(len(measured_by_name[name]), -1) for name in ("hits", "tokens"))
        for half in (CHOOSING, MEASURING):
            rows = measured_by_name["half"] == half
            self.hits[half] += hits[rows].sum(0)
            self.tokens[half] += tokens[rows].sum(0)
            self.sentences[half] += (tokens[rows] > 0).sum(0)
            for name, sums in self.by_block.items():
                sums[half] = sums[half] + measured_by_name[name][rows].sum(0)
        own_hits, own_tokens = (values[measured_by_name["half"] == MEASURING] for values in (hits, tokens))
        self.squares += np.stack([(own_hits**2).sum(0), (own_hits * own_tokens).sum(0), (own_tokens**2).sum(0)])

    def list_heads_with_both_halves(self, role_name: str) -> list[_HeadCandidate]:
        """Returns the heads that show the role in both halves."""
        number, heads = self.roles.index(role_name), []
        for index, head in enumerate(self.heads):
            column = index * len(self.roles) + number
            if self.sentences[CHOOSING, column] >= 1 and self.sentences[MEASURING, column] >= MIN_MEASURING:
                accuracy = float(self.hits[CHOOSING, column] / self.tokens[CHOOSING, column])
                heads.append(_HeadCandidate(accuracy, hashlib.sha256(str(head).encode()).hexdigest(), self, column))
        return heads

    def measure_on_measuring_half(self, head_role_column: int) -> BestHead:
        """Returns the accuracy on the measuring half of the head and role whose sums are in a column."""
        head, role = self.heads[head_role_column // len(self.roles)], head_role_column % len(self.roles)
        block = list(dict.fromkeys((head.stack, head.layer) for head in self.heads)).index((head.stack, head.layer))
        tokens, n = self.tokens[MEASURING, head_role_column], int(self.sentences[MEASURING, head_role_column])
        accuracy = self.hits[MEASURING, head_role_column] / tokens
        offsets = [sums[block, :, role] for sums in self.by_block["offsets"]]
        offset = int(offsets[CHOOSING].argmax())
        baseline = float(offsets[MEASURING][offset] / tokens)
        hits_squared, both, tokens_squared = self.squares[:, head_role_column]
        spread = max(0.0, hits_squared - 2 * accuracy * both + accuracy**2 * tokens_squared)
        stderr = float(np.sqrt(spread * n / (n - 1)) / tokens)
        compared = accuracy_interval_and_p_value(float(accuracy), stderr, n, baseline)
        return BestHead(
            role=self.roles[role],
            head=head,
            accuracy=float(accuracy),
            accuracy_low=compared.accuracy_low,
            accuracy_high=compared.accuracy_high,
            baseline=baseline,
            baseline_offset=offset - len(offsets[0]) // 2,
            p=compared.p_equal,
            chance=float(self.by_block["chance"][MEASURING][block, role] / tokens),
            n_sentences=n,
            n_tokens=int(tokens),
            n_choosing=int(self.sentences[CHOOSING, head_role_column]),
        )


class BaselineComparison(NamedTuple):
    """The 95 % interval of an accuracy, and the two-sided p-value that it equals a baseline."""

    accuracy_low: float
    accuracy_high: float
    p_equal: float


NO_SPREAD = 1e-9
"""A standard error of an accuracy below this is rounding of Σ(h − a t)²: all sentences agree."""


def accuracy_interval(accuracy: float, stderr: float, n_sentences: int, level: float = LEVEL) -> tuple[float, float]:
    """Returns the interval of an accuracy over sentences.

    Student's t with n − 1 degrees; where all sentences agree, the exact binomial over sentences (Clopper–Pearson).
    """
    from scipy import special

    tail = (1 - level) / 2
    if stderr > NO_SPREAD:
        reach = float(special.stdtrit(n_sentences - 1, 1 - tail)) * stderr
        return max(0.0, accuracy - reach), min(1.0, accuracy + reach)
    right = accuracy * n_sentences
    low = float(special.betaincinv(right, n_sentences - right + 1, tail)) if right > 0 else 0.0
    high = float(special.betaincinv(right + 1, n_sentences - right, 1 - tail)) if right < n_sentences else 1.0
    return low, high


def accuracy_interval_and_p_value(accuracy: float, stderr: float, n_sentences: int, baseline: float) -> BaselineComparison:
    """Returns the interval of an accuracy over sentences and its p-value against a baseline, both from one test."""
    from scipy import special

    interval = accuracy_interval(accuracy, stderr, n_sentences)
    if stderr > NO_SPREAD:
        return BaselineComparison(*interval, 2 * float(special.stdtr(n_sentences - 1, -abs(accuracy - baseline) / stderr)))
    right = accuracy * n_sentences
    above = float(special.betainc(right, n_sentences - right + 1, baseline)) if right > 0 else 1.0
    below = 1 - float(special.betainc(right + 1, n_sentences - right, baseline)) if right < n_sentences else 1.0
    return BaselineComparison(*interval, min(1.0, 2 * min(above, below)))


def find_best_head_of_each_role(totals_by_view: Sequence[HalfTotals]) -> tuple[BestHead, ...]:
    """Returns the best head of every role that occurs in enough sentences of both halves, in the order of the roles."""
    best_heads = []
    for role in dict.fromkeys(role for part in totals_by_view for role in part.roles):
        candidates = [candidate for part in totals_by_view if role in part.roles for candidate in part.list_heads_with_both_halves(role)]
        if candidates:
            best = max(candidates, key=lambda candidate: (candidate.accuracy, candidate.tie_breaker))
            best_heads.append(best.totals.measure_on_measuring_half(best.column))
    return tuple(best_heads)
