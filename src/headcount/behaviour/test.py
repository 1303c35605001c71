"""The test of every head and role over sentences: H0 bias ≤ τ against bias > τ, one-sided, corrected for skewness, permutation as a check.

    p = max( t-test by Hall's transform,  c (τ / bias)ⁿ ),   c = ½, or 1 where all sentences have the same bias

The first corrects the t-test, which rejects too often where scores are skewed to the left. The second is a lower bound for any test over n
sentences: a bias can be 0, and if the true mean is only τ because a share of the sentences has 0, n draws miss all of these with probability
(τ / bias)ⁿ, half of the time below this mean.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from headcount.behaviour.best_heads import HalfTotals
from headcount.behaviour.spec import RoleSpec
from headcount.core.heads import Head
from headcount.core.role_table import MARGIN, MIN_SENTENCES, POSITIONAL_ACCURACY, RoleScore
from headcount.core.stats.hall import Skewness, hall_transform, inverse_hall_transform
from headcount.core.stats.significance import adjust, sign_flip
from headcount.core.stats.totals import Totals


class RoleTotals:
    """Sums over the sentences of one view, for heads × roles, flattened: column h · n_roles + r is head h and role r.

    `positional` are the roles that a fixed offset fulfils; `legacy` roles are weighted by entropy, and never a label.
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
        shows_role = (tokens > 0).astype(float)
        self.bias.update(bias * shows_role, shows_role)
        self.skewness.update(bias, shows_role)
        self.accuracy.update(hits / np.maximum(tokens, 1), tokens)
        self.tokens += tokens.sum(0)
        self.maximum += (maximum * shows_role).sum(0)
        self.sentences += shows_role.sum(0)
        for name in ("offsets", "chance", "level"):
            self.by_block[name] = self.by_block.get(name, 0) + measured[name].sum(0)
        self.halves.update(measured)

    def expand_blocks(self, values: np.ndarray) -> np.ndarray:
        """Returns values [blocks, roles] for every head × role: the masks of blocks may differ."""
        blocks = list(dict.fromkeys((head.stack, head.layer) for head in self.heads))
        return values[[blocks.index((head.stack, head.layer)) for head in self.heads]].ravel()


@dataclass(frozen=True, slots=True)
class RoleTestResults:
    """Results of the test, one entry for each head × role with two sentences or more.

    `columns` are the columns of `RoleTotals`; `accuracy_reach` is half the width of the interval; `notes` say why some can have no label.
    """

    columns: np.ndarray
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


def run_test(totals: RoleTotals, tau: float, *, level: float, seed: int) -> RoleTestResults:
    """Returns the test of every head × role with two sentences or more, and its check by flipping signs of whole groups."""
    from scipy import special

    columns = np.flatnonzero(totals.sentences >= 2)
    if not len(columns):
        empty = np.zeros(0)
        return RoleTestResults(columns, empty, empty, empty, empty, empty, empty, empty, empty, empty)
    part, accuracies = totals.bias.take(columns), totals.accuracy.take(columns)
    samples, bias, stderr = part.samples(), part.mean(), part.stderr()
    n, skewness = totals.sentences[columns], totals.skewness.value()[columns]
    quantile = special.stdtrit(n - 1, (1 + level) / 2)
    flipped = sign_flip(samples.sums - tau * samples.weights, seed=seed, repeats=999, alternative="greater")
    p, p_t = p_values(bias, stderr, n, skewness, tau)
    half = np.where(stderr > 0, 0.5, 1.0)
    low = np.minimum(bias - stderr * inverse_hall_transform(quantile, n, skewness), bias * ((1 - level) / 2 / half) ** (1 / n))
    high = bias - stderr * inverse_hall_transform(-quantile, n, skewness)
    notes = tuple(_label_obstacle(totals, column, tau) for column in columns.tolist())
    return RoleTestResults(columns, bias, stderr, low, high, p, p_t, flipped, accuracies.mean(), quantile * accuracies.stderr(), notes)


def p_values(bias: np.ndarray, stderr: np.ndarray, n: np.ndarray, skewness: np.ndarray, tau: float) -> tuple[np.ndarray, np.ndarray]:
    """Returns the p-value of bias ≤ τ as above, and that of the plain t-test."""
    from scipy import special

    varies = stderr > 0
    t = np.divide(bias - tau, stderr, out=np.where(bias > tau, np.inf, -np.inf), where=varies)
    corrected_t = np.where(varies, hall_transform(np.where(varies, t, 0.0), n, skewness), t)
    ratio = np.divide(tau, bias, out=np.ones_like(bias), where=bias > tau)
    bound = np.where(varies, 0.5, 1.0) * ratio**n
    return np.maximum(special.stdtr(n - 1, -corrected_t), bound), special.stdtr(n - 1, -t)


