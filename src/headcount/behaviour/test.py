"""The test of every head and role over sentences: H0 bias ≤ τ against bias > τ, one-sided, mended for skewness, permutation as a check.

    p = max( t-test by Hall's transform,  c (τ / bias)ⁿ ),   c = ½, or 1 where all sentences have the same bias

The first mends the t-test, which rejects too often where scores lean left. The second is what no test over n sentences can go below: a bias can be 0,
and so many sentences with 0 that the true mean is only τ are all missed by n draws with probability (τ / bias)ⁿ, half of the time below this mean.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from headcount.behaviour.best_heads import HalfTotals
from headcount.core.heads import Head
from headcount.core.role_table import LEAST, MARGIN, POSITIONAL, RoleScore
from headcount.core.stats.hall import Skewness, hall_transform, inverse_hall_transform
from headcount.core.stats.significance import sign_flip
from headcount.core.stats.totals import Totals


class RoleTotals:
    """What one view's sentences add up to, for heads × roles, flattened; `positional` are the roles that a fixed offset fulfils.

    `legacy` roles are weighted by entropy, and never a label.
    """

    def __init__(self, heads: Sequence[Head], roles: Sequence[str], positional: Collection[str] = (), legacy: Collection[str] = ()) -> None:
        self.heads, self.roles, self.positional, self.legacy = tuple(heads), tuple(roles), frozenset(positional), frozenset(legacy)
        size = len(heads) * len(roles)
        self.bias, self.accuracy, self.skewness = Totals(size), Totals(size), Skewness(size)
        self.tokens, self.maximum, self.sentences = np.zeros(size), np.zeros(size), np.zeros(size)
        self.by_block: dict[str, np.ndarray] = {}
        self.halves = HalfTotals(heads, roles)

    def update(self, measured: Mapping[str, np.ndarray]) -> None:
        """Adds sentences, in order."""
        bias, hits, tokens, maximum = (measured[name].reshape(len(measured[name]), -1) for name in ("bias", "hits", "tokens", "maximum"))
        has = (tokens > 0).astype(float)
        self.bias.update(bias * has, has)
        self.skewness.update(bias, has)
        self.accuracy.update(hits / np.maximum(tokens, 1), tokens)
        self.tokens += tokens.sum(0)
        self.maximum += (maximum * has).sum(0)
        self.sentences += has.sum(0)
        for name in ("offsets", "chance", "level"):
            self.by_block[name] = self.by_block.get(name, 0) + measured[name].sum(0)
        self.halves.update(measured)

    def tested(self) -> np.ndarray:
        """Which heads × roles have two sentences or more."""
        return self.sentences >= 2

    def of_block(self, values: np.ndarray) -> np.ndarray:
        """Values [blocks, roles] for every head × role: blocks may see different keys."""
        blocks = list(dict.fromkeys((head.stack, head.layer) for head in self.heads))
        return values[[blocks.index((head.stack, head.layer)) for head in self.heads]].ravel()


@dataclass(frozen=True, slots=True)
class Tested:
    """Columns of the test, one entry for each head × role that has text enough; `notes` say why some can have no label."""

    place: np.ndarray
    bias: np.ndarray
    stderr: np.ndarray
    low: np.ndarray
    high: np.ndarray
    p: np.ndarray
    p_t: np.ndarray
    p_permutation: np.ndarray
    accuracy: np.ndarray
    accuracy_reach: np.ndarray
    notes: tuple[str, ...] = ()


def run_test(totals: RoleTotals, tau: float, *, level: float, seed: int) -> Tested:
    """The test of every head × role that was seen in two sentences or more, and its check by flipping signs of whole groups."""
    from scipy import special

    place = np.flatnonzero(totals.tested())
    if not len(place):
        nothing = np.zeros(0)
        return Tested(place, nothing, nothing, nothing, nothing, nothing, nothing, nothing, nothing, nothing)
    samples = totals.bias.take(place).samples()
    bias, stderr = _chosen(totals.bias, place)
    n, lean = totals.sentences[place], totals.skewness.value()[place]
    wide = special.stdtrit(n - 1, (1 + level) / 2)
    flipped = sign_flip(samples.sums - tau * samples.weights, seed=seed, repeats=999, alternative="greater")
    accuracy, error = _chosen(totals.accuracy, place)
    p, p_t = p_values(bias, stderr, n, lean, tau)
    missed = np.where(stderr > 0, 0.5, 1.0)
    low = np.minimum(bias - stderr * inverse_hall_transform(wide, n, lean), bias * ((1 - level) / 2 / missed) ** (1 / n))
    high = bias - stderr * inverse_hall_transform(-wide, n, lean)
    notes = tuple(_note(totals, i, tau) for i in place.tolist())
    return Tested(place, bias, stderr, low, high, p, p_t, flipped, accuracy, wide * error, notes)


def p_values(bias: np.ndarray, stderr: np.ndarray, n: np.ndarray, lean: np.ndarray, tau: float) -> tuple[np.ndarray, np.ndarray]:
    """The p-value of bias ≤ τ as above, and that of the plain t-test."""
    from scipy import special

    spread = stderr > 0
    t = np.divide(bias - tau, stderr, out=np.where(bias > tau, np.inf, -np.inf), where=spread)
    straight = np.where(spread, hall_transform(np.where(spread, t, 0.0), n, lean), t)
    rest = np.divide(tau, bias, out=np.ones_like(bias), where=bias > tau)
    missed = np.where(spread, 0.5, 1.0) * rest**n
    return np.maximum(special.stdtr(n - 1, -straight), missed), special.stdtr(n - 1, -t)


def _chosen(totals: Totals, place: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean and standard error where there is text; the others have none and are not asked."""
    part = totals.take(place)
    return part.mean(), part.stderr()


