"""Random numbers for tests of statistics, and heads of known means."""

from __future__ import annotations

import numpy as np

from headcount.core.stats.samples import Samples


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.Generator(np.random.Philox(seed))


def planted(examples: int, means: list[float] | np.ndarray, noise: float, seed: int = 0) -> Samples:
    means = np.asarray(means)
    return Samples.of(means + noise * rng(seed).normal(size=(examples, len(means))))
