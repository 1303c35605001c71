"""The test of every head and role over sentences: H0 bias ≤ τ against bias > τ, one-sided t, permutation as a check, corrected over all."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from headcount.heads import Head
from headcount.roles._table import MARGIN, POSITIONAL, RoleScore
from headcount.stats import Totals, sign_flip


class RoleTotals:
    """What one view's sentences add up to, for heads × roles, flattened; `positional` are the roles that a fixed offset fulfils."""

    def __init__(self, heads: Sequence[Head], roles: Sequence[str], positional: Collection[str] = ()) -> None:
        self.heads, self.roles, self.positional = tuple(heads), tuple(roles), frozenset(positional)
        size = len(heads) * len(roles)
        self.bias, self.accuracy = Totals(size), Totals(size)
        self.tokens, self.maximum, self.sentences = np.zeros(size), np.zeros(size), np.zeros(size)
        self.offsets: np.ndarray | None = None

    def update(self, measured: Mapping[str, np.ndarray]) -> None:
        """Adds sentences, in order."""
        bias, hits, tokens, maximum = (measured[name].reshape(len(measured[name]), -1) for name in ("bias", "hits", "tokens", "maximum"))
        has = (tokens > 0).astype(float)
        self.bias.update(bias * has, has)
        self.accuracy.update(hits / np.maximum(tokens, 1), tokens)
        self.tokens += tokens.sum(0)
        self.maximum += (maximum * has).sum(0)
        self.sentences += has.sum(0)
        total = measured["offsets"].sum(0)
        self.offsets = total if self.offsets is None else self.offsets + total

    def tested(self) -> np.ndarray:
        """Which heads × roles have two sentences or more."""
        return self.sentences >= 2


@dataclass(frozen=True, slots=True)
class Tested:
    """Columns of the test, one entry for each head × role that has text enough."""

    place: np.ndarray
    bias: np.ndarray
    stderr: np.ndarray
    reach: np.ndarray
    p: np.ndarray
    p_permutation: np.ndarray
    accuracy: np.ndarray
    accuracy_reach: np.ndarray


def run_test(totals: RoleTotals, tau: float, *, level: float, seed: int) -> Tested:
    """The t-test of every head × role that was seen in two sentences or more, and its check by flipping signs of whole groups."""
    from scipy import special

    place = np.flatnonzero(totals.tested())
    if not len(place):
        return Tested(place, *(np.zeros(0) for _ in range(7)))
    samples = totals.bias.take(place).samples()
    bias, stderr = _chosen(totals.bias, place)
    n = totals.sentences[place]
    t = np.divide(bias - tau, stderr, out=np.where(bias > tau, np.inf, -np.inf), where=stderr > 0)
    wide = special.stdtrit(n - 1, (1 + level) / 2)
    flipped = sign_flip(samples.sums - tau * samples.weights, seed=seed, repeats=999, alternative="greater")
    accuracy, error = _chosen(totals.accuracy, place)
    return Tested(place, bias, stderr, wide * stderr, special.stdtr(n - 1, -t), flipped, accuracy, wide * error)


def _chosen(totals: Totals, place: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean and standard error where there is text; the others have none and are not asked."""
    part = totals.take(place)
    return part.mean(), part.stderr()


def rows_of(totals: RoleTotals, tested: Tested, q: np.ndarray, *, tau: float, alpha: float) -> list[RoleScore]:
    """One row for every head × role that was tested."""
    found = []
    baseline, offset = _baseline(totals)
    for i, place in enumerate(tested.place):
        head, role = totals.heads[place // len(totals.roles)], totals.roles[place % len(totals.roles)]
        n, maximum = totals.sentences[place], totals.maximum[place] / totals.sentences[place]
        bias, accuracy, base = tested.bias[i], tested.accuracy[i], baseline[place]
        deviation = tested.stderr[i] * np.sqrt(n)
        found.append(
            RoleScore(
                head=head,
                role=role,
                n_sentences=int(n),
                n_tokens=int(totals.tokens[place]),
                bias=float(bias),
                stderr=float(tested.stderr[i]),
                low=float(bias - tested.reach[i]),
                high=float(bias + tested.reach[i]),
                p=float(tested.p[i]),
                q=float(q[i]),
                p_permutation=float(tested.p_permutation[i]),
                effect=float((bias - tau) / deviation) if deviation > 0 else 0.0,
                maximum=float(maximum),
                normalised=float((bias - 1) / (maximum - 1)) if maximum > 1 else 0.0,
                accuracy=float(accuracy),
                accuracy_low=float(max(0.0, accuracy - tested.accuracy_reach[i])),
                accuracy_high=float(min(1.0, accuracy + tested.accuracy_reach[i])),
                baseline=float(base),
                baseline_offset=int(offset[place]),
                has_role=bool(q[i] <= alpha and bias > tau),
                by_argmax=bool(maximum > 1 and accuracy >= (POSITIONAL if role in totals.positional else base + MARGIN)),
            )
        )
    return found


def _baseline(totals: RoleTotals) -> tuple[np.ndarray, np.ndarray]:
    """The accuracy of always looking at the best fixed offset, and that offset, for every head × role: blocks may see different keys."""
    assert totals.offsets is not None
    blocks = list(dict.fromkeys((head.stack, head.layer) for head in totals.heads))
    of_head = [blocks.index((head.stack, head.layer)) for head in totals.heads]
    best, most = totals.offsets.argmax(1)[of_head].ravel(), totals.offsets.max(1)[of_head].ravel()
    return np.divide(most, totals.tokens, out=np.zeros_like(most), where=totals.tokens > 0), best - totals.offsets.shape[1] // 2
