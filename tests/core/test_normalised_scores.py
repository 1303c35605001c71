"""Normalised scores: their values, and standard errors that know that norm, mean and deviation come from the same examples."""

from __future__ import annotations

import numpy as np
import pytest

from headcount.core.heads import Head
from headcount.core.normalisation import Scaling
from headcount.core.scores import Scores
from headcount.core.stats.samples import Samples

N = 250


def scores(weighted: bool) -> Scores:
    """Scores of three blocks of four heads; examples share a factor, so that the heads of a block move together."""
    random = np.random.default_rng(3)
    factor = random.gamma(4.0, 0.25, (N, 1))
    values = factor * random.gamma(2.0, 0.5, (N, 12)) * np.linspace(0.5, 3.0, 12)
    weights = random.integers(1, 9, (N, 1)).astype(float) if weighted else np.ones((N, 1))
    samples = Samples.of(values, weights)
    heads = tuple(Head.parse(f"L{layer}H{index}") for layer in range(3) for index in range(4))
    return Scores(heads, tuple(samples.means().tolist()), "toy", stderr=tuple(samples.stderr().tolist()), n_examples=N, samples=samples)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("how", ["layer", "global", "standard"])
def test_standard_errors_are_those_of_the_bootstrap(how: Scaling, weighted: bool) -> None:
    raw = scores(weighted)
    made = raw.normalise_by(how)
    scaled = made.scaled_samples()
    assert scaled is not None
    np.testing.assert_allclose(scaled.means(), made.values, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(made.stderr, scaled.stderr(), rtol=1e-12)
    sample = made.replicates(4000, seed=1).std(0)
    np.testing.assert_allclose(made.stderr, sample, rtol=0.12)
    known = np.asarray(raw.stderr) * np.asarray(made.values) / np.asarray(raw.values)  # as if the norm were known
    assert how == "standard" or (np.asarray(made.stderr) < 0.9 * known).any()


def test_scores_are_normalised_once() -> None:
    raw = scores(False)
    assert raw.normalise_by("none") is raw and raw.scaled_samples() is raw.samples
    with pytest.raises(ValueError, match="divided by the ℓ2 norm of all already; score again"):
        raw.normalise_by("global").normalise_by("layer")


def test_blocks_without_spread_stay_finite() -> None:
    heads = tuple(Head.parse(f"L{layer}H{index}") for layer in range(2) for index in range(2))
    flat = Scores(heads, (0.0, 0.0, 2.0, 2.0))
    assert flat.normalise_by("layer").values[:2] == (0.0, 0.0) and flat.normalise_by("standard").values == (0.0,) * 4
