"""The best head of a role is chosen on one half of the sentences and measured on the other."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy import stats

from headcount.behaviour.best_heads import HalfTotals, accuracy_interval_and_p_value, find_best_head_of_each_role, half_of_example
from headcount.core.errors import HeadcountError
from headcount.core.heads import Head
from headcount.core.role_table import RoleTable

HEADS = [Head("", layer, index) for layer in range(2) for index in range(3)]


def totals(hits: np.ndarray, tokens: np.ndarray, half: np.ndarray, offsets: np.ndarray | None = None) -> HalfTotals:
    """Halves of hits and tokens [sentences, heads, roles]; `offsets` [sentences, 33, roles] are the same in both layers."""
    n, _, roles = hits.shape
    half_totals = HalfTotals(HEADS, [f"role:{r}" for r in range(roles)])
    by_block = np.zeros((n, 33, roles)) if offsets is None else offsets
    half_totals.add_sentences(
        {"hits": hits, "tokens": tokens, "half": half, "offsets": np.stack([by_block, by_block], 1), "chance": np.zeros((n, 2, roles))}
    )
    return half_totals


def test_accuracy_decides_and_the_other_half_tells_it() -> None:
    """L1H0 is the most accurate on the choosing half; what it has on the other half is shown, however much better others are there."""
    half = np.arange(40) % 2
    hits = np.zeros((40, 6, 1))
    hits[half == 0, 3] = 9
    hits[half == 1, 3] = np.tile([[4], [6]], (10, 1))
    hits[half == 1, 5] = 10
    offsets = np.zeros((40, 33, 1))
    offsets[half == 0, 15] = 3  # the best fixed offset of the choosing half is −1 …
    offsets[half == 1, 15], offsets[half == 1, 17] = 2, 8  # … and of the other half its accuracy is shown, not that of +1
    (best,) = find_best_head_of_each_role([totals(hits, np.full(hits.shape, 10.0), half, offsets)])
    assert (str(best.head), best.accuracy, best.n_sentences, best.n_tokens, best.n_choosing) == ("L1H0", 0.5, 20, 200, 20)
    assert (best.baseline, best.baseline_offset) == (0.2, -1)
    oracle = stats.ttest_1samp(hits[half == 1, 3, 0] / 10, 0.2)
    low, high = oracle.confidence_interval(0.95)
    assert (best.accuracy_low, best.accuracy_high) == pytest.approx((low, high)) and best.p == pytest.approx(oracle.pvalue)


def test_noise_does_not_flatter() -> None:
    """Among 6 heads that all are right by a coin, the best one is right by a coin on sentences that did not choose it."""
    rng = np.random.default_rng(0)
    actual = []
    for _ in range(200):
        hits = rng.binomial(1, 0.5, size=(40, 6, 1)).astype(float)
        actual.append(find_best_head_of_each_role([totals(hits, np.ones(hits.shape), rng.integers(0, 2, 40))])[0].accuracy)
    assert abs(np.mean(actual) - 0.5) < 4 * 0.5 / np.sqrt(200 * 20), "chosen and measured on the same sentences it would be 0.6"


@pytest.mark.parametrize("accuracy", [0.0, 1.0, 0.5])
def test_without_spread_interval_and_p_are_of_one_exact_test(accuracy: float) -> None:
    low, high, _ = accuracy_interval_and_p_value(accuracy, 0.0, 12, 0.3)
    exact = stats.binomtest(int(12 * accuracy), 12).proportion_ci(0.95, "exact")
    assert (low, high) == pytest.approx((exact.low, exact.high))
    for end in {low, high} - {0.0, 1.0}:
        assert accuracy_interval_and_p_value(accuracy, 0.0, 12, end)[2] == pytest.approx(0.05)


def test_halves_go_by_content() -> None:
    sentences: list[Any] = [tuple(range(i, i + 5)) for i in range(400)]
    halves = [half_of_example(sentence) for sentence in sentences]
    assert 150 < sum(halves) < 250 and [half_of_example(sentence) for sentence in reversed(sentences)] == halves[::-1]


def test_too_few_sentences_have_no_best_head() -> None:
    hits = np.ones((6, 6, 2))
    tokens = np.ones(hits.shape)
    tokens[1:, :, 1] = 0  # the second role is shown by one sentence
    best = find_best_head_of_each_role([totals(hits, tokens, np.arange(6) % 2)])
    assert [one.role for one in best] == ["role:0"]
    with pytest.raises(HeadcountError, match="no role of this table 'role:9'"):
        RoleTable((), ()).best("role:9")
