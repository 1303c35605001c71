"""The numbers of every head and role over sentences: bias, interval and p-value, permutation as a check. Definitions turn them into labels."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Shaped

from headcount.behaviour.best_heads import HalfTotals, accuracy_interval
from headcount.behaviour.bias_test import bias_above_tau_p_values
from headcount.core.definition import TAU
from headcount.core.heads import Head
from headcount.core.role_table import MARGIN, POSITIONAL_ACCURACY, RoleScore
from headcount.core.stats.hall import Skewness, inverse_hall_transform
from headcount.core.stats.significance import sign_flip_p_value
from headcount.core.stats.totals import Totals


class RoleTotals:
    """Sums over the sentences of one view, for heads × roles, flattened: column h · n_roles + r is head h and role r.

    `positional` are the roles that a fixed offset fulfils; `legacy` roles are weighted by entropy.
    """

    def __init__(self, heads: Sequence[Head], roles: Sequence[str], positional: Collection[str] = (), legacy: Collection[str] = ()) -> None:
        self.heads, self.roles, self.positional, self.legacy = tuple(heads), tuple(roles), frozenset(positional), frozenset(legacy)
        size = len(heads) * len(roles)
        self.bias, self.accuracy, self.skewness = Totals(size), Totals(size), Skewness(size)
        self.tokens, self.maximum, self.sentences = np.zeros(size), np.zeros(size), np.zeros(size)
        self.by_block: dict[str, np.ndarray] = {}
        self.halves = HalfTotals(heads, roles)

    def add_sentences(self, measured_by_name: Mapping[str, np.ndarray]) -> None:
        """Adds sentences, in order."""
        bias, hits, tokens, maximum = (
            measured_by_name[name].reshape(len(measured_by_name[name]), -1) for name in ("bias", "hits", "tokens", "maximum")
        )
        shows_role = (tokens > 0).astype(float)
        self.bias.update(bias * shows_role, shows_role)
        self.skewness.update(bias, shows_role)
        self.accuracy.update(hits / np.maximum(tokens, 1), tokens)
        self.tokens += tokens.sum(0)
        self.maximum += (maximum * shows_role).sum(0)
        self.sentences += shows_role.sum(0)
        for name in ("offsets", "chance", "level"):
            self.by_block[name] = self.by_block.get(name, 0) + measured_by_name[name].sum(0)
        self.halves.add_sentences(measured_by_name)

    def expand_blocks_to_heads(self, block_values: Shaped[np.ndarray, "blocks roles"]) -> Shaped[np.ndarray, " heads_roles"]:
        """Returns values [blocks, roles] for every head × role: the masks of blocks may differ."""
        blocks = list(dict.fromkeys((head.stack, head.layer) for head in self.heads))
        return block_values[[blocks.index((head.stack, head.layer)) for head in self.heads]].ravel()


@dataclass(frozen=True, slots=True)
class RoleTestResults:
    """Results of the test, one entry for each head × role with two sentences or more.

    `columns` are the columns of `RoleTotals`; `accuracy_ends` are the ends of the intervals of the accuracies.
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
    accuracy_ends: np.ndarray
    skewness: np.ndarray