def _note(totals: RoleTotals, place: int, tau: float) -> str:
    """Why a head × role can have no label, whatever its bias; empty where it can."""
    n, most = totals.sentences[place], totals.maximum[place] / totals.sentences[place]
    if totals.roles[place % len(totals.roles)] in totals.legacy:
        return "legacy: reported, never a label"
    if n < LEAST:
        return f"{n:.0f} sentences; a label needs {LEAST}"
    return "" if most > tau else f"attention reaches {most:.3g} at most; a label needs more than {tau:g}"


def rows_of(totals: RoleTotals, tested: Tested, q: np.ndarray, *, tau: float, alpha: float) -> list[RoleScore]:
    """One row for every head × role that was tested."""
    found = []
    baseline, offset = _baseline(totals)
    chance = np.divide(totals.of_block(totals.by_block["chance"]), totals.tokens, out=np.zeros_like(baseline), where=totals.tokens > 0)
    level = totals.of_block(totals.by_block["level"]) / np.maximum(totals.sentences, 1)
    for i, place in enumerate(tested.place):
        head, role = totals.heads[place // len(totals.roles)], totals.roles[place % len(totals.roles)]
        n, maximum, even = totals.sentences[place], totals.maximum[place] / totals.sentences[place], level[place]
        bias, accuracy = tested.bias[i], tested.accuracy[i]
        bar = max(POSITIONAL, chance[place] + MARGIN) if role in totals.positional else max(baseline[place], chance[place]) + MARGIN
        deviation = tested.stderr[i] * np.sqrt(n)
        found.append(
            RoleScore(
                head=head,
                role=role,
                n_sentences=int(n),
                n_tokens=int(totals.tokens[place]),
                bias=float(bias),
                stderr=float(tested.stderr[i]),
                low=float(tested.low[i]),
                high=float(tested.high[i]),
                p=float(tested.p[i]),
                q=float(q[i]),
                p_permutation=float(tested.p_permutation[i]),
                effect=float((bias - tau) / deviation) if deviation > 0 else 0.0,
                maximum=float(maximum),
                normalised=float((bias - even) / (maximum - even)) if maximum > even else 0.0,
                accuracy=float(accuracy),
                accuracy_low=float(max(0.0, accuracy - tested.accuracy_reach[i])),
                accuracy_high=float(min(1.0, accuracy + tested.accuracy_reach[i])),
                baseline=float(baseline[place]),
                baseline_offset=int(offset[place]),
                has_role=bool(not tested.notes[i] and q[i] <= alpha and bias > tau),
                by_argmax=bool(maximum > even and role not in totals.legacy and accuracy >= bar),
                p_t=float(tested.p_t[i]),
                chance=float(chance[place]),
                attainable=bool(maximum > tau),
                note=tested.notes[i],
            )
        )
    return found


def _baseline(totals: RoleTotals) -> tuple[np.ndarray, np.ndarray]:
    """The accuracy of always looking at the best fixed offset, and that offset, for every head × role."""
    offsets = totals.by_block["offsets"]
    best, most = totals.of_block(offsets.argmax(1)), totals.of_block(offsets.max(1))
    return np.divide(most, totals.tokens, out=np.zeros_like(most), where=totals.tokens > 0), best - offsets.shape[1] // 2
