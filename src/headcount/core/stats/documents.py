"""Examples of one document counted as one: sums by document, and the values whose spread is that of a mean over documents."""

from __future__ import annotations

import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray

from headcount.core.errors import StatisticsError
from headcount.core.stats.samples import Array

Documents = NDArray[np.int64] | None
"""The document of each example, by number; None where the data name none."""


def sum_by_document(parts: Float[np.ndarray, "examples parts"], documents: NDArray[np.int64]) -> Float[np.ndarray, "documents parts"]:
    """Returns the sums of parts [examples, parts] over every document."""
    if len(documents) != len(parts):
        raise StatisticsError(f"documents must name one for each of {len(parts)} examples, got {len(documents)}")
    _, numbers = np.unique(documents, return_inverse=True)
    sums = np.zeros((int(numbers.max()) + 1, parts.shape[1]))
    np.add.at(sums, numbers, parts)
    return sums


def pseudovalues_by_document(values: Array, documents: Documents) -> Array:
    """Returns one value per document, whose mean is that over examples and whose spread is that of a ratio of sums over documents.

    A document of n_d examples gives v̄ + (Σ v − n_d v̄) / n̄. Without documents the values are returned as they are.
    """
    if documents is None:
        return values
    mean = values.mean()
    gaps = sum_by_document(values[:, None] - mean, documents)[:, 0]
    return mean + gaps * len(gaps) / len(values)