def _label_obstacle(totals: RoleTotals, column: int, tau: float) -> str:
    """Returns why a head × role can have no label, whatever its bias; empty if it can."""
    n, maximum = totals.sentences[column], totals.maximum[column] / totals.sentences[column]
    if totals.roles[column % len(totals.roles)] in totals.legacy:
        return "legacy: reported, never a label"
    if n < MIN_SENTENCES:
        return f"{n:.0f} sentences; a label needs {MIN_SENTENCES}"
    return "" if maximum > tau else f"attention reaches {maximum:.3g} at most; a label needs more than {tau:g}"


def score_roles(totals: Sequence[RoleTotals], spec: RoleSpec) -> list[RoleScore]:
    """Returns all rows. The p-values of those that can have a label are corrected together; the q of the others is 1, whatever their p."""
    tested = [run_test(total, spec.tau, level=spec.level, seed=spec.seed) for total in totals]
    p = np.concatenate([np.zeros(0), *(test.p for test in tested)])
    can_be_label = np.array([not note for test in tested for note in test.notes], dtype=bool)
    q = np.ones_like(p)
    if can_be_label.any():
        q[can_be_label] = adjust(p[can_be_label], spec.correct)
    rows, start = [], 0
    for total, test in zip(totals, tested, strict=True):
        rows += build_rows(total, test, q[start : start + len(test.p)], tau=spec.tau, alpha=spec.alpha)
        start += len(test.p)
    return rows


def build_rows(totals: RoleTotals, tested: RoleTestResults, q: np.ndarray, *, tau: float, alpha: float) -> list[RoleScore]:
    """Returns one row for every head × role that was tested."""
    rows = []
    offsets = totals.by_block["offsets"]
    best_offset = totals.expand_blocks(offsets.argmax(1)) - offsets.shape[1] // 2
    baseline, chance = (
        np.divide(counts, totals.tokens, out=np.zeros_like(counts), where=totals.tokens > 0)
        for counts in (totals.expand_blocks(offsets.max(1)), totals.expand_blocks(totals.by_block["chance"]))
    )
    level = totals.expand_blocks(totals.by_block["level"]) / np.maximum(totals.sentences, 1)
    for i, column in enumerate(tested.columns):
        head, role = totals.heads[column // len(totals.roles)], totals.roles[column % len(totals.roles)]
        n, maximum, uniform = totals.sentences[column], totals.maximum[column] / totals.sentences[column], level[column]
        bias, accuracy = tested.bias[i], tested.accuracy[i]
        is_positional, by_chance = role in totals.positional, chance[column]
        threshold = max(POSITIONAL_ACCURACY, by_chance + MARGIN) if is_positional else max(baseline[column], by_chance) + MARGIN
        deviation = tested.stderr[i] * np.sqrt(n)
        rows.append(
            RoleScore(
                head=head,
                role=role,
                n_sentences=int(n),
                n_tokens=int(totals.tokens[column]),
                bias=float(bias),
                stderr=float(tested.stderr[i]),
                low=float(tested.low[i]),
                high=float(tested.high[i]),
                p=float(tested.p[i]),
                q=float(q[i]),
                p_permutation=float(tested.p_permutation[i]),
                effect=float((bias - tau) / deviation) if deviation > 0 else 0.0,
                maximum=float(maximum),
                normalised=float((bias - uniform) / (maximum - uniform)) if maximum > uniform else 0.0,
                accuracy=float(accuracy),
                accuracy_low=float(max(0.0, accuracy - tested.accuracy_reach[i])),
                accuracy_high=float(min(1.0, accuracy + tested.accuracy_reach[i])),
                baseline=float(baseline[column]),
                baseline_offset=int(best_offset[column]),
                has_role=bool(not tested.notes[i] and q[i] <= alpha and bias > tau),
                by_argmax=bool(maximum > uniform and role not in totals.legacy and accuracy >= threshold),
                p_t=float(tested.p_t[i]),
                chance=float(by_chance),
                attainable=bool(maximum > tau),
                note=tested.notes[i],
            )
        )
    return rows