def run_bias_test(totals: RoleTotals, tau: float, *, level: float, seed: int) -> RoleTestResults:
    """Returns the test of every head × role with two sentences or more, and its check by flipping signs of whole groups."""
    from scipy import special

    columns = np.flatnonzero(totals.sentences >= 2)
    if not len(columns):
        empty = np.zeros(0)
        return RoleTestResults(columns, *[empty] * 10)
    part, accuracies = totals.bias.take(columns), totals.accuracy.take(columns)
    samples, bias, stderr = part.samples(), part.mean(), part.stderr()
    n, skewness = totals.sentences[columns], totals.skewness.value()[columns]
    quantile = special.stdtrit(n - 1, (1 + level) / 2)
    flipped = sign_flip_p_value(samples.sums - tau * samples.weights, seed=seed, repeats=999, alternative="greater")
    p = bias_above_tau_p_values(bias, stderr, n, skewness, tau)
    half = np.where(stderr > 0, 0.5, 1.0)
    low = np.minimum(bias - stderr * inverse_hall_transform(quantile, n, skewness), bias * ((1 - level) / 2 / half) ** (1 / n))
    high = bias - stderr * inverse_hall_transform(-quantile, n, skewness)
    accuracy_ends = [
        accuracy_interval(accuracy, error, int(number), level)
        for accuracy, error, number in zip(accuracies.mean().tolist(), accuracies.stderr().tolist(), n, strict=True)
    ]
    return RoleTestResults(
        columns,
        bias,
        stderr,
        low,
        high,
        p.skewness_corrected,
        p.plain_t,
        flipped,
        accuracies.mean(),
        np.array(accuracy_ends),
        skewness,
    )


def score_roles(totals: Sequence[RoleTotals], tau: float = TAU, *, level: float = 0.95, seed: int = 0) -> list[RoleScore]:
    """Returns one row for every head × role with two sentences or more, without labels and correction: these are a definition's."""
    return [row for total in totals for row in build_role_scores(total, run_bias_test(total, tau, level=level, seed=seed), tau)]


def build_role_scores(totals: RoleTotals, test_results: RoleTestResults, tau: float) -> list[RoleScore]:
    """Returns one row for every head × role that was tested, without a label: q is 1."""
    rows = []
    offsets = totals.by_block["offsets"]
    best_offset = totals.expand_blocks_to_heads(offsets.argmax(1)) - offsets.shape[1] // 2
    baseline, chance = (
        np.divide(counts, totals.tokens, out=np.zeros_like(counts), where=totals.tokens > 0)
        for counts in (totals.expand_blocks_to_heads(offsets.max(1)), totals.expand_blocks_to_heads(totals.by_block["chance"]))
    )
    level = totals.expand_blocks_to_heads(totals.by_block["level"]) / np.maximum(totals.sentences, 1)
    for i, column in enumerate(test_results.columns):
        head, role = totals.heads[column // len(totals.roles)], totals.roles[column % len(totals.roles)]
        n, maximum, uniform = totals.sentences[column], totals.maximum[column] / totals.sentences[column], level[column]
        bias, accuracy = test_results.bias[i], test_results.accuracy[i]
        is_positional, by_chance = role in totals.positional, chance[column]
        threshold = max(POSITIONAL_ACCURACY, by_chance + MARGIN) if is_positional else max(baseline[column], by_chance) + MARGIN
        deviation = test_results.stderr[i] * np.sqrt(n)
        rows.append(
            RoleScore(
                head=head,
                role=role,
                n_sentences=int(n),
                n_tokens=int(totals.tokens[column]),
                bias=float(bias),
                stderr=float(test_results.stderr[i]),
                low=float(test_results.low[i]),
                high=float(test_results.high[i]),
                p=float(test_results.p[i]),
                q=1.0,
                p_permutation=float(test_results.p_permutation[i]),
                effect=float((bias - tau) / deviation) if deviation > 0 else 0.0,
                maximum=float(maximum),
                normalised=float((bias - uniform) / (maximum - uniform)) if maximum > uniform else 0.0,
                accuracy=float(accuracy),
                accuracy_low=float(test_results.accuracy_ends[i, 0]),
                accuracy_high=float(test_results.accuracy_ends[i, 1]),
                baseline=float(baseline[column]),
                baseline_offset=int(best_offset[column]),
                has_role=False,
                by_argmax=bool(maximum > uniform and role not in totals.legacy and accuracy >= threshold),
                p_t=float(test_results.p_t[i]),
                chance=float(by_chance),
                attainable=bool(maximum > tau),
                note="",
                uniform=float(uniform),
                skewness=float(test_results.skewness[i]),
                is_legacy=role in totals.legacy,
            )
        )
    return rows
